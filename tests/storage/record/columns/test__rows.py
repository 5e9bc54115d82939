"""storage.record.columns._rows: rows in Arrow's layout become the batches that `encode` makes."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.errors import (
    InvalidRecord,
    InvalidTimestamp,
    RecordTooLarge,
    StorageError,
    UnknownTopicOrPartition,
)
from storage.record.batch import decode, encode_records
from storage.record.columns._rows import BytesColumn, HeadersColumn, NumbersColumn, RowEncoder
from storage.record.header import HEADER_SIZE, parse_header
from tests.murmur2 import partition_of

NOW = 1_700_000_000_000
LIMIT = 1_048_588
STAY = 16384
HUGE = 1 << 60


class Row(NamedTuple):
    """A row; the timestamp in µs."""

    key: bytes | None = None
    value: bytes | None = b"v"
    headers: tuple[tuple[str | None, bytes | None], ...] | None = ()
    timestamp: int | None = None
    partition: int | None = None

    def record(self, offset: int = 0) -> Record:
        timestamp = NOW if self.timestamp is None else self.timestamp // 1000
        headers = tuple((str(name), value) for name, value in self.headers or ())
        return Record(offset, timestamp, 0, self.key, self.value, headers)


contents = st.none() | st.binary(max_size=20) | st.sampled_from([b"v" * 300, b"w" * 70])
times = st.none() | st.sampled_from([-1000, -1, 0, 999, 1000, NOW * 1000, NOW * 1000 + 3_999_999])
headers = st.none() | st.lists(st.tuples(st.text(max_size=3), contents), max_size=3).map(tuple)
rows_of_any_kind = st.lists(
    st.builds(
        Row,
        st.none() | st.binary(max_size=9),
        contents,
        headers,
        times,
        st.none() | st.integers(0, 3),
    ),
    max_size=30,
)


# -- Arrow's layout, made by hand ------------------------------------------------------------------


class Layout(NamedTuple):
    """How columns are laid out: rows in front that are not theirs, positions of 64 bits."""

    first: int = 0
    wide: bool = False
    all_valid: bool = True  # whether a bitmap is left out where nothing is null


layouts = st.builds(Layout, st.integers(0, 9), st.booleans(), st.booleans())


def bitmap(present: Sequence[bool], layout: Layout) -> bytes | None:
    if layout.all_valid and all(present):
        return None
    bits = bytearray(b"\xa5" * ((layout.first + len(present) + 7) // 8))
    for number, each in enumerate(present, layout.first):
        bits[number // 8] &= ~(1 << number % 8)
        bits[number // 8] |= each << number % 8
    return bytes(bits)


def positions(sizes: Sequence[int], layout: Layout, start: int = 0) -> bytes:
    found = array("q" if layout.wide else "i", [-7] * layout.first + [start])
    for size in sizes:
        found.append(found[-1] + size)
    return found.tobytes()


def bytes_column(fields: Sequence[bytes | None], layout: Layout = Layout()) -> BytesColumn:  # noqa: B008
    block = b"##" + b"".join(field or b"" for field in fields)
    return BytesColumn(
        len(fields),
        positions([len(field or b"") for field in fields], layout, 2),
        block,
        bitmap([field is not None for field in fields], layout),
        first=layout.first,
        wide=layout.wide,
    )


def numbers_column(numbers: Sequence[int | None], layout: Layout, *, wide: bool) -> NumbersColumn:
    code = "q" if wide else "i"
    return NumbersColumn(
        len(numbers),
        array(code, [-7] * layout.first + [number or 0 for number in numbers]).tobytes(),
        bitmap([number is not None for number in numbers], layout),
        first=layout.first,
        wide=wide,
    )


def headers_column(rows: Sequence[Row], layout: Layout) -> HeadersColumn:
    # Arrow allows a list that is null to have items.
    lists = [(("null", b""),) if row.headers is None else row.headers for row in rows]
    each = [header for headers in lists for header in headers]
    names = [None if name is None else name.encode() for name, _ in each]
    return HeadersColumn(
        len(rows),
        positions([len(headers) for headers in lists], layout),
        bytes_column(names, layout),
        bytes_column([value for _, value in each], layout),
        bitmap([row.headers is not None for row in rows], layout),
        first=layout.first,
        wide=layout.wide,
    )


def columns(rows: Sequence[Row], layout: Layout = Layout()) -> dict[str, Any]:  # noqa: B008
    return {
        "keys": bytes_column([row.key for row in rows], layout),
        "values": bytes_column([row.value for row in rows], layout),
        "headers": headers_column(rows, layout),
        "timestamps": numbers_column([row.timestamp for row in rows], layout, wide=True),
        "partitions": numbers_column([row.partition for row in rows], layout, wide=False),
    }


# -- what comes out --------------------------------------------------------------------------------


class Written:
    """Collects the batches that an encoder writes, by partition."""

    def __init__(self, partitions: Sequence[int] = range(4), **settings: Any) -> None:
        self.batches: dict[int, bytearray] = {}
        self.sizes: list[int] = []
        self.asked: list[int] = []
        self.partitions = partitions
        given = {"batch_bytes": 65536, "max_batch_bytes": LIMIT, "stay_bytes": STAY, **settings}
        self.encoder = RowEncoder(partitions, self.write, self.another, **given)

    def write(self, partition: int, batches: memoryview) -> None:
        self.sizes.append(len(batches))
        self.batches.setdefault(partition, bytearray()).extend(batches)

    def another(self, before: int) -> int:
        self.asked.append(before)
        return self.partitions[(len(self.asked) - 1) % len(self.partitions)]

    def add(self, rows: Sequence[Row], layout: Layout = Layout(), **more: Any) -> None:  # noqa: B008
        self.encoder.add(NOW, **columns(rows, layout), **more)

    def flush(self) -> dict[int, bytearray]:
        for partition in self.partitions:
            self.encoder.flush(partition)
        assert self.encoder.held == 0
        return self.batches


def batches_of(data: bytes | bytearray) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = parse_header(data, at).size
        yield bytes(data[at : at + size])
        at += size


def records_of(data: bytes | bytearray) -> list[Record]:
    return [row._replace(offset=0) for batch in batches_of(data) for row in decode(batch)]


def numbered(records: Sequence[Record]) -> list[Record]:
    return [record._replace(offset=number) for number, record in enumerate(records)]


def where(row: Row, count: int) -> int:
    """Where a row goes that has a partition or a key."""
    if row.partition is not None:
        return row.partition
    assert row.key is not None
    return partition_of(row.key, count)


@given(rows=rows_of_any_kind, layout=layouts, cuts=st.lists(st.integers(0, 30), max_size=3))
def test_as_encode_makes_them(rows: list[Row], layout: Layout, cuts: list[int]) -> None:
    """One batch for each partition, byte for byte, however the rows come."""
    written = Written(stay_bytes=HUGE)
    expected: dict[int, list[Record]] = {}
    stuck = None
    for row in rows:
        if row.partition is None and row.key is None and stuck is None:
            stuck = 0
        number = 0 if row.partition is None and row.key is None else where(row, 4)
        expected.setdefault(number, []).append(row.record())
    edges = sorted({0, *(min(cut, len(rows)) for cut in cuts), len(rows)})
    for start, end in itertools.pairwise(edges):
        written.add(rows[start:end], layout)
    assert {number: bytes(data) for number, data in written.flush().items()} == {
        number: encode(numbered(records), base_offset=0) for number, records in expected.items()
    }
    assert [written.encoder.records(number) for number in range(4)] == [
        len(expected.get(number, [])) for number in range(4)
    ]
    assert written.asked == ([] if stuck is None else [-1])


@given(rows=rows_of_any_kind.filter(bool), limit=st.integers(420, 900), each=st.integers(0, 420))
def test_a_batch_takes_all_that_fits(rows: list[Row], limit: int, each: int) -> None:
    written = Written([0], stay_bytes=HUGE, batch_bytes=each, max_batch_bytes=limit)
    rows = [row._replace(partition=0, headers=()) for row in rows]
    written.add(rows)
    data = written.flush()[0]
    found = [decode(batch) for batch in batches_of(data)]
    assert records_of(data) == [row.record() for row in rows]
    for batch, following in zip(batches_of(data), [*found[1:], None], strict=True):
        records = decode(batch)
        assert len(batch) <= each or (len(records) == 1 and len(batch) <= limit)
        if following is not None:
            longer = numbered([*records, following[0]])
            assert HEADER_SIZE + len(encode_records(longer, 0, longer[0].timestamp)) > each


def test_what_is_full_is_written_and_the_rest_stays() -> None:
    """A partition's batches go out some hundred kilobytes at a time, in order."""
    written = Written([0, 1], batch_bytes=10_000)
    rows = [Row(b"", b"%05d" % number + b"v" * 95, partition=number % 2) for number in range(1000)]
    for _ in range(20):
        written.add(rows)
    assert written.sizes
    assert all(200_000 < size < 300_000 for size in written.sizes)
    assert written.encoder.held < 2_000_000
    data = written.flush()
    for partition in (0, 1):
        assert records_of(data[partition]) == [row.record() for row in rows[partition::2]] * 20


