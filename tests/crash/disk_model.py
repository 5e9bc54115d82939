"""A model, in memory, of the content that a disk has after a power failure.

For each file, the model has the content at the last fsync, and every page image and length since.
For each directory, it has the names at the last fsync, and the operations since. After a power cut:

- A file has any one of its lengths since the fsync, or it ends at a page boundary within the write
  that set this length.
- Each page (4 KiB) has any one of its images since the fsync, independently of the other pages. A
  page without a later image has its synced content, or zeros.
- If the length of a truncation, or a later one, has survived, the bytes that it cut do not return.
- Any prefix of a directory's operations has survived, independently of other directories. With
  seeds below zero, any subset has survived: only a sync keeps names in order.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")

PAGE = 4096
_ZEROS = bytes(PAGE)


@dataclasses.dataclass(slots=True)
class _Image:
    """The content of a page after an event; `cut`: the event was a truncation."""

    event: int
    data: bytes
    cut: bool


class FileModel:
    """Pages and lengths of one file: durable, and every one since."""

    def __init__(self, content: bytes) -> None:
        self.event = 0
        self.durable = {n: page for n, page in _pages(content) if page != _ZEROS}
        self.durable_length = len(content)
        self.current = dict(self.durable)
        self.length = len(content)
        self.images: dict[int, list[_Image]] = {}
        self.lengths: list[tuple[int, int]] = []
        self.is_forgotten = False
        self._content: bytes | None = content

    def write(self, position: int, data: bytes) -> None:
        self.event += 1
        self._content = None
        end = position + len(data)
        for number in range(position // PAGE, -(-end // PAGE)):
            start = number * PAGE
            page = bytearray(self.current.get(number, _ZEROS))
            low, high = max(position, start), min(end, start + PAGE)
            page[low - start : high - start] = data[low - position : high - position]
            self._put(number, bytes(page), cut=False)
        if end > self.length:
            self._set_length(end)

    def truncate(self, size: int) -> None:
        self.event += 1
        self._content = None
        for number in [n for n in self.current if (n + 1) * PAGE > size]:
            keep = max(size - number * PAGE, 0)
            page = self.current[number][:keep] + _ZEROS[keep:]
            if page != self.current[number]:
                self._put(number, page, cut=True)
        if size != self.length:
            self._set_length(size)

    def _put(self, number: int, page: bytes, *, cut: bool) -> None:
        self.current[number] = page
        self.images.setdefault(number, []).append(_Image(self.event, page, cut))

    def _set_length(self, length: int) -> None:
        self.length = length
        self.lengths.append((self.event, length))

    def commit(self, event: int) -> None:
        """Everything up to ``event`` is durable."""
        for number, images in list(self.images.items()):
            done = [image for image in images if image.event <= event]
            if done:
                self.durable[number] = done[-1].data
            self.images[number] = images[len(done) :]
            if not self.images[number]:
                del self.images[number]
        for at, length in self.lengths:
            if at <= event:
                self.durable_length = length
        self.lengths = [entry for entry in self.lengths if entry[0] > event]

    def forget(self, event: int) -> None:
        """An fsync has failed: nothing writes what came up to ``event``, unless it comes again."""
        self.is_forgotten = True
        for number, images in list(self.images.items()):
            self.images[number] = [image for image in images if image.event > event]
            if not self.images[number]:
                del self.images[number]
        self.lengths = [entry for entry in self.lengths if entry[0] > event]

    def content(self, draw: Draw | None = None) -> bytes:
        """The file as it is or, with ``draw``, as it may be after a power cut."""
        if draw is not None and (self.images or self.lengths or self.is_forgotten):
            return _joined(*self.survive(draw))
        if self._content is None:
            self._content = _joined(self.length, self.current)
        return self._content

    def survive(self, draw: Draw) -> tuple[int, dict[int, bytes]]:
        """The file as it may be after a power cut: its length, and the pages that are not zero."""
        kept = draw.prefix(len(self.lengths))
        length, horizon = self.durable_length, 0
        if kept:
            before = self.lengths[kept - 2][1] if kept > 1 else self.durable_length
            horizon, length = self.lengths[kept - 1]
            length = draw.page_boundary(before, length)
        pages = {}
        for number in sorted(self.durable.keys() | self.images.keys()):
            images = self.images.get(number, [])
            first = max(
                (i + 1 for i, image in enumerate(images) if image.cut and image.event <= horizon),
                default=0,
            )
            chosen = first + draw.prefix(len(images) - first)
            page = images[chosen - 1].data if chosen else self.durable.get(number, _ZEROS)
            page = page[: max(length - number * PAGE, 0)]
            if any(page):
                pages[number] = page
        return length, pages


class DirectoryModel:
    """Names of one directory: durable, and the operations since."""

    def __init__(self) -> None:
        self.entries: dict[str, Model] = {}
        self.durable: dict[str, Model] = {}
        # (name, what it names from then on or None) pairs that take effect together.
        self.changes: list[list[tuple[str, Model | None]]] = []

    def change(self, *names: tuple[str, Model | None]) -> None:
        self.changes.append(list(names))
        _apply(self.entries, self.changes[-1])

    def commit(self) -> None:
        self.durable = dict(self.entries)
        self.changes = []

    def survive(self, draw: Draw) -> dict[str, Model]:
        """The names as they may be after a power cut."""
        entries = dict(self.durable)
        for change in draw.kept(self.changes):
            _apply(entries, change)
        return entries


def _apply(
    entries: dict[str, Model],
    change: list[tuple[str, Model | None]],
) -> None:
    for name, model in change:
        if model is None:
            # The operation that made the name may not have reached the disk.
            entries.pop(name, None)
        else:
            entries[name] = model


class Draw:
    """Chance, by a seed; 0 and 1 are the two extremes, those below zero keep no order of names."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._in_order = seed >= 0
        self._fixed = {0: 0.0, 1: 1.0}.get(seed)

    def prefix(self, count: int) -> int:
        """How many of ``count`` things in order are kept."""
        if self._fixed is not None:
            return int(count * self._fixed)
        # The ends are where mistakes hide: all and nothing come up often.
        return self._random.choice((0, count, self._random.randint(0, count)))

    def kept(self, changes: Sequence[T]) -> list[T]:
        """Those of a directory's changes that have reached the disk."""
        if self._in_order:
            return list(changes[: self.prefix(len(changes))])
        return [change for change in changes if self._random.random() < 0.5]

    def page_boundary(self, low: int, high: int) -> int:
        """``high``, or where a write from ``low`` to there may have been interrupted."""
        pages = range(low // PAGE + 1, high // PAGE + 1)
        if self._fixed is not None or not pages or self._random.random() < 0.5:
            return high
        return self._random.choice(pages) * PAGE


def _pages(content: bytes) -> list[tuple[int, bytes]]:
    return [
        (at // PAGE, content[at : at + PAGE].ljust(PAGE, b"\0"))
        for at in range(0, len(content), PAGE)
    ]


def _joined(length: int, pages: dict[int, bytes]) -> bytes:
    content = bytearray(length)
    for number, page in pages.items():
        content[number * PAGE : number * PAGE + len(page)] = page
    return bytes(content[:length])


Model: TypeAlias = FileModel | DirectoryModel
