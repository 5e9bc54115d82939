"""The option `where`: exactly the rows that the same condition leaves of a plain load."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis.strategies import sampled_from
from pyspark.sql.datasource import InputPartition

from kafkafs.spark.location.location import Location
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import conditions, rows, task
from kafkafs.spark.source.data_loss import DataLoss
from kafkafs.spark.source.options import parse
from kafkafs.tree.context import cache_directory
from storage import LogManager, Record, encode
from storage.errors import CorruptRecord
from storage.files import Files
from storage.log.append import append_batches
from storage.record._plain import seal
from storage.record.header import HEADER_SIZE, parse_header
from storage.record.plain import recompress
from tests.spark.reading import Stream, batch, batch_parts, batch_reader, read, values
from tests.storage import old_logs
from tests.storage.compaction import cleaned
from tests.storage.condition import three_values
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, remove_head, write_settings
from tests.storage.segmented import segmented
from tests.storage.split.test_narrow import build_words
from tests.storage.transactions import Client

if TYPE_CHECKING:
    pass

EPOCH_MS = three_values.EPOCH_MS
ALL = rows.chosen(rows.full_schema(True))
TEXTS = [None, b"", b"a", b"ab", b"aab", b"b", b"\xff", b"a\xffb", "ä".encode(), b"a%", b"orders"]
# Malformed UTF-8: Spark counts more or fewer characters than Java decodes.
ODD_TEXTS = [b"ab\xe4cd", b"ab\xf0cd", b"ab\xf8cd", b"ab\xe4\xb8cd", b"aa\xe4aa", b"a\xe4b"]
ODD_TEXTS += [b"ab_\xe4cd", b"ab%\xe4cd", b"abcd", b"\xed\xa0\x80ab"]
ODD_TEXTS += [b"it's", "\U0001f600b".encode(), "\U0001f600bb".encode()]


class Row(NamedTuple):
    topic: str
    partition: int
    record: Record


def read_all(parts: list[InputPartition]) -> list[Row]:
    """Whole rows, as tasks elsewhere read them."""
    found = []
    for part in pickle.loads(pickle.dumps(parts)):
        for made in task.read(part, ALL):
            made.validate()
            for row in made.to_pylist():
                micros = made.schema.field("timestamp")
                assert str(micros.type) == "timestamp[us, tz=UTC]"
                headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
                record = Record(
                    row["offset"],
                    round(row["timestamp"].timestamp() * 1000),
                    row["timestampType"],
                    row["key"],
                    row["value"],
                    headers,
                )
                found.append(Row(row["topic"], row["partition"], record))
    return found


# -- logs of every kind ----------------------------------------------------------------------------


def some_records(count: int, first: int) -> list[Record]:
    """Nulls, bytes that are no text, headers; times that rise and fall."""
    return [
        Record(
            *(number, EPOCH_MS - 2 + (first + number * 5) % 6, 0),
            TEXTS[(first + number) % len(TEXTS)],
            TEXTS[(first * 3 + number) % len(TEXTS)],
            (("h", TEXTS[number % 5]), ("g", b"a"), ("h", TEXTS[first % 7]))[
                : (first + number) % 4
            ],
        )
        for number in range(count)
    ]


def every_codec(data: Path) -> None:
    write_settings(data, log_index_interval_bytes=1)
    with opened(data) as manager:
        for log in manager.create_topic("orders", 2).partitions.values():
            for turn in range(15):
                made = recompress(encode(some_records(1 + turn % 3, turn)), turn % 5)
                append_batches(log, bytearray(made), now_ns=NOW_NS)
                if turn % 4 == 3:
                    log.roll(NOW_MS)


def append_time(data: Path) -> None:
    write_settings(data, log_message_timestamp_type="LogAppendTime", log_index_interval_bytes=1)
    with opened(data) as manager:
        (log,) = manager.create_topic("orders", 1).partitions.values()
        for turn in range(8):
            # The clock goes back, too.
            log.append(
                bytearray(encode(some_records(2, turn))),
                now_ns=(EPOCH_MS + turn * 5 % 4 - 1) * 1_000_000,
            )
            if turn == 3:
                log.roll(EPOCH_MS)


def transactions(data: Path) -> None:
    with opened(data) as manager:
        (log,) = manager.create_topic("events", 1).partitions.values()
        done, lost, undecided = Client(log, 7), Client(log, 8), Client(log, 9)
        for value in (b"a", b"ab", b"orders"):
            done.send(value)
            lost.send(value)
            append(log, value, None, timestamp_ms=EPOCH_MS)
            log.roll(EPOCH_MS)
        done.commit()
        lost.abort()
        undecided.send(b"a")
        append(log, b"a", timestamp_ms=EPOCH_MS)


def compacted(data: Path) -> None:
    with cleaned.compacted(data) as (manager, log):
        for codec in range(5):
            pairs = [(key, TEXTS[(codec + at) % 9]) for at, key in enumerate(TEXTS[1:]) if key]
            cleaned.put(log, *pairs, codec=codec)
            cleaned.roll(log)
        cleaned.clean(manager, log)


KINDS: dict[str, Callable[[Path], object]] = {
    "codecs": every_codec,
    "append time": append_time,
    "transactions": transactions,
    "compacted": compacted,
    "v0": lambda data: old_logs.write_legacy(data, "orders", 0),
    "v1": lambda data: old_logs.write_legacy(data, "orders", 1),
    "0.7": lambda data: old_logs.write_old(
        data, "orders", old_logs.old_file(b"a", b"ab"), old_logs.old_file(b"b")
    ),
}


@pytest.fixture(scope="module", params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """… with `.words`."""
    made = tmp_path_factory.mktemp("data")
    KINDS[request.param](made)
    with LogManager.open(str(made), read_only=True) as manager:
        for log in manager.logs():
            build_words(log)
    return made


@pytest.fixture(scope="module")
def plain(data: Path) -> list[Row]:
    found = read_all(batch_parts(data))
    assert found
    return found


@given(
    words=three_values.conditions(),
    options=sampled_from([{}, {"minPartitions": 5}, {"maxPartitionBytes": 200}]),
)
def test_the_same_rows_as_by_three_values(
    data: Path, plain: list[Row], words: three_values.Words, options: dict[str, int]
) -> None:
    expected = [row for row in plain if three_values.is_true(words, row, row.record)]
    assert read_all(batch_parts(data, where=words.text, **options)) == expected


@pytest.mark.parametrize("low", range(EPOCH_MS - 3, EPOCH_MS + 5))
def test_times_that_do_not_rise(data: Path, plain: list[Row], low: int) -> None:
    """Some batches and segments are ruled out as a whole."""
    for high in range(low, EPOCH_MS + 5):
        first, last = (three_values.number_literal("timestamp", each) for each in (low, high))
        expected = [row for row in plain if low <= row.record.timestamp <= high]
        where = f"timestamp between {first} and {last}"
        assert read_all(batch_parts(data, where=where)) == expected


def test_a_stream_has_the_same_rows(data: Path, plain: list[Row]) -> None:
    topic = plain[0].topic
    where = "key is null or value like '%a%'"
    options: dict[str, Any] = {"subscribe": topic, "startingOffsets": "earliest"}
    if plain[0].record.timestamp_type >= 0:
        options["maxOffsetsPerTrigger"] = 7
    with Stream(data, where=where, **options) as query:
        found = [(row.partition, row.offset) for row in query.rest()]
    expected = [(row.partition, row.offset) for row in batch(data, where=where)]
    assert sorted(found) == sorted(expected)
    assert expected


# -- what is not read ------------------------------------------------------------------------------


def test_partitions_and_offsets_are_not_planned(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=1)
    with opened(tmp_path) as manager:
        for number in range(3):
            log = manager.create_topic(f"t{number}", 2).partitions[number % 2]
            for turn in range(50):
                append(log, b"v" * 100, timestamp_ms=NOW_MS + turn)
            log.roll(NOW_MS)
    for where, ranges in (
        ("topic = 't1'", [("t1", 1, 0, 50)]),
        ("topic like '%2' or topic in ('t0')", [("t0", 0, 0, 50), ("t2", 0, 0, 50)]),
        ("partition > 1", []),
        ("partition = 1 and offset between 7 and 9", [("t1", 1, 7, 10)]),
        ("topic = 't0' and offset in (3, 4, 40)", [("t0", 0, 3, 5), ("t0", 0, 40, 41)]),
        ("topic = 't0' and offset = 3 and key = 'a' and offset > 3", []),
        ("offset < 0 or offset is null", []),
    ):
        parts = batch_parts(tmp_path, where=where)
        assert [shape(part) for part in parts] == ranges, where
    several = ", ".join(str(number) for number in range(0, 50, 2))
    assert len(batch(tmp_path, where=f"topic = 't0' and offset in ({several})")) == 25


def shape(part: InputPartition) -> tuple[str, int, int, int]:
    assert isinstance(part, task.SplitPartition)
    split = part.split
    return split.topic, split.partition, split.from_offset, split.to_offset


def test_older_segments_and_the_start_of_one_are_not_planned(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=1)
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for turn in range(40):
            # The second segment is older than the first.
            late = -1000 if 10 <= turn < 20 else 0
            append(log, b"v" * 100, timestamp_ms=EPOCH_MS + turn + late)
            if turn % 10 == 9:
                log.roll(NOW_MS)
        at = three_values.number_literal("timestamp", EPOCH_MS + 5)
        parts = batch_parts(tmp_path, where=f"timestamp >= {at}")
        assert [shape(part)[2:] for part in parts] == [(5, 10), (20, 40)]
        assert len(read(parts)) == 25
    # An index that is wrong, or cut to sound entries, leaves nothing out.
    indexes = {path: path.read_bytes() for path in (tmp_path / "t-0").glob("*.timeindex")}
    for wrong in (
        lambda good: good[:12] + good[:8] + (9).to_bytes(4, "big"),
        lambda good: good[:24] + good[24:32] + good[-4:],
        lambda good: good[:12],
        lambda good: good[:24],
        lambda good: good[:-12],
        lambda good: b"",
    ):
        for path, good in indexes.items():
            path.write_bytes(wrong(good))
        assert len(batch(tmp_path, where=f"timestamp >= {at}")) == 25
        assert len(batch(tmp_path, startingTimestamp=EPOCH_MS + 5)) == 35


@pytest.mark.parametrize("is_cached", [False, True])
def test_segments_without_the_words_are_not_planned(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    is_cached: bool,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        # Single words may have the same hash.
        for value in (b"a one", b"two b c d e f g", b"three h", b"active"):
            append(log, b"the " + value, value)
            if value != b"active":
                log.roll(NOW_MS)
        cache = Path(cache_directory(log))
        cache.mkdir(parents=True)
        build_words(log, cache if is_cached else None)
        for where, ranges in (
            ("value like '% two b c d e f g'", [(2, 4), (6, 8)]),
            ("value like '%two b c d e f g%'", [(2, 4), (6, 8)]),
            ("value like '%two%'", [(0, 8)]),
        ):
            parts = batch_parts(tmp_path, where=where)
            assert [shape(part)[2:] for part in parts] == ranges, where


def test_very_many_offsets_are_not_as_many_tasks(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, *[b"v"] * 2000)
    wanted = [*range(0, 1000, 2), 1999]
    where = f"offset in ({', '.join(map(str, wanted))})"
    parts = batch_parts(tmp_path, where=where)
    assert 1 < len(parts) <= 100
    assert [row.offset for row in read(parts)] == wanted


def test_a_batch_that_its_header_rules_out_is_not_decoded(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        append(log, b"old" * 10, timestamp_ms=EPOCH_MS)
        append(log, b"new", timestamp_ms=EPOCH_MS + 1)
    parts = batch_parts(tmp_path)
    path = tmp_path / "t-0" / f"{0:020}.log"
    data = path.read_bytes()
    # The first batch has the right CRC, and a record with an impossible length.
    first = bytearray(data[: parse_header(data).size])
    first[HEADER_SIZE] = 0xFF
    seal(first)
    path.write_bytes(first + data[len(first) :])
    at = three_values.number_literal("timestamp", EPOCH_MS)
    where = conditions.Where(parse_condition(f"timestamp > {at}"), is_checked=False)
    (part,) = parts
    assert isinstance(part, task.SplitPartition)
    with pytest.raises(CorruptRecord):
        read([part])
    part.where = where
    assert values(read([part])) == [b"new"]


def parse_condition(text: str) -> Any:
    from storage.condition.parse import parse as parse_text

    return parse_text(text)


# -- batches ---------------------------------------------------------------------------------------


def test_few_rows_become_few_batches_and_the_first_comes_at_once(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for _ in range(64):
            append(log, *[b"%d" % (number == 3) for number in range(100)])
    (part,) = batch_parts(tmp_path, where="value = '1'")
    assert isinstance(part, task.SplitPartition)
    part_bytes = part.split.size // 64
    predicate = parse_condition("value = '1'").predicate()
    found = list(
        rows.joined(
            rows.record_batches(
                *(part.location.files(), part.split, ALL),
                predicate=predicate,
                chunk_bytes=part_bytes,
            )
        )
    )
    assert [made.num_rows for made in found] == [1, 2, 4, 8, 16, 32, 1]
    assert [row["offset"] for made in found for row in made.to_pylist()] == [*range(3, 6400, 100)]


def test_what_was_read_before_a_loss_is_not_lost(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = segmented(manager)
        total = len(batch(tmp_path))
        where = "offset >= 0 and (value is null or value is not null)"
        options = {"where": where, "failOnDataLoss": "false"}
        (part,) = batch_parts(tmp_path, **options)
        (failing,) = batch_parts(tmp_path, where=where)
        remove_head(log, 2, NOW_MS)
        assert len(read([part])) == total - 4
        with pytest.raises(DataLoss):
            read([failing])


class CountedFiles(Files):
    """How often files are read; which descriptors are open."""

    def __init__(self) -> None:
        self.reads = 0
        self.open_now: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.open_now.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_now.discard(fd)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads += 1
        return super().pread(fd, size, position)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.reads += 1
        return super().preadv(fd, buffer, position)


@dataclass(frozen=True)
class CountedLocation(Location):
    counted: CountedFiles

    def files(self, *, listed: bool = False) -> Files:
        return self.counted


@pytest.mark.parametrize("where", [None, "value like 'v%'"])
def test_a_closed_reader_stops(tmp_path: Path, where: str | None) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for _ in range(8):
            append(log, b"v" * 1_000_000)
    options = {} if where is None else {"where": where}
    (part,) = batch_parts(tmp_path, minPartitions=1, **options)
    assert isinstance(part, task.SplitPartition)
    files = CountedFiles()
    there = part.location
    part.location = CountedLocation(there.option, there.path, there.is_local, files)
    found = task.read(part, ALL)
    assert isinstance(found, Generator)
    assert next(found).num_rows == 1
    reads = files.reads
    assert files.open_now
    found.close()
    assert files.open_now == set()
    assert files.reads == reads
    assert len(list(task.read(part, ALL))) > 1
    assert files.reads - reads > 3 * reads, "there was more to read"


# -- options and logs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "colour = 'red'"}, "Option 'where': there is no column 'colour'.*character 1"),
        ({"where": "key = "}, "at character 5"),
        ({"where": ""}, "condition is empty"),
        ({"where": "key = 'a'", "timeZone": "Mars/Base"}, "unknown time zone 'Mars/Base'"),
        ({"timeZone": "UTC"}, "requires option 'where'"),
    ],
)
def test_what_is_refused_before_anything_is_read(options: dict[str, str], message: str) -> None:
    for mode in ("any", "batch", "stream"):
        with pytest.raises(InvalidOption, match=message):
            parse({"path": "/nowhere", "subscribe": "t", **options}, mode)


def test_a_stream_takes_no_time_before_now() -> None:
    given = {"path": "/nowhere", "subscribe": "t", "where": "timestamp > '-15m'"}
    assert parse(given, "batch").where
    with pytest.raises(InvalidOption, match="before now"):
        parse(given, "stream")


def test_a_line_for_the_drivers_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(tmp_path) as manager:
        for log in manager.create_topic("t", 4).partitions.values():
            append(log, *[b"v"] * 10)
    where = "partition = 2 and offset < 3 and key is not null"
    parts = batch_parts(tmp_path, where=where)
    (line,) = caplog.messages
    (size,) = {log.stat().st_size for log in tmp_path.glob("t-*/*.log")}
    assert line == (
        f"where {where}: 1 of 4 partitions in 1 of about 4 tasks; the indexes have skipped about "
        f"{4 * size - size * 3 // 10} of {4 * size} bytes"
    )
    caplog.clear()
    read(parts)
    assert caplog.messages == [
        "t-2 from offset 0 to 3: the condition holds for 0 of 3 decoded records"
    ]
    caplog.clear()
    read(batch_parts(tmp_path, where="partition = 2"))
    assert len(caplog.messages) == 1, "the task has compared nothing"
    caplog.clear()
    with Stream(tmp_path, where="offset >= 0", startingOffsets="earliest") as query:
        assert len(query.next() or []) == 40
        with LogManager.open(str(tmp_path)) as manager:
            append(manager.log("t", 0), b"v")
        assert len(query.next() or []) == 1
    assert sum(line.startswith("where") for line in caplog.messages) == 1


def test_without_handlers_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes in which Spark plans and runs tasks have no handlers."""
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v")
    monkeypatch.setattr(logging.getLogger(conditions.__name__), "propagate", False)
    assert batch(tmp_path, where="value = 'v'")
    assert capsys.readouterr() == ("", "")


def test_columns_of_text_have_the_same_bytes(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"\xff\xfe", None)
    reader = batch_reader(tmp_path, where="value <> 'x'")
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("value", StringType()), StructField("key", StringType())])
    (part,) = reader.partitions()
    (made,) = task.read(part, rows.chosen(schema))
    assert str(made.schema.types) == "[DataType(string), DataType(string)]"
    assert made.column(0).buffers()[2].to_pybytes() == b"\xff\xfe"
    with pytest.raises(InvalidOption, match="has type bigint"):
        rows.chosen(StructType([StructField("offset", StringType())]))
