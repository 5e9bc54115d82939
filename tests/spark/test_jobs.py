"""The jobs find, count, export and import what the plain tools see."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs import export, import_, stats, verify
from kafkafs.spark.jobs.import_records import ImportOptions
from kafkafs.spark.jobs.selection import Selection
from storage import LogManager
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from storage.log.append import append_batches
from storage.record.batch import Record, encode
from storage.verify.verify import verify as verify_here
from tests.storage.logs import NOW_MS, opened
from tests.storage.verify.test_verify import fill, patch, segments

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE = 60_000
NOW_NS = (NOW_MS + 2 * 24 * 60 * MINUTE) * 1_000_000


def put(data: Path, topic: str, partition: int, records: list[Record]) -> None:
    """Append a batch."""
    with opened(data) as manager:
        log = manager.log(topic, partition)
        append_batches(log, encode(records), now_ns=NOW_NS)


def values_of(data: Path, topic: str) -> list[list[tuple[bytes | None, bytes | None]]]:
    """Keys and values of each partition, in order."""
    with LogManager.open(str(data), read_only=True) as manager:
        return [
            [(record.key, record.value) for record in log.records(log.log_start_offset)]
            for _, log in sorted(manager.topic(topic).partitions.items())
        ]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """An empty data directory; at the end all in it is whole."""
    path = tmp_path / "data"
    path.mkdir()
    yield path
    assert verify_here(str(path)).faults == []


@pytest.mark.soak
def test_verify_tells_what_the_command_tells(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path)
    report = verify.run(spark, str(tmp_path))
    assert (report.faults, report.figures["records"]) == ([], 63)
    segments(tmp_path, ".txnindex")[0].unlink()
    patch(segments(tmp_path)[0], 80, b"?")
    patch(segments(tmp_path, ".index")[-1], 2, b"?")
    found = verify_here(str(tmp_path))
    assert len(found.faults) >= 3
    report = verify.run(spark, str(tmp_path), Selection((("t", 0),)))
    assert report.faults == list(map(str, found.faults))
    assert report.figures["bytes"] == found.size
    with pytest.raises(UnknownTopicOrPartition, match="no partition 1"):
        verify.run(spark, str(tmp_path), Selection((("t", 1),)))


def test_stats_count_what_is_there(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("t", 2)
        manager.change_topic_settings("t", {"compression.type": "zstd"})
        manager.create_topic("empty", 1)
    start = NOW_MS - 1000 * MINUTE
    sizes = [(number * 37) % 900 for number in range(200)]
    for half in (0, 1):
        records = [
            Record(
                number,
                start + (number + 1) * MINUTE + (half * 300 * MINUTE),
                0,
                None if number % 10 == 0 else b"k%d" % (number % 25),
                None if number == 7 else bytes(sizes[number]),
            )
            for number in range(half * 100, half * 100 + 100)
        ]
        put(data, "t", 0, records)
    chart = tmp_path / "chart.svg"
    report = stats.run(spark, str(data), stats.StatsOptions(gap_ms=60 * MINUTE), chart=str(chart))
    tables = {table.name: table for table in report.tables}
    topics = {str(row[0]): row for row in tables["topics"].rows}
    sizes[7] = 0
    keys = {number % 25 for number in range(200) if number % 10}
    assert topics["t"][2] == 200
    assert topics["t"][4:] == (len(keys), 20, 1, "zstd")
    assert topics["empty"][2] == 0
    assert report.figures["batches"] == 2
    assert report.figures["keys_are_exact"] is True
    first = next(row for row in tables["partitions"].rows if row[:2] == ("t", 0))
    key_sizes = [0 if number % 10 == 0 else len(b"k%d" % (number % 25)) for number in range(200)]
    both = sorted(a + b for a, b in zip(sizes, key_sizes, strict=True))
    assert first[5] == round(sum(both) / 200)
    for name, rank in ((6, 100), (7, 190), (8, 200)):
        assert first[name] == pytest.approx(both[rank - 1], rel=0.01)
    assert first[9:] == (0, 0)
    (gap,) = tables["time gaps"].rows
    assert gap[:3] == ("t", 0, 100)
    assert gap[5] == 301 * 60
    text = chart.read_text()
    assert "records per second" in text
    assert "t-1" in text


@pytest.mark.soak
def test_export_goes_on_where_it_has_stopped(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    late = NOW_MS // 86_400_000 * 86_400_000 + 86_399_999
    with opened(data) as manager:
        manager.create_topic("t", 2)
    put(data, "t", 0, [Record(0, late - 1, 0, b"k", b"one"), Record(1, late + 1, 0, None, b"two")])
    out = tmp_path / "out"
    options = export.ExportOptions(Selection((("t", None),)), as_text=True)
    report = export.run(spark, str(data), str(out), options)
    assert report.figures["records"] == 2
    put(data, "t", 1, [Record(0, late, 0, b"k", None)])
    assert [row[4] for row in export.plan(str(data), str(out), options).tables[0].rows] == [0, 1]
    assert export.run(spark, str(data), str(out), options).figures["records"] == 1
    assert export.run(spark, str(data), str(out), options).figures["records"] == 0
    rows = spark.read.parquet(str(out)).orderBy("partition", "offset").collect()
    assert [(row.partition, row.offset, row.key, row.value) for row in rows] == [
        (0, 0, "k", "one"),
        (0, 1, None, "two"),
        (1, 0, "k", None),
    ]
    days = [row.date.toordinal() for row in rows]
    assert (days[1] - days[0], days[2] - days[0]) == (1, 0)
    with pytest.raises(InvalidConfig, match="of other data"):
        export.run(spark, str(data), str(out), options._replace(as_text=False))


def test_lines_are_imported_once_and_in_order(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    lines = [b"%d" % number for number in range(1000)]
    lines[5], lines[6], lines[7] = b"", b"\xff\xfe no text", b"ends with \r"
    (tmp_path / "b.log").write_bytes(b"\n".join(lines) + b"\n")
    with gzip.open(tmp_path / "a.log.gz", "wb") as file:
        file.write(b"packed\nlast without newline")
    options = ImportOptions("t", (f"file://{tmp_path}/b.log", str(tmp_path / "*.gz")), partition=1)
    with pytest.raises(UnknownTopicOrPartition, match="--partitions"):
        import_.run(spark, str(data), options)
    options = options._replace(partitions=2)
    dry = import_.run(spark, str(data), options, dry_run=True)
    assert (dry.figures["records"], dry.figures["creates_topic"]) == (1002, True)
    assert not (data / "t-0").exists()
    # Several tasks read a file.
    spark.conf.set("spark.sql.files.maxPartitionBytes", "700")
    try:
        report = import_.run(spark, str(data), options)
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    expected = [(None, line) for line in (*lines, b"packed", b"last without newline")]
    assert values_of(data, "t") == [[], expected]
    assert report.figures["records"] == dry.figures["records"]
    again = import_.run(spark, str(data), options)
    assert (again.figures["records"], again.figures["is_imported_already"]) == (0, True)
    assert values_of(data, "t") == [[], expected]


def test_files_of_any_name_are_imported_or_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    names = ("l[1]", "q?", "{x}", "*", "back\\slash", "%41 b", "comma,", "l1", "qq", "x")
    for name in names:
        (tmp_path / f"{name}.txt").write_text(f"{name}\n")
    (tmp_path / "with:colon.txt").touch()
    (tmp_path / "_hidden.txt").touch()
    options = ImportOptions(
        "t", tuple(str(tmp_path / f"{name}.txt") for name in names), partitions=1
    )
    import_.run(spark, str(data), options)
    expected = [(None, name.encode()) for name in names]
    assert values_of(data, "t") == [expected]
    for name in ("with:colon.txt", "_hidden.txt"):
        with pytest.raises(InvalidConfig, match=name):
            import_.run(spark, str(data), options._replace(inputs=(str(tmp_path / name),)))
    # By a pattern those that Spark passes over are not meant.
    import_.run(spark, str(data), options._replace(inputs=(str(tmp_path / "[_l]*.txt"),)))
    assert values_of(data, "t") == [[*expected, (None, b"l1"), (None, b"l[1]")]]


def test_an_export_is_imported_as_it_was(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("t", 2)
        manager.create_topic("copy", 2)
    for partition in (0, 1):
        records = [
            Record(number, NOW_MS + number, 0, b"k%d" % number, None, (("h", b"\x00"),))
            for number in range(20)
        ]
        put(data, "t", partition, records)
    out = tmp_path / "out"
    export.run(spark, str(data), str(out), export.ExportOptions(is_snapshot=True))
    import_.run(spark, str(data), ImportOptions("copy", (str(out),), format="parquet"))
    with LogManager.open(str(data), read_only=True) as manager:
        for partition in (0, 1):
            one, other = (manager.log(topic, partition) for topic in ("t", "copy"))
            assert list(one.records(0)) == [
                record._replace(offset=number) for number, record in enumerate(other.records(0))
            ]


def test_rows_are_imported_by_columns(spark: SparkSession, data: Path, tmp_path: Path) -> None:
    rows = [
        {"user": f"u{number}", "at": NOW_MS + number, "n": {"x": number}} for number in range(9)
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ImportOptions(
        "t", (str(file),), key="user", timestamp="at", partitions=3, name="once"
    )
    with pytest.raises(InvalidConfig, match="To choose one: --value"):
        import_.run(spark, str(data), options)
    import_.run(spark, str(data), options._replace(value="*"))
    found = [pair for partition in values_of(data, "t") for pair in partition]
    assert sorted(found) == [
        (str(row["user"]).encode(), json.dumps({"n": row["n"]}, separators=(",", ":")).encode())
        for row in rows
    ]
    with LogManager.open(str(data), read_only=True) as manager:
        times = [record.timestamp for log in manager.logs() for record in log.records(0)]
    assert sorted(times) == [row["at"] for row in rows]


def test_rows_that_cannot_be_read_are_refused(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    files = {
        "broken.json": '{"key":"a","value":"1"}\n{broken\n',
        "cut.json": '{"key":"a","value":"1"}\n{"key":"b","val',
        "short.csv": "key,value,more\na,1,x\nb,2\n",
        "long.csv": "key,value\na,1\nb,2,x\n",
        "cut short.csv": 'key,value\na,1\nb,"2\nc,3\n',
        "inch.csv": 'key,value\npipe,5"\n',
        "latin.csv": "key,value\na,\xe9\n",
        "latin.json": '{"key":"a","value":"\xe9"}\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.write_text(text, "latin-1")
        options = ImportOptions("t", (str(path),), partitions=1)
        ours = rf"^{path}: (has an odd number of quotes|is not UTF-8)"
        reasons = rf"Unexpected|MALFORMED|{ours}|Invalid UTF-8"
        with pytest.raises(Exception, match=reasons):
            import_.run(spark, str(data), options)
    # Spark would name the columns of all files as in the first one.
    for name, text in (("1.csv", "key,value\na,1\n"), ("2.csv", "value,key\n2,b\n")):
        (tmp_path / name).write_text(text)
    inputs = tuple(str(tmp_path / name) for name in ("1.csv", "2.csv"))
    with pytest.raises(Exception, match="header does not conform"):
        import_.run(spark, str(data), ImportOptions("t", inputs, partitions=1))
    assert values_of(data, "t") == [[]]


def test_csv_is_read_as_other_programs_write_it(
    spark: SparkSession, data: Path, tmp_path: Path
) -> None:
    rows = [("key", "value"), ("a", 'say "hi"'), ("b", "one\ntwo"), (" c ", "\\"), ("#", "x,y")]
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    import_.run(spark, str(data), ImportOptions("t", (str(file),), partitions=1))
    assert values_of(data, "t") == [[(key.encode(), value.encode()) for key, value in rows[1:]]]


@pytest.mark.parametrize("inputs", [("1.json", "0.json"), (".",)], ids=["files", "directory"])
def test_rows_keep_the_order_of_their_files(
    spark: SparkSession, data: Path, tmp_path: Path, inputs: tuple[str, ...]
) -> None:
    """Spark reads large files first. Of a directory, subdirectories name a column."""
    rows = {"0.json": 9, "1.json": 300}
    if inputs == (".",):
        rows = {"day=5/a.json": 9, "day=5/b.json": 300, "day=6/a.json": 90}
    expected = []
    for number, (name, count) in enumerate(rows.items()):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f'{{"key":"{each}","n":{number}}}\n' for each in range(count)))
        day = f',"day":{name[4]}' if "=" in name else ""
        expected += [(b"%d" % each, f'{{"n":{number}{day}}}'.encode()) for each in range(count)]
    paths = tuple(str(tmp_path / "in" / name) for name in inputs)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "700")
    try:
        import_.run(spark, str(data), ImportOptions("t", paths, "json", value="*", partitions=1))
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert values_of(data, "t") == [expected]
