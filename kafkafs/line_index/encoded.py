"""Finds the text of a batch at which the compiled loops stop.

Such a batch is compressed, of an older format, or part of a transaction. A view hides an aborted
transaction, shows an uncompressed v2 batch of a committed one as it is stored, and any other batch
through its plain form (`storage.record.plain`), made in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from storage.errors import StorageError
from storage.index.txn_index import TxnEntry
from storage.plain_forms import AT_ONCE
from storage.record.header import (
    CODEC_BITS,
    FLAGS_POSITION,
    HEADER_SIZE,
    MAGIC_POSITION,
    PRODUCER_ID_POSITION,
    TRANSACTIONAL_BIT,
    Buffer,
    size_at,
)
from storage.record.plain import decoded_sizes
from storage.segment.reader import SegmentReader

IsAborted = Callable[[int, int], bool]
"""Whether (producer id, offset) belongs to an aborted transaction."""
AbortedAcross = Callable[[int], Iterable[TxnEntry]]
"""The aborted transactions that begin before an offset and end there or later."""

_BASE_OFFSET = struct.Struct(">q")
_PRODUCER_ID = struct.Struct(">q")


class Shown(NamedTuple):
    """The content of a batch of `size` bytes in a view: nothing (`hidden`), the records of `plain`,
    or the batch as it is stored. Not `whole`: the data ends inside of the batch.
    """

    size: int
    plain: Buffer | None = None
    hidden: bool = False
    whole: bool = True


def show_batch(
    reader: SegmentReader,
    is_aborted: IsAborted | None,
    data: Buffer,
    at: int,
    end: int,
    position: int,
) -> Shown:
    """Find the content of the batch at `data[at:end]`, at `position` of the segment's log.

    `is_aborted` None: the view shows aborted transactions. CorruptRecord, with path and position;
    BlockingIOError, and OSError (ENOMEM), as `SegmentReader.shared_form`. Drop one form before you
    ask for the next: there may be room for only one.
    """
    segment = reader.segment
    if segment.holds_batches and end - at >= HEADER_SIZE and data[at + MAGIC_POSITION] == 2:
        attributes = data[at + FLAGS_POSITION]
        if attributes & TRANSACTIONAL_BIT:
            size = size_at(data, at)
            if is_aborted is not None:
                (base_offset,) = _BASE_OFFSET.unpack_from(data, at)
                (producer_id,) = _PRODUCER_ID.unpack_from(data, at + PRODUCER_ID_POSITION)
                if is_aborted(producer_id, base_offset):
                    return Shown(size, hidden=True)
            if not attributes & CODEC_BITS:
                return Shown(size)
    try:
        plain, size = reader.shared_form(data, at, end, position)
    except StorageError as error:
        error.path = segment.log_path
        error.position = position + (at if error.position is None else error.position) - at
        raise
    return Shown(size, plain) if plain else Shown(size, whole=False)


def takes_long(data: Buffer) -> bool:
    """Whether these batches may decode to more than AT_ONCE bytes."""
    at, most, end = 0, 0, len(data)
    while end - at > FLAGS_POSITION:
        most += decoded_sizes(data, at, end)[1]
        if most > AT_ONCE:
            return True
        at += size_at(data, at)
    return False
