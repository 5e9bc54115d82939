"""The option `where`: exactly the rows that the same condition leaves of a plain load."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import given, settings
from pyspark.sql.datasource import InputPartition

from kafkafs.spark.jobs import export, stats
from kafkafs.spark.location.followed_directory import Location
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import conditions, planning, rows
from kafkafs.spark.source.data_loss import DataLoss
from kafkafs.spark.source.options import parse
from storage import LogManager, Record, encode
from storage.errors import InvalidConfig
from storage.files import Files
from storage.record.plain import recompress
from tests.spark.reading import Stream, batch, batch_parts, batch_reader, read, values
from tests.storage import old_logs
from tests.storage.compaction import cleaned
from tests.storage.condition import three_values
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, remove_head, write_settings
from tests.storage.segmented import segmented
from tests.storage.transactions import Client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH_MS = three_values.EPOCH_MS
ALL = rows.chosen(rows.full_schema(True))
TEXTS = [None, b"", b"a", b"ab", b"aab", b"b", b"\xff", b"a\xffb", "ä".encode(), b"a%", b"orders"]
# Malformed bytes, of which Spark counts other characters than Java makes.
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
        for made in planning.read(part, ALL):
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
                log.appender.append_batches(bytearray(made), now_ns=NOW_NS)
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
    made = tmp_path_factory.mktemp("data")
    KINDS[request.param](made)
    return made


@pytest.fixture(scope="module")
def plain(data: Path) -> list[Row]:
    found = read_all(batch_parts(data))
    assert found
    return found


@settings(max_examples=60, deadline=None)
@given(words=three_values.conditions())
def test_the_same_rows_as_by_three_values(
    data: Path, plain: list[Row], words: three_values.Words
) -> None:
    expected = [row for row in plain if three_values.is_true(words, row, row.record)]
    for options in ({}, {"minPartitions": 5}, {"maxPartitionBytes": 200}):
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
    assert isinstance(part, planning.SplitPartition)
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
    path.write_bytes(path.read_bytes().replace(b"old", b"OLD"))
    at = three_values.number_literal("timestamp", EPOCH_MS)
    where = conditions.Where(parse_condition(f"timestamp > {at}"), is_checked=False)
    (part,) = parts
    assert isinstance(part, planning.SplitPartition)
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
    assert isinstance(part, planning.SplitPartition)
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
    assert isinstance(part, planning.SplitPartition)
    files = CountedFiles()
    there = part.location
    part.location = CountedLocation(there.option, there.path, there.is_local, files)
    found = planning.read(part, ALL)
    assert isinstance(found, Generator)
    assert next(found).num_rows == 1
    reads = files.reads
    assert files.open_now
    found.close()
    assert files.open_now == set()
    assert files.reads == reads
    assert len(list(planning.read(part, ALL))) > 1
    assert files.reads - reads > 3 * reads, "there was more to read"


# -- options and logs ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "colour = 'red'"}, "Option 'where': there is no column 'colour'.*character 1"),
        ({"where": "key = "}, "at character 5"),
        ({"where": ""}, "no condition"),
        ({"where": "key = 'a'", "timeZone": "Mars/Base"}, "no time zone 'Mars/Base'"),
        ({"timeZone": "UTC"}, "'where', which is not given"),
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


def test_without_handlers_the_line_goes_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the processes in which Spark plans and runs tasks."""
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v")
    monkeypatch.setattr(logging.getLogger(conditions.__name__), "propagate", False)
    assert batch(tmp_path, where="value = 'v'")
    of_driver, of_task = capsys.readouterr().err.splitlines()
    assert (
        " INFO kafkafs: where value = 'v': 1 of 1 partitions in 1 of about 1 tasks; " in of_driver
    )
    assert " INFO kafkafs: t-0 from offset 0 to 1: the condition holds for 1 of 1 " in of_task


def test_columns_of_text_have_the_same_bytes(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"\xff\xfe", None)
    reader = batch_reader(tmp_path, where="value <> 'x'")
    from pyspark.sql.types import StringType, StructField, StructType

    schema = StructType([StructField("value", StringType()), StructField("key", StringType())])
    (part,) = reader.partitions()
    (made,) = planning.read(part, rows.chosen(schema))
    assert str(made.schema.types) == "[DataType(string), DataType(string)]"
    assert made.column(0).buffers()[2].to_pybytes() == b"\xff\xfe"
    with pytest.raises(InvalidOption, match="has type bigint"):
        rows.chosen(StructType([StructField("offset", StringType())]))


# -- in Spark --------------------------------------------------------------------------------------

