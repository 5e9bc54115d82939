"""kafkafs.spark.sink.staging: rows of a task become staged files that a log adopts as they are."""

from __future__ import annotations

import errno
import gc
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kafkafs.spark.sink import staging
from kafkafs.spark.sink.staging import Staging
from storage import LogManager, Record
from storage.adopt.staged import AdoptRequest, StagedFile, StagedName
from storage.errors import (
    InvalidConfig,
    InvalidRecord,
    InvalidTimestamp,
    ReadOnlyLog,
    RecordTooLarge,
    StorageError,
    UnknownTopicOrPartition,
    UnusableFile,
)
from storage.files import Files
from storage.record.header import parse_header
from storage.task import Task
from tests import metadata_log as made
from tests import tiered
from tests.murmur2 import partition_of

NOW = 1_700_000_000_000
NAME = StagedName("query", 0, 3, 77)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp", pa.timestamp("us", "UTC")),
    ]
)


def batch(rows: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    """Rows that have only some of the columns; the others are null."""
    return pa.RecordBatch.from_pylist([dict.fromkeys(schema.names) | row for row in rows], schema)


def of_columns(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    directory.mkdir()
    with LogManager.open(str(directory)) as manager:
        manager.create_topic("orders", 3)
        manager.create_topic("payments", 1)
    return directory


def set_up(data: Path, topic: str, **settings: str) -> None:
    with LogManager.open(str(data)) as manager:
        manager.settings.change_topic(
            topic, {name.replace("_", "."): value for name, value in settings.items()}
        )


def begin(data: Path, **more: Any) -> Staging:
    return Staging(str(data), more.pop("name", NAME), clock_ms=lambda: NOW, **more)


def staged_in(data: Path) -> list[str]:
    return sorted(path.name for path in data.rglob("*.staged"))


def adopted(data: Path, files: Sequence[StagedFile], query: str = "query") -> None:
    with LogManager.open(str(data)) as manager:
        request = AdoptRequest(query, 0, "run", tuple(files))
        manager.adopter.adopt(request, Task(), lambda: NOW * 1_000_000)


def records(data: Path, topic: str) -> list[list[Record]]:
    with LogManager.open(str(data), read_only=True) as manager:
        logs = manager.topic(topic).partitions
        return [list(logs[number].records()) for number in sorted(logs)]


def values(data: Path, topic: str) -> list[list[bytes | None]]:
    return [[record.value for record in each] for each in records(data, topic)]


def write(data: Path, *batches: pa.RecordBatch, **more: Any) -> list[StagedFile]:
    """Stage and adopt."""
    each = begin(data, **more)
    for rows in batches:
        each.add(rows)
    files, _ = each.finish()
    adopted(data, files, more.get("name", NAME).query)
    return files


def test_every_column(data: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "orders", "partition": 1, "key": b"k", "value": b"v"},
        {"topic": "orders", "key": b"", "value": None, "headers": []},
        {
            "topic": "payments",
            "value": b"",
            "headers": [{"key": "é", "value": b"1"}, {"key": "", "value": None}],
            "timestamp": 1_500_000_000_123_999,
        },
        {"topic": "orders", "partition": 1, "key": b"k", "value": b"w", "timestamp": -1000},
    ]
    one = begin(data)
    one.add(batch(rows))
    files, count = one.finish()
    assert count == 4
    hashed = partition_of(b"", 3)
    assert [file[:3] for file in files] == [
        *(("orders", number, str(NAME)) for number in sorted({hashed, 1})),
        ("payments", 0, str(NAME)),
    ]
    adopted(data, files)
    assert staged_in(data) == []
    assert records(data, "payments") == [
        [Record(0, 1_500_000_000_123, 0, None, b"", (("é", b"1"), ("", None)))]
    ]
    found = records(data, "orders")
    assert [record[1:5] for record in found[1] if record.key == b"k"] == [
        (NOW, 0, b"k", b"v"),
        (-1, 0, b"k", b"w"),
    ]
    (tombstone,) = [record for record in found[hashed] if not record.key]
    assert tombstone[2:] == (0, b"", None, ())


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_keys_and_values_of_each_type(data: Path, kind: pa.DataType) -> None:
    values = pa.array([b"a", "ü".encode(), None], pa.binary()).cast(kind)
    rows = of_columns(value=values, key=values)
    write(data, rows.slice(1), topic="payments")
    assert [row[3:5] for row in records(data, "payments")[0]] == [
        ("ü".encode(), "ü".encode()),
        (None, None),
    ]


def test_slices_of_columns(data: Path) -> None:
    """Rows that begin within a bitmap's byte, and lists within their items."""
    rows: list[dict[str, Any]] = [
        {
            "topic": "payments",
            "key": None if number % 3 else b"%d" % number,
            "value": b"%d" % number,
            "headers": None if number % 5 == 0 else [{"key": f"{number}", "value": b"x"}] * 2,
        }
        for number in range(40)
    ]
    write(data, batch(rows).slice(3, 9), batch(rows).slice(12, 0), batch(rows).slice(19))
    expected = [*rows[3:12], *rows[19:]]
    assert [(row.key, row.value, row.headers) for row in records(data, "payments")[0]] == [
        (row["key"], row["value"], tuple((h["key"], h["value"]) for h in row["headers"] or ()))
        for row in expected
    ]


def test_timestamps_of_another_unit(data: Path) -> None:
    times = pa.array([NOW, None], pa.timestamp("ms", "UTC"))
    write(data, of_columns(value=pa.array([b"a", b"b"]), timestamp=times), topic="payments")
    assert [row.timestamp for row in records(data, "payments")[0]] == [NOW, NOW]


def test_the_option_wins_over_the_column(data: Path) -> None:
    write(data, batch([{"topic": "nowhere", "value": b"a"}, {"value": b"b"}]), topic="payments")
    assert values(data, "payments") == [[b"a", b"b"]]


def test_many_topics_in_one_batch_keep_their_order(data: Path) -> None:
    names = ["orders", "payments"]
    rows = [
        {"topic": names[number % 2], "partition": 0, "value": b"%03d" % number}
        for number in range(100)
    ]
    write(data, batch(rows), batch(rows))
    assert values(data, "orders")[0] == [b"%03d" % number for number in range(0, 100, 2)] * 2
    assert values(data, "payments")[0] == [b"%03d" % number for number in range(1, 100, 2)] * 2


def test_rows_without_keys_go_to_all_partitions(data: Path) -> None:
    rows = batch([{"topic": "orders", "value": b"v" * 1000}] * 1000)
    write(data, rows)
    sizes = [len(each) for each in records(data, "orders")]
    assert sum(sizes) == 1000
    assert all(sizes)


def test_other_directories_have_the_last_partitions(data: Path) -> None:
    """The broker's metadata log lists five of "orders"; three are here."""
    with LogManager.open(str(data)) as manager:
        topic_id = manager.topic("orders").id
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    partitions = (made.partition(topic_id, number) for number in range(5))
    made.MetadataLog(data).append(made.topic("orders", topic_id), *partitions)
    keys = {partition_of(key, 5): key for key in (b"%d" % number for number in range(50))}
    one = begin(data, topic="orders")
    one.add(batch([{"key": keys[number], "value": b"v"} for number in range(3)]))
    with pytest.raises(UnknownTopicOrPartition, match=r"row 4.*no partition 4"):
        one.add(batch([{"key": keys[4], "value": b"v"}]))
    one.discard()


def test_a_partition_that_is_a_link_gets_no_rows_and_keeps_its_keys(data: Path) -> None:
    """The other partitions do not get them, as in a mount."""
    (data / "orders-2").rename(data.parent / "elsewhere")
    (data / "orders-2").symlink_to("../elsewhere")
    keys = {partition_of(key, 3): key for key in (b"%d" % number for number in range(50))}
    for topic_partitions in (None, 3):
        task = begin(data, topic="orders", topic_partitions=topic_partitions)
        task.add(batch([{"key": keys[number], "value": b"v"} for number in range(2)] * 50))
        assert [(each.topic, each.partition) for each in task.finish()[0]] == [
            ("orders", 0),
            ("orders", 1),
        ]
        task.discard()
    refused = begin(data, topic="orders")
    refused.add(batch([{"key": keys[2], "value": b"v"}]))
    with pytest.raises(UnusableFile, match=r"symbolic link.*orders-2/"):
        refused.finish()
    refused.discard()
    assert os.listdir(data / "orders-0") == os.listdir(data / "orders-1")


def test_no_rows_no_files(data: Path) -> None:
    one = begin(data)
    one.add(batch([]))
    assert one.finish() == ([], 0)
    assert staged_in(data) == []


@pytest.mark.parametrize("codec", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_as_the_topic_wants_them_compressed(data: Path, codec: str) -> None:
    set_up(data, "payments", compression_type=codec)
    rows = batch([{"topic": "payments", "value": b"%04d" % n + b"v" * 200} for n in range(1000)])
    one = begin(data)
    one.add(rows)
    (file,), _ = one.finish()
    stored = (data / "payments-0" / file.name).read_bytes()
    assert len(stored) == file.size
    assert parse_header(stored).codec == ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(
        codec
    )
    adopted(data, [file])
    assert values(data, "payments") == [rows.column("value").to_pylist()]


def test_what_cannot_be_compressed_fits_all_the_same(data: Path) -> None:
    set_up(data, "payments", compression_type="gzip", max_message_bytes="2000")
    rows = batch([{"topic": "payments", "value": os.urandom(150)} for _ in range(100)])
    write(data, rows)
    assert values(data, "payments") == [rows.column("value").to_pylist()]


def test_the_owner_says_the_time_where_the_topic_asks_for_that(data: Path) -> None:
    """No timestamp is too old or too new then."""
    set_up(
        data,
        "payments",
        message_timestamp_type="LogAppendTime",
        message_timestamp_before_max_ms="1000",
    )
    rows = [{"topic": "payments", "value": b"v", "timestamp": time} for time in (0, 4 * NOW * 1000)]
    write(data, batch(rows))
    assert [row[1:3] for row in records(data, "payments")[0]] == [(NOW, 1)] * 2


def test_memory_is_bounded_by_the_sum(data: Path) -> None:
    """Many partitions' batches are closed before they are full; files are opened again."""
    with LogManager.open(str(data)) as manager:
        manager.create_topic("wide", 40)
    rows = [
        {"topic": "wide", "partition": n % 40, "value": b"%04d" % n + b"v" * 200}
        for n in range(800)
    ]
    one = begin(data, held_bytes=100_000, open_files=3)
    gc.collect()  # what the manager had open
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(10):
        one.add(batch(rows))
        assert len(set(os.listdir("/proc/self/fd")) - before) <= 3
    assert sum(path.stat().st_size for path in data.rglob("*.staged")) > 1_000_000
    files, count = one.finish()
    assert set(os.listdir("/proc/self/fd")) == before
    assert (len(files), count) == (40, 8000)
    adopted(data, files)
    assert values(data, "wide") == [
        [b"%04d" % n + b"v" * 200 for n in range(each, 800, 40)] * 10 for each in range(40)
    ]


GOOD = {"topic": "orders", "partition": 0, "key": b"good", "value": b"v"}


@pytest.mark.parametrize(
    ("row", "kind", "reason"),
    [
        ({"topic": None}, InvalidRecord, "null topic present in the data"),
        ({"topic": "nowhere"}, UnknownTopicOrPartition, "To create it: option 'topicPartitions'"),
        ({"topic": "../x"}, UnknownTopicOrPartition, "no topic"),
        ({"partition": -1}, UnknownTopicOrPartition, "row 4 of task 3.*partition -1.*key b'good'"),
        ({"partition": 3}, UnknownTopicOrPartition, "there is no partition 3"),
        ({"topic": "compacted", "key": None}, InvalidRecord, "row 4.*key None.*compact"),
        ({"headers": [{"key": None, "value": b""}]}, InvalidRecord, "row 4.*name is null"),
        ({"headers": [None]}, InvalidRecord, "row 4.*name is null"),
        ({"timestamp": -2_000_000}, InvalidTimestamp, "row 4.*before 1970"),
        ({"timestamp": (NOW + 9_000_000) * 1000}, InvalidTimestamp, r"row 4.*after.max.ms"),
        ({"key": b"k" * 99, "value": b"v" * 2_000_000}, RecordTooLarge, "row 4.*key b'k{40}'…"),
    ],
)
def test_a_row_that_is_refused(
    data: Path, row: dict[str, Any], kind: type[StorageError], reason: str
) -> None:
    """The error says which one, and after `discard` nothing is there."""
    with LogManager.open(str(data)) as manager:
        manager.create_topic("compacted", 1)
    set_up(data, "compacted", cleanup_policy="compact")
    one = begin(data, held_bytes=1)
    one.add(batch([GOOD, GOOD]))
    assert staged_in(data) == [str(NAME)]
    with pytest.raises(kind, match=reason):
        one.add(batch([GOOD, {**GOOD, **row}, GOOD]))
    one.discard()
    assert staged_in(data) == []


def test_a_missing_topic_says_what_to_type(data: Path) -> None:
    one = begin(data, topic="my-topics")
    with pytest.raises(UnknownTopicOrPartition) as raised:
        one.add(batch([GOOD]))
    (command,) = re.findall(r"or (kafkafs create .* --partitions) N", str(raised.value))
    program = Path(sys.executable).parent / "kafkafs"
    subprocess.run([program, *shlex.split(command)[1:], "2"], check=True)
    write(data, batch([GOOD]), topic="my-topics")
    assert [len(each) for each in values(data, "my-topics")] == [1, 0]


def test_a_tiered_topic_takes_no_rows(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    before = tiered.state(tmp_path)
    with pytest.raises(ReadOnlyLog, match=r"orders remote\.storage\.enable=false"):
        write(tmp_path, batch([{"topic": "orders", "value": b"v"}]))
    assert tiered.state(tmp_path) == before


def test_a_missing_topic_is_created(data: Path) -> None:
    """It is created before the first row. An existing topic keeps its number of partitions."""
    rows = [{"topic": name, "key": b"%d" % n, "value": b"v"} for n in range(50) for name in "ab"]
    write(data, batch(rows), topic_partitions=4)
    for name in "ab":
        assert [len(each) for each in records(data, name)] == [
            sum(partition_of(b"%d" % n, 4) == number for n in range(50)) for number in range(4)
        ]
    write(data, batch([GOOD]), topic_partitions=8, name=NAME._replace(query="next"))
    assert len(values(data, "orders")) == 3
    assert len(values(data, "payments")) == 1


def test_a_topic_that_another_task_is_creating(data: Path) -> None:
    """Its directories come one by one: the rows go where they go once it is whole."""
    rows = [{"topic": "new", "key": b"%d" % n, "value": b"v"} for n in range(50)]
    tasks = [begin(data, topic_partitions=4) for _ in range(2)]
    with LogManager.open(str(data)) as manager, ThreadPoolExecutor(1) as pool:
        (data / "new-0").mkdir()
        adding = pool.submit(tasks[0].add, batch(rows))
        assert not wait([adding], timeout=0.5).done
        (data / "new-0").rmdir()
        manager.create_topic("new", 4)
        manager.close()
        adding.result()
    assert {file.partition for file in tasks[0].finish()[0]} == {0, 1, 2, 3}


def test_settings_that_are_wrong(data: Path) -> None:
    (data / "kafkafs.properties").write_text("no.such=1\n")
    with pytest.raises(InvalidConfig, match=r"no\.such"):
        begin(data)


def test_a_file_that_is_there_is_never_touched(data: Path) -> None:
    theirs = data / "orders-0" / str(NAME)
    theirs.write_bytes(b"theirs")
    one = begin(data)
    one.add(batch([GOOD]))
    with pytest.raises(FileExistsError):
        one.finish()
    one.discard()
    assert theirs.read_bytes() == b"theirs"


class FullDisk(Files):
    """It has room for a kilobyte."""

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if position + len(data) > 1000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, position)


def test_a_full_disk(data: Path) -> None:
    one = begin(data, files=FullDisk(), held_bytes=1)
    one.add(batch([GOOD]))
    with pytest.raises(OSError, match=r"No space.*/orders-0/.*\.staged"):
        one.add(batch([GOOD] * 100))
    one.discard()
    assert staged_in(data) == []


def test_a_partition_that_goes_away_meanwhile(data: Path) -> None:
    one = begin(data)
    one.add(batch([GOOD]))
    os.rename(data / "orders-0", data / "elsewhere")
    with pytest.raises(FileNotFoundError):
        one.finish()
    one.discard()


def test_batches_are_of_a_size_that_reads_well(data: Path) -> None:
    write(data, batch([{"topic": "payments", "value": b"v" * 100}] * 10_000))
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("payments", 0)
        stored = Path(log.directory, "00000000000000000000.log").read_bytes()
    at, sizes = 0, []
    while at < len(stored):
        sizes.append(parse_header(stored, at).size)
        at += sizes[-1]
    assert staging.BATCH_BYTES - 200 < max(sizes) <= staging.BATCH_BYTES
    assert len(sizes) == 18
