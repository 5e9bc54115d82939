"""Data directories in an object store are opened and read as those on a disk."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from kafkafs.spark.location.arrow_files import ArrowFiles
from kafkafs.spark.location.followed_directory import FollowedDirectory
from kafkafs.spark.location.location import location_of
from kafkafs.spark.option_values import InvalidOption
from storage import LogManager, Record
from storage.condition.parse import parse
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.files import Files
from storage.split.narrow import narrowed
from tests.log_check import check
from tests.spark.object_store import Bucket, ObjectStore
from tests.storage.logs import NOW_MS, append, remove_head, values
from tests.storage.segmented import DAY_MS, fill, segmented
from tests.storage.split.test_narrow import build_words
from tests.storage.transactions import Client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


@pytest.fixture
def bucket(store: ObjectStore) -> Bucket:
    return store.bucket()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics: `many` has many segments; `atomic` has transactions, and one is open."""
    data = tmp_path_factory.mktemp("made")
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        segmented(manager, "many", 4)
        topic = manager.create_topic("atomic", 1)
        aborted, committed, left_open = (Client(topic.partitions[0], n) for n in (7, 8, 9))
        aborted.send(b"never", b"seen")
        committed.send(b"first")
        aborted.abort()
        left_open.send(b"undecided")
        committed.commit()
    return data


@pytest.fixture(scope="module")
def stored(store: ObjectStore, made: Path) -> Bucket:
    """A bucket that no test changes, with what `made` has."""
    bucket = store.bucket()
    bucket.sync(made)
    return bucket


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """A copy of `made`, to be changed."""
    return shutil.copytree(made, tmp_path / "data")


def everything(manager: LogManager) -> dict[str, tuple[int, int, int, list[Record]]]:
    return {
        f"{log.topic}-{log.partition}": (
            log.log_start_offset,
            log.last_stable_offset,
            log.log_end_offset,
            list(log.records()),
        )
        for log in manager.logs()
    }


def of_disk(data: Path) -> dict[str, tuple[int, int, int, list[Record]]]:
    with LogManager.open(str(data), read_only=True) as manager:
        return everything(manager)


def test_it_is_what_lies_on_the_disk(made: Path, stored: Bucket) -> None:
    with (
        FollowedDirectory(stored.location) as opened,
        LogManager.open(str(made), read_only=True) as local,
    ):
        assert everything(opened.manager) == everything(local)
        log, same = opened.manager.log("many", 0), local.log("many", 0)
        for day in range(5):
            at = NOW_MS + day * DAY_MS
            assert log.reader.offset_for_timestamp(at) == same.reader.offset_for_timestamp(at)
        assert [segment.aborted for segment in opened.manager.log("atomic", 0).segments] == [
            segment.aborted for segment in local.log("atomic", 0).segments
        ]
        assert check(opened.manager) == []


def test_only_what_is_wanted_is_looked_at(stored: Bucket) -> None:
    with (
        stored.counted() as requests,
        FollowedDirectory(stored.location, lambda topic: topic == "atomic") as it,
    ):
        assert list(it.manager.topics) == ["atomic"]
        assert not [path for _, path in requests.seen if "many-0" in path]


def test_it_is_only_read(stored: Bucket) -> None:
    files = stored.location.files()
    log = f"{stored.location.path}/many-0/{0:020d}.log"
    fd = files.open(log, os.O_RDONLY)
    writing: list[Callable[[], object]] = [
        *(partial(files.open, log, flags) for flags in (os.O_RDWR, os.O_WRONLY | os.O_CREAT)),
        *(partial(call, fd) for call in (files.fsync, files.fdatasync, files.unlock)),
        *(partial(call, fd, 1) for call in (files.ftruncate, files.allocate)),
        partial(files.pwrite, fd, b"x", 0),
        *(partial(call, log) for call in (files.unlink, files.mkdir, files.rmdir, files.lock)),
        *(partial(call, log, f"{log}.new") for call in (files.rename, files.link)),
        *(partial(call, log, b"x") for call in (files.replace_atomically, files.replace_if_room)),
        partial(files.replace_private, log, b"x"),
        partial(files.chmod, log, 0o600),
        partial(files.chown, log, 1, 1),
        partial(files.utime_ns, log, 1),
        partial(files.sync_directory, os.path.dirname(log)),
    ]
    for call in writing:
        with pytest.raises(OSError, match="is read-only") as refused:
            call()
        assert refused.value.errno == errno.EROFS
        assert str(refused.value.filename).startswith("s3://")
    files.close(fd)
    with pytest.raises(OSError, match="is read-only; write to a local directory: 's3://"):
        LogManager.open(stored.location.path, files=files)


