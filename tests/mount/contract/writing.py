"""How tests of the contract write: on a descriptor of their own, byte for byte."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

APPEND = os.O_WRONLY | os.O_APPEND


@contextlib.contextmanager
def opened(path: Path, flags: int = APPEND) -> Iterator[int]:
    fd = os.open(path, flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def append(path: Path, data: bytes) -> None:
    with opened(path) as fd:
        write_all(fd, data)


def write_all(fd: int, data: bytes) -> None:
    """As every library does: go on after a short count.

    From the middle of a page on: where the data begins in its page decides where the kernel cuts a
    large write into pieces.
    """
    begin = mmap.PAGESIZE // 2
    with mmap.mmap(-1, begin + len(data)) as pages:
        pages[begin:] = data
        with memoryview(pages) as whole:
            while begin < len(whole):
                with whole[begin:] as rest:
                    begin += os.write(fd, rest)


def view(orders: Path, name: str) -> Path:
    """Another view of a partition."""
    return orders.parent / name / orders.name


def offsets(orders: Path) -> dict[str, int]:
    """`.meta/N/offsets` of a partition."""
    lines = (orders.parent / ".meta" / orders.name / "offsets").read_text().splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}