WORDS = [
    "key = 'a'",
    "key <> 'a' or value is null",
    "not (key = 'a' and value < 'b')",
    "key in ('a', X'ff', 'b') and value not in ('ab')",
    "key like '%a%'",
    "value like 'a_b'",
    "value like '_'",
    "value not like 'a%' and key between 'a' and 'b'",
    "value like '%\\\\%'",
    "key > X'61' and key <= 'b'",
    "offset between 3 and 8 and partition = 1",
    "partition in (0, 5) and topic like 'ord%' and topic <> 'x'",
    "timestampType = 0 and timestamp >= '2023-11-14T22:13:20'",
    "timestamp < '2023-11-14 22:13:20.001Z' or timestamp = '2023-11-14 22:13:20.0020009Z'",
    "key is null and value is not null",
    "key = ('a') or value in ('it''s', ('ab'))",
    "timestamp >= '2023-11' and timestamp < '2023-11-14T22:13:20.002 UTC'",
    "timestamp > '2023-11-15T00:13:20UTC+2' or timestamp < '2023-11-15T07:13:20.001+09:00:00'",
    "timestamp between '2023-11-14T14:13:19 PST' and '2023-11-14T17:13:20.002 EST'",
    "value like 'ab%cd'",
    "value not like 'ab%cd'",
    "value like 'aa%aa' or value like 'ab%%cd'",
    "value like 'ab/%%cd' escape '/' or value like 'a%b' escape '/'",
    "value like 'ab\\\\_%cd'",
    "value like '😀%b'",
    "value = 'it\\'s' or key = X'61' or key = X\"62\"",
]


def test_spark_itself_leaves_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    every_codec(tmp_path)
    with opened(tmp_path) as manager:
        append(manager.log("orders", 0), *ODD_TEXTS, timestamp_ms=EPOCH_MS)

    def load(**options: str) -> Any:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        return reader.option("subscribe", "orders").options(**options).load()

    def found(frame: Any) -> list[tuple[int, int]]:
        return sorted((row.partition, row.offset) for row in frame.collect())

    plain = load()
    for words in WORDS:
        expected = found(plain.where(words))
        assert found(load(where=words)) == expected, words
    header = "element_at(filter(headers, each -> each.key = 'h'), -1).value = 'a'"
    expected = found(load(includeHeaders="true").where(f"size(headers) > 0 and {header}"))
    assert expected
    assert found(load(where="header('h') = 'a'")) == expected
    # The columns of text, with bytes that are none.
    reader = spark.read.format("kafkafs").schema("offset long, partition int, key string")
    text = reader.option("path", str(tmp_path)).option("subscribe", "orders").load()
    cast = plain.selectExpr("partition", "offset", "hex(key) as key")
    assert sorted(text.selectExpr("partition", "offset", "hex(key) as key").collect()) == sorted(
        cast.collect()
    )
    assert load(where="value like '%a%'").limit(2).count() == 2


