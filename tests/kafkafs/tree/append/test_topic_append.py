"""Lines for a topic: their partitions, all of a write or nothing, and the kernel's attributes."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.handles import Handle
from storage import LogManager, Record
from storage.errors import InvalidRecord, LogClosed, RecordTooLarge, UnknownTopicOrPartition
from storage.files import Files
from storage.log.partitioner import STAY_BYTES
from storage.segment.reader import SegmentReader
from tests import metadata_log as made
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, sync
from tests.murmur2 import partition_of
from tests.storage.logs import values

PARTITIONS = 4
LIMIT = 300


def create(tree: Tree, partitions: int = PARTITIONS) -> None:
    topic = tree.mkdir("t")
    for number in range(1, partitions):
        topic.create(str(number), 0o644, APPEND, CALLER)[1].release()


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        create(tree)
        tree.manager.change_topic_settings("t", {"max.message.bytes": str(LIMIT)})
        yield tree


@pytest.fixture
def handle(tree: Tree) -> Handle:
    return tree.open("t/.append", APPEND)


@pytest.fixture
def keyed(tree: Tree) -> Handle:
    return tree.open("t/.kv/append", APPEND)


def owner(key: bytes, partitions: int = PARTITIONS) -> int:
    return partition_of(key, partitions)


def keys_of(number: int, count: int, partitions: int = PARTITIONS) -> list[bytes]:
    """Keys of one partition."""
    names = (b"key%d" % n for n in range(1000))
    return [key for key in names if owner(key, partitions) == number][:count]


def shown(tree: Tree) -> list[list[bytes | None]]:
    """The values of each partition."""
    return [values(log) for log in tree.manager.logs()]


def log_ends(tree: Tree) -> list[int]:
    return [log.log_end_offset for log in tree.manager.logs()]


def total(tree: Tree) -> int:
    return sum(log_ends(tree))


def records(tree: Tree, number: int) -> list[Record]:
    return list(tree.log(partition=number).records())


# -- the file ------------------------------------------------------------------------------------


def test_only_views_of_text_have_it(tree: Tree) -> None:
    assert isinstance(tree.node("t/.jsonl/append"), TextFile)
    with pytest.raises(FileNotFoundError):
        tree.node("t/.batches/append")
    with pytest.raises(FileNotFoundError):
        tree.node("t/append")


def test_it_is_listed_with_the_dot_names(tmp_path: Path) -> None:
    """So that `.kv/*` is the partitions, as `*` is."""
    for show_dot in (False, True):
        with a_tree(tmp_path / f"data{show_dot}", MountOptions(show_dot=show_dot)) as tree:
            create(tree, 2)
            dots = [".snapshot", "append"] if show_dot else []
            for view in (".kv", ".jsonl"):
                assert tree.directory(f"t/{view}").names() == [*dots, "0", "1"]
            assert tree.directory("t/.batches").names() == [*dots[:1], "0", "1"]


# -- where lines go ------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(st.tuples(st.sampled_from([b"", b"a", b"b", b"cc", b"21"]), st.binary())),
    cuts=st.lists(st.integers(0, 400)),
)
def test_a_key_goes_where_kafka_s_producer_sends_it(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    """Whatever the splits of the bytes: each key in its partition, in the order written."""
    lines = [(key, value.translate(None, b"\n\t\\")) for key, value in lines]
    data = b"".join(key + b"\t" + value + b"\n" for key, value in lines)
    with a_tree(tmp_path_factory.mktemp("keys") / "data") as tree:
        create(tree)
        handle = tree.open("t/.kv/append", APPEND)
        edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
        for start, end in itertools.pairwise(edges):
            handle.write(start, data[start:end])
        handle.release()
        for number in range(PARTITIONS):
            expected = [(key, value) for key, value in lines if owner(key) == number]
            assert [(row.key, row.value) for row in records(tree, number)] == expected


def test_lines_without_a_key_stay_together_and_then_spread(tree: Tree, handle: Handle) -> None:
    """One partition has the lines of many writes, and after 16 KiB another one's turn comes."""
    line = b"v" * 100 + b"\n"
    turns = []
    for _ in range(20 * STAY_BYTES // 108):
        before = log_ends(tree)
        handle.write(0, line)
        after = log_ends(tree)
        turns += [n for n in range(PARTITIONS) if after[n] != before[n]]
    runs = [1]
    for one, following in itertools.pairwise(turns):
        if one == following:
            runs[-1] += 1
        else:
            runs.append(1)
    # A record alone takes 8 bytes besides its value.
    assert set(runs[:-1]) == {-(-STAY_BYTES // 109)}
    # 19 turns that all leave out a partition: less often than once in 2,000,000 runs.
    assert len(set(turns)) >= 3


def test_all_who_write_to_one_file_share_its_turns(tree: Tree, handle: Handle) -> None:
    other = tree.open("t/.append", APPEND)
    for number in range(10):
        (handle, other)[number % 2].write(0, b"%d\n" % number)
    assert sorted(map(len, shown(tree))) == [0, 0, 0, 10]


def test_batches_stay_within_the_limit(tree: Tree, keyed: Handle) -> None:
    key = keys_of(2, 1)[0]
    keyed.write(0, b"".join(key + b"\t%060d\n" % number for number in range(20)))
    sizes = [header.size for _, header in SegmentReader(tree.log(partition=2).active).batches()]
    assert len(sizes) > 5
    assert max(sizes) <= LIMIT
    assert values(tree.log(partition=2)) == [b"%060d" % number for number in range(20)]


def test_a_partition_that_is_made_while_it_is_open(tree: Tree, keyed: Handle) -> None:
    key = next(key for key in keys_of(1, 20) if owner(key, 5) == 4)
    keyed.write(0, key + b"\tbefore\n" + key + b"\t")
    tree.directory("t").create("4", 0o644, APPEND, CALLER)[1].release()
    keyed.write(0, b"after\n")
    assert values(tree.log(partition=1)) == [b"before"]
    assert values(tree.log(partition=4)) == [b"after"]


def test_other_directories_have_the_last_partitions(tmp_path: Path) -> None:
    """The broker's metadata log lists them: a key belongs to the same partition as for Kafka."""
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        topic_id = manager.create_topic("t", 2).id
    (data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    topic = made.topic("t", topic_id), *(made.partition(topic_id, n) for n in range(PARTITIONS))
    made.MetadataLog(data).append(*topic)
    with a_tree(data) as tree:
        keyed = tree.open("t/.kv/append", APPEND)
        for number in range(2):
            keyed.write(0, keys_of(number, 1)[0] + b"\there\n")
        with pytest.raises(UnknownTopicOrPartition, match="partition 3 of 4"):
            keyed.write(0, keys_of(0, 1)[0] + b"\there\n" + keys_of(3, 1)[0] + b"\tnot here\n")
        assert shown(tree) == [[b"here"], [b"here"]]


# -- all or nothing ------------------------------------------------------------------------------


def test_a_refusal_appends_nothing_to_any_partition(tree: Tree, keyed: Handle) -> None:
    good = b"".join(keys_of(n, 1)[0] + b"\tgood\n" for n in range(PARTITIONS))
    for bad, error in (
        (b"\\x\tv\n", InvalidRecord),
        (b"k\t" + b"v" * LIMIT + b"\n", RecordTooLarge),
    ):
        for data in (good + bad, bad + good, good + bad + good):
            with pytest.raises(error):
                keyed.write(0, data)
    tree.manager.change_topic_settings("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        keyed.write(0, good + b"no key\n")
    assert shown(tree) == [[], [], [], []]
    keyed.write(0, good)
    assert shown(tree) == [[b"good"]] * 4


@pytest.mark.parametrize("path", ["t/.jsonl/append", "t/.jsonl/0"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bad=st.sets(st.integers(1, 40), min_size=1, max_size=3), last=st.integers(1, 40))
def test_what_a_log_refuses_has_its_line_s_number(
    tree: Tree, path: str, bad: set[int], last: int
) -> None:
    """The first line whose time or key the topic's settings do not allow, and what is wrong."""
    last = max(last, *bad)
    for name, value, wrong, reason in (
        ("message.timestamp.before.max.ms", "1000", b'{"key":"k","timestamp":%d}\n', "ms old"),
        ("cleanup.policy", "compact", b'{"value":"%d"}\n', "requires a key"),
    ):
        tree.manager.change_topic_settings("t", {name: value})
        good = b'{"key":"k","value":"v"}\n'
        lines = [wrong % n if n in bad else good for n in range(1, last + 1)]
        handle = tree.open(path, APPEND)
        # Part of the first line has come before.
        handle.write(0, lines[0][:5])
        with pytest.raises(InvalidRecord, match=f"^line {min(bad)}: .*{reason}") as caught:
            handle.write(5, b"".join(lines)[5:])
        if "old" in reason:
            assert f"timestamp {min(bad)} is" in str(caught.value)
        handle.release()
        tree.manager.change_topic_settings("t", {name: None})
    assert total(tree) == 0


class FullFiles(Files):
    """A disk that is full for the log of one partition."""

    full = ""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.full and self.full in self.paths.get(fd, ""):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(fd, data, position)


def test_a_disk_error_in_the_middle_names_what_is_there(tmp_path: Path) -> None:
    files = FullFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        create(tree)
        handle = tree.open("t/.kv/append", APPEND)
        handle.write(0, keys_of(0, 1)[0] + b"\tfirst\n")
        files.full = "/t-2/"
        data = b"".join(key + b"\tv\n" for n in range(PARTITIONS) for key in keys_of(n, 2))
        handle.write(0, data[:3])
        with pytest.raises(OSError, match="No space") as caught:
            handle.write(3, data[3:])
        assert caught.value.errno == errno.ENOSPC
        assert shown(tree) == [[b"first", b"v", b"v"], [b"v", b"v"], [], []]
        events = tree.events()
        assert (
            "t/.kv/append: a write failed after it appended to 0 (offsets 1 to 2), "
            "1 (offsets 0 to 1)\n" in events
        )
        assert "t/.kv/append: append refused: No space left on device\n" in events
        files.full = ""
        # The same write can be tried again: at least once.
        handle.write(3, data[3:])
        handle.release()
        assert [len(found) for found in shown(tree)] == [5, 4, 2, 2]


def test_what_was_refused_moves_nobody_s_turn(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"first\n")
    stays = next(n for n in range(PARTITIONS) if shown(tree)[n])
    tree.manager.change_topic_settings("t", {"max.message.bytes": "1000000"})
    tree.manager.change_topic_settings("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        handle.write(0, b"v" * (2 * STAY_BYTES) + b"\n")
    tree.manager.change_topic_settings("t", {"cleanup.policy": None})
    handle.write(0, b"second\n")
    assert shown(tree)[stays] == [b"first", b"second"]


# -- unfinished lines ----------------------------------------------------------------------------


def test_nobody_keeps_sizes_while_a_line_is_unfinished(tree: Tree, handle: Handle) -> None:
    """stat of any partition shall not overtake the release that makes it a record."""
    files = [tree.file(f"t/{n}") for n in range(PARTITIONS)]
    tree.rest()
    handle.write(0, b"half")
    assert set(tree.notices.attributes) >= {file.inode for file in files}
    assert [tree.attributes(file).attr_timeout for file in files] == [0.0] * PARTITIONS
    handle.write(4, b" and half\n")
    tree.rest()
    assert all(tree.attributes(file).attr_timeout > 0 for file in files)


def test_a_cut_in_an_escape_is_no_fault(tree: Tree, keyed: Handle) -> None:
    """Where a line of a whole record is cut, it may look wrong: also one that is very long."""
    key = keys_of(3, 1)[0]
    line = key + b"\t" + b"\\n" * 120 + b"\n"
    for number in range(len(line)):
        keyed.write(number, line[number : number + 1])
    assert values(tree.log(partition=3)) == [b"\n" * 120]
    # Ten bytes of text for each of a record are never too much to wait for.
    for _ in range(LIMIT * 10 // 200):
        keyed.write(0, b"\\n" * 100)
    with pytest.raises(RecordTooLarge):
        keyed.write(0, b"\\n")
    keyed.write(0, b"the end of it\n" + line)
    assert values(tree.log(partition=3)) == [b"\n" * 120] * 2
    assert total(tree) == 2


def test_flush_says_what_release_would_do(tree: Tree, keyed: Handle) -> None:
    keyed.write(0, b"k\tan escape that is none: \\x")
    with pytest.raises(InvalidRecord, match="line 1"):
        keyed.flush()
    with pytest.raises(InvalidRecord):
        keyed.release()
    assert total(tree) == 0
    assert "t/.kv/append: append refused: line 1" in tree.events()


# -- the disk ------------------------------------------------------------------------------------


def recovery_points(tree: Tree) -> list[int]:
    return [log.durability.recovery_point for log in tree.manager.logs()]


def test_fsync_is_that_of_every_partition(tree: Tree, keyed: Handle) -> None:
    for number in (0, 2):
        keyed.write(0, keys_of(number, 1)[0] + b"\tv\n")
    assert not keyed.sync_due
    # Also through a handle that has written nothing, as sync(1) does it.
    sync(tree.open("t/.append", APPEND))
    assert recovery_points(tree) == [1, 0, 1, 0]
    keyed.write(0, keys_of(1, 1)[0] + b"\tv\n")
    sync(keyed)
    assert recovery_points(tree) == [1, 1, 1, 0]
    assert not keyed.sync_plans()
    synchronous = tree.open("t/.kv/append", APPEND | os.O_DSYNC)
    synchronous.write(0, keys_of(3, 1)[0] + b"\tv\n")
    assert synchronous.sync_due


def test_flush_messages_of_one_partition_asks_for_a_sync(tree: Tree, keyed: Handle) -> None:
    tree.manager.change_topic_settings("t", {"flush.messages": "2"})
    one, other = keys_of(1, 1)[0], keys_of(2, 1)[0]
    keyed.write(0, one + b"\tv\n" + other + b"\tv\n")
    due = [keyed.sync_due]
    keyed.write(0, other + b"\tv\n")
    assert [*due, keyed.sync_due] == [False, True]
    sync(keyed)
    assert recovery_points(tree)[2] == 2


class BrokenFiles(FullFiles):
    """A disk whose fsync fails for the log of one partition."""

    broken: str = ""

    def fdatasync(self, fd: int) -> None:
        if self.broken and self.broken in self.paths.get(fd, ""):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)


def test_an_fsync_that_fails_leaves_the_others_flushed(tmp_path: Path) -> None:
    """It is tried for all, and says what was wrong; that partition then takes nothing more."""
    files = BrokenFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        create(tree)
        handle = tree.open("t/.kv/append", APPEND)
        everywhere = b"".join(keys_of(n, 1)[0] + b"\tv\n" for n in range(PARTITIONS))
        handle.write(0, everywhere)
        files.broken = "/t-1/"
        with pytest.raises(OSError, match="Input/output"):
            sync(handle)
        assert recovery_points(tree) == [1, 0, 1, 1]
        with pytest.raises(OSError, match="fsync failed"):
            handle.write(0, everywhere)
        assert shown(tree) == [[b"v"]] * PARTITIONS, "nothing of it"
        with pytest.raises(OSError, match="fsync failed"):
            handle.sync_plans()
        handle.write(0, keys_of(2, 1)[0] + b"\tv\n")
        files.broken = ""
        tree.log(partition=1).flush_error = None


# -- what else happens to a topic ----------------------------------------------------------------


def test_a_deleted_topic_takes_nothing(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"half")
    tree.fs.root.rmdir("t", CALLER)
    with pytest.raises(LogClosed):
        handle.write(0, b"x\n")
    with pytest.raises(LogClosed):
        handle.write(0, b"x")
    with pytest.raises(LogClosed):
        handle.flush()
    assert not handle.sync_plans()
    # A new topic of the same name is another one.
    create(tree)
    with pytest.raises(LogClosed):
        handle.write(0, b"x\n")
    with pytest.raises(LogClosed):
        handle.release()
    assert total(tree) == 0
    tree.append("t/.append", b"y\n")
    assert total(tree) == 1
