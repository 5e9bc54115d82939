"""Reads facts about a file or a directory by statx(2), which Python does not have."""

from __future__ import annotations

import ctypes
import os
import struct

_statx = ctypes.CDLL(None, use_errno=True).statx
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_SIZE = 256
# The mask of struct statx, with the birth time or the mount's id.
_BORN = struct.Struct("@I76xqI")
_MOUNT_ID = struct.Struct("@I140xQ")


def born_ns(file: str | int) -> int:
    """Return the birth time of the file of this path or descriptor; 0 if it is not known."""
    path, fd = (os.fsencode(file), _AT_FDCWD) if isinstance(file, str) else (b"", file)
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx(fd, path, _AT_EMPTY_PATH, _STATX_BTIME, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), file)
    known, seconds, ns = _BORN.unpack_from(answer)
    return seconds * 1_000_000_000 + ns if known & _STATX_BTIME else 0


def mount_id(directory: str) -> str:
    """Return a name of the mount that a directory lies on: unique since Linux 6.8."""
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx(_AT_FDCWD, os.fsencode(directory), 0, _STATX_MNT_ID_UNIQUE, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), directory)
    known, unique = _MOUNT_ID.unpack_from(answer)
    if known & _STATX_MNT_ID_UNIQUE:
        return f"{unique:x}"
    return _number_in_mountinfo(directory)


def _number_in_mountinfo(directory: str) -> str:
    """Return the mount's number in /proc/self/mountinfo, and its device."""
    fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
            number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    finally:
        os.close(fd)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        found = (line.split() for line in file)
        return next((f"{number}-{line[2]}" for line in found if line[0] == number), number)
