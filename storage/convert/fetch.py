"""Fetch responses: a set of messages from an offset on, and the layouts that carry it.

Both layouts are those of Kafka 0.7 (``MessageSetSend``, ``MultiMessageSetSend``), big-endian; a
length does not count itself:

===================  =====  =====================  =====
MessageSetSend       bytes  MultiMessageSetSend    bytes
===================  =====  =====================  =====
total length             4  total length               4
error code               2  error code, always 0       2
message 1..n             x  MessageSetSend 1..n        x
===================  =====  =====================  =====

A message is its length i32, a magic 0, the CRC-32 of the payload and the payload: a record's value
and nothing else of it.  A null value is an empty payload.  Messages carry no offset, and a set may
end in a part of one, which its reader drops.

A log of format 0.7 sends its bytes as they are stored; of a younger log the values are put into
messages.  Only what a consumer gets is sent: no control records, nothing of an aborted transaction,
nothing at or above the last stable offset.

Not here: requests, sockets, any other version of the protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import TYPE_CHECKING

from storage.errors import CorruptRecord
from storage.kafka07.entries import encode_message
from storage.record.columns._columns import decode_columns
from storage.record.header import Buffer, parse_header
from storage.record.plain import plain

if TYPE_CHECKING:
    from storage.log.log import Log

_LENGTH = Struct(">i")
_HEAD = Struct(">ih")
_MESSAGE_OVERHEAD = 5  # what a message's length counts at least: magic and CRC
_LARGEST = 2**31 - 1
_CHUNK_BYTES = 1024 * 1024

#: The largest set that a response has room for, in bytes.
MAX_SET_BYTES = _LARGEST - 2 - _HEAD.size


class ErrorCode(IntEnum):
    """What a response of ours says (some of 0.7's ``ErrorMapping``)."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1


@dataclass(frozen=True, slots=True)
class MessageSet:
    """Messages back to back: their bytes, how many are whole, where the next fetch goes on.

    ``next_offset`` follows the last whole message, and control records and aborted ones after it.
    """

    data: bytes
    count: int
    next_offset: int


# -- reading -------------------------------------------------------------------------------------


def read_messages(log: Log, offset: int, max_bytes: int) -> MessageSet:
    """The messages from ``offset`` on, ``max_bytes`` of them; the last one may be cut there.

    The first one is whole even if it is larger (``minOneMessage``).  Empty at the last stable
    offset.

    OffsetOutOfRange outside of the log; CorruptRecord; OSError.
    """
    assert 0 < max_bytes <= MAX_SET_BYTES
    if not log.active.holds_batches:
        return _stored_messages(log, offset, max_bytes)
    collected = _Collector(offset, log.last_stable_offset, max_bytes)
    while not collected.full:
        at = collected.next_offset
        wanted = min(max_bytes - len(collected.data), _CHUNK_BYTES)
        try:
            collected.add_batches(log, log.read(at, max(wanted, 1)))
        except CorruptRecord as error:
            error.path = error.path or log.directory
            raise
        if collected.next_offset == at:
            break
    return MessageSet(bytes(collected.data), collected.count, collected.next_offset)


def _stored_messages(log: Log, offset: int, max_bytes: int) -> MessageSet:
    """What a log of format 0.7 holds, from the first id ≥ ``offset`` on, of one of its files."""
    data = log.read(offset, max_bytes)
    if not data:
        return MessageSet(b"", 0, offset)
    # Behind the last id of a file comes the first one of the next.
    places = (segment.locate(offset) for segment in log.segments if segment.next_offset > offset)
    first = next(place[1].base_offset for place in places if place is not None)
    count = at = 0
    for end in _message_ends(data):
        count, at = count + 1, end
    return MessageSet(data, count, first + at)


class _Collector:
    """A set that is being filled with the records from ``first`` to ``end``, exclusive."""

    def __init__(self, first: int, end: int, max_bytes: int) -> None:
        self.data = bytearray()
        self.count = 0
        self.next_offset = first
        self.full = False
        self._first = first
        self._end = end
        self._max_bytes = max_bytes

    def add_batches(self, log: Log, data: bytes) -> None:
        """The whole batches among ``data``, which a read of ``log`` returned."""
        position = 0
        while position < len(data) and not self.full and self.next_offset < self._end:
            batch, size = plain(data, position, len(data))
            if not batch:
                return
            position += size
            header = parse_header(batch)
            hidden = header.is_control or (
                header.is_transactional
                and log.transactions.is_aborted(header.producer_id, header.base_offset)
            )
            if hidden or self._add_records(batch):
                self.next_offset = header.last_offset + 1

    def _add_records(self, batch: Buffer) -> bool:
        """Whether all of the batch's records found room."""
        columns = decode_columns(
            batch, 0, len(batch), from_offset=self._first, to_offset=self._end, keys=False
        )
        assert columns.values is not None
        offsets = memoryview(columns.offsets).cast("q")
        ends = memoryview(columns.values.positions).cast("i")[1:]
        with memoryview(columns.values.block) as values:
            start = 0
            for offset, end in zip(offsets, ends, strict=True):
                self._add(encode_message(values[start:end]), offset)
                if self.full:
                    return False
                start = end
        return True

    def _add(self, message: bytes, offset: int) -> None:
        room = self._max_bytes - len(self.data)
        if len(message) <= room or not self.count:
            self.data += message
            self.count += 1
            self.next_offset = offset + 1
        else:
            self.data += message[: max(room, 0)]
            self.next_offset = offset
            self.full = True


# -- the layouts ---------------------------------------------------------------------------------


def encode_response(messages: Buffer, error: int = ErrorCode.NONE) -> bytes:
    """A ``MessageSetSend``."""
    return _HEAD.pack(2 + len(messages), error) + messages


def encode_multi_response(responses: Iterable[Buffer]) -> bytes:
    """A ``MultiMessageSetSend`` of encoded ``MessageSetSend``."""
    body = b"".join(responses)
    return _HEAD.pack(2 + len(body), ErrorCode.NONE) + body


def _message_ends(data: Buffer) -> Iterator[int]:
    """Where each whole message ends.  CorruptRecord for a length that cannot be."""
    at = 0
    while len(data) - at >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(data, at)
        if length < _MESSAGE_OVERHEAD:
            raise CorruptRecord(f"message length {length}", position=at)
        at += _LENGTH.size + length
        if at > len(data):
            return
        yield at
