"""A directory whose content is reached from its descriptor, and through no symbolic link.

The writer of a data directory may be less trusted than its reader: a link there, in the place of a
file or of a directory on the way to it, would lead a daemon that runs as root to any file of the
machine. So what lies in a directory is opened by `openat2` with RESOLVE_BENEATH and
RESOLVE_NO_SYMLINKS; where the kernel has no such call, or a container forbids it, component by
component, each with O_NOFOLLOW. The directory itself may be reached through links: the user who
names it is trusted.

Not here: what kind of file was found (`files`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
import threading
from collections.abc import Callable
from struct import Struct

# Linux, all architectures: the call's number, struct open_how, and what may not be resolved.
_OPENAT2 = 437
_HOW = Struct("=QQQ")  # flags, mode, resolve
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_FDCWD = -100
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH

Opener = Callable[[int, str, int, int], int]
"""(descriptor of a directory, path relative to it, flags, mode) -> descriptor. Errors: OSError:
ELOOP where a component is a symbolic link, EXDEV where the path leads out of the directory.
"""

_opening = threading.Lock()


class DirectoryFd:
    """One directory. It is opened when it is first needed, also after `close`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """Its descriptor, only for looking up names. Errors: OSError where it cannot be opened."""
        if self._fd < 0:
            with _opening:
                if self._fd < 0:
                    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                    self._fd = os.open(self.path, flags)
        return self._fd

    def open(self, relative: str, flags: int, mode: int = 0) -> int:
        """Open a path below it, closed on exec; `.` is the directory itself."""
        return opener()(self.fd, relative, flags | os.O_CLOEXEC, mode)

    def __reduce__(self) -> tuple[type[DirectoryFd], tuple[str]]:
        """Pickle the path: another process opens the directory itself."""
        return DirectoryFd, (self.path,)

    def close(self) -> None:
        """Close the descriptor. No other thread may be using it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    __del__ = close


@functools.cache
def opener() -> Opener:
    """`by_openat2` where it works, else `by_component`."""
    try:
        os.close(by_openat2(_AT_FDCWD, ".", os.O_PATH | os.O_CLOEXEC, 0))
    except OSError:
        return by_component
    return by_openat2


@functools.cache
def _syscall() -> Callable[[int, int, bytes, bytes, int], int]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    call.restype = ctypes.c_long
    return call


def by_openat2(directory: int, relative: str, flags: int, mode: int) -> int:
    """Return an `Opener`: one call, during which no component can be replaced."""
    call, path = _syscall(), os.fsencode(relative)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    # The kernel refuses a mode where no file may be created.
    how = _HOW.pack(flags, mode if flags & os.O_CREAT else 0, _RESOLVE)
    while True:
        fd = call(_OPENAT2, directory, path, how, _HOW.size)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), relative)


def by_component(directory: int, relative: str, flags: int, mode: int) -> int:
    """Return an `Opener`: each directory on the way is opened, then the next one from there."""
    *parents, name = relative.split("/")
    if ".." in (*parents, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), relative)
    at = directory
    try:
        for parent in parents:
            into = _open_one(at, parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0)
            if at != directory:
                os.close(at)
            at = into
        return _open_one(at, name, flags, mode)
    finally:
        if at != directory:
            os.close(at)


def _open_one(directory: int, name: str, flags: int, mode: int) -> int:
    try:
        return os.open(name, flags | os.O_NOFOLLOW, mode, dir_fd=directory)
    except NotADirectoryError:
        if not _is_link(directory, name):
            raise
        # The errno of a link is ENOTDIR with O_DIRECTORY.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
