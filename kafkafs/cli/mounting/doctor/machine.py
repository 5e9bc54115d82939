"""Checks that this user can mount on this machine, and that mounts answer."""

from __future__ import annotations

import errno
import os
import resource
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator
from functools import partial

from kafkafs.cli.common.serving import as_root, force_line, moved_text
from kafkafs.cli.mounting.doctor import Check, Finding
from kafkafs.fuse import mount_point
from kafkafs.fuse.mount_point import Answer, MountError
from kafkafs.mount_options import READ_AHEAD_KIB
from kafkafs.mount_table import Mounted
from kafkafs.quantities import human_size

DEVICE = "/dev/fuse"
CONFIGURATION = "/etc/fuse.conf"
#: The major and minor number of the kernel's FUSE device.
_NUMBER = 10, 229
#: From linux/capability.h.
_CAP_SYS_ADMIN = 21
#: With fewer open files, too few are left for the segments of a log.
LEAST_FILES = 1024
#: Files that exist only in a container.
_CONTAINERS = ("/.dockerenv", "/run/.containerenv")


def checks() -> Iterator[Check]:
    """Yield the checks of this machine and this user."""
    for name, look in (
        ("fuse-device", _device),
        ("fusermount3", _fusermount),
        ("mount-right", _mount_right),
        ("libfuse", _libfuse),
        ("allow-other", _allow_other),
        ("open-files", _open_files),
        ("file-size", _file_size),
    ):
        silent = Finding(
            "the file system of the installed programs does not answer", "dmesg | tail"
        )
        yield Check(name, look, silent)


def _device() -> Iterator[Finding]:
    """Check that /dev/fuse exists and that this user may open it."""
    in_container = any(map(os.path.exists, _CONTAINERS))
    container = "start the container with: --device /dev/fuse --cap-add SYS_ADMIN"
    load = container if in_container else as_root("modprobe fuse")
    try:
        fd = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        mends = {errno.EACCES: as_root(f"chmod 0666 {DEVICE}"), errno.EPERM: container}
        yield Finding(f"{DEVICE}: {error.strerror}", mends.get(error.errno or 0, load))
        return
    try:
        found = os.fstat(fd)
        number = os.major(found.st_rdev), os.minor(found.st_rdev)
        if not stat.S_ISCHR(found.st_mode) or number != _NUMBER:
            make = f"rm {DEVICE} && mknod -m 0666 {DEVICE} c {_NUMBER[0]} {_NUMBER[1]}"
            yield Finding(f"{DEVICE} is not the FUSE device", as_root(make))
    finally:
        os.close(fd)


def _fusermount() -> Iterator[Finding]:
    """Check that fusermount3 exists and may mount for a user."""
    path = shutil.which("fusermount3")
    if path is None:
        yield Finding("fusermount3 is not in $PATH", as_root("apt-get install fuse3"))
        return
    found = os.stat(path)
    is_roots = found.st_uid == 0 and found.st_mode & stat.S_ISUID
    if os.geteuid() != 0 and not is_roots:
        mend = as_root(f"sh -c 'chown root: {path} && chmod u+s {path}'")
        yield Finding(f"{path} is not setuid root, so only root can mount", mend)


def _mount_right() -> Iterator[Finding]:
    """Check that root, or fusermount3 for a user, may mount."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    # fusermount3 gets the capabilities of the bounding set.
    capabilities = int(fields["CapEff" if os.geteuid() == 0 else "CapBnd"], 16)
    if not capabilities >> _CAP_SYS_ADMIN & 1:
        yield Finding(
            "mounting requires CAP_SYS_ADMIN, which this process does not have",
            "start the container with: --device /dev/fuse --cap-add SYS_ADMIN",
        )
    elif os.geteuid() != 0 and fields.get("NoNewPrivs") == "1":
        yield Finding(
            "fusermount3 cannot mount: this process has NoNewPrivs set",
            "in a unit: NoNewPrivileges=no; in a container: --security-opt no-new-privileges=false",
        )


def _libfuse() -> Iterator[Finding]:
    """Check that the daemon's own libraries can be loaded."""
    try:
        import kafkafs.fuse.operations  # noqa: F401
    except ImportError as error:
        mend = as_root("apt-get install fuse3") + "  (or reinstall kafkafs)"
        yield Finding(f"the daemon cannot be loaded: {error}", mend)


