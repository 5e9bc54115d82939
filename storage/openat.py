"""Opens files below a directory's descriptor, without following symbolic links.

The writer of a data directory may be less trusted than its reader. A link in the place of a file,
or of a directory on the path, could lead a daemon that runs as root to any file of the machine. So
paths are opened by `openat2` with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS. If the kernel has no
such call, or a container forbids it, each component of the path is opened with O_NOFOLLOW. The path
of the directory itself may contain links: the user who gives it is trusted.

Not here: the check of the file's kind (`files`).
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

# Linux, all architectures: the call's number, struct open_how, and its resolve flags.
_OPENAT2 = 437
_HOW = Struct("=QQQ")  # flags, mode, resolve
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_AT_FDCWD = -100
_RESOLVE = _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH

Opener = Callable[[int, str, int, int], int]
"""(descriptor of a directory, path relative to it, flags, mode) -> descriptor. Errors: OSError:
ELOOP if a component is a symbolic link, EXDEV if the path leads out of the directory.
"""

_opening = threading.Lock()


class DirectoryFd:
    """A directory that is opened at its first use, also after `close`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1

    @property
    def fd(self) -> int:
        """The directory's descriptor, only for looking up names. Errors: OSError."""
        if self._fd < 0:
            with _opening:
                if self._fd < 0:
                    flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
                    self._fd = os.open(self.path, flags)
        return self._fd

    def open(self, relative: str, flags: int, mode: int = 0) -> int:
        """Open a path below the directory, closed on exec; `.` is the directory itself."""
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
    """Return `by_openat2` if the kernel allows it, else `by_component`."""
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
    """Open by one system call, during which no component can be replaced."""
    call, path = _syscall(), os.fsencode(relative)
    if b"\0" in path:
        raise ValueError("embedded null byte")
    # The kernel refuses a mode without O_CREAT.
    how = _HOW.pack(flags, mode if flags & os.O_CREAT else 0, _RESOLVE)
    while True:
        fd = call(_OPENAT2, directory, path, how, _HOW.size)
        if fd >= 0:
            return fd
        number = ctypes.get_errno()
        if number != errno.EINTR:
            raise OSError(number, os.strerror(number), relative)


def by_component(directory: int, relative: str, flags: int, mode: int) -> int:
    """Open each directory of the path, each one relative to the previous one."""
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
        # With O_DIRECTORY, the errno of a link is ENOTDIR.
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name) from None


def _is_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False
