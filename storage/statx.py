"""Reads facts about a file or a directory by statx(2), which Python does not have."""

from __future__ import annotations

import ctypes
import os
import struct

_statx = ctypes.CDLL(None, use_errno=True).statx
_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800
_STATX_MNT_ID_UNIQUE = 0x4000
_STATX_SIZE = 256
# The mask of struct statx, with the birth time or the mount's id.
_BORN = struct.Struct("@I76xqI")
_MOUNT_ID = struct.Struct("@I140xQ")


def born_ns(fd: int) -> int:
    """Return the birth time of a file; 0 if it is not known. Errors: OSError."""
    known, seconds, ns = _BORN.unpack_from(_answer(fd, _STATX_BTIME))
    return seconds * 1_000_000_000 + ns if known & _STATX_BTIME else 0


def mount_id(fd: int) -> str:
    """Return a name of the mount that a file lies on: unique since Linux 6.8. Errors: OSError."""
    known, unique = _MOUNT_ID.unpack_from(_answer(fd, _STATX_MNT_ID_UNIQUE))
    return f"{unique:x}" if known & _STATX_MNT_ID_UNIQUE else _number_in_mountinfo(fd)


def _answer(fd: int, fact: int) -> ctypes.Array[ctypes.c_char]:
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if _statx(fd, b"", _AT_EMPTY_PATH, fact, answer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return answer


def _number_in_mountinfo(fd: int) -> str:
    """Return the mount's number in /proc/self/mountinfo, and its device."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
        number = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
    name = "/proc/self/mountinfo"
    with open(name, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        found = (line.split() for line in file)
        return next((f"{number}-{line[2]}" for line in found if line[0] == number), number)