def _allow_other() -> Iterator[Finding]:
    """Check whether this user may give other users access to a mount."""
    if os.geteuid() == 0:
        return
    try:
        with open(CONFIGURATION, encoding="utf-8", errors="replace") as file:
            lines = {line.strip() for line in file}
    except OSError:
        lines = set()
    if "user_allow_other" not in lines:
        yield Finding(
            f"user_allow_other is not set in {CONFIGURATION}: only root may mount with "
            "-o allow_other",
            as_root(f"sh -c 'echo user_allow_other >> {CONFIGURATION}'"),
            is_wrong=False,
        )


def _limit(number: int) -> int | None:
    """Return the highest value to which this process may set a limit; None: it is unlimited."""
    hard = resource.getrlimit(number)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def _open_files() -> Iterator[Finding]:
    """Check the hard limit of open files, to which the daemon raises its own limit."""
    most = _limit(resource.RLIMIT_NOFILE)
    if most is not None and most < LEAST_FILES:
        yield Finding(
            f"a process may open at most {most} files: kafkafs must keep reopening segment files",
            as_root("prlimit --nofile=65536 --pid $$") + "  (in a unit: LimitNOFILE=65536)",
        )


def _file_size() -> Iterator[Finding]:
    """Check that no limit of the file size can cut a segment short."""
    most = _limit(resource.RLIMIT_FSIZE)
    if most is not None:
        yield Finding(
            f"a file may have at most {human_size(most)}: appends beyond that fail",
            as_root("prlimit --fsize=unlimited --pid $$") + "  (in a unit: LimitFSIZE=infinity)",
        )


def mount_checks(mounts: Iterable[Mounted]) -> Iterator[Check]:
    """Yield the checks of these mounts."""
    for mounted in mounts:
        silent = Finding(f"{mounted.path} does not answer", force_line(mounted.path))
        yield Check(f"mount {mounted.path}", partial(_answers, mounted), silent)


def _answers(mounted: Mounted) -> Iterator[Finding]:
    """Check that the daemon answers, and that the kernel reads ahead."""
    path = mounted.path
    try:
        answer, _ = mount_point.ask(path)
    except MountError as error:
        yield Finding(str(error), "try again with fewer processes running")
        return
    if answer is Answer.DEAD:
        clear = f"kafkafs umount {shlex.quote(path)}"
        yield Finding(f"the daemon of {path} has exited; the mount is dead", clear)
    elif answer is Answer.NONE:
        daemon, _ = mount_point.find_daemon(mounted)
        if daemon is not None and mount_point.is_stopped(daemon):
            what = f"the daemon of {path}, process {daemon}, is stopped"
            yield Finding(what, f"kill -CONT {daemon}")
        else:
            which = "" if daemon is None else f", process {daemon},"
            yield Finding(f"the daemon of {path}{which} does not answer", force_line(mounted.path))
    else:
        moved = moved_text(mounted)
        if moved is not None:
            yield Finding(moved, f"kafkafs umount {shlex.quote(path)}")
        yield from _read_ahead(mounted)


def _read_ahead(mounted: Mounted) -> Iterator[Finding]:
    setting = f"/sys/class/bdi/{mounted.device}/read_ahead_kb"
    try:
        with open(setting, encoding="ascii") as file:
            kib = int(file.read())
    except (OSError, ValueError):
        return  # without sysfs nobody can change it
    if kib < READ_AHEAD_KIB:
        yield Finding(
            f"read-ahead of {mounted.path} is {kib} KiB instead of {READ_AHEAD_KIB} KiB",
            f"echo {READ_AHEAD_KIB} | sudo tee {setting}",
            is_wrong=False,
        )