def test_a_flush_ends_a_batch() -> None:
    written = Written([0])
    written.add([Row(value=b"one")])
    written.flush()
    written.flush()
    written.add([Row(value=b"two")])
    assert [len(decode(batch)) for batch in batches_of(written.flush()[0])] == [1, 1]


@given(rows=rows_of_any_kind, data=st.data())
def test_only_rows_that_are_selected(rows: list[Row], data: st.DataObject) -> None:
    rows = [row._replace(partition=0) for row in rows]
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    written = Written()
    written.add(rows, selection=array("q", chosen))
    assert records_of(written.flush().get(0, b"")) == [rows[number].record() for number in chosen]


def test_columns_that_are_not_there() -> None:
    written = Written([0])
    written.encoder.add(NOW, None, bytes_column([b"a", None]))
    assert records_of(written.flush()[0]) == [
        Record(0, NOW, 0, None, b"a"),
        Record(0, NOW, 0, None, None),
    ]


def test_rows_without_a_key_stay_together_for_a_while() -> None:
    """Some kilobytes of them; those that have a place of their own do not count."""
    written = Written([0, 1, 2], stay_bytes=1000)
    rows = [Row(value=b"v" * 93), Row(b"k", b"w" * 500), Row(value=b"x" * 500, partition=2)] * 30
    written.add(rows)
    data = written.flush()
    assert written.asked == [-1, 0, 1]
    sticky = [[row for row in records_of(data[n]) if row.value == b"v" * 93] for n in (0, 1, 2)]
    assert [len(each) for each in sticky] == [10, 10, 10]


