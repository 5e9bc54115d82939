"""Memory that ends at a page nobody may touch: one byte too far, and the process dies.

with before_guard_page(data) as view: …     # a memoryview of a copy of `data`
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator

ROOM = 1 << 20
PAGE = mmap.PAGESIZE
PROT_NONE = 0

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_memory = mmap.mmap(-1, ROOM + PAGE)
_start = ctypes.addressof(ctypes.c_char.from_buffer(_memory))
if _libc.mprotect(_start + ROOM, PAGE, PROT_NONE) != 0:
    raise OSError(ctypes.get_errno(), "mprotect")


@contextlib.contextmanager
def before_guard_page(data: bytes | bytearray) -> Iterator[memoryview]:
    """A writable copy of `data` whose end is the guard page's start. One at a time."""
    assert len(data) <= ROOM
    with memoryview(_memory) as whole, whole[ROOM - len(data) : ROOM] as view:
        view[:] = data
        yield view
