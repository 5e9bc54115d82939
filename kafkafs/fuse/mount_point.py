"""Mount points: finds the daemons of mounts, cleans up after a killed daemon, unmounts.

It reads /proc and touches no mounted file system: a daemon must not send itself requests, and a
dead or stopped daemon would keep the caller waiting. To learn whether a daemon is stuck it starts
another process, and waits a few seconds at most. It imports neither pyfuse3 nor trio, so that
`kafkafs umount` starts quickly.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import shlex
import struct
import subprocess
from collections.abc import Callable
from enum import Enum
from functools import partial

from kafkafs import mount_table
from kafkafs.child import Child, NoAnswer
from kafkafs.fuse import utab
from kafkafs.fuse.users import users
from kafkafs.mount_options import PID_ATTRIBUTE
from kafkafs.mount_table import TYPE, Mounted, find, find_around, mounts

#: The name of daemons in `ps`, `pgrep` and `top`.
NAME = "kafkafs"
#: How long a daemon may take to answer, or to end before `umount` says that it waits, in seconds.
ANSWER_S = 5.0
#: A daemon that uses no processor time for this many turns of `ANSWER_S` while it ends is stuck.
STUCK_TURNS = 12
#: After this many seconds without an answer `attribute` checks whether the daemon is stopped.
SOON_S = 0.2

# Where the start and the exit status are in the fields of `stat_fields`; proc(5) counts from 1, and
# the state is 3.
_START = 22 - 3
_EXIT_STATUS = 52 - 3
# Of ioctl(2) on a pidfd: struct pidfd_info begins with a mask, and ends with the exit status.
_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO = struct.Struct("=Q52xi")
_PIDFD_INFO_EXIT = 1 << 3
# PROC_PID_INIT_INO of include/linux/proc_ns.h.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
# Of umount2(2).
_MNT_FORCE = 1
_UMOUNT_NOFOLLOW = 8


class MountError(Exception):
    """A file system cannot be mounted or unmounted; the message has one line."""

    #: Of `kafkafs mount`.
    exit_status = 3


class ConfigurationError(MountError):
    """A `MountError` that lasts until somebody mends a name, a right or a setting: to try again is
    no use."""

    exit_status = os.EX_CONFIG


#: Errors of a path that last until somebody mends it.
_LASTING = frozenset(
    {
        *(errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL),
        *(errno.EACCES, errno.EPERM, errno.EROFS),
    }
)


def refusal(number: int | None, message: str) -> MountError:
    """The error for an errno of a path."""
    return (ConfigurationError if number in _LASTING else MountError)(message)


class Answer(Enum):
    """The result of asking the daemon of a mount."""

    GIVEN = "given"
    DEAD = "dead"
    """The daemon has ended without unmounting, and the kernel knows."""
    NONE = "none"


def ask(path: str, patience_s: float | None = None) -> tuple[Answer, int | None]:
    """Ask the daemon of a mount for its process id, as `attribute` does."""
    answer, said = attribute(path, PID_ATTRIBUTE, patience_s)
    return answer, int(said) if said.isdigit() else None


def attribute(path: str, name: str, patience_s: float | None = None) -> tuple[Answer, bytes]:
    """Ask the daemon of a mount for an extended attribute of the root; empty where that is not
    there, or not for this user.

    `patience_s`: how long the daemon may take, if it is not stopped; None: `ANSWER_S`.

    Another process asks: one that waits for the daemon's answer cannot be killed until the
    connection ends. MountError if no process can start.
    """
    try:
        child = Child(partial(os.getxattr, path, name))
    except OSError as error:
        raise MountError(f"{path}: cannot start a process: {error.strerror}") from None
    try:
        for wait_s in (SOON_S, ANSWER_S if patience_s is None else patience_s):
            try:
                return Answer.GIVEN, child.result(wait_s)
            except NoAnswer:
                mounted = find(path)
                daemon = None if mounted is None else find_daemon(mounted)[0]
                if daemon is not None and is_stopped(daemon):
                    break
        return Answer.NONE, b""
    except OSError as error:
        is_dead = error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        return Answer.DEAD if is_dead else Answer.GIVEN, b""
    finally:
        child.leave()


def find_daemon(mounted: Mounted) -> tuple[int | None, bool]:
    """The process that serves a mount; and, if it found none, whether there certainly is none.

    The kernel shows in /proc/PID/fdinfo the connection (the device's minor number) of a descriptor
    of /dev/fuse. Older kernels do not, only root sees other users' processes, and nobody sees those
    outside of the own PID namespace. It looks only at processes named `NAME`, since looking at a
    descriptor holds it open.

    A daemon that still writes, or was stopped, when its mount ended keeps its connection, whose
    number another mount may have by now. So of several daemons it is the one that started last.
    """
    last, is_certain = (0, 0), True
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            serves = _serves(pid, mounted)
            if serves:
                last = max(last, (started(int(pid)) or 0, int(pid)))
            is_certain = is_certain and serves is not None
    if last > (0, 0):
        return last[1], True
    is_certain = is_certain and os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    return None, is_certain and os.geteuid() in (0, mounted.user)


def _serves(pid: str, mounted: Mounted) -> bool | None:
    """Whether a process serves a mount; None: the kernel does not say. Errors: OSError."""
    if _name(pid) != NAME:
        return False
    connection = f"fuse_connection:\t{_minor(mounted)}\n"
    serves: bool | None = False
    for fd in os.listdir(f"/proc/{pid}/fd"):
        if os.readlink(f"/proc/{pid}/fd/{fd}") != "/dev/fuse":
            continue
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as info:
            said = info.read()
        if connection in said:
            return True
        if "fuse_connection:" not in said:
            serves = None
    return serves


def is_elsewhere(pid: int, mounted: Mounted) -> bool:
    """Whether the daemon of a mount, which has this process id, runs in another PID namespace."""
    try:
        return _serves(str(pid), mounted) is False
    except PermissionError:
        return False
    except OSError:
        return True


def take_name() -> None:
    """Name this process `NAME`, for `find_daemon`."""
    with open("/proc/self/comm", "w", encoding="ascii") as name:
        name.write(NAME)


def _name(pid: str) -> str:
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as name:
        return name.read().rstrip("\n")


def _minor(mounted: Mounted) -> str:
    return mounted.device.partition(":")[2]


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped (SIGSTOP)."""
    return stat_fields(pid)[:1] in (["T"], ["t"])


def stat_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; none: the process has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return stat.read().rpartition(")")[2].split()
    return []


def started(pid: int) -> int | None:
    """When a process was started, in clock ticks since the boot; None: it has ended."""
    fields = stat_fields(pid)
    return int(fields[_START]) if fields else None


def is_dead(path: str) -> bool:
    """Whether a killed daemon of ours has left what is mounted at `path`: all get ENOTCONN there.

    MountError if a daemon lives and does not answer.
    """
    mounted = find(path)
    if mounted is None or mounted.type != TYPE:
        return False
    answer, _ = ask(path)
    if answer is Answer.NONE:
        daemon, is_certain = find_daemon(mounted)
        if daemon is not None:
            state, more = "does not answer", ""
            if is_stopped(daemon):
                state, more = "is stopped", f"To continue it: kill -CONT {daemon}. "
            raise MountError(
                f"{path}: {mounted.source} is already mounted here, and its daemon (process "
                f"{daemon}) {state}. {more}To end the mount: kafkafs umount --force"
            )
        if not is_certain:
            raise MountError(
                f"{path}: the mount here does not answer. To end it: kafkafs umount --force"
            )
        abort(mounted)
    return answer is not Answer.GIVEN


def clean(path: str) -> None:
    """Unmount what killed daemons of ours have left at a mount point. MountError as `is_dead`."""
    while is_dead(path):
        if find(path) is not None:
            unmount(path, lazy=True)


def abort(mounted: Mounted) -> None:
    """End a mount's connection: processes that wait for its daemon get ENOTCONN. MountError.

    It does not touch the path, since it would wait there, too.
    """
    with contextlib.suppress(OSError):
        control = f"/sys/fs/fuse/connections/{_minor(mounted)}/abort"
        with open(control, "w", encoding="ascii") as file:
            file.write("1")
        return
    if os.geteuid() == 0:
        # umount -f would look at the path first. The kernel ends even a busy mount's connection.
        ctypes.CDLL(None).umount2(os.fsencode(mounted.path), _MNT_FORCE | _UMOUNT_NOFOLLOW)
        return
    raise MountError(
        f"{mounted.path}: cannot abort its connection, because fusectl is not mounted at "
        f"/sys/fs/fuse/connections. As root: umount -f {mounted.path}"
    )


def unmount(path: str, *, lazy: bool = False) -> None:
    """Unmount a FUSE file system as its owner or as root. MountError, for example if it is busy.

    `lazy`: remove the mount from the tree now, and end it when no process uses it any more.
    """
    command = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", path]
    for is_last in (False, True):
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        except FileNotFoundError:
            raise MountError(
                "fusermount3 is not installed. As root: apt-get install fuse3"
            ) from None
        except OSError as error:
            raise MountError(f"{path}: cannot start fusermount3: {error.strerror}") from None
        if not done.returncode:
            utab.leave(path)
            return
        reason = (done.stderr.strip().splitlines() or [f"{path}: fusermount3 failed"])[-1]
        used_by = users(path)
        if used_by:
            reason += f": used by {', '.join(used_by)}. To unmount when they end: --lazy"
        elif not is_last:
            # Reading the links in /proc/PID/fd, as `users` does, holds each file for a moment.
            continue
        elif os.geteuid() != 0:
            reason += ". To see which processes use it, run this as root"
        raise MountError(reason)


def unmount_and_wait(
    path: str, say: Callable[[str], None], *, lazy: bool = False, force: bool = False
) -> None:
    """Unmount, and return when the daemon has written everything and ended. MountError.

    `lazy`: return at once; the daemon ends when no process has a file open any more. `force`:
    processes with open files get ENOTCONN, even if the daemon does not answer. A daemon whose file
    system is mounted at another place, too, goes on, and is not waited for.
    """
    path = resolve(path)
    mounted = find(path)
    if mounted is None or mounted.type != TYPE:
        raise MountError(f"{path}: not a kafkafs mount{_meant(path)}")
    if os.geteuid() not in (0, mounted.user):
        raise MountError(
            f"{path}: mounted by user {mounted.user}; only that user and root may unmount it"
        )
    # (os.getcwd would ask the daemon of a removed mount.)
    if os.path.commonpath([path, os.readlink("/proc/self/cwd")]) == path:
        # A process whose working directory lies in it keeps the mount busy.
        os.chdir("/")
    if lazy and not force:
        unmount(path, lazy=True)
        return
    if force:
        pid, _ = find_daemon(mounted)
    else:
        answer, pid = ask(path)
        if pid is not None and is_elsewhere(pid, mounted):
            pid = None
        if pid is None and answer is not Answer.DEAD:
            # The daemon does not answer, or not to this user.
            pid, is_certain = find_daemon(mounted)
            force = answer is Answer.NONE and pid is None
            if force and not is_certain:
                raise MountError(f"{path}: the daemon does not answer. To end the mount: --force")
        if pid is not None and is_stopped(pid):
            raise MountError(
                f"{path}: the daemon (process {pid}) is stopped. To continue it: kill -CONT {pid}. "
                "To unmount anyway: --lazy or --force"
            )
    with contextlib.ExitStack() as stack:
        daemon = None
        if pid is not None:
            with contextlib.suppress(OSError):  # it has ended
                daemon = os.pidfd_open(pid)
                stack.callback(os.close, daemon)
        # After the unmount the kernel may give the device number to another file system.
        others = set() if force else mount_table.places(mounted.device).keys() - {mounted.id}
        if force:
            abort(mounted)
        if find(path) == mounted:
            unmount(path, lazy=force)
        if daemon is not None and pid is not None:
            _wait_for_end(mounted, daemon, pid, others, say)


def _meant(path: str) -> str:
    """The command for the mount in which `path` lies, or which shows it; empty where none does."""
    around = find_around(path)
    meant = [each for each in mounts() if each.type == TYPE and each.source == path]
    if around is not None and around.type == TYPE:
        meant = [around]
    return f". Try: kafkafs umount {shlex.quote(meant[0].path)}" if meant else ""


def _wait_for_end(
    unmounted: Mounted, daemon: int, pid: int, others: set[str], say: Callable[[str], None]
) -> None:
    """Wait until a daemon, of pidfd `daemon`, has ended. MountError if it is stopped or stuck, or
    has failed to write all.

    If its file system is still mounted at another place (`others`: the mount ids of these), the
    daemon goes on, and is not waited for. Another mount namespace may end soon: it counts if it is
    there `ANSWER_S` later.
    """
    path = unmounted.path
    place = next((each.path for each in mounts() if each.id in others), None)
    used, idle = [""], 0
    told = False
    while place is None and not select.select([daemon], [], [], ANSWER_S)[0]:
        if others:
            now = mount_table.places(unmounted.device)
            others &= now.keys()
            place = next((now[each] for each in others), None)
            if place is not None:
                break
        if is_stopped(pid):
            raise MountError(
                f"{path}: unmounted, but the daemon (process {pid}) is stopped. "
                f"To let it exit: kill -CONT {pid}"
            )
        if not told:
            say(f"{path}: unmounted; the daemon (process {pid}) is still writing")
            told = True
        before, used = used, stat_fields(pid)[11:13]
        idle = idle + 1 if used == before else 0
        if idle >= STUCK_TURNS:
            raise MountError(
                f"{path}: unmounted, but the daemon (process {pid}) does nothing and does not exit"
            )
    if place is not None:
        say(f"{path}: unmounted; the daemon (process {pid}) still serves {place}")
        return
    status = _exit_status(daemon, pid)
    if status:
        how = f"exited with status {status}" if status > 0 else f"was killed by signal {-status}"
        raise MountError(
            f"{path}: unmounted, but the daemon (process {pid}) {how}, and may not have written "
            "everything. To check the records: kafkafs verify DATA"
        )


def _exit_status(daemon: int, pid: int) -> int | None:
    """Return the exit status of a daemon that has ended, negative for a signal; None: the kernel
    does not say.

    Before Linux 6.15 only the parent knows it, and others until the parent has asked for it.
    """
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    before = stat_fields(pid)
    with contextlib.suppress(OSError):
        fcntl.ioctl(daemon, _PIDFD_GET_INFO, info)
        mask, status = _PIDFD_INFO.unpack(info)
        if mask & _PIDFD_INFO_EXIT:
            return os.waitstatus_to_exitcode(status)
    is_zombie = before[:1] == ["Z"]
    return os.waitstatus_to_exitcode(int(before[_EXIT_STATUS])) if is_zombie else None


def resolve(path: str) -> str:
    """As `mount_table.resolve`.

    ConfigurationError where it is empty, which a shell makes of a variable that is not set.
    """
    if not path:
        raise ConfigurationError("empty path (is a shell variable unset?)")
    try:
        return mount_table.resolve(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from None


def raise_read_ahead(device: str, kib: int) -> bool:
    """Set the kernel's read-ahead on a mounted device, in KiB; return False if not allowed."""
    try:
        with open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as setting:
            setting.write(str(kib))
    except OSError:
        return False
    return True