# -- rows that are refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        (Row(partition=4), UnknownTopicOrPartition, "no partition 4"),
        (Row(partition=2), UnknownTopicOrPartition, "no partition 2"),
        (Row(partition=-1), UnknownTopicOrPartition, "no partition -1"),
        (Row(b"k"), InvalidRecord, "no partition|header's name"),
        (Row(partition=0, timestamp=-1001), InvalidTimestamp, "-2 ms is before 1970"),
        (
            Row(partition=0, timestamp=(NOW - 10_001) * 1000),
            InvalidTimestamp,
            "10001 ms old, more than message.timestamp.before.max.ms=10000",
        ),
        (
            Row(partition=0, timestamp=(NOW + 501) * 1000),
            InvalidTimestamp,
            "501 ms in the future, more than message.timestamp.after.max.ms=500",
        ),
        (Row(partition=0, headers=((None, b""),)), InvalidRecord, "header's name is null"),
        (Row(partition=0, value=b"v" * 1000), RecordTooLarge, "max.message.bytes=1000"),
        (Row(partition=0, headers=(("h" * 999, None),)), RecordTooLarge, "a batch of 10.. bytes"),
    ],
)
def test_a_row_that_the_topic_does_not_take(
    row: Row, kind: type[StorageError], reason: str
) -> None:
    """Those in front of it are there, and nothing of it is."""
    if row.key is not None:
        # The partition of this key is 2 of 4, which the encoder does not have.
        row = Row(next(key for n in range(99) if where(Row(key := b"%d" % n), 4) == 2))
        kind = UnknownTopicOrPartition
    written = Written([0, 1, 3], max_batch_bytes=1000, before_ms=10_000, after_ms=500)
    good = [
        Row(b"good", partition=0),
        Row(partition=0, timestamp=(NOW - 10_000) * 1000),
        Row(partition=0, timestamp=-1),
        Row(partition=0, timestamp=(NOW + 500) * 1000),
    ]
    with pytest.raises(kind, match=reason):
        written.add([*good, row, Row(partition=0)])
    assert written.encoder.row == 4
    assert records_of(written.flush()[0]) == [each.record() for each in good]


