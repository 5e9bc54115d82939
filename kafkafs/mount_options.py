"""Mount options: what `-o` of `kafkafs mount`, mount(8) and fstab accepts.

`-o name,name=value,…` may be repeated; the last value of a name counts. Unknown names and invalid
values are errors. `OPTIONS` describes each option once, for parsing, for `--help`, for manual pages
and for `docs/reference/mount-options.md`.

mount(8) passes the options that it does not use itself: those of a mount (`nosuid`, `noatime`), of
fstab (`nofail`, `_netdev`, `user`), and ours. Those of fstab are accepted and have no effect here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple

from storage.units import size_bytes

#: Extended attributes of a mount's root: the daemon's process id; the device and the inode of the
#: data directory, as `DEVICE:INODE`; and, as JSON, the process id (`pid`), the path of the data
#: directory (`data`) and the mount options (`options`).
PID_ATTRIBUTE = "user.kafkafs.pid"
DIRECTORY_ATTRIBUTE = "user.kafkafs.directory"
MOUNT_ATTRIBUTE = "user.kafkafs.mount"
#: The kernel's read-ahead, where the daemon may set it: with the kernel's own of 128 KiB reads lose
#: a third.
READ_AHEAD_KIB = 1024


class InvalidMountOption(ValueError):  # noqa: N818 - as the storage names its errors
    """An unknown mount option, or an invalid value of one."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How a data directory is mounted; `OPTIONS` says what each field means."""

    read_only: bool = False
    until: str = "log-end"
    isolation: str = "read_committed"
    out_of_range: str = "reset"
    follow_gaps: str = "newlines"
    allow_other: bool = False
    allow_root: bool = False
    setuid: str | None = None
    create: bool = False
    nonempty: bool = False
    memory: int = 64 << 20
    show_dot: bool = False
    show_internal: bool = False
    uid: int | None = None
    gid: int | None = None
    umask: int = 0
    exec: bool = True
    suid: bool = False
    dev: bool = False
    atime: bool = True


class MountOption(NamedTuple):
    """One word of `-o`: a flag, or a name with a value."""

    name: str
    meaning: str
    """One sentence, for people."""
    field: str
    """Of `MountOptions`."""
    setting: Any = None
    """The value of the field that a flag sets."""
    value: str = ""
    """A word for the value in descriptions; empty: a flag."""
    parse: Callable[[str], Any] = str
    """The value's text as the field's value. ValueError."""
    valid: str = ""
    """Words for valid values."""

    @property
    def synopsis(self) -> str:
        """How it is written."""
        return f"{self.name}={self.value}" if self.value else self.name


def _number(base: int, limit: int, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text, base) > limit:
        raise ValueError
    return int(text, base)


def _bytes(text: str) -> int:
    """A size from 1 MiB to 1 PiB."""
    size = size_bytes(text)
    if not 1 << 20 <= size <= 1 << 50:
        raise ValueError
    return size


def _one_of(texts: Container[str], text: str) -> str:
    if text not in texts:
        raise ValueError
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError
    return text


def _choice(name: str, values: tuple[str, str], meaning: str) -> MountOption:
    """An option with one of two values. The first one is the default."""
    shown, valid = "|".join(values), " or ".join(values)
    return MountOption(name, meaning, name, None, shown, partial(_one_of, values), valid)


_BYTES = "1MiB or more: a number of bytes, or a size such as 512MiB"