def test_no_method_takes_an_object_for_a_local_file() -> None:
    """Each method of `Files` is replaced, or uses others, or only a directory of ours needs it."""
    uses_others = {"check_room", "held_open", "identity", "names", "replacing"}
    uses_others |= {"version", "with_reserve"}
    needs_ours = {"check_absent", "check_free", "close_root", "mount_id", "settle", "space"}
    given = {name for name, each in vars(Files).items() if callable(each) and name[0] != "_"}
    assert given - vars(ArrowFiles).keys() == uses_others | needs_ours


def test_a_segment_costs_a_few_requests(stored: Bucket) -> None:
    with stored.counted() as requests, FollowedDirectory(stored.location):
        sealed = f"{2:020d}"
        assert len(requests.of(f"{sealed}.log")) <= 3
        assert len(requests.of(f"{sealed}.timeindex")) <= 2
        # It is empty, and its size was listed.
        assert requests.of(f"{sealed}.index") == []
        # A listing of the top and of two partitions, and those again in the end.
        assert len([kind for kind, _ in requests.seen if kind == "LIST"]) <= 6


def test_looking_again_costs_a_listing_of_each_directory(stored: Bucket) -> None:
    with FollowedDirectory(stored.location) as opened:
        opened.refresh(at_once=True)
        with stored.counted() as requests:
            opened.refresh(at_once=True)
            assert [kind for kind, _ in requests.seen] == ["LIST"] * 3
        with stored.counted() as requests:
            for _ in range(100):
                opened.refresh()
            # Once a second at most; a slow machine may need one.
            assert len(requests.seen) <= 6


def test_large_indexes_are_not_read_to_open(tmp_path: Path, bucket: Bucket) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"index.interval.bytes": "0"})
        for number in range(20_000):
            append(log, b"%d" % number)
        log.roll(NOW_MS)
    bucket.sync(data)
    assert (data / "t-0" / f"{0:020d}.index").stat().st_size > 128 * 1024
    with FollowedDirectory(bucket.location) as opened:
        files = opened.manager.files
        got: list[int] = []
        fd = files.open(f"{opened.location.path}/t-0/{0:020d}.log", os.O_RDONLY)
        size = files.size(fd)
        for position in range(0, size, 100_000):
            got.append(len(files.pread(fd, 100_000, position)))
        files.close(fd)
        assert sum(got) == size
        log = opened.manager.log("t", 0)
        for offset in (0, 1, 777, 19_999):
            assert next(iter(log.records(offset))).offset == offset
        assert len(values(log)) == 20_000


def test_words_are_not_fetched_for_a_plan(data: Path, bucket: Bucket) -> None:
    with LogManager.open(str(data), read_only=True) as manager:
        build_words(manager.log("many", 0))
    bucket.sync(data)
    with FollowedDirectory(bucket.location) as opened:
        log = opened.manager.log("many", 0)
        condition = parse("value = 'none'").of_partition("many", 0)
        with bucket.counted() as requests:
            ranges = list(narrowed(log, 0, log.log_end_offset, condition))
        assert len(ranges) == len(log.segments)
        assert requests.seen == []


# -- what others do ------------------------------------------------------------------------------