def test_a_limit_reads_little(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        (log,) = manager.create_topic("t", 1).partitions.values()
        for number in range(64):
            append(log, *[b"%d " % number + b"v" * 100_000] * 2)
    reader = spark.read.format("kafkafs").option("path", str(tmp_path))
    rows = reader.options(subscribe="t", where="value like '%2 v%'").load()
    context = spark.sparkContext
    context.setJobGroup("limited", "one task")
    try:
        (row,) = rows.select("offset").limit(1).collect()
    finally:
        context.setLocalProperty("spark.jobGroup.id", "")
    assert row.offset == 4
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("limited")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
    assert [stage.numTasks for stage in stages if stage] == [1]
    assert len(batch_parts(tmp_path, where="value like '%2 v%'")) > 2


def test_times_are_in_the_sessions_zone(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)

    def load(**options: str) -> Any:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        return reader.option("subscribe", "t").options(**options).load()

    def count(**options: str) -> int:
        return int(load(**options).count())

    local = "timestamp >= '2023-11-14T22:13:20'"
    assert count(where=local) == 1
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for where in (local, "timestamp > '2033-11-14T22:13:20'"):
            with pytest.raises(Exception, match="Set the option 'timeZone' to America/New_York"):
                count(where=where)
        assert count(where=local, timeZone="America/New_York") == 0
        assert count(where=local.replace("22:", "17:"), timeZone="America/New_York") == 1
        assert count(where=local.replace("20'", "20Z'")) == 1
        # What the error advises works, however the zone is spelt.
        for zone_name, name in (("UTC+02:00", "UTC\\+02:00"), ("PST", "PST"), ("GMT+2", "GMT\\+2")):
            spark.conf.set("spark.sql.session.timeZone", zone_name)
            with pytest.raises(Exception, match=f"Set the option 'timeZone' to {name},"):
                count(where=local)
            expected = int(load().where(local).count())
            assert count(where=local, timeZone=zone_name) == expected
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_the_tasks_of_an_rdd_are_not_told_the_zone(spark: SparkSession, tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)

    def count(where: str, **options: str) -> int:
        reader = spark.read.format("kafkafs").option("path", str(tmp_path))
        rows = reader.option("subscribe", "t").options(where=where, **options).load()
        return int(rows.rdd.count())

    local = "timestamp >= '2023-11-14T22:13:20'"
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        for where in (local, "timestamp > '2033-11-14T22:13:20'"):
            with pytest.raises(Exception, match=r"does not tell the tasks of an RDD.*'timeZone'"):
                count(where)
        assert count(local, timeZone="America/New_York") == 0
        assert count(local, timeZone="UTC") == count("value = 'v'") == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_a_streaming_query_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    every_codec(data)
    reader = spark.readStream.format("kafkafs").option("path", str(data))
    stream = reader.options(
        subscribe="orders", startingOffsets="earliest", where="key = 'a'"
    ).load()
    query = (
        stream.select("partition", "offset")
        .writeStream.format("memory")
        .queryName("where_matches")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = {tuple(row) for row in spark.table("where_matches").collect()}
    assert found == {(row.partition, row.offset) for row in batch(data, where="key = 'a'")}
    assert found


def test_jobs_take_the_same(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    every_codec(data)
    where = "partition = 1 and key like '%a%'"
    count = len(batch(data, where=where))
    assert count
    condition = parse_condition(where)
    report = stats.run(spark, str(data), stats.StatsOptions(where=condition, gap_ms=1))
    assert report.figures["records"] == count
    assert report.figures["partitions"] == 2
    assert not {"batches", "bytes", "offset_gaps"} & report.figures.keys()
    planned = stats.plan(str(data), stats.StatsOptions(where=condition))
    assert planned.figures["bytes"] == sum(
        part.split.size
        for part in batch_parts(data, where="partition = 1")
        if isinstance(part, planning.SplitPartition)
    )
    out = str(tmp_path / "out")
    options = export.ExportOptions(source={"where": where})
    assert export.run(spark, str(data), out, options).figures["records"] == count
    assert export.run(spark, str(data), out, options).figures["records"] == 0
    with pytest.raises(InvalidConfig, match="something else"):
        export.run(spark, str(data), out, export.ExportOptions(source={"where": "key = 'a'"}))


def test_times_of_jobs_are_in_the_sessions_zone(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with opened(data) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"v", timestamp_ms=EPOCH_MS)
    zone = spark.conf.get("spark.sql.session.timeZone")
    out = str(tmp_path / "out")
    try:
        for name, hour, count in (("America/New_York", 17, 1), ("PST", 14, 1), ("PST", 15, 0)):
            spark.conf.set("spark.sql.session.timeZone", name)
            where = f"timestamp >= '2023-11-14T{hour}:13:20'"
            options = stats.StatsOptions(where=parse_condition(where), gap_ms=1)
            assert stats.run(spark, str(data), options).figures["records"] == count
            snapshot = export.ExportOptions(source={"where": where}, is_snapshot=True)
            report = export.run(spark, str(data), f"{out}-{name[:3]}-{hour}", snapshot)
            assert report.figures["records"] == count
        # Another zone is no other export.
        source = {"where": "timestamp >= '2000-01-01'"}
        for name, count in (("America/New_York", 1), ("UTC", 0)):
            spark.conf.set("spark.sql.session.timeZone", name)
            report = export.run(spark, str(data), out, export.ExportOptions(source=source))
            assert report.figures["records"] == count
        own = export.ExportOptions(source={**source, "timezone": "UTC"}, is_snapshot=True)
        assert export.run(spark, str(data), f"{out}-own", own).figures["records"] == 1
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))


def test_filters_that_are_pushed_stay_in_the_reader(spark: SparkSession) -> None:
    """Why `where` is an option.  Once this fails, PySpark's own way works, and can be taken."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def __init__(self) -> None:
            self.filters: list[Any] = []

        def pushFilters(self, filters: Any) -> Any:  # noqa: N802 - Spark's
            self.filters = list(filters)
            return []

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(None)]

        def read(self, partition: InputPartition) -> Any:
            yield from ((number,) for number in range(1 if self.filters else 10))

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushes"

        def schema(self) -> str:
            return "a int"

        def reader(self, schema: Any) -> DataSourceReader:
            return Reader()

    spark.dataSource.register(Source)
    setting = "spark.sql.python.filterPushdown.enabled"
    frame = spark.read.format("pushes").load()
    with pytest.raises(Exception, match="PUSHDOWN_DISABLED"):
        frame.count()
    spark.conf.set(setting, "true")
    try:
        frame = spark.read.format("pushes").load()
        assert frame.where("a = 0").count() == 1
        assert frame.count() == 1, "what was pushed for one query does not stay any more"
    finally:
        spark.conf.unset(setting)
