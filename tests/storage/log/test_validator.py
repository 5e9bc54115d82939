"""Batches are checked and converted by the topic's settings before a log stores them."""

from __future__ import annotations

import os
import struct
from dataclasses import replace

import pytest

from storage import Record, encode
from storage.errors import InvalidRecord, InvalidTimestamp, RecordTooLarge
from storage.log import validator
from storage.log.validator import ValidatedBatch, check_not_ahead, converted, converts, validated
from storage.record._batch import CRC
from storage.record.batch import decode
from storage.record.compression import CODECS
from storage.record.control import COMMIT, Marker
from storage.record.header import (
    APPEND_TIME_BIT,
    ATTRIBUTES_POSITION,
    CONTROL_BIT,
    LOG_APPEND_TIME,
    TRANSACTIONAL_BIT,
    parse_header,
)
from storage.settings.config import LogConfig
from tests.oracle import crc32c
from tests.storage.logs import NOW_MS, batch
from tests.storage.transactions import marker, produced

CONFIG = LogConfig()
RECORDS = [
    Record(number, NOW_MS - number, 0, b"k%d" % number, b"v" * 100, (("h", None),))
    for number in range(5)
]
ENCODED = bytes(encode(RECORDS))
# Of the fields that are forged here: where they lie in a batch.
LAST_OFFSET_DELTA, PRODUCER_ID, RECORDS_COUNT = 23, 43, 57
KINDS = [kind for kind in CODECS if kind != "none"]


def forged(position: int, layout: str, value: int, data: bytes = ENCODED) -> bytes:
    """The batch with another value in its header, and a CRC that fits."""
    changed = bytearray(data)
    struct.pack_into(layout, changed, position, value)
    struct.pack_into(">I", changed, CRC, crc32c(changed[ATTRIBUTES_POSITION:]))
    return bytes(changed)


def validate(
    data: bytes | bytearray, config: LogConfig = CONFIG, **options: bool
) -> list[ValidatedBatch]:
    return list(validated(data, config, NOW_MS, **options))


def test_by_default_everything_stays_as_it_is() -> None:
    assert not converts(CONFIG)
    assert converted(ENCODED * 2, CONFIG, NOW_MS) == ENCODED * 2
    assert [found.data for found in validate(ENCODED * 2)] == [ENCODED, ENCODED]
    assert [found.header for found in validate(ENCODED)] == [parse_header(ENCODED)]
    assert validate(b"") == []


@pytest.mark.parametrize("kind", ["uncompressed", *KINDS])
def test_the_topics_codec(kind: str) -> None:
    config = replace(CONFIG, compression_type=kind)
    made = bytes(converted(ENCODED, config, NOW_MS))
    codec = 0 if kind == "uncompressed" else CODECS.index(kind)
    assert parse_header(made).codec == codec
    assert decode(made) == RECORDS
    assert converts(config) == (codec != 0)
    # Whatever codec it comes in.
    for other in KINDS:
        came = bytes(converted(ENCODED, replace(CONFIG, compression_type=other), NOW_MS))
        (found,) = validate(came, config)
        assert parse_header(found.data).codec == codec
        assert decode(found.data) == RECORDS


def test_the_level_of_a_codec_is_the_topics() -> None:
    value = bytes(range(256)) * 40 + os.urandom(2000)
    data = batch([value] * 20)
    fast, best = (
        converted(data, replace(CONFIG, compression_type="gzip", compression_gzip_level=n), NOW_MS)
        for n in (1, 9)
    )
    assert len(best) < len(fast)
    assert decode(best) == decode(fast)


def test_what_compression_makes_larger_than_the_limit_stays_as_it_is() -> None:
    noise = batch([os.urandom(5000)])
    config = replace(CONFIG, compression_type="gzip", max_message_bytes=len(noise))
    assert converted(noise, config, NOW_MS) == noise
    with pytest.raises(RecordTooLarge):
        validate(noise, config)
    assert [found.data for found in validate(noise, config, keeps_fitting=True)] == [noise]
    with pytest.raises(RecordTooLarge):
        validate(noise, replace(config, max_message_bytes=len(noise) - 1), keeps_fitting=True)


def test_the_append_time() -> None:
    """The batch says so, and all of its records have that time; their deltas stay."""
    config = replace(CONFIG, message_timestamp_type="LogAppendTime")
    assert converts(config)
    made = bytes(converted(ENCODED, config, NOW_MS + 7))
    header = parse_header(made)
    assert header.attributes & APPEND_TIME_BIT
    assert header.max_timestamp == NOW_MS + 7
    assert decode(made) == [
        record._replace(timestamp=NOW_MS + 7, timestamp_type=LOG_APPEND_TIME) for record in RECORDS
    ]
    (found,) = validate(ENCODED, config)
    assert found.header.max_timestamp == NOW_MS
    # However old or far ahead its own times are.
    strict = replace(
        config, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000
    )
    for off in (-1_000_000, 1_000_000):
        (found,) = validate(batch([b"x"], NOW_MS + off), strict)
        assert decode(found.data)[0].timestamp == NOW_MS