def test_what_is_copied_later_appears(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    with FollowedDirectory(bucket.location) as opened:
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
            append(manager.log("many", 0), b"more")
        bucket.sync(data)
        opened.refresh(at_once=True)
        assert everything(opened.manager) == of_disk(data)
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
            fill(manager.log("many", 0), 2, 5)
            append(manager.create_topic("new", 1).partitions[0], b"new")
            Client(manager.log("atomic", 0), 9).abort()
        bucket.sync(data)
        opened.refresh(at_once=True)
        assert everything(opened.manager) == of_disk(data)
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
            remove_head(manager.log("many", 0), 2, 0)
            manager.log("many", 0).raise_log_start(7)
            manager.delete_topic("new")
        bucket.sync(data)
        opened.refresh(at_once=True)
        assert everything(opened.manager) == of_disk(data)


def test_a_partition_whose_metadata_is_copied_again_is_followed(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    name, log = "many-0/partition.metadata", f"many-0/{6:020d}.log"
    with FollowedDirectory(bucket.location) as opened:
        opened.refresh(at_once=True)
        before = bucket.filesystem.get_file_info(f"{bucket.root}/{name}").mtime_ns
        # Times in a store are in seconds.
        while bucket.filesystem.get_file_info(f"{bucket.root}/{name}").mtime_ns == before:
            bucket.put(name, (data / name).read_bytes())
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
            append(manager.log("many", 0), b"more")
        bucket.put(log, (data / log).read_bytes())
        opened.refresh(at_once=True)
        assert everything(opened.manager) == of_disk(data)


def test_records_wait_for_those_before_them(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    before = of_disk(data)
    with FollowedDirectory(bucket.location) as opened:
        with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
            fill(manager.log("many", 0), 2, 4)
        last = f"many-0/{10:020d}.log"
        bucket.put(last, (data / last).read_bytes())
        opened.refresh(at_once=True)
        assert everything(opened.manager) == before
        bucket.sync(data)
        opened.refresh(at_once=True)
        assert everything(opened.manager) == of_disk(data)


def test_a_segment_that_is_missing_is_an_error(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    bucket.delete(f"many-0/{4:020d}.log")
    with pytest.raises(
        CorruptRecord, match="offsets 4 to 5 are missing: copy the missing segments"
    ):
        FollowedDirectory(bucket.location)


def test_what_aborted_is_told_by_the_log(tmp_path: Path, bucket: Bucket) -> None:
    """Of the segment that is written to, whose index may have been copied before."""
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"index.interval.bytes": "0"})
        client = Client(log, 7)
        for turn in range(4):
            client.send(b"aborted %d" % turn)
            client.abort()
            client.send(b"committed %d" % turn)
            client.commit()
            if turn == 1:
                log.flush()
                older = (data / f"t-0/{0:020d}.txnindex").read_bytes()
    bucket.sync(data)
    bucket.delete(f"t-0/{16:020d}.snapshot")
    bucket.put(f"t-0/{0:020d}.txnindex", older)
    with FollowedDirectory(bucket.location) as opened:
        spans = [entry.last_offset for entry in opened.manager.log("t", 0).segments[0].aborted]
        assert spans == [1, 5, 9, 13]


def test_of_a_compacted_topic_offsets_may_be_missing(data: Path, bucket: Bucket) -> None:
    (data / "cleaner-offset-checkpoint").write_text("0\n1\nmany 0 6\n")
    bucket.sync(data)
    bucket.delete(f"many-0/{4:020d}.log")
    with FollowedDirectory(bucket.location, lambda topic: topic == "many") as opened:
        offsets = [record.offset for record in opened.manager.log("many", 0).records()]
        assert offsets == [*range(4), 6, 7]


def test_what_is_replaced_while_it_is_read_is_not_mixed(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    name = f"many-0/{0:020d}.log"
    old = b"a" * 3_000_000
    bucket.put(name, old)
    files = bucket.location.files()
    fd = files.open(f"{bucket.location.path}/{name}", os.O_RDONLY)
    assert files.pread(fd, 1000, 0) == old[:1000]
    bucket.put(name, b"b" * len(old))
    with pytest.raises(SegmentGone, match=f"replaced or removed while it was read .*{name}"):
        files.pread(fd, 1_000_000, 1000)
    files.close(fd)
    bucket.delete(name)
    with pytest.raises(FileNotFoundError, match="no such object"):
        files.open(f"{bucket.location.path}/{name}", os.O_RDONLY)


def test_what_is_removed_while_it_is_read_is_told(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    name = f"many-0/{0:020d}.log"
    bucket.put(name, b"a" * 3_000_000)
    files = bucket.location.files()
    fd = files.open(f"{bucket.location.path}/{name}", os.O_RDONLY)
    bucket.delete(name)
    with pytest.raises(SegmentGone, match="replaced or removed"):
        files.pread(fd, 10, 2_000_000)
    files.close(fd)


def test_what_is_replaced_while_it_is_opened_is_opened_again(
    data: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.sync(data)
    confirm = ArrowFiles.confirm
    tries = 0

    def replaced_first(files: ArrowFiles) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            with LogManager.open(str(data), clock_ms=lambda: NOW_MS) as manager:
                append(manager.log("many", 0), b"meanwhile")
            bucket.sync(data)
        confirm(files)

    monkeypatch.setattr(ArrowFiles, "confirm", replaced_first)
    with FollowedDirectory(bucket.location) as opened:
        assert tries == 2
        assert everything(opened.manager) == of_disk(data)


# -- what is refused -----------------------------------------------------------------------------


def test_what_is_not_there(stored: Bucket) -> None:
    nowhere = stored.uri.replace("some/where", "no/where")
    with pytest.raises(FileNotFoundError, match=r"no such data directory: .*/no/where'"):
        FollowedDirectory(location_of(nowhere))
    no_bucket = stored.uri.replace(stored.name, "nobody")
    with pytest.raises(OSError, match=r"bucket does not exist.*'s3://nobody/some/where'"):
        FollowedDirectory(location_of(no_bucket))
    a_file = stored.uri.replace("some/where", f"some/where/many-0/{0:020d}.log")
    with pytest.raises(OSError, match=r"no such data directory|no directory"):
        FollowedDirectory(location_of(a_file))


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("", "the option path is empty"),
        ("what://is/this", "what://is/this: Unrecognized filesystem type"),
        ("s3://bucket/x?colour=red", "s3://bucket/x: Unexpected query parameter"),
        ("s3://bucket/x?anonymous=true&colour=red&region=us-east-1", "s3://bucket/x: .*colour"),
        ("file://elsewhere/data", "on another host"),
    ],
)
def test_a_path_that_is_none(option: str, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        location_of(option)


def test_secrets_are_not_shown(bucket: Bucket) -> None:
    here = location_of(bucket.uri)
    assert str(here) == f"s3://{bucket.name}/some/where"
    with pytest.raises(OSError, match="no such data directory") as caught:
        FollowedDirectory(here)
    assert "secret" not in str(caught.value)


def test_who_may_not_look(stored: Bucket, store: ObjectStore) -> None:
    reason = rf"INVALID_ACCESS_KEY_ID.*'s3://{stored.name}/some/where'"
    with store.guarded(), pytest.raises(OSError, match=reason) as caught:
        FollowedDirectory(stored.location)
    assert "secret" not in str(caught.value)


def test_what_pyarrow_takes_in_calls_only(made: Path, stored: Bucket) -> None:
    for more in ("anonymous=true", "session_token=abc"):
        uri = f"{stored.uri}&{more}"
        if more.startswith("anonymous"):
            uri = uri.replace("key:secret@", "")
        with FollowedDirectory(location_of(uri)) as opened:
            assert everything(opened.manager) == of_disk(made)


def test_a_place_goes_to_other_processes(made: Path, stored: Bucket) -> None:
    there = pickle.loads(pickle.dumps(stored.location))
    name = f"{there.path}/many-0/partition.metadata"
    assert there.files().read_whole(name) == (made / "many-0/partition.metadata").read_bytes()


def test_damage_is_told_as_on_a_disk(data: Path, bucket: Bucket) -> None:
    bucket.sync(data)
    name = f"many-0/{2:020d}.log"
    content = bytearray((data / name).read_bytes())
    content[-1] ^= 1
    bucket.put(name, bytes(content))
    with FollowedDirectory(bucket.location) as opened, pytest.raises(StorageError, match="CRC"):
        list(opened.manager.log("many", 0).records())


@pytest.mark.parametrize(
    "damage",
    [lambda log: log[:-1], lambda log: log + bytes(100), lambda log: log[:-1] + b"?"],
    ids=["torn", "zeros", "wrong"],
)
def test_the_end_of_a_log_is_read_as_on_a_disk(
    data: Path, bucket: Bucket, damage: Callable[[bytes], bytes]
) -> None:
    (log,) = (data / "atomic-0").glob("*.log")
    log.write_bytes(damage(log.read_bytes()))
    bucket.sync(data)
    expected = of_disk(data)
    with FollowedDirectory(bucket.location) as opened:
        assert everything(opened.manager) == expected


# -- through Spark -------------------------------------------------------------------------------


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    given = {"subscribePattern": ".*", "includeHeaders": "true", **options}
    return spark.read.format("kafkafs").options(path=path, **given).load()


def test_spark_reads_it(spark: SparkSession, made: Path, stored: Bucket) -> None:
    order = ["topic", "partition", "offset"]
    for isolation in ("read_committed", "read_uncommitted"):
        here = load(spark, str(made), isolationLevel=isolation).orderBy(*order).collect()
        there = load(spark, stored.uri, isolationLevel=isolation).orderBy(*order).collect()
        assert there == here
        assert len(here) == (9 if isolation == "read_committed" else 12)


def test_spark_says_what_is_not_there(spark: SparkSession, stored: Bucket) -> None:
    nowhere = stored.uri.replace("some/where", "no/where")
    with pytest.raises(PySparkException, match=r"no such data directory: .*/no/where") as caught:
        load(spark, nowhere).collect()
    assert "secret@" not in str(caught.value)
