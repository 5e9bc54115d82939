"""Reads and checks the batches of a staged file, and writes a producer's transaction into them.

Works on about a mebibyte at a time, by whole batches. Thread-safe: no log is touched.

Not here: appending them (`adopt`).
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from storage.errors import CorruptRecord, InvalidRecord, NoThread, RecordTooLarge
from storage.files import Files
from storage.log.validator import ValidatedBatch, check_keys, check_not_ahead, converts, validated
from storage.record._stamp import stamp_transaction, survey_staged
from storage.record.columns._columns import decode_columns
from storage.record.compression import CODECS
from storage.record.header import parse_header
from storage.record.scan import whole_batches
from storage.segment.walk import Buffered, Walk
from storage.settings.config import LONG_MAX, LogConfig
from storage.threads import submit

_CHUNK_BYTES = 1 << 20

_Data = TypeVar("_Data", bytearray, memoryview)


def _rising(first: int, count: int) -> bytes:
    """Return `count` offsets from `first` on, in the form of decoded columns."""
    return array("q", range(first, first + count)).tobytes()


# The offsets of any batch that a task stages, made once, because making them takes longer than
# comparing.
_RISING_COUNT = 1 << 13
_RISING = _rising(0, _RISING_COUNT)


class Stamped(NamedTuple):
    """Batches without offsets; `staged_size`: their bytes in the staged file."""

    data: bytearray
    batches: list[ValidatedBatch]
    now_ns: int
    staged_size: int


class StagedBatches:
    """The batches of one file. `size`: its announced bytes; `config`: the topic's."""

    def __init__(self, files: Files, path: str, size: int, config: LogConfig) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._config = config

    def check(self, now_ns: Callable[[], int]) -> Iterator[int]:
        """Read all batches, and check them as an append does; yield the size of each part.

        Errors: InvalidRecord and its kinds, CorruptRecord, RecordTooLarge, with path and position;
        OSError.
        """
        with self._opened() as fd:
            read = Buffered(partial(self._files.preadv, fd)).read
            for position, window, size in self._windows(read):
                with self._located(position):
                    _check(window[:size], self._config, now_ns() // 1_000_000)
                yield size

    def stamped(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ns: Callable[[], int]
    ) -> Generator[Stamped]:
        """Yield the batches for the append, with sequences from `sequence` on. Errors: those of
        `check`.
        """
        items = self._stamp(producer_id, producer_epoch, sequence, now_ns)
        return _ahead(items) if self._size > _CHUNK_BYTES else items

    def _stamp(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ns: Callable[[], int]
    ) -> Generator[Stamped]:
        with self._opened() as fd:
            for position, window, size in self._windows(partial(self._read, fd)):
                now = now_ns()
                del window[size:]
                with self._located(position):
                    data = _as_stored(window, self._config, now // 1_000_000)
                    sequence = stamp_transaction(data, producer_id, producer_epoch, sequence)
                yield Stamped(data, list(_validated(data)), now, size)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file, and check its size."""
        files = self._files
        with files.held_open(self._path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
            size = files.size(fd)
            if size != self._size:
                reason = f"the file has {size} bytes instead of {self._size}"
                raise InvalidRecord(reason, path=self._path)
            yield fd

    def _read(self, fd: int, position: int, size: int) -> bytearray:
        """Return a part of the file, in a new buffer: the previous one may still be appended."""
        data = bytearray(size)
        del data[self._files.preadv(fd, data, position) :]
        return data

    def _windows(self, read: Callable[[int, int], _Data]) -> Iterator[tuple[int, _Data, int]]:
        """Yield the position of a window, the window, and the size of its whole batches.

        `read`: as for `Walk`.
        """
        walk = Walk(read, 0, self._size, _CHUNK_BYTES)
        for data in walk:
            start = walk.position
            with self._located(start):
                whole, walk.needed = whole_batches(data, self._config.max_message_bytes)
            walk.position += whole
            if whole:
                yield start, data, whole
        if walk.position < self._size:
            with self._located(walk.position):
                raise CorruptRecord("the last batch is truncated", position=0)

    @contextlib.contextmanager
    def _located(self, position: int) -> Iterator[None]:
        """Add path and position to an error about a batch."""
        try:
            yield
        except (CorruptRecord, InvalidRecord, RecordTooLarge) as error:
            if error.path is None:
                error.path = self._path
                error.position = position + (error.position or 0)
            raise


def _ahead(items: Generator[Stamped]) -> Generator[Stamped]:
    """Yield the same items, each made in another thread while the previous one is appended."""

    def one() -> Stamped | None:
        return next(items, None)

    try:
        with ThreadPoolExecutor(1, "preparing") as pool:
            try:
                following = submit(pool, one)
            except NoThread:
                yield from items
                return
            while (item := following.result()) is not None:
                following = submit(pool, one)
                yield item
    finally:
        items.close()


def _check(chunk: memoryview, config: LogConfig, now_ms: int) -> None:
    """Check batches as an append does."""
    largest, max_timestamp, codecs = survey_staged(chunk)
    if largest > config.max_message_bytes:
        raise RecordTooLarge(largest, config.max_message_bytes)
    if config.message_timestamp_type == "CreateTime":
        check_not_ahead(max_timestamp, config, now_ms)
    if _changes(codecs, config):
        for _ in validated(chunk, config, now_ms, keeps_fitting=True):
            pass
        return
    if config.is_compacted:
        columns = check_keys(chunk, 0, len(chunk))
    else:
        columns = decode_columns(chunk, 0, len(chunk), keys=False, values=False)
    _check_offsets(chunk, columns.offsets)


def _check_offsets(chunk: memoryview, offsets: bytearray) -> None:
    """Check that a batch's offsets rise from its base offset by one. Errors: InvalidRecord."""
    at = done = 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        first, count = header.base_offset, header.records_count
        if first == 0 and count <= _RISING_COUNT:
            expected = _RISING[: 8 * count]
        else:
            expected = _rising(first, count)
        if offsets[done : done + len(expected)] != expected:
            raise InvalidRecord("the offsets of a batch's records are not ascending", position=at)
        done += len(expected)
        at += header.size


def _changes(codecs: int, config: LogConfig) -> bool:
    """Return whether the topic stores the batches in another form than the staged one.

    `codecs`: the codecs of the batches, a bit each.
    """
    kind = config.compression_type
    wanted = 1 << CODECS.index(kind) if kind in CODECS else 1
    return (
        config.message_timestamp_type == "LogAppendTime"
        or config.message_timestamp_before_max_ms < LONG_MAX
        or (kind != "producer" and codecs != wanted)
    )


def _as_stored(chunk: bytearray, config: LogConfig, now_ms: int) -> bytearray:
    """Return the batches in the topic's form."""
    if not converts(config) or not _changes(survey_staged(chunk)[2], config):
        return chunk
    stored = validated(chunk, config, now_ms, keeps_fitting=True)
    return bytearray().join(each.data for each in stored)


def _validated(data: bytearray) -> Iterator[ValidatedBatch]:
    """Yield each batch, whole and sound, on its own."""
    at = 0
    view = memoryview(data)
    while at < len(data):
        header = parse_header(data, at)
        yield ValidatedBatch(view[at : at + header.size], header, None)
        at += header.size
