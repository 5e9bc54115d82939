"""Converts batches that are to be appended to the stored form (`LogValidator.java`).

Rules, each from the topic's settings: the codec (compression.type), the source of timestamps
(message.timestamp.type) and their bounds, keys in a compacted topic, the largest batch. All other
fields are stored unchanged.

`converted` is for batches that we have just made: uncompressed v2, sound, without a producer.
`validated` is for bytes from anywhere. It follows a follower's rules with new offsets: batches of
any format, of any codec, control batches, empty and sparse ones pass, but each must be whole and
sound in every byte.

Pure. Not here: offsets (`assign`), producers' sequences and transactions (`state.producer_state`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from storage.errors import CorruptRecord, InvalidRecord, InvalidTimestamp, RecordTooLarge
from storage.plain_forms import plain_forms
from storage.record._plain import seal
from storage.record._seek import offset_span
from storage.record.columns._columns import Columns, decode_columns
from storage.record.compression import CODECS, codec_number
from storage.record.control import Marker, parse_marker
from storage.record.header import (
    APPEND_TIME_BIT,
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC,
    MAX_TIMESTAMP_POSITION,
    BatchHeader,
    Buffer,
    parse_header,
)
from storage.record.plain import decoded_sizes, plain, recompress, to_v2
from storage.settings.config import LONG_MAX, LogConfig

_LEVELS = {
    "gzip": "compression_gzip_level",
    "lz4": "compression_lz4_level",
    "zstd": "compression_zstd_level",
}


# An append is in memory as a whole, and may be larger without its codec (compression.type).
MAX_TOGETHER_BYTES = 256 << 20


class ValidatedBatch(NamedTuple):
    """A batch of format v2 without its offset; `marker`, if it ends a transaction."""

    data: bytes | bytearray | memoryview
    header: BatchHeader
    marker: Marker | None


def converts(config: LogConfig) -> bool:
    """Return whether settings change batches without a producer."""
    return (
        config.compression_type not in ("producer", "uncompressed")
        or config.message_timestamp_type == "LogAppendTime"
        or config.message_timestamp_before_max_ms < LONG_MAX
    )


def converted(batches: Buffer, config: LogConfig, now_ms: int) -> bytearray:
    """Return sound uncompressed batches, back to back, in the form of the topic's settings.

    A batch stays unchanged if only its compression would make it larger than max.message.bytes.
    Errors: InvalidTimestamp if a record is too old.
    """
    stored = bytearray()
    at = 0
    while at < len(batches):
        header = parse_header(batches, at)
        batch = memoryview(batches)[at : at + header.size]
        _check_times(batch, header, config, now_ms)
        made = _as_configured(batch, config, now_ms)
        if len(made) > config.max_message_bytes >= header.size:
            made = _as_configured(batch, replace(config, compression_type="uncompressed"), now_ms)
        stored += made
        at += header.size
    return stored


def without_conversion(config: LogConfig) -> LogConfig:
    """Return settings with which batches are stored unchanged: they keep their codecs and times."""
    return replace(
        config,
        compression_type="producer",
        message_timestamp_type="CreateTime",
        message_timestamp_before_max_ms=LONG_MAX,
        message_timestamp_after_max_ms=LONG_MAX,
    )


def validated(
    batches: Buffer, config: LogConfig, now_ms: int, *, keeps_fitting: bool = False
) -> Iterator[ValidatedBatch]:
    """Yield whole batches of any format, checked and in the form of the topic's settings.

    `keeps_fitting`: a batch that fits into max.message.bytes only unchanged keeps its codec; else
    it is refused, as a broker does. Errors: InvalidRecord with the reason for an incomplete or
    invalid batch, or if they have become more than MAX_TOGETHER_BYTES; InvalidTimestamp,
    RecordTooLarge.
    """
    at = number = stored = 0
    while at < len(batches):
        number += 1
        try:
            batch, size = _whole_v2(batches, at)
            found = plain_forms.with_room(
                decoded_sizes(batch, 0, len(batch)),
                partial(_validate, batch, config, now_ms, keeps_fitting),
            )
        except CorruptRecord as error:
            raise InvalidRecord(
                f"batch {number}, at byte {at}: {error.message}", position=at
            ) from None
        stored += len(found.data)
        if stored > MAX_TOGETHER_BYTES:
            raise InvalidRecord(
                f"the batches exceed {MAX_TOGETHER_BYTES} bytes in the format of the topic: "
                "append fewer at a time"
            )
        yield found
        at += size


def check_keys(batches: Buffer, position: int, size: int) -> Columns:
    """Check the keys of these plain batches; return the other columns. Errors: InvalidRecord."""
    columns = decode_columns(batches, position, size, values=False)
    assert columns.keys is not None
    if columns.keys.nulls:
        raise InvalidRecord("a compacted topic requires a key in each record")
    return columns


def check_not_ahead(max_timestamp: int, config: LogConfig, now_ms: int) -> None:
    """Check that a batch's largest timestamp is not too far ahead. Errors: InvalidTimestamp."""
    if max_timestamp - now_ms > config.message_timestamp_after_max_ms:
        raise InvalidTimestamp(
            f"timestamp {max_timestamp} is {max_timestamp - now_ms} ms in the future, more "
            f"than message.timestamp.after.max.ms={config.message_timestamp_after_max_ms}"
        )


