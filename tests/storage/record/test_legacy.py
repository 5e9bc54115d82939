"""storage.record.legacy: v0 and v1 in plain form, against the plain twin, and what is invalid."""

from __future__ import annotations

import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record.batch import decode, decode_plain
from storage.record.header import LOG_APPEND_TIME, parse_header
from storage.record.plain import RUN_BYTES, plain
from tests import oracle
from tests.made_logs import TIMESTAMP, blobs, nullable
from tests.oracle import Message, put_message, put_wrapper
from tests.storage.record.test_batch import V0_ENTRY, V1_ENTRY, T

APPEND_TIME = 8
timestamps = st.integers(-5, 5).map(TIMESTAMP.__add__) | st.sampled_from([-1, 0, 2**62])
gaps = st.sampled_from([1, 1, 1, 2, 64, 8192])


@st.composite
def messages(draw: st.DrawFn, magic: int, min_size: int = 0) -> list[Message]:
    offset = draw(st.sampled_from([0, 1, 1 << 40]))
    made = []
    for _ in range(draw(st.integers(min_size, 6))):
        timestamp = draw(timestamps) if magic else -1
        made.append(Message(offset, draw(nullable), draw(st.none() | blobs), timestamp))
        offset += draw(gaps)
    return made


def seal(entry: bytes) -> bytes:
    """Make an entry's size and CRC right."""
    body = entry[16:]
    return entry[:8] + struct.pack(">iI", len(body) + 4, zlib.crc32(body)) + body


def seal_set(inner: bytes, magic: int, *, codec: int = 1, offset: int = 0) -> bytes:
    return put_message(Message(offset, None, inner, T), magic, codec)


# -- messages that are not compressed ------------------------------------------------------------


@given(data=st.data(), magic=st.integers(0, 1), tail=st.binary(max_size=30))
def test_a_run_becomes_one_batch(data: st.DataObject, magic: int, tail: bytes) -> None:
    made = data.draw(messages(magic, min_size=1))
    entries = [put_message(message, magic) for message in made]
    log = b"ab" + b"".join(entries) + tail
    end = data.draw(st.integers(2 + len(entries[0]), len(log)))
    batch, size = plain(log, 2, end)
    whole = 0
    while whole < len(made) and sum(map(len, entries[: whole + 1])) <= min(end - 2, RUN_BYTES):
        whole += 1
    whole = max(whole, 1)
    assert size == sum(map(len, entries[:whole]))
    assert batch == oracle.plain_of(made[:whole])
    assert [
        Message(record.offset, record.key, record.value, record.timestamp)
        for record in decode_plain(batch)
    ] == made[:whole]


def test_append_time_has_one_timestamp_a_batch() -> None:
    times = [T, T, T + 1, T + 1, T]
    made = [Message(number, b"k", b"v", time) for number, time in enumerate(times)]
    log = b"".join(put_message(message, 1, APPEND_TIME) for message in made)
    size = len(log) // 5
    for start, stop in ((0, 2), (2, 4), (4, 5)):
        batch, taken = plain(log, start * size, len(log))
        assert taken == (stop - start) * size
        assert batch == oracle.plain_of(made[start:stop], append_time=times[start])
        assert {record.timestamp_type for record in decode_plain(batch)} == {LOG_APPEND_TIME}


ENDS_A_RUN = {
    "the other format": put_message(Message(6, None, b"x", T), 0),
    "v2": oracle.put_batch(b"", 0, base_offset=6),
    "append time": put_message(Message(6, None, b"x", T), 1, APPEND_TIME),
    "a wrapper": put_wrapper([Message(6, None, b"x", T)], 1, 1),
    "the same offset": V1_ENTRY,
    "an offset too far": put_message(Message(5 + 2**31, None, b"x", T), 1),
    "a wrong CRC": put_message(Message(6, None, b"x", T), 1)[:-1] + b"y",
    "a size too small": put_message(Message(6, None, b"x", T), 1)[:11] + b"\x15" + bytes(50),
    "fields that do not fill it": seal(V1_ENTRY[:7] + b"\6" + V1_ENTRY[8:] + b"\0"),
    "not whole": V1_ENTRY[:-1],
}


