"""The batches of a staged file: read, checked, and made those of a producer's transaction.

A mebibyte or so at a time, by whole batches.  Any thread: no log is touched.

Not here: appending them (``adopt``).
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from storage.errors import CorruptRecord, InvalidRecord, NoThread, RecordTooLarge
from storage.files import Files
from storage.log.validator import Admitted, admitted, check_keys, check_not_ahead, rewrites
from storage.record._stamp import stamp_transaction, survey_staged
from storage.record.columns._columns import decode_columns
from storage.record.compression import CODECS
from storage.record.header import parse_header
from storage.record.scan import whole_batches
from storage.segment.walk import Buffered, Walk
from storage.settings.config import LONG_MAX, LogConfig
from storage.threads import submit

_CHUNK_BYTES = 1 << 20


def _rising(first: int, count: int) -> bytes:
    """``count`` offsets from ``first`` on, in the form in which decoded columns hold them."""
    return array("q", range(first, first + count)).tobytes()


# The offsets of any batch that a task stages, made once: making them takes longer than comparing.
_RISING_COUNT = 1 << 13
_RISING = _rising(0, _RISING_COUNT)


class Stamped(NamedTuple):
    """Batches that lack only their offsets; ``staged_size``: their bytes in the staged file."""

    data: bytearray
    batches: list[Admitted]
    now_ns: int
    staged_size: int


class StagedBatches:
    """``size``: the bytes that were announced; ``config``: the topic's."""

    def __init__(self, files: Files, path: str, size: int, config: LogConfig) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._config = config

    def check(self, now_ns: Callable[[], int]) -> Iterator[int]:
        """Read everything, and refuse what an append would; yields the size of each part.

        InvalidRecord and its kinds, CorruptRecord, RecordTooLarge, with path and position; OSError.
        """
        for position, chunk in self._chunks():
            with self._located(position):
                _check(chunk, self._config, now_ns() // 1_000_000)
            yield len(chunk)

    def stamped(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ns: Callable[[], int]
    ) -> Generator[Stamped]:
        """The batches as appended, with sequences from ``sequence`` on.  Errors as ``check``."""
        items = self._stamp(producer_id, producer_epoch, sequence, now_ns)
        return _ahead(items) if self._size > _CHUNK_BYTES else items

    def _stamp(
        self, producer_id: int, producer_epoch: int, sequence: int, now_ns: Callable[[], int]
    ) -> Generator[Stamped]:
        for position, chunk in self._chunks():
            now, size = now_ns(), len(chunk)
            with self._located(position):
                data = _as_stored(chunk, self._config, now // 1_000_000)
                sequence = stamp_transaction(data, producer_id, producer_epoch, sequence)
            yield Stamped(data, list(_admitted(data)), now, size)

    def _chunks(self) -> Iterator[tuple[int, memoryview]]:
        """Whole batches, valid until the next ones, each with their position."""
        files = self._files
        with files.held_open(self._path, os.O_RDONLY | os.O_NOFOLLOW) as fd:
            size = files.size(fd)
            if size != self._size:
                reason = f"{size} bytes where {self._size} were announced"
                raise InvalidRecord(reason, path=self._path)
            walk = Walk(Buffered(partial(files.preadv, fd)).read, 0, size, _CHUNK_BYTES)
            for data in walk:
                start = walk.position
                with self._located(start):
                    whole, walk.needed = whole_batches(data, self._config.max_message_bytes)
                walk.position += whole
                if whole:
                    yield start, data[:whole]
            if walk.position < size:
                with self._located(walk.position):
                    raise CorruptRecord("the last batch is cut off", position=0)

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
    """The same items, each made in another thread while the one before it is appended."""

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
    """Refuse what an append would."""
    _, _, largest, max_timestamp, codecs = survey_staged(chunk)
    if largest > config.max_message_bytes:
        raise RecordTooLarge(largest, config.max_message_bytes)
    if config.message_timestamp_type == "CreateTime":
        check_not_ahead(max_timestamp, config, now_ms)
    if _changes(codecs, config):
        for _ in admitted(chunk, config, now_ms, keeps_fitting=True):
            pass
        return
    if config.is_compacted:
        columns = check_keys(chunk, 0, len(chunk))
    else:
        columns = decode_columns(chunk, 0, len(chunk), keys=False, values=False)
    _check_offsets(chunk, columns.offsets)


def _check_offsets(chunk: memoryview, offsets: bytearray) -> None:
    """InvalidRecord unless the offsets of a batch's records rise from its own by one."""
    at = done = 0
    while at < len(chunk):
        header = parse_header(chunk, at)
        first, count = header.base_offset, header.records_count
        if first == 0 and count <= _RISING_COUNT:
            expected = _RISING[: 8 * count]
        else:
            expected = _rising(first, count)
        if offsets[done : done + len(expected)] != expected:
            raise InvalidRecord("the offsets of a batch's records do not rise", position=at)
        done += len(expected)
        at += header.size


def _changes(codecs: int, config: LogConfig) -> bool:
    """Whether the topic stores the batches in another form than they have in the staged file.

    ``codecs``: the codecs of the batches, a bit each.
    """
    kind = config.compression_type
    wanted = 1 << CODECS.index(kind) if kind in CODECS else 1
    return (
        config.message_timestamp_type == "LogAppendTime"
        or config.message_timestamp_before_max_ms < LONG_MAX
        or (kind != "producer" and codecs != wanted)
    )


def _as_stored(chunk: memoryview, config: LogConfig, now_ms: int) -> bytearray:
    """A copy of the batches, as the topic stores them."""
    if not rewrites(config) or not _changes(survey_staged(chunk)[4], config):
        return bytearray(chunk)
    stored = admitted(chunk, config, now_ms, keeps_fitting=True)
    return bytearray().join(each.data for each in stored)


def _admitted(data: bytearray) -> Iterator[Admitted]:
    """Each batch, whole and sound, on its own."""
    at = 0
    view = memoryview(data)
    while at < len(data):
        header = parse_header(data, at)
        yield Admitted(view[at : at + header.size], header, None)
        at += header.size
