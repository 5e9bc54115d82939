"""storage.record._route: murmur2 as Kafka has it, and each record in its partition's batches."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.record._route import route
from storage.record.batch import decode, encode_records
from storage.record.header import HEADER_SIZE, parse_header
from tests.guard_page import before_guard_page
from tests.murmur2 import murmur2, partition_of

LIMIT = 1048588
STAY = 16384
# Keys and their hashes in Kafka's UtilsTest.testMurmur2.
KAFKA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}

keys = st.none() | st.binary(max_size=9)
contents = st.none() | st.binary(max_size=20) | st.just(b"v" * 300)
records = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.sampled_from([-1, 0, 5, 1_700_000_000_000, 1 << 62]),
        st.just(0),
        keys,
        contents,
        st.lists(st.tuples(st.text(max_size=3), contents), max_size=2).map(tuple),
    ),
    max_size=40,
)


def numbered(rows: Sequence[Record]) -> list[Record]:
    return [row._replace(offset=number) for number, row in enumerate(rows)]


def in_batches(rows: Sequence[Record], sizes: Sequence[int]) -> bytes:
    """The rows as batches of these many records, then one of the rest."""
    data = b""
    left = list(rows)
    for size in (*sizes, len(rows)):
        if left[:size]:
            data += encode(numbered(left[:size]), base_offset=0)
        left = left[size:]
    return data


def rows_of(batches: bytes | bytearray) -> list[list[Record]]:
    """The records of each batch, without offsets."""
    found = []
    at = 0
    while at < len(batches):
        header = parse_header(batches, at)
        rows = decode(batches, at)
        assert [row.offset for row in rows] == list(range(len(rows)))
        assert header.base_timestamp == rows[0].timestamp
        assert header.max_timestamp == max(row.timestamp for row in rows)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert header.attributes == 0
        found.append([row._replace(offset=0) for row in rows])
        at += header.size
    return found


def all_rows(batches: bytes | bytearray) -> list[Record]:
    return [row for batch in rows_of(batches) for row in batch]


def following(before: int) -> int:
    """The partition after this one, of three."""
    return (before + 1) % 3


def partition_by_route(key: bytes, count: int) -> int:
    batch = encode([Record(0, 0, 0, key, b"v")])
    ((partition, _),) = route(batch, count, 0, STAY, following, STAY, LIMIT)[0].items()
    return partition


@pytest.mark.parametrize(("key", "expected"), KAFKA_HASHES.items())
def test_the_hashes_of_kafkas_own_test(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected
    # Together they tell all bits but the sign, which no partition depends on.
    for count in (1 << 16, 65521):
        assert partition_by_route(key, count) == (expected & 0x7FFFFFFF) % count


@given(st.binary(max_size=40))
def test_hashes_as_the_plain_twin(key: bytes) -> None:
    for count in (1 << 16, 65521):
        assert partition_by_route(key, count) == partition_of(key, count)


@given(rows=records, sizes=st.lists(st.integers(0, 12), max_size=4), count=st.integers(1, 5))
def test_a_key_decides(rows: list[Record], sizes: list[int], count: int) -> None:
    """Each record as it was, in the order it came in, in the partition that its key names."""
    expected: dict[int, list[Record]] = {}
    for row in rows:
        number = count - 1 if row.key is None else partition_of(row.key, count)
        expected.setdefault(number, []).append(row)
    stays = 1 << 40
    with before_guard_page(in_batches(rows, sizes)) as data:
        parts, stuck_to, left = route(data, count, count - 1, stays, following, STAY, LIMIT)
    assert {number: all_rows(part) for number, part in parts.items()} == expected
    assert all(len(rows_of(part)) == 1 for part in parts.values()), "one batch each"
    assert stuck_to == count - 1
    assert (left == stays) == all(row.key is not None for row in rows)


@given(rows=records.filter(bool), limit=st.integers(500, 1200))
def test_batches_stay_within_the_limit(rows: list[Record], limit: int) -> None:
    """A batch takes all that fits: no next record would have."""
    parts, _, _ = route(in_batches(rows, []), 2, 0, 1 << 40, following, STAY, limit)
    for part in parts.values():
        found = rows_of(part)
        at = 0
        for number, batch in enumerate(found):
            size = parse_header(part, at).size
            assert size <= limit or len(batch) == 1
            if number + 1 < len(found):
                longer = numbered([*batch, found[number + 1][0]])
                assert HEADER_SIZE + len(encode_records(longer, 0, longer[0].timestamp)) > limit
            at += size


def test_no_record_grows() -> None:
    """A record that just fits its old batch, after others and with a distant time, fits again."""
    value = b"v" * 400
    rows = [Record(0, 0, 0, b"k", b"short"), Record(0, 1 << 62, 0, b"k", value)]
    rows = [rows[0]] * 200 + [rows[1]] * 2
    limit = HEADER_SIZE + len(encode_records([rows[1]._replace(offset=0)], 0, 1 << 62))
    parts, _, _ = route(in_batches(rows, []), 1, 0, 0, following, STAY, limit)
    assert all(parse_header(parts[0], 0).size <= limit for _ in rows_of(parts[0]))
    assert all_rows(parts[0]) == rows


def test_records_without_a_key_stay_together_for_a_while() -> None:
    """Sixteen kilobytes of them, the record that reaches it included (KIP-794)."""
    rows = [Record(0, 7, 0, None, b"%03d" % number + b"v" * 97) for number in range(1000)]
    size = len(encode_records([rows[0]], 0, 7))
    asked: list[int] = []

    def another(before: int) -> int:
        asked.append(before)
        return following(before)

    parts, stuck_to, left = route(in_batches(rows, []), 3, -1, 0, another, STAY, LIMIT)
    assert asked[:4] == [-1, 0, 1, 2]
    first = all_rows(parts[0])
    run = next(n for n, row in enumerate(first) if row != rows[n])
    # From the 65th on an offset delta takes two bytes; from the 129th one of three.
    assert (run - 1) * size < STAY <= run * (size + 1)
    assert sum(len(all_rows(part)) for part in parts.values()) == 1000
    assert stuck_to == (len(asked) - 1) % 3
    assert 0 < left <= STAY


def test_a_key_in_between_moves_nothing() -> None:
    """Records with keys do not count, and an empty key is one."""
    rows = [Record(0, 7, 0, b"", b"v" * 1000), Record(0, 7, 0, None, b"n")] * 100
    parts, stuck_to, left = route(in_batches(rows, []), 3, 1, 5000, following, STAY, LIMIT)
    owner = partition_of(b"", 3)
    keyless = [row for row in all_rows(parts[1]) if row.key is None]
    assert len(keyless) == 100
    assert len([row for row in all_rows(parts[owner]) if row.key == b""]) == 100
    assert stuck_to == 1
    assert 5000 - 100 * 12 <= left <= 5000 - 100 * 8


def test_nothing_goes_nowhere() -> None:
    assert route(b"", 4, 2, 10, following, STAY, LIMIT) == ({}, 2, 10)


def test_what_names_no_partition_is_our_bug() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        route(b"", 0, 0, 0, following, STAY, LIMIT)
    with pytest.raises(ValueError, match="partition 4 of 4"):
        route(b"", 4, 4, 1, following, STAY, LIMIT)
    one = in_batches([Record(0, 0, 0, None, b"v")], [])
    with pytest.raises(ValueError, match="partition 9 of 4"):
        route(one, 4, 0, 0, lambda before: 9, STAY, LIMIT)
