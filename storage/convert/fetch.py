"""Encodes fetch responses: a set of messages from an offset on, in one of two layouts.

Both layouts are those of Kafka 0.7 (`MessageSetSend`, `MultiMessageSetSend`), big-endian; a
length does not count itself:

===================  =====  =====================  =====
MessageSetSend       bytes  MultiMessageSetSend    bytes
===================  =====  =====================  =====
total length             4  total length               4
error code               2  error code, always 0       2
message 1..n             x  MessageSetSend 1..n        x
===================  =====  =====================  =====

A message is its length i32, a magic 0, the CRC-32 of the payload and the payload: only the value of
a record. A null value is an empty payload. Messages carry no offset, and a set may
end in a part of one, which its reader drops.

A log of format 0.7 sends its bytes as they are stored; of a younger log the values are put into
messages. Only what a consumer gets is sent: no control records, nothing of an aborted transaction,
nothing at or above the last stable offset.

Not here: requests, sockets, any other version of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from storage.errors import CorruptRecord
from storage.kafka07.entries import encode_message
from storage.record.columns._columns import decode_columns
from storage.record.header import Buffer, parse_header
from storage.record.plain import plain
from storage.segment.reader import SegmentReader

if TYPE_CHECKING:
    from storage.log.log import Log

_LENGTH = Struct(">i")
_HEAD = Struct(">ih")
_MESSAGE_OVERHEAD = 5  # the least length of a message: magic and CRC
_LARGEST = 2**31 - 1
_CHUNK_BYTES = 1024 * 1024

#: The largest set that a response has room for, in bytes.
MAX_SET_BYTES = _LARGEST - 2 - _HEAD.size


class ErrorCode(IntEnum):
    """Error codes of our responses (some of 0.7's `ErrorMapping`)."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1


@dataclass(frozen=True, slots=True)
class MessageSet:
    """Consecutive messages: their bytes, the number of whole ones, the offset of the next fetch.

    `next_offset` follows the last whole message, and control records and aborted ones after it.
    """

    data: bytes
    count: int
    next_offset: int


# -- reading -------------------------------------------------------------------------------------


def read_messages(log: Log, offset: int, max_bytes: int) -> MessageSet:
    """Return the messages from `offset` on, `max_bytes` of them; the last one may be cut there.

    The first one is whole even if it is larger (`minOneMessage`). Empty at the last stable offset.
    Errors: OffsetOutOfRange outside of the log; CorruptRecord; OSError.
    """
    assert 0 < max_bytes <= MAX_SET_BYTES
    if not log.active.holds_batches:
        return _stored_messages(log, offset, max_bytes)
    data, count, next_offset = bytearray(), 0, offset
    try:
        for message, following in _messages(log, offset, min(max_bytes, _CHUNK_BYTES)):
            if message is not None:
                room = max_bytes - len(data)
                if count and len(message) > room:
                    data += message[: max(room, 0)]
                    next_offset = following - 1
                    break
                data += message
                count += 1
            next_offset = following
    except CorruptRecord as error:
        error.path = error.path or log.directory
        raise
    return MessageSet(bytes(data), count, next_offset)


def _stored_messages(log: Log, offset: int, max_bytes: int) -> MessageSet:
    """Return messages of one file of a 0.7 log, from the first id ≥ `offset` on."""
    data = log.read(offset, max_bytes)
    if not data:
        return MessageSet(b"", 0, offset)
    # After the last id of a file comes the first one of the next.
    places = (SegmentReader(segment).locate(offset) for segment in log.segments_from(offset))
    first = next(place[1].base_offset for place in places if place is not None)
    count = at = 0
    for end in _message_ends(data):
        count, at = count + 1, end
    return MessageSet(data, count, first + at)


def _messages(log: Log, offset: int, chunk_bytes: int) -> Iterator[tuple[bytes | None, int]]:
    """Yield (message, the next offset) of each visible record from `offset` on, and (None, the next
    offset) of each batch.
    """
    end, is_ended = log.last_stable_offset, False
    while not is_ended:
        is_ended, at = True, 0
        data = log.read(offset, chunk_bytes)
        while at < len(data) and offset < end:
            batch, size = plain(data, at, len(data))
            if not batch:
                break
            at += size
            header = parse_header(batch)
            is_hidden = header.is_control or (
                header.is_transactional
                and log.transactions.is_aborted(header.producer_id, header.base_offset)
            )
            if not is_hidden:
                yield from _messages_of(batch, offset, end)
            is_ended, offset = False, header.last_offset + 1
            yield None, offset


def _messages_of(batch: Buffer, first: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield (message, next offset) of a plain batch's records from `first` to before `end`."""
    columns = decode_columns(batch, 0, len(batch), from_offset=first, to_offset=end, keys=False)
    assert columns.values is not None
    offsets = memoryview(columns.offsets).cast("q")
    positions = memoryview(columns.values.positions).cast("i")
    with memoryview(columns.values.block) as values:
        for offset, (start, stop) in zip(offsets, pairwise(positions), strict=True):
            yield encode_message(values[start:stop]), offset + 1


# -- the layouts ---------------------------------------------------------------------------------


def encode_response(messages: Buffer, error: int = ErrorCode.NONE) -> bytes:
    """Return a `MessageSetSend`."""
    return _HEAD.pack(2 + len(messages), error) + messages


def encode_multi_response(responses: Iterable[Buffer]) -> bytes:
    """Return a `MultiMessageSetSend` of encoded `MessageSetSend`."""
    body = b"".join(responses)
    return _HEAD.pack(2 + len(body), ErrorCode.NONE) + body


def _message_ends(data: Buffer) -> Iterator[int]:
    """Yield the end of each whole message. Errors: CorruptRecord for an impossible length."""
    at = 0
    while len(data) - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        if length < _MESSAGE_OVERHEAD:
            raise CorruptRecord(f"message length {length}", position=at)
        at += _LENGTH.size + length
        if at > len(data):
            return
        yield at