#: All options that have an effect, in the order of descriptions. 2^32-1 is no user.
OPTIONS = (
    MountOption(
        "ro",
        "Write nothing into the data directory and take no lock. A running broker can use the "
        "directory at the same time.",
        "read_only",
        True,
    ),
    MountOption("rw", "Mount read-write. This is the default.", "read_only", False),
    _choice(
        "until",
        ("log-end", "high-watermark"),
        "Where each log ends in the mount. With log-end (the default), a log ends after its last "
        "batch. With high-watermark, a log ends at the last high watermark that its broker has "
        "written to a checkpoint: all in-sync replicas have the records below this offset. "
        "high-watermark requires ro.",
    ),
    _choice(
        "isolation",
        ("read_committed", "read_uncommitted"),
        "With read_uncommitted, views also show the records of aborted and open transactions. The "
        "default is read_committed.",
    ),
    _choice(
        "out_of_range",
        ("reset", "error"),
        "How to look up a name such as 0@4711 if the log does not have this offset. With reset "
        "(the default), the file begins at the start or the end of the log. With error, the lookup "
        "fails with ERANGE.",
    ),
    _choice(
        "follow_gaps",
        ("newlines", "error"),
        "How reads of .follow/N end if their bytes were deleted. With newlines (the default), such "
        "reads return newlines. A reader that had the file open when its next bytes were deleted "
        "first gets ESTALE once. With error, all such reads fail with ESTALE.",
    ),
    MountOption(
        "allow_other",
        "Other users can use the mount, if the modes of the files permit this. If a user other "
        "than root mounts, /etc/fuse.conf must contain user_allow_other.",
        "allow_other",
        True,
    ),
    MountOption(
        "allow_root",
        "Root can use the mount of another user. /etc/fuse.conf must contain user_allow_other.",
        "allow_root",
        True,
    ),
    MountOption(
        "setuid",
        "For root, for example in fstab: the daemon mounts and runs as USER. USER needs read and "
        "write permission for the data directory, and must own the mount point.",
        "setuid",
        None,
        "USER",
        _name,
        "a user's name",
    ),
    MountOption(
        "create",
        "Create the data directory (mode 0750) if it is missing. Accept a data directory that "
        "contains other files.",
        "create",
        True,
    ),
    MountOption(
        "nonempty", "Allow a mount point with files in it. The mount hides them.", "nonempty", True
    ),
    MountOption(
        "memory",
        "Limit for the memory that requests take in the daemon. The limit applies to each kind of "
        "memory: decompressed batches, text rendered ahead, unfinished lines of one user, and "
        "texts of one user's open files. The default is 64MiB. The minimum is 1MiB.",
        "memory",
        None,
        "SIZE",
        _bytes,
        _BYTES,
    ),
    MountOption("show_dot", "List the names that begin with a dot.", "show_dot", True),
    MountOption(
        "show_internal",
        "List the topics that a cluster creates for itself, such as __consumer_offsets.",
        "show_internal",
        True,
    ),
    MountOption(
        "uid",
        "All files belong to this user, regardless of chown.",
        "uid",
        None,
        "N",
        partial(_number, 10, 2**32 - 2),
        "a user's number",
    ),
    MountOption(
        "gid",
        "All files belong to this group, regardless of chown.",
        "gid",
        None,
        "N",
        partial(_number, 10, 2**32 - 2),
        "a group's number",
    ),
    MountOption(
        "umask",
        "Remove these permission bits from the modes of all files.",
        "umask",
        None,
        "OCTAL",
        partial(_number, 8, 0o777),
        "an octal number up to 777",
    ),
    MountOption("noexec", "No file of the mount can be executed.", "exec", False),
    MountOption(
        "exec", "Files can be executed if their modes permit it. This is the default.", "exec", True
    ),
    MountOption("nosuid", "Set-user-ID bits have no effect. This is the default.", "suid", False),
    MountOption(
        "suid",
        "Set-user-ID bits have an effect. Only root can mount with this option.",
        "suid",
        True,
    ),
    MountOption("nodev", "Device files have no effect. This is the default.", "dev", False),
    MountOption(
        "dev",
        "No effect: a mount has no device files. Only root can mount with this option.",
        "dev",
        True,
    ),
    MountOption("noatime", "No effect: reading never changes a time.", "atime", False),
    MountOption("atime", "No effect: reading never changes a time.", "atime", True),
)
_BY_NAME = {option.name: option for option in OPTIONS}

