"""storage.kafka07.entries: entries of Kafka 0.7 against a plain twin, whole and in pieces."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.kafka07._entries import CUT_OFF, WHOLE, walk
from storage.kafka07.entries import headers_07, plain_07
from storage.record.batch import Record, decode_plain
from storage.record.compression import GZIP, SNAPPY, TooLarge, compress
from storage.record.header import parse_header
from tests.storage.old_logs import encode_entry, encode_set
from tests.storage.record.test_scan import Bytes

HELLO_0 = bytes.fromhex("0000000a003610a68668656c6c6f")
HELLO_1 = bytes.fromhex("0000000b01003610a68668656c6c6f")


class Stored(NamedTuple):
    """One entry as it lies in the log, and the payloads in it."""

    data: bytes
    payloads: tuple[bytes, ...]


def entry(payload: bytes, magic: int) -> Stored:
    """Written from the table of the format, not by the module."""
    head = struct.pack(">b", 0) if magic == 0 else struct.pack(">bb", 1, 0)
    message = head + struct.pack(">I", zlib.crc32(payload)) + payload
    return Stored(struct.pack(">i", len(message)) + message, (payload,))


def compressed(payloads: Sequence[bytes], codec: int, magics: Sequence[int]) -> Stored:
    inner = b"".join(
        entry(payload, magic).data for payload, magic in zip(payloads, magics, strict=True)
    )
    return Stored(encode_entry(compress(codec, inner), codec=codec), tuple(payloads))


payloads = st.binary(max_size=40) | st.integers(0, 5000).map(bytes)
singles = st.builds(entry, payloads, st.integers(0, 1))
sets = st.lists(st.tuples(payloads, st.integers(0, 1)), max_size=5).flatmap(
    lambda pairs: st.builds(
        compressed,
        st.just([payload for payload, _ in pairs]),
        st.sampled_from([GZIP, SNAPPY]),
        st.just([magic for _, magic in pairs]),
    )
)
# Most logs have many entries in one run.
logs = st.lists(st.one_of(singles, singles, singles, sets), max_size=20)


def records_of(log: Sequence[Stored], start: int = 0) -> list[tuple[int, bytes]]:
    """Return the ids and payloads that a reader must see."""
    ids = itertools.accumulate((len(stored.data) for stored in log), initial=start)
    return [
        (id_, payload) for stored, id_ in zip(log, ids, strict=False) for payload in stored.payloads
    ]


def read(data: bytes, start: int = 0, end: int | None = None) -> list[tuple[int, bytes]]:
    """All records, run by run."""
    end = len(data) if end is None else end
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < end:
        batch, size = plain_07(data, at, end, start + at)
        if not batch:
            break
        header = parse_header(batch)
        assert header.base_offset == start + at
        assert (header.magic, header.attributes, header.crc) == (2, 0, 0)
        assert (header.base_timestamp, header.max_timestamp) == (-1, -1)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert header.leader_epoch == -1
        assert header.size == len(batch)
        records = decode_plain(batch)
        assert len(records) == header.records_count
        for record in records:
            assert record.value is not None
            assert record == Record(record.offset, -1, 0, None, record.value)
            found.append((record.offset, record.value))
        if records:
            assert header.last_offset == records[-1].offset
        at += size
    return found


def test_vectors() -> None:
    assert encode_entry(b"hello", magic=0) == HELLO_0 == entry(b"hello", 0).data
    assert encode_entry(b"hello") == HELLO_1 == entry(b"hello", 1).data
    assert read(HELLO_0 + HELLO_1, 100) == [(100, b"hello"), (114, b"hello")]


def test_java_compressed_it() -> None:
    """A gzip header as Java's GZIPOutputStream writes it, with its time and system bytes 0."""
    entries = HELLO_1 + encode_entry(b"second")
    packed = bytearray(gzip.compress(entries, mtime=0))
    packed[9] = 0
    assert read(encode_entry(packed, codec=GZIP)) == [(0, b"hello"), (0, b"second")]


@given(log=logs, start=st.sampled_from([0, 1, 10**12, 2**63 - 1 - 2**20]))
def test_logs_round_trip(log: list[Stored], start: int) -> None:
    data = b"".join(stored.data for stored in log)
    assert read(data, start) == records_of(log, start)