def test_a_compacted_topic_wants_keys() -> None:
    written = Written([0], keys_required=True)
    with pytest.raises(InvalidRecord, match="requires a key"):
        written.add([Row(b""), Row()])
    assert written.encoder.row == 1
    with pytest.raises(InvalidRecord, match="requires a key"):
        Written([0], keys_required=True).encoder.add(NOW, None, bytes_column([b"a"]))


def test_the_largest_record_fits() -> None:
    """One alone in its batch takes max.message.bytes and not a byte more."""
    row = Row(b"k", b"v" * 500, partition=0)
    limit = len(encode([row.record()]))
    written = Written(max_batch_bytes=limit)
    written.add([row, row])
    assert len(list(batches_of(written.flush()[0]))) == 2
    with pytest.raises(RecordTooLarge, match=f"a batch of {limit} bytes"):
        Written(max_batch_bytes=limit - 1).add([row])


# -- buffers that are wrong ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: BytesColumn(2, bytes(11), b""),
        lambda: BytesColumn(2, bytes(12), b"", b"", first=0),
        lambda: BytesColumn(2, bytes(12), b"", first=1),
        lambda: BytesColumn(2, bytes(12), b"", wide=True),
        lambda: BytesColumn(-1, bytes(12), b""),
        lambda: NumbersColumn(2, bytes(7)),
        lambda: NumbersColumn(8, bytes(99), b"1", first=1),
        lambda: HeadersColumn(1, bytes(8), bytes_column([b""]), bytes_column([])),
        lambda: HeadersColumn(1, bytes(4), bytes_column([]), bytes_column([])),
    ],
)
def test_buffers_that_are_too_short(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"needed|rows|names"):
        make()


def test_what_cannot_be_is_our_bug() -> None:
    with pytest.raises(ValueError, match="1 rows of 2"):
        Written().encoder.add(NOW, bytes_column([b"k"]), bytes_column([b"a", b"b"]))
    with pytest.raises(ValueError, match="64 bits"):
        Written().encoder.add(
            NOW, None, bytes_column([b"a"]), timestamps=NumbersColumn(1, bytes(4))
        )
    with pytest.raises(ValueError, match="row 3"):
        Written([0]).add([Row()], selection=array("q", [0, 3]))
    with pytest.raises(ValueError, match="partition -1"):
        Written([0, -1])
    with pytest.raises(ValueError, match="partition 9"):
        Written([0]).encoder.flush(9)
    written = Written([0])
    written.partitions = [7]
    with pytest.raises(ValueError, match="partition 7"):
        written.add([Row()])