def _whole_v2(batches: Buffer, at: int) -> tuple[Buffer, int]:
    """Return the batch at `at` in format v2, and its stored size."""
    header = parse_header(batches, at)
    if header.magic < MAGIC:
        made, size = plain_forms.with_room(
            decoded_sizes(batches, at, len(batches)),
            lambda limit: to_v2(batches, at, len(batches), limit),
        )
        if made:
            return made, size
    elif at + header.size <= len(batches):
        return memoryview(batches)[at : at + header.size], header.size
    raise CorruptRecord("the batch is truncated")


def _validate(
    batch: Buffer, config: LogConfig, now_ms: int, keeps_fitting: bool, limit: int
) -> ValidatedBatch:
    """Return the batch, which decompresses to at most `limit` bytes. Errors: TooLarge."""
    header = parse_header(batch)
    made, _ = plain(batch, 0, len(batch), limit)
    if header.codec >= len(CODECS):
        raise CorruptRecord(f"unknown codec {header.codec}")
    if header.last_offset_delta < 0:
        raise CorruptRecord(f"invalid last offset delta {header.last_offset_delta}")
    if header.producer_id >= 0 and header.producer_epoch < 0:
        raise CorruptRecord(f"producer {header.producer_id} has no epoch")
    if header.is_transactional and header.producer_id < 0:
        raise CorruptRecord("a transactional batch has no producer id")
    if header.is_control:
        marker = parse_marker(batch) if header.records_count else None
        return ValidatedBatch(bytes(batch), header, marker)
    _check_records(made, header, config)
    if not header.attributes & APPEND_TIME_BIT:
        _check_times(made, header, config, now_ms)
        if config.message_timestamp_type == "CreateTime":
            check_not_ahead(header.max_timestamp, config, now_ms)
    # Another compression needs the room for a plain form again.
    del made
    stored = _as_configured(batch, config, now_ms)
    if keeps_fitting and len(stored) > config.max_message_bytes:
        stored = _as_configured(batch, replace(config, compression_type="producer"), now_ms)
    if len(stored) > config.max_message_bytes:
        raise RecordTooLarge(len(stored), config.max_message_bytes)
    if config.message_timestamp_type == "LogAppendTime":
        header = header._replace(max_timestamp=now_ms)
    return ValidatedBatch(stored, header, None)


def _check_records(made: Buffer, header: BatchHeader, config: LogConfig) -> None:
    """Check that offsets rise within the batch's bounds, and its keys. Errors: CorruptRecord."""
    if config.is_compacted:
        check_keys(made, 0, len(made))
    decode_columns(made, 0, len(made), keys=False, values=False, offsets=False, timestamps=False)
    span = offset_span(made)
    if span is None:
        return
    first, last, rises = span
    if first < header.base_offset or last > header.last_offset:
        raise CorruptRecord("a record's offset is outside its batch")
    if not rises:
        raise CorruptRecord("the offsets of its records are not ascending")


def _check_times(made: Buffer, header: BatchHeader, config: LogConfig, now_ms: int) -> None:
    """Check the ages of a plain batch's records (`LogValidator`). Errors: InvalidTimestamp."""
    limit = config.message_timestamp_before_max_ms
    if limit == LONG_MAX or config.message_timestamp_type != "CreateTime":
        return
    columns = decode_columns(made, 0, len(made), keys=False, values=False, offsets=False)
    times = memoryview(columns.timestamps).cast("q")
    oldest = min((time for time in times if time != -1), default=now_ms)
    if now_ms - oldest > limit:
        raise InvalidTimestamp(
            f"timestamp {oldest} is {now_ms - oldest} ms old, more than "
            f"message.timestamp.before.max.ms={limit}"
        )


def _as_configured(batch: Buffer, config: LogConfig, now_ms: int) -> bytes | bytearray:
    """Return the batch with the topic's codec and, if it is set, the append time."""
    kind = config.compression_type
    stored: bytes | bytearray
    if kind == "producer":
        stored = bytes(batch)
    else:
        codec = 0 if kind == "uncompressed" else codec_number(kind)
        level = getattr(config, _LEVELS[kind]) if kind in _LEVELS else None
        stored = recompress(batch, codec, level)
    if config.message_timestamp_type == "LogAppendTime":
        stored = bytearray(stored)
        _stamp(stored, parse_header(stored).attributes, now_ms)
    return stored


def _stamp(batch: bytearray, attributes: int, now_ms: int) -> None:
    """Set the append time for all records; their deltas are unchanged (`LogValidator`)."""
    assert len(batch) >= HEADER_SIZE
    struct.pack_into(">h", batch, ATTRIBUTES_POSITION, attributes | APPEND_TIME_BIT)
    struct.pack_into(">q", batch, MAX_TIMESTAMP_POSITION, now_ms)
    seal(batch)