#: Options of mount(8), fstab and systemd that are for others: without effect here.
_FOR_OTHERS = {
    *("auto", "noauto", "nofail", "_netdev", "defaults", "comment", "silent", "loud", "async"),
    *("user", "nouser", "users", "owner", "group"),
    *("diratime", "nodiratime", "relatime", "norelatime", "strictatime", "nostrictatime"),
    *("lazytime", "nolazytime", "nosymfollow"),
}


def parse_mount_options(texts: Iterable[str], *, sloppy: bool = False) -> MountOptions:
    """Parse the texts of any number of `-o`. InvalidMountOption.

    `sloppy`: unknown options have no effect, as mount(8) has it with `-s`.
    """
    options = MountOptions()
    words = [part for text in texts for part in text.split(",") if part]
    if "remount" in words:
        # Beside it stand the mount table's options, which are not ours.
        raise InvalidMountOption(
            "remount: the options of a mount cannot be changed. Unmount it, and mount it again"
        )
    for word in words:
        name, equals, value = word.partition("=")
        option = _BY_NAME.get(name)
        if name in _FOR_OTHERS or name.lower().startswith("x-"):
            continue
        if option is None or bool(equals) != bool(option.value):
            if sloppy:
                continue
            raise InvalidMountOption(_unknown(word, name))
        setting = option.setting
        if option.value:
            try:
                setting = option.parse(value)
            except ValueError:
                raise InvalidMountOption(
                    f"mount option {word}: the value must be {option.valid}"
                ) from None
        options = replace(options, **{option.field: setting})
    _check(options)
    return options


def _unknown(word: str, name: str) -> str:
    """The error of a word that is no option, with all that there are."""
    from difflib import get_close_matches

    known = [f"{each.name}=" if each.value else each.name for each in OPTIONS]
    near = get_close_matches(name, [*_BY_NAME, *_FOR_OTHERS], n=1)
    meant = f": did you mean {near[0]!r}?" if near and near[0] != name else ""
    return f"unknown mount option {word!r}{meant} (valid: {', '.join(known)})"


def _check(options: MountOptions) -> None:
    """InvalidMountOption where options exclude each other."""
    if options.until != "log-end" and not options.read_only:
        raise InvalidMountOption(
            f"mount option until={options.until} requires a read-only mount (ro)"
        )
    if options.create and options.read_only:
        raise InvalidMountOption("mount option create cannot be used with ro")
    if options.allow_root and options.allow_other:
        raise InvalidMountOption("mount options allow_root and allow_other cannot be used together")


def kernel_options(options: MountOptions) -> set[str]:
    """Those that libfuse and the kernel carry out."""
    chosen = {"ro" if options.read_only else "rw"}
    for field in ("allow_other", "allow_root", "suid", "dev"):
        if getattr(options, field):
            chosen.add(field)
    for field in ("exec", "atime"):
        if not getattr(options, field):
            chosen.add(f"no{field}")
    return chosen


def directory_identity(found: os.stat_result) -> bytes:
    """Return the value of `DIRECTORY_ATTRIBUTE` for a data directory."""
    return f"{found.st_dev}:{found.st_ino}".encode()


def written(options: MountOptions) -> str:
    """The options as given to `-o`: ro or rw, and those that differ from their defaults."""
    words = ["ro" if options.read_only else "rw"]
    for option in OPTIONS:
        value = getattr(options, option.field)
        if value == getattr(MountOptions(), option.field) or option.field == "read_only":
            continue
        if option.value:
            words.append(f"{option.name}={_shown(option.field, value)}")
        elif option.setting == value:
            words.append(option.name)
    return ",".join(words)


def _shown(field: str, value: object) -> str:
    """A field's value as it is given to `-o`; a flag's as true or false."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:o}" if field == "umask" else str(value)


def explain(options: MountOptions) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name, value) of the options that differ from their defaults, and of the others.

    An option without a default is listed only if it is set.
    """
    names = {each.field: each.name for each in OPTIONS if each.value or each.setting is True}
    chosen: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None:
            where = others if value == field.default else chosen
            where.append((names[field.name], _shown(field.name, value)))
    return chosen, others
