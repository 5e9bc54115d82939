"""storage.record._batch: offsets and the index rebuild, against their plain twins."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record._batch import Rebuild, assign_offsets
from storage.record._plain import seal as seal_batch
from storage.record.batch import Record, decode, encode
from storage.record.control import ABORT, COMMIT, encode_marker, parse_marker
from storage.record.header import CREATE_TIME, HEADER_SIZE, pack, parse_header
from tests import oracle
from tests.made_logs import MadeLog, logs
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    THREE_RECORDS,
    V0_ENTRY,
    V1_ENTRY,
    T,
    seal,
)

SHORTS = st.integers(-1, 3)

# -- assign_offsets ------------------------------------------------------------------------------


@given(log=logs(), first=st.integers(0, 1 << 40), epoch=st.integers(-1, 2**31 - 1))
def test_offsets_follow_one_another(log: MadeLog, first: int, epoch: int) -> None:
    data = bytearray(log.data)
    told = assign_offsets(data, first, epoch)
    expected, expected_told = oracle.assign_offsets(log.data, first, epoch)
    assert data == expected
    assert told == expected_told
    for position, size, last_offset, _ in told:
        header = parse_header(data, position)
        assert (header.size, header.last_offset, header.leader_epoch) == (size, last_offset, epoch)
        decode(data, position)  # the CRC still fits


MALFORMED = {
    "a header cut off": THREE_RECORDS[:60],
    "a batch cut off": THREE_RECORDS[:-1],
    "an older format": V1_ENTRY + bytes(61),
    "zeros": bytes(100),
    "batch length 48": THREE_RECORDS[:8] + struct.pack(">i", 48) + THREE_RECORDS[12:],
    "negative batch length": THREE_RECORDS[:8] + struct.pack(">i", -5) + THREE_RECORDS[12:],
    "largest batch length": THREE_RECORDS[:8] + struct.pack(">i", 2**31 - 1) + THREE_RECORDS[12:],
    "negative invalid last offset delta": THREE_RECORDS[:23]
    + struct.pack(">i", -1)
    + THREE_RECORDS[27:],
}


@pytest.mark.parametrize("wrong", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_batches_change_nothing(wrong: bytes) -> None:
    data = bytearray(THREE_RECORDS + wrong)
    with pytest.raises(CorruptRecord) as caught:
        assign_offsets(data, 77, 3)
    assert caught.value.position == len(THREE_RECORDS)
    assert data == THREE_RECORDS + wrong


# -- Rebuild -------------------------------------------------------------------------------------


def rebuilt(data: bytes, base: int, interval: int) -> Rebuild:
    rebuild = Rebuild(base, interval)
    rebuild.feed(data, len(data), 0)
    return rebuild


@given(log=logs(max_batches=8, control=False), interval=st.sampled_from([0, 100, 300, 5000]))
def test_rebuild_is_what_appending_had_made(log: MadeLog, interval: int) -> None:
    rebuild = rebuilt(log.data, log.first_offset, interval)
    expected = oracle.rebuild(log.data, log.first_offset, interval)
    assert rebuild.fault is None
    assert rebuild.position == len(log.data)
    assert bytes(rebuild.offset_entries) == expected.offsets
    assert bytes(rebuild.time_entries) == expected.times
    assert rebuild.max_timestamp == expected.max_timestamp
    assert rebuild.max_timestamp_offset == expected.max_timestamp_offset
    assert rebuild.records == expected.records
    assert rebuild.bytes_since == expected.bytes_since
    assert rebuild.epochs == expected.epochs
    found = list(oracle.walk(log.data))
    if found:
        assert rebuild.next_offset == log.next_offset
        assert rebuild.first_max_timestamp == found[0].max_timestamp
        assert rebuild.last_batch_position == found[-1].position
    else:
        assert rebuild.next_offset == log.first_offset
        assert rebuild.last_batch_position == -1


@given(log=logs(max_batches=8, control=False), stop=st.integers(0, 8))
def test_it_resumes_in_the_middle(log: MadeLog, stop: int) -> None:
    whole = rebuilt(log.data, log.first_offset, 150)
    at = [*(batch.position for batch in oracle.walk(log.data)), len(log.data)]
    position = at[min(stop, len(at) - 1)]
    first = rebuilt(log.data[:position], log.first_offset, 150)
    indexed = first.position - first.bytes_since
    times = bytes(first.time_entries)
    second = Rebuild(
        log.first_offset,
        150,
        position=position,
        next_offset=first.next_offset,
        indexed_position=indexed,
        indexed_timestamp=struct.unpack(">q", times[-12:-4])[0] if times else -1,
        max_timestamp=first.max_timestamp,
        max_timestamp_offset=first.max_timestamp_offset,
        epoch=first.epochs[-1][0] if first.epochs else -1,
    )
    rest = log.data[position:]
    second.feed(rest, len(rest), position)
    assert first.offset_entries + second.offset_entries == whole.offset_entries
    assert first.time_entries + second.time_entries == whole.time_entries
    assert first.epochs + second.epochs == whole.epochs
    assert first.records + second.records == whole.records
    assert second.bytes_since == whole.bytes_since
    assert second.next_offset == whole.next_offset
    assert second.max_timestamp == whole.max_timestamp
    assert second.max_timestamp_offset == whole.max_timestamp_offset


def test_the_example_of_the_index_rule() -> None:
    # Interval 4096, batches of 3000 bytes: entries for the third and the fifth.
    row = oracle.put_row(oracle.Row(0, 0, None, b"x" * (3000 - 61 - 9)))
    assert len(row) + 61 == 3000
    data = b"".join(
        oracle.put_batch(row, 1, base_offset=n, base_timestamp=n, max_timestamp=n) for n in range(5)
    )
    rebuild = rebuilt(data, 0, 4096)
    assert bytes(rebuild.offset_entries) == struct.pack(">iiii", 2, 6000, 4, 12000)
    assert bytes(rebuild.time_entries) == struct.pack(">qiqi", 2, 2, 4, 4)
    assert rebuild.bytes_since == 3000


def patched(batch: bytes, at: int, form: str, value: int) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(form, changed, at, value)
    return seal(changed)


NEXT = patched(THREE_RECORDS, 0, ">q", 3)  # what may follow THREE_RECORDS

FAULTS = {
    "zeros": (bytes(4096), "batch length 0"),
    "wrong CRC": (NEXT[:-1] + b"\1", "CRC"),
    "unknown magic": (patched(NEXT, 16, ">b", 3), "magic 3"),
    "batch length 48": (NEXT[:8] + struct.pack(">i", 48) + NEXT[12:], "batch length 48"),
    "negative batch length": (NEXT[:8] + struct.pack(">i", -1) + NEXT[12:], "batch length -1"),
    "offset goes back": (patched(NEXT, 0, ">q", 2), "base offset 2"),
    "negative offset": (patched(NEXT, 0, ">q", -1), "base offset -1"),
    "offset too far": (patched(NEXT, 0, ">q", 2**31 - 2), "too far"),
    "far too far": (patched(NEXT, 0, ">q", 2**63 - 1), "exceeds the largest offset"),
    "negative invalid last offset delta": (patched(NEXT, 23, ">i", -1), "delta -1"),
    "negative count": (patched(NEXT, 57, ">i", -1), "count -1"),
    "unknown codec": (patched(NEXT, 21, ">h", 6), "unknown codec 6"),
    "older format with a wrong CRC": (V0_ENTRY[:-1] + b"x", "CRC"),
    "older format, offset goes back": (V0_ENTRY[:7] + b"\2" + V0_ENTRY[8:], "base offset 2"),
    "older format, offset too far": (b"\1" + V0_ENTRY[1:], "too far"),
    "older format, negative offset": (b"\xff" + V0_ENTRY[1:], "base offset -"),
    "v0 with a size of 13": (V0_ENTRY[:11] + b"\x0d" + V0_ENTRY[12:], "length 13"),
    "v1 with a size of 21": (V1_ENTRY[:11] + b"\x15" + V1_ENTRY[12:], "length 21"),
    "v1 with zstd": (oracle.put_message(oracle.Message(5, None, b"v", T), 1, 4), "no codec 4"),
}


@pytest.mark.parametrize(("wrong", "reason"), FAULTS.values(), ids=FAULTS.keys())
def test_it_stops_at_the_first_batch_that_is_not_valid(wrong: bytes, reason: str) -> None:
    data = THREE_RECORDS + wrong + NEXT
    rebuild = Rebuild(0, 4096)
    assert rebuild.feed(data, len(data), 0) == len(THREE_RECORDS)
    assert rebuild.fault is not None
    assert reason in rebuild.fault
    assert (rebuild.position, rebuild.next_offset) == (len(THREE_RECORDS), 3)
    assert rebuild.feed(NEXT, len(NEXT), rebuild.position) == 0


def test_offsets_may_reach_as_far_as_an_index_can_name() -> None:
    last = patched(NEXT, 0, ">q", 2**31 - 3)
    rebuild = rebuilt(THREE_RECORDS + last, 0, 0)
    assert rebuild.fault is None
    assert bytes(rebuild.offset_entries) == struct.pack(">ii", 2**31 - 1, 95)


TAKEN = {
    "message format v0": V0_ENTRY,
    "message format v1": V1_ENTRY,
    "gzip compression": patched(NEXT, 21, ">h", 1),
    "zstd compression": patched(NEXT, 21, ">h", 4),
    "transactions": patched(NEXT, 21, ">h", 0x10),
    "a marker": ABORT_MARKER,
    "control records": patched(NEXT, 21, ">h", 0x20),
    "delete horizon": patched(NEXT, 21, ">h", 0x40),
    "empty": EMPTY_BATCH,
}


@pytest.mark.parametrize("batch", TAKEN.values(), ids=TAKEN.keys())
def test_it_takes_every_kind_of_batch(batch: bytes) -> None:
    header = parse_header(batch)
    data = THREE_RECORDS + batch
    rebuild = rebuilt(data, 0, 0)
    assert (rebuild.fault, rebuild.position) == (None, len(data))
    assert rebuild.next_offset == header.last_offset + 1
    assert bytes(rebuild.offset_entries) == struct.pack(">ii", header.last_offset, 95)
    assert rebuild.max_timestamp == max(header.max_timestamp, parse_header(data).max_timestamp)
    assert rebuild.records == 3 + header.records_count
    for size in range(len(batch)):
        rebuild = rebuilt(batch[:size], 0, 4096)
        assert (rebuild.fault, rebuild.position) == (None, 0)


def test_older_formats_and_their_timestamps() -> None:
    assert zlib.crc32(V0_ENTRY[16:]) == int.from_bytes(V0_ENTRY[12:16], "big")
    rebuild = rebuilt(V0_ENTRY, 0, 0)
    assert (rebuild.max_timestamp, rebuild.max_timestamp_offset) == (-1, 0)
    assert (rebuild.first_max_timestamp, rebuild.epochs, rebuild.producers) == (-1, [], [])
    later = V1_ENTRY[:7] + b"\6" + V1_ENTRY[8:]
    rebuild = rebuilt(V0_ENTRY + later, 0, 0)
    assert (rebuild.max_timestamp, rebuild.max_timestamp_offset) == (T, 6)
    assert bytes(rebuild.time_entries) == struct.pack(">qi", T, 6)
    assert (rebuild.records, rebuild.next_offset) == (2, 7)
    wrapper = oracle.put_wrapper([oracle.Message(9, b"k", b"v", T + 1)] * 3, 1, codec=1)
    rebuild = rebuilt(V0_ENTRY + wrapper, 0, 0)
    assert (rebuild.max_timestamp, rebuild.next_offset, rebuild.records) == (T + 1, 10, 2)


def test_producers_are_collected() -> None:
    def sent(offset: int, **fields: int) -> bytes:
        header = parse_header(THREE_RECORDS)._replace(base_offset=offset, **fields)
        return pack(header, THREE_RECORDS[HEADER_SIZE:])

    commit = encode_marker(COMMIT, 1000, 3, 8, 16, T + 3, 0)
    data = b"".join(
        (
            THREE_RECORDS,
            sent(3, producer_id=0, producer_epoch=32767, base_sequence=2**31 - 1),
            sent(6, producer_id=1000, producer_epoch=3, base_sequence=0, attributes=0x10),
            ABORT_MARKER,
            sent(11, producer_id=2**63 - 1, producer_epoch=0, base_sequence=4, attributes=0x10),
            EMPTY_BATCH[:7] + b"\x0e" + EMPTY_BATCH[8:23] + bytes(4) + EMPTY_BATCH[27:],
            commit,
        )
    )
    rebuild = Rebuild(0, 4096)
    rebuild.feed(data, len(data), 0, check_crc=False)
    assert rebuild.fault is None
    assert rebuild.producers == [
        (3, 5, 0, 32767, 2**31 - 1, 0, T + 5, 95, -1, -1),
        (6, 8, 1000, 3, 0, 0x10, T + 5, 190, -1, -1),
        (10, 10, 1000, 3, -1, 0x30, T, 285, ABORT, 7),
        (11, 13, 2**63 - 1, 0, 4, 0x10, T + 5, 363, -1, -1),
        (14, 14, 1000, 3, 5, 0, T, 458, -1, -1),
        (16, 16, 1000, 3, -1, 0x30, T + 3, 519, COMMIT, 8),
    ]
    rebuild.producers.clear()
    assert rebuild.producers == []


@given(
    key=st.none() | st.binary(max_size=6) | st.builds(struct.Struct(">hh").pack, *[SHORTS] * 2),
    value=st.none() | st.binary(max_size=8),
    headers=st.lists(st.tuples(st.just("h"), st.none() | st.binary(max_size=3)), max_size=1),
)
def test_markers_are_read_as_parse_marker_does(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    record = Record(10, T, CREATE_TIME, key, value, tuple(headers))
    batch = encode([record], attributes=0x30, producer_id=7, producer_epoch=0)
    try:
        marker = parse_marker(batch)
    except CorruptRecord:
        marker = None
    assert rebuilt(batch, 0, 4096).producers[0][8:] == (marker or (-1, -1))


def test_markers_of_later_versions() -> None:
    record = Record(10, T, CREATE_TIME, struct.pack(">hhq", 4, 1, 0), struct.pack(">hiq", 5, 6, 7))
    batch = encode([record], attributes=0x30, producer_id=7, producer_epoch=0)
    assert parse_marker(batch) == (COMMIT, 6)
    assert rebuilt(batch, 0, 4096).producers[0][8:] == (COMMIT, 6)


def test_without_checking_the_crc() -> None:
    damage = THREE_RECORDS[:-1] + b"\1"
    rebuild = Rebuild(0, 4096)
    assert rebuild.feed(damage, len(damage), 0, check_crc=False) == len(damage)
    assert rebuild.fault is None


def test_crc_of_every_size() -> None:
    # Short batches have theirs from other code than long ones.
    for size in [*range(80), *range(940, 980), 5000]:
        batch = oracle.put_batch(oracle.put_row(oracle.Row(0, 0, None, b"v" * size)), 1)
        assert rebuilt(batch, 0, 4096).fault is None
        assert rebuilt(batch[:-2] + b"x\0", 0, 4096).fault == "the CRC is wrong"
        sealed = bytearray(batch[:17] + bytes(4) + batch[21:])
        seal_batch(sealed)
        assert sealed == batch


def test_empty_batch_takes_its_offsets() -> None:
    rebuild = rebuilt(EMPTY_BATCH, 100, 4096)
    assert (rebuild.next_offset, rebuild.records, rebuild.fault) == (110, 0, None)


def test_wrong_calls() -> None:
    rebuild = Rebuild(0, 4096)
    with pytest.raises(ValueError, match="position"):
        rebuild.feed(THREE_RECORDS, 95, 1)
    with pytest.raises(ValueError, match="96 bytes"):
        rebuild.feed(THREE_RECORDS, 96, 0)
    with pytest.raises(ValueError, match="-1 bytes"):
        rebuild.feed(THREE_RECORDS, -1, 0)
