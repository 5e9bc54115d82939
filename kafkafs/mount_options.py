"""Mount options: what `kafkafs mount -o` accepts.

`-o name,name=value,…`, any number of times; the last value of a name counts. Unknown names and
invalid values are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

#: An extended attribute of a mount's root: the daemon's process id.
PID_ATTRIBUTE = "user.kafkafs.pid"


class InvalidMountOption(ValueError):  # noqa: N818 - as the storage names its errors
    """An unknown mount option, or an invalid value of one."""


@dataclass(frozen=True, slots=True)
class MountOptions:
    """How a data directory is mounted."""

    read_only: bool = False
    """`ro`: the daemon writes nothing into the data directory and takes no lock."""
    allow_other: bool = False
    """`allow_other`: other users may use the mount, as far as modes let them."""
    show_dot: bool = False
    """`show_dot`: readdir lists the names that begin with a dot too."""
    uid: int | None = None
    gid: int | None = None
    """`uid=N`, `gid=N`: the owner of everything, whatever chown has set."""
    umask: int = 0
    """`umask=OCTAL`: permission bits to clear in all modes."""
    isolation: str = "read_committed"
    """`isolation=read_uncommitted`: views show aborted and open transactions too."""
    out_of_range: str = "reset"
    """`out_of_range=error`: a lookup of `N@OFFSET` outside the log is ERANGE; with `reset` the file
    starts at the log start or the log end."""
    follow_gaps: str = "newlines"
    """`follow_gaps=error`: reading bytes of `.follow/N` that are gone is ESTALE; with `newlines`
    only for a reader that has been overtaken, and for others they are newlines."""
    create: bool = False
    """`create`: the data directory is made where there is none, or where others' files lie."""
    nonempty: bool = False
    """`nonempty`: the mount may cover files."""
    until: str = "log-end"
    """`until=high-watermark`: logs end at the last high watermark that their broker has
    checkpointed. Only with `ro`: a data directory of our own has none."""
    memory: int = 64 << 20
    """`memory=BYTES` (`64M`, `1G`): the most that users can have the daemon hold, of each kind:
    decompressed batches of all readers (one that is larger by itself is read alone); text rendered
    ahead of all readers; unfinished lines of one user, and four times that of all;
    `max.message.bytes`."""


def _number(base: int, limit: int, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text, base) > limit:
        raise ValueError
    return int(text, base)


def _bytes(text: str) -> int:
    """A count of bytes, perhaps with K, M or G behind it."""
    unit = "KMG".find(text[-1:]) + 1 if text else 0
    size = _number(10, 1 << 40, text[:-1] if unit else text) << 10 * unit
    if size < 1 << 20:
        raise ValueError
    return size


def _one_of(texts: Container[str], text: str) -> str:
    if text not in texts:
        raise ValueError
    return text


# For options without a value: option -> field and its value.
_FLAGS: dict[str, tuple[str, Any]] = {
    "ro": ("read_only", True),
    "rw": ("read_only", False),
    "allow_other": ("allow_other", True),
    "show_dot": ("show_dot", True),
    "create": ("create", True),
    "nonempty": ("nonempty", True),
}
# For options with one: option -> field, parser, and words for valid values. 2^32-1 is no user.
_VALUES: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "uid": ("uid", partial(_number, 10, 2**32 - 2), "a user's number"),
    "gid": ("gid", partial(_number, 10, 2**32 - 2), "a group's number"),
    "umask": ("umask", partial(_number, 8, 0o777), "an octal number up to 777"),
    "isolation": (
        "isolation",
        partial(_one_of, ("read_committed", "read_uncommitted")),
        "read_committed or read_uncommitted",
    ),
    "out_of_range": ("out_of_range", partial(_one_of, ("reset", "error")), "reset or error"),
    "follow_gaps": (
        "follow_gaps",
        partial(_one_of, ("newlines", "error")),
        "newlines or error",
    ),
    "until": (
        "until",
        partial(_one_of, ("log-end", "high-watermark")),
        "log-end or high-watermark",
    ),
    "memory": ("memory", _bytes, "1M or more, in bytes or with K, M or G behind it"),
}


def parse_mount_options(texts: Iterable[str]) -> MountOptions:
    """Parse the texts of any number of `-o`. InvalidMountOption."""
    options = MountOptions()
    for option in (part for text in texts for part in text.split(",") if part):
        name, equals, value = option.partition("=")
        if name in _FLAGS and not equals:
            field, setting = _FLAGS[name]
        elif name in _VALUES:
            field, parse, meaning = _VALUES[name]
            try:
                setting = parse(value)
            except ValueError:
                raise InvalidMountOption(
                    f"mount option {name}={value}: the value must be {meaning}"
                ) from None
        else:
            known = ", ".join([*_FLAGS, *(f"{name}=" for name in _VALUES)])
            raise InvalidMountOption(f"there is no mount option {option!r} (there are {known})")
        options = replace(options, **{field: setting})
    if options.until != "log-end" and not options.read_only:
        raise InvalidMountOption(f"mount option until={options.until} is for read-only mounts (ro)")
    if options.create and options.read_only:
        raise InvalidMountOption("mount option create is for mounts that may write, not for ro")
    return options


def explain(options: MountOptions) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """(name, value) of the options that differ from their defaults, and of the others.

    An option without a default is listed only if it is set.
    """
    names = {field: name for name, (field, setting) in _FLAGS.items() if setting is True}
    names |= {field: name for name, (field, _, _) in _VALUES.items()}
    chosen: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None:
            shown = f"{value:o}" if field.name == "umask" else str(value)
            if isinstance(value, bool):
                shown = shown.lower()
            where = others if value == field.default else chosen
            where.append((names[field.name], shown))
    return chosen, others