@given(log=logs)
def test_of_a_torn_log_every_whole_entry_is_read(log: list[Stored]) -> None:
    data = b"".join(stored.data for stored in log)
    edges = list(itertools.accumulate((len(stored.data) for stored in log), initial=0))
    for number, (start, end) in enumerate(itertools.pairwise(edges)):
        for cut in {start + 1, start + 3, start + 4, start + 8, (start + end) // 2, end - 1}:
            if start < cut < end:
                assert read(data, end=cut) == records_of(log[:number])
                batch, size = plain_07(data, start, cut, start)
                assert not batch
                # `size` is how much to read next: more than before, at most the whole entry.
                assert cut - start < size <= end - start


def test_a_run_is_no_longer_than_it_should_be() -> None:
    one = encode_entry(bytes(90))
    data = one * 1000
    batch, size = plain_07(data, 0, len(data), 0)
    assert size == -(-16384 // 100) * 100
    assert parse_header(batch).records_count == size // 100
    large = encode_entry(bytes(100_000))
    batch, size = plain_07(large + data, 0, len(large + data), 0)
    assert size == len(large)


def test_a_run_ends_before_a_set_and_a_set_is_alone() -> None:
    data = HELLO_0 + encode_set([b"a"], SNAPPY) + HELLO_1
    sizes = []
    at = 0
    while at < len(data):
        _, size = plain_07(data, at, len(data), at)
        sizes.append(size)
        at += size
    assert sizes == [14, len(data) - 29, 15]


def test_empty_set_is_an_empty_batch() -> None:
    data = encode_set([], GZIP) + HELLO_1
    batch, size = plain_07(data, 0, len(data), 7)
    header = parse_header(batch)
    assert (header.base_offset, header.last_offset, header.records_count) == (7, 7, 0)
    assert size == len(data) - 15
    assert decode_plain(batch) == []


def test_sets_within_sets_are_unpacked_in_order() -> None:
    inner = encode_set([b"b", b"c"], SNAPPY)
    middle = encode_entry(b"a") + inner + encode_entry(b"d") + inner
    data = encode_entry(compress(GZIP, middle), codec=GZIP)
    assert [payload for _, payload in read(data)] == [b"a", b"b", b"c", b"d", b"b", b"c"]


def test_sets_too_deep_in_one_another() -> None:
    data = HELLO_1
    for _ in range(9):
        data = encode_entry(compress(GZIP, data), codec=GZIP)
    with pytest.raises(CorruptRecord, match="8 levels deep"):
        plain_07(data, 0, len(data), 0)


def test_all_sets_in_one_another_share_a_limit() -> None:
    inner = encode_set([bytes(1000)], GZIP)
    data = encode_entry(compress(GZIP, inner * 20), codec=GZIP)
    assert len(read(data)) == 20
    with pytest.raises(TooLarge, match="decompresses to more"):
        plain_07(data, 0, len(data), 0, 20_000)


def crc_of(payload: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(payload))


WRONG = {
    "length 4": (struct.pack(">i", 4) + bytes(20), "length"),
    "length 0": (bytes(20), "length"),
    "negative length": (struct.pack(">i", -1) + bytes(20), "length"),
    "largest negative length": (struct.pack(">i", -(2**31)) + bytes(20), "length"),
    "length 5 of magic 1": (struct.pack(">ibI", 5, 1, 0) + bytes(20), "length"),
    "magic 2": (HELLO_0[:4] + b"\2" + HELLO_0[5:], "magic"),
    "magic -1": (HELLO_0[:4] + b"\xff" + HELLO_0[5:], "magic"),
    "codec 3": (HELLO_1[:5] + b"\3" + HELLO_1[6:], "codec 3"),
    "CRC": (HELLO_0[:5] + b"xxxx" + HELLO_0[9:], "CRC"),
    "payload": (HELLO_1[:-1] + b"O", "CRC"),
    "set of nothing compressed": (encode_entry(b"hello", codec=GZIP), "gzip"),
    "set of half an entry": (encode_entry(compress(GZIP, HELLO_1[:-1]), codec=GZIP), "inside"),
    "set of half a length": (encode_entry(compress(GZIP, HELLO_1 + b"\0"), codec=GZIP), "inside"),
    "set with a wrong CRC": (
        encode_entry(compress(SNAPPY, HELLO_1[:-1] + b"O"), codec=SNAPPY),
        "set: an entry's CRC",
    ),
    "set with a wrong length": (
        encode_entry(compress(SNAPPY, HELLO_1 + bytes(9)), codec=SNAPPY),
        "set: an entry's length",
    ),
}


@pytest.mark.parametrize(("wrong", "reason"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_said_where_it_lies(wrong: bytes, reason: str) -> None:
    data = HELLO_0 + wrong + HELLO_1
    batch, size = plain_07(data, 0, len(data), 1000)
    # The entry before it is still there.
    assert size == len(HELLO_0)
    assert len(decode_plain(batch)) == 1
    with pytest.raises(CorruptRecord, match=reason) as caught:
        plain_07(data, size, len(data), 1000 + size)
    assert caught.value.position == size
    assert caught.value.offset == 1000 + size


@pytest.mark.parametrize(("at", "end"), [(-1, 5), (3, 2), (0, 15)])
def test_bounds_are_held(at: int, end: int) -> None:
    with pytest.raises(ValueError, match="of a buffer of 14"):
        plain_07(HELLO_0, at, end, 0)
    with pytest.raises(ValueError, match="of a buffer of 14"):
        walk(HELLO_0, at, end, end, check_crc=False)


# -- walk and headers ----------------------------------------------------------------------------


@given(log=logs)
def test_walk_stops_at_the_first_edge_from_a_place_on(log: list[Stored]) -> None:
    data = b"".join(stored.data for stored in log)
    edges = list(itertools.accumulate((len(stored.data) for stored in log), initial=0))
    for number, edge in enumerate(edges):
        assert walk(data, 0, len(data), edge, check_crc=True) == (edge, WHOLE)
        assert walk(data, edge, len(data), len(data), check_crc=True) == (len(data), WHOLE)
        if number:
            behind = edges[number - 1] + 1
            assert walk(data, 0, len(data), behind, check_crc=False) == (edge, WHOLE)
            before = edges[number - 1]
            assert walk(data, 0, edge - 1, edge, check_crc=False)[0] == before
            if edge - 1 > before:
                assert walk(data, 0, edge - 1, edge, check_crc=False)[1] == CUT_OFF


@given(log=logs, start=st.integers(0, 10**15))
def test_headers_are_those_of_the_entries(log: list[Stored], start: int) -> None:
    data = b"".join(stored.data for stored in log)
    edges = list(itertools.accumulate((len(stored.data) for stored in log), initial=0))
    found = list(headers_07(Bytes(data), 0, len(data), start))
    assert [at for at, _ in found] == edges[:-1]
    for (at, header), stored in zip(found, log, strict=True):
        magic = stored.data[4]
        assert header.magic == magic
        assert header.size == len(stored.data)
        assert header.base_offset == header.last_offset == start + at
        assert header.codec == (stored.data[5] & 3 if magic else 0)
        assert header.crc == zlib.crc32(stored.data[9 + magic :])
        assert header.records_count == (-1 if header.codec else 1)
        assert header.magic < 2
    middle = len(log) // 2
    assert list(headers_07(Bytes(data), edges[middle], len(data), start)) == found[middle:]
    for end in {len(data) - 1, len(data) // 2} & set(range(len(data))):
        assert [at for at, _ in headers_07(Bytes(data), 0, end, start)] == [
            at for at, following in itertools.pairwise(edges) if following <= end
        ]


def test_headers_of_large_entries_are_found_without_reading_them() -> None:
    data = HELLO_0 + encode_entry(bytes(1 << 20)) + HELLO_1 + encode_entry(bytes(1 << 20))
    source = Bytes(data)
    assert [header.size for _, header in headers_07(source, 0, len(data), 0)] == [
        14,
        (1 << 20) + 10,
        15,
        (1 << 20) + 10,
    ]
    assert source.read < 1 << 18


@pytest.mark.parametrize("wrong", ["length 4", "magic 2", "codec 3", "length 5 of magic 1"])
def test_header_that_none_can_be(wrong: str) -> None:
    data = HELLO_0 + WRONG[wrong][0]
    found = headers_07(Bytes(data), 0, len(data), 0)
    assert next(found)[0] == 0
    with pytest.raises(CorruptRecord, match=WRONG[wrong][1]) as caught:
        next(found)
    assert (caught.value.path, caught.value.position) == ("memory", 14)