@pytest.mark.parametrize("off", [0, 1])
def test_how_old_a_record_may_be(off: int) -> None:
    config = replace(CONFIG, message_timestamp_before_max_ms=1000)
    assert converts(config)
    young = Record(0, NOW_MS, 0, None, b"")
    data = bytes(encode([young, Record(1, NOW_MS - 1000 - off, 0, None, b"")]))
    if not off:
        assert converted(data, config, NOW_MS) == data
        assert len(validate(data, config)) == 1
        return
    for check in (converted, validate_now):
        with pytest.raises(InvalidTimestamp, match="1001 ms old"):
            check(data, config, NOW_MS)


def validate_now(data: bytes, config: LogConfig, now_ms: int) -> None:
    list(validated(data, config, now_ms))


def test_a_record_without_a_time_is_not_too_old() -> None:
    config = replace(CONFIG, message_timestamp_before_max_ms=1000)
    data = bytes(encode([Record(0, -1, 0, None, b"x")]))
    assert converted(data, config, NOW_MS) == data
    assert len(validate(data, config)) == 1


def test_how_far_ahead_a_record_may_be() -> None:
    config = replace(CONFIG, message_timestamp_after_max_ms=1000)
    check_not_ahead(NOW_MS + 1000, config, NOW_MS)
    with pytest.raises(InvalidTimestamp, match="1001 ms in the future"):
        check_not_ahead(NOW_MS + 1001, config, NOW_MS)
    assert len(validate(batch([b"x"], NOW_MS + 1000), config)) == 1
    with pytest.raises(InvalidTimestamp):
        validate(batch([b"x"], NOW_MS + 1001), config)


def test_a_compacted_topic_takes_no_record_without_a_key() -> None:
    config = replace(CONFIG, cleanup_policy=("compact",))
    assert len(validate(ENCODED, config)) == 1
    with pytest.raises(InvalidRecord, match="requires a key"):
        validate(ENCODED + bytes(batch([b"x"])), config)


def test_what_ends_a_transaction_passes_as_it_is() -> None:
    config = replace(
        CONFIG,
        cleanup_policy=("compact",),
        compression_type="gzip",
        message_timestamp_type="LogAppendTime",
    )
    data = bytes(marker(7, COMMIT, epoch=3, coordinator_epoch=5))
    (found,) = validate(data, config)
    assert found.data == data
    assert found.marker is not None
    assert found.marker == Marker(COMMIT, 5)


@pytest.mark.parametrize("end", [1, 11, 60, len(ENCODED) - 1])
def test_a_batch_that_is_cut_off(end: int) -> None:
    """Batches before it are given out; its own place is named."""
    found = validated(ENCODED + ENCODED[:end], CONFIG, NOW_MS)
    assert next(found).data == ENCODED
    with pytest.raises(InvalidRecord, match=f"batch 2, at byte {len(ENCODED)}") as raised:
        next(found)
    assert raised.value.position == len(ENCODED)


def test_a_flipped_bit() -> None:
    """Anywhere except in the base offset, which the log assigns, and the leader epoch."""
    for position in range(8, len(ENCODED)):
        changed = bytearray(ENCODED)
        changed[position] ^= 4
        try:
            validate(changed)
        except InvalidRecord:
            is_valid = False
        else:
            is_valid = True
        assert is_valid == (12 <= position < 16), position


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (forged(ATTRIBUTES_POSITION, ">h", 7), "codec"),
        (forged(LAST_OFFSET_DELTA, ">i", -1), "invalid last offset delta -1"),
        (forged(LAST_OFFSET_DELTA, ">i", 3), "outside its batch"),
        (forged(PRODUCER_ID, ">q", 7), "has no epoch"),
        (forged(ATTRIBUTES_POSITION, ">h", TRANSACTIONAL_BIT), "no producer id"),
        (bytes(encode([RECORDS[1], RECORDS[0]._replace(offset=1)])), "are not ascending"),
        (forged(RECORDS_COUNT, ">i", 6), "record count 6"),
        (forged(ATTRIBUTES_POSITION, ">h", 1), "gzip"),
        (forged(ATTRIBUTES_POSITION, ">h", CONTROL_BIT), "control batch has no type"),
        (ENCODED[:16] + b"\3" + ENCODED[17:], "magic 3"),
    ],
)
def test_a_batch_that_breaks_a_rule(data: bytes, reason: str) -> None:
    with pytest.raises(InvalidRecord, match=reason):
        validate(data)


def test_a_producer_keeps_its_numbers() -> None:
    config = replace(CONFIG, compression_type="zstd")
    (found,) = validate(produced([b"x"] * 9, 7, 3, epoch=2, transactional=True), config)
    header = parse_header(found.data)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 2, 3)
    assert header.is_transactional


def test_how_much_is_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what it has become: a small batch may be decompressed."""
    plain = batch([bytes(10_000)])
    small = converted(plain, replace(CONFIG, compression_type="zstd"), NOW_MS)
    monkeypatch.setattr(validator, "MAX_TOGETHER_BYTES", 2 * len(plain))
    config = replace(CONFIG, compression_type="uncompressed")
    assert len(validate(small * 2, config)) == 2
    with pytest.raises(InvalidRecord, match="append fewer at a time"):
        validate(small * 3, config)