@pytest.mark.parametrize("following", ENDS_A_RUN.values(), ids=ENDS_A_RUN.keys())
def test_what_ends_a_run(following: bytes) -> None:
    log = V1_ENTRY + following
    assert plain(log, 0, len(log)) == (oracle.plain_of([Message(5, b"k", b"hello", T)]), 40)


def test_unused_bits_of_v0_mean_nothing() -> None:
    odd = put_message(Message(6, None, b"x"), 0, APPEND_TIME)
    batch, size = plain(V0_ENTRY + odd, 0, len(V0_ENTRY + odd))
    assert size == len(V0_ENTRY + odd)
    assert [record.timestamp for record in decode_plain(batch)] == [-1, -1]
    assert {record.timestamp_type for record in decode_plain(batch)} == {0}
    assert parse_header(odd).timestamp_type == 0


def test_runs_are_bounded() -> None:
    made = [Message(number, None, b"x" * 100, T) for number in range(1000)]
    log = b"".join(put_message(message, 1) for message in made)
    size = len(log) // 1000
    at = count = 0
    while at < len(log):
        batch, taken = plain(log, at, len(log))
        assert taken == min(RUN_BYTES // size * size, len(log) - at)
        count += parse_header(batch).records_count
        at += taken
    assert count == 1000
    large = put_message(Message(7, None, b"x" * 3 * RUN_BYTES, T), 1)
    assert plain(large + log, 0, len(large + log))[1] == len(large)


# -- wrappers ------------------------------------------------------------------------------------


@given(data=st.data(), magic=st.integers(0, 1), append_time=st.booleans())
def test_a_wrapper_becomes_one_batch(data: st.DataObject, magic: int, append_time: bool) -> None:
    made = data.draw(messages(magic, min_size=1))
    last = made[-1].offset
    largest = max(message.timestamp for message in made)
    inner, time = made, largest
    if magic:
        # From 0 on; compaction may have taken the first ones.
        first = made[0].offset - data.draw(st.sampled_from([0, 0, 1])) if made[0].offset else 0
        inner = [
            Message(message.offset - first, message.key, message.value, message.timestamp)
            for message in made
        ]
        time = T + 7 if append_time else largest
    bits = APPEND_TIME if append_time else 0
    wrapper = put_wrapper(inner, magic, 1, offset=last, timestamp=time, attributes=bits)
    expected = oracle.plain_of(made, append_time=time if magic and append_time else None)
    assert plain(b"a" + wrapper + b"rest", 1, len(wrapper) + 1) == (expected, len(wrapper))
    assert decode(b"a" + wrapper + wrapper, 1) == decode_plain(expected)


def plain_of_all(entry: bytes) -> tuple[bytearray, int]:
    return plain(entry, 0, len(entry))


def test_wrapper_with_offset_0() -> None:
    inner = [Message(number, None, b"x", T) for number in range(3)]
    batch, _ = plain_of_all(put_wrapper(inner, 1, 1, offset=0))
    assert batch == oracle.plain_of(inner)
    # v0 takes the offsets inside as they are, whatever the wrapper's.
    inner = [Message(number, None, b"x") for number in (10, 11)]
    batch, _ = plain_of_all(put_wrapper(inner, 0, 1, offset=0))
    assert batch == oracle.plain_of(inner)
    # Compaction may have taken the last message out of it.
    batch, _ = plain_of_all(put_wrapper(inner, 0, 1, offset=14))
    assert batch == oracle.plain_of(inner, last_offset=14)


def test_wrapper_has_the_largest_timestamp() -> None:
    wrapper = put_wrapper([Message(0, None, b"x", T)], 1, 1, timestamp=T + 9)
    batch, _ = plain(wrapper, 0, len(wrapper))
    assert parse_header(batch).max_timestamp == T + 9
    assert [record.timestamp for record in decode_plain(batch)] == [T]


def test_inner_crcs_are_not_looked_at() -> None:
    inner = put_message(Message(0, b"k", b"v", T), 1)
    wrapper = seal_set(gzip.compress(inner[:12] + b"\0\0\0\0" + inner[16:]), 1)
    assert [record.value for record in decode(wrapper)] == [b"v"]


INNER = put_message(Message(0, b"k", b"v", T), 1)
INVALID = {
    "no message": (seal_set(gzip.compress(b""), 1), "contains no message"),
    "null value": (put_message(Message(0, None, None, T), 1, 1), "null"),
    "nested": (
        seal_set(gzip.compress(put_wrapper([Message(0, None, b"v", T)], 1, 1)), 1),
        "inside a wrapper",
    ),
    "another format inside": (
        seal_set(gzip.compress(put_message(Message(0, b"k", b"v"), 0)), 1),
        "another format",
    ),
    "v2 inside": (seal_set(gzip.compress(oracle.put_batch(b"", 0)), 1), "another format"),
    "cut off inside": (seal_set(gzip.compress(INNER + INNER[:20]), 1), "truncated"),
    "a byte left inside": (seal_set(gzip.compress(INNER + b"\0"), 1), "truncated"),
    "no stream": (seal_set(b"hello", 1), "gzip"),
    "zstd": (seal_set(b"", 1, codec=4), "no codec 4"),
    "codec 7": (seal_set(b"", 0, codec=7), "no codec 7"),
    "wrapper before its last": (
        put_wrapper([Message(3, None, b"v", T)], 1, 1, offset=2),
        "less than",
    ),
    "offsets go back": (put_wrapper([Message(n, None, b"", T) for n in (1, 1)], 1, 1), "ascend"),
    "negative offset inside": (put_wrapper([Message(-1, None, b"", T)], 1, 1, offset=5), "-1"),
    "offsets too far apart": (
        put_wrapper([Message(n, None, b"", T) for n in (0, 2**31)], 1, 1),
        "begins at 0",
    ),
    "wrapper too far": (
        put_wrapper([Message(0, None, b"")], 0, 1, offset=2**31),
        "from offset 0 to",
    ),
    "fields do not fill it": (seal(put_wrapper([Message(0, None, b"", T)], 1, 1) + b"x"), "fill"),
    "key too long": (seal(seal_set(b"", 1)[:26] + struct.pack(">i", 100) + bytes(40)), "key"),
    "key length -2": (seal(seal_set(b"", 1)[:26] + struct.pack(">ii", -2, 0)), "key"),
    "wrong CRC": (put_wrapper([Message(0, None, b"v", T)], 1, 1)[:-1] + b"x", "CRC"),
    "inner size too small": (seal_set(gzip.compress(INNER[:11] + b"\x15" + INNER[12:]), 1), "size"),
    "inner key too long": (
        seal_set(gzip.compress(INNER[:26] + struct.pack(">i", 99) + INNER[30:]), 1),
        "fill",
    ),
}


@pytest.mark.parametrize(("wrapper", "reason"), INVALID.values(), ids=INVALID.keys())
def test_invalid_wrappers(wrapper: bytes, reason: str) -> None:
    log = V1_ENTRY + wrapper
    with pytest.raises(CorruptRecord, match=reason) as caught:
        plain(log, len(V1_ENTRY), len(log))
    assert caught.value.position == len(V1_ENTRY)
    assert caught.value.offset == parse_header(wrapper).base_offset


def test_invalid_messages() -> None:
    for entry in (V0_ENTRY, V1_ENTRY):
        for damage, reason in (
            (entry[:-1] + b"x", "CRC"),
            (seal(entry + b"x"), "fill"),
            (seal(entry[:-1]), "fill"),
            (entry[:11] + b"\x0d" + entry[12:], "length 13"),
        ):
            with pytest.raises(CorruptRecord, match=reason) as caught:
                plain(b"abc" + damage, 3, 3 + len(damage))
            assert caught.value.position == 3


# -- damage --------------------------------------------------------------------------------------
