"""The append rules: lines, rests, refusals, and the notices to the kernel."""

from __future__ import annotations

import errno
import itertools
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from kafkafs.tree.append.lines_handle import UNSPLIT_BYTES
from kafkafs.tree.handles import Handle
from storage.errors import InvalidRecord, LogClosed, ReadOnlyLog, RecordTooLarge
from storage.task import Task
from storage.waiting import at_once
from tests.kafkafs.tree.append.test_batches_handle import FullFiles
from tests.kafkafs.trees import APPEND, CALLER, Clock, Tree, a_tree, in_thread, read, sync
from tests.storage.logs import batch, values

LIMIT = 300


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"max.message.bytes": str(LIMIT)})
        yield tree


@pytest.fixture
def handle(tree: Tree) -> Handle:
    tree.file()
    return tree.open("t/0", APPEND)


def test_flush_only_checks(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"half")
    handle.flush()
    assert values(tree.log()) == []
    tree.manager.change_topic_settings("t", {"max.message.bytes": "10"})
    with pytest.raises(RecordTooLarge):
        handle.flush()
    tree.manager.change_topic_settings("t", {"max.message.bytes": None})
    handle.flush()
    handle.write(4, b" and half\n")
    handle.flush()
    assert values(tree.log()) == [b"half and half"]


def test_rests_of_two_handles_never_mix(tree: Tree, handle: Handle) -> None:
    other = tree.open("t/0", APPEND)
    handle.write(0, b"one ")
    other.write(0, b"two ")
    handle.write(0, b"line\n")
    other.release()
    assert values(tree.log()) == [b"one line", b"two "]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.lists(st.sampled_from([b"\n", b"a", b"bb\n", b"c\nd"]), max_size=20).map(b"".join),
    cuts=st.lists(st.integers(0, 40), max_size=8),
)
def test_any_split_of_the_bytes_gives_the_same_records(
    tree: Tree, content: bytes, cuts: list[int]
) -> None:
    start = tree.log().log_end_offset
    handle = tree.open("t/0", APPEND)
    edges = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    for begin, end in itertools.pairwise(edges):
        assert handle.write(begin, content[begin:end]) == end - begin
    handle.release()
    expected = content.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert values(tree.log(), start) == expected


# -- refusals ------------------------------------------------------------------------------------


def test_a_line_that_is_too_large(tree: Tree, handle: Handle) -> None:
    with pytest.raises(RecordTooLarge):
        handle.write(0, b"fits\n" + b"x" * LIMIT + b"\nfits too\n")
    assert values(tree.log()) == [], "nothing of the request"
    handle.write(0, b"next\n")
    assert values(tree.log()) == [b"next"]
    assert "t/0: append refused: line 2: a batch of" in tree.events()


def test_the_clock_was_set_back(tree: Tree, handle: Handle) -> None:
    """The time of modification still rises; records are compared with the clock."""
    handle.write(0, b"a\n")
    before = tree.attributes(tree.file()).mtime_ns
    tree.clock.now_ns -= 2 * 3_600_000_000_000
    tree.manager.change_topic_settings("t", {"message.timestamp.before.max.ms": "3600000"})
    handle.write(0, b"b\n")
    lines = b'{}\n{"timestamp":%d}\n' % (tree.clock.ms() - 3_600_001)
    whole = tree.open("t/.jsonl/0", APPEND)
    with pytest.raises(InvalidRecord, match="line 2: timestamp"):
        whole.write(0, lines)
    keyed = tree.open("t/.jsonl/append", APPEND)
    with pytest.raises(InvalidRecord, match="line 2: timestamp"):
        keyed.write(0, lines)
    for each in (whole, keyed):
        each.write(0, lines[:3])
    assert values(tree.log()) == [b"a", b"b", None, None]
    assert tree.attributes(tree.file()).mtime_ns > before


def test_which_line_is_refused_where_the_first_was_begun_before(tree: Tree) -> None:
    tree.manager.change_topic_settings("t", {"message.timestamp.before.max.ms": "3600000"})
    old = b'{"timestamp":%d}\n' % (tree.clock.ms() - 3_600_001)
    for written, rest, number in (
        (b'{}\n{"va', b'lue":"v"}\n' + old, 2),
        (old[:5], old[5:] + b"{}\n", 1),
        (b'{"va', b'lue":"v"}\nno JSON\n', 2),
        (b'{"va', b'lue":no JSON}\n{}\n', 1),
    ):
        handle = tree.open("t/.jsonl/0", APPEND)
        handle.write(0, written)
        with pytest.raises(InvalidRecord, match=f"line {number}: "):
            handle.write(len(written), rest)
        handle.release()
    assert values(tree.log()) == [None], "nothing of a refused request"


def test_what_is_too_large_is_dropped_through_its_newline(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"x" * 200)
    with pytest.raises(RecordTooLarge):
        handle.write(200, b"x" * 200)
    assert handle.write(400, b"remainder") == 9
    assert handle.write(409, b" of it\nnext\nlast") == 16
    handle.release()
    assert values(tree.log()) == [b"next", b"last"]


def test_an_unfinished_line_that_is_too_large_refuses_all_of_its_write(
    tree: Tree, handle: Handle
) -> None:
    with pytest.raises(RecordTooLarge):
        handle.write(0, b"fits\n" + b"x" * LIMIT)
    handle.write(0, b"xxx\nnext\n")
    assert values(tree.log()) == [b"next"]


@pytest.mark.parametrize("begun", [b"", b"acknowledged"])
def test_after_a_refused_piece_of_a_larger_write_a_line_begins(
    tree: Tree, handle: Handle, begun: bytes
) -> None:
    """The kernel does not send the rest of the write(), and its program has got the error."""
    handle.write(0, begun)
    with pytest.raises(RecordTooLarge):
        handle.write(len(begun), b"x" * (UNSPLIT_BYTES + 1))
    assert handle.write(len(begun), b"next\n") == 5
    assert values(tree.log()) == [b"next"]
    with pytest.raises(RecordTooLarge):
        handle.write(len(begun) + 5, b"x" * UNSPLIT_BYTES)
    handle.write(len(begun) + 5, b"the rest of a line\nlast\n")
    assert values(tree.log()) == [b"next", b"last"]


def test_the_largest_record_passes_in_pieces(tree: Tree, handle: Handle) -> None:
    for size in range(LIMIT - 80, LIMIT):
        line = b"y" * size
        whole = True
        try:
            tree.append("t/0", line + b"\n")
        except RecordTooLarge:
            whole = False
        pieces = tree.open("t/0", APPEND)
        try:
            for start in range(0, size, 7):
                pieces.write(start, line[start : start + 7])
            pieces.write(size, b"\n")
        except RecordTooLarge:
            assert not whole
        else:
            assert whole
    assert {len(value or b"") for value in values(tree.log())} >= {LIMIT - 80, LIMIT - 75}


def test_who_tries_a_refused_write_for_ever_costs_no_memory(tree: Tree, handle: Handle) -> None:
    """The same error for each try does not gather what the tries wrote, in its traceback."""
    handle.write(0, b"begun")
    depths = set()
    for _ in range(20):
        with pytest.raises(RecordTooLarge) as caught:
            handle.write(5, b"x" * 5000)
        depths.add(len(list(traceback.walk_tb(caught.value.__traceback__))))
    # The first try goes down to where the line is checked.
    assert len(depths) <= 2


def test_after_a_disk_error_the_same_write_can_be_tried_again(tmp_path: Path) -> None:
    files = FullFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        handle = tree.open("t/0", APPEND)
        handle.write(0, b"begun ")
        files.full = True
        with pytest.raises(OSError, match="No space") as caught:
            handle.write(6, b"and done\nrest")
        assert caught.value.errno == errno.ENOSPC
        files.full = False
        assert values(tree.log()) == []
        handle.write(6, b"and done\nrest")
        handle.release()
        assert values(tree.log()) == [b"begun and done", b"rest"]
        assert "append refused: No space left on device" in tree.events()


def test_a_compacted_topic_takes_no_line_without_a_key(tree: Tree, handle: Handle) -> None:
    tree.manager.change_topic_settings("t", {"cleanup.policy": "compact"})
    with pytest.raises(InvalidRecord):
        handle.write(0, b"line\n")
    handle.write(0, b"half")
    with pytest.raises(InvalidRecord):
        handle.flush()
    tree.manager.change_topic_settings("t", {"cleanup.policy": None})
    handle.release()
    assert values(tree.log()) == [b"half"]


def test_writing_while_stopping_is_eshutdown(tree: Tree, handle: Handle) -> None:
    tree.fs.open_files.add(tree.node("t/0"), handle, 0)
    handle.write(0, b"rest")
    tree.fs.stop()
    assert values(tree.log()) == [b"rest"], "an unfinished line is a record"
    with pytest.raises(OSError, match="unmounted") as caught:
        handle.write(0, b"x\n")
    assert caught.value.errno == errno.ESHUTDOWN
    handle.flush()
    handle.release()
    assert values(tree.log()) == [b"rest"]


def test_a_deleted_topic_takes_nothing(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"half")
    tree.fs.root.rmdir("t", CALLER)
    with pytest.raises(LogClosed):
        handle.write(0, b"x\n")
    with pytest.raises(LogClosed):
        handle.flush()
    with pytest.raises(LogClosed):
        handle.release()


def test_a_read_only_mount_takes_nothing(home: Path) -> None:
    with a_tree(home / "data") as tree:
        tree.mkdir("t")
    with a_tree(home / "data", MountOptions(read_only=True)) as tree:
        handle = tree.open("t/0", APPEND)
        with pytest.raises(ReadOnlyLog):
            handle.write(0, b"x\n")
        assert not handle.sync_plans()


def test_what_was_created_without_o_append_is_written_in_order(tree: Tree) -> None:
    node, handle = tree.directory("t").create("1", 0o644, os.O_WRONLY | os.O_TRUNC, CALLER)
    for position in (1, -1):
        with pytest.raises(PermissionError):
            handle.write(position, b"whole\n")
    handle.write(0, b"whole\n")
    handle.write(6, b"part")
    for position in (0, 6, 9, 11):
        with pytest.raises(PermissionError):
            handle.write(position, b"whole\n")
    handle.flush()
    handle.release()
    assert tree.attributes(node).size == 11
    with pytest.raises(PermissionError):
        tree.open("t/1", os.O_WRONLY)


def test_reading_while_appending_needs_both(tree: Tree, handle: Handle) -> None:
    handle.write(0, b"line\n")
    with pytest.raises(OSError, match="not open for reading") as caught:
        read(handle)
    assert caught.value.errno == errno.EBADF
    both = tree.open("t/0", os.O_RDWR | os.O_APPEND)
    both.write(5, b"more\n")
    assert read(both) == b"line\nmore\n"
    with pytest.raises(OSError, match="not open for writing"):
        tree.open("t/0").write(0, b"x\n")


# -- notices to the kernel -----------------------------------------------------------------------


def test_no_size_is_kept_while_the_file_grows(tree: Tree, handle: Handle) -> None:
    file, other = tree.file(), tree.file("t/.kv/0")
    assert tree.attributes(other).attr_timeout > 0
    handle.write(0, b"line\n")
    assert tree.notices.attributes == [other.inode]
    assert tree.attributes(other).attr_timeout == 0
    tree.notices.clear()
    handle.write(5, b"line\n")
    assert tree.attributes(other).attr_timeout == tree.attributes(file).attr_timeout == 0
    assert tree.notices.attributes == [], "there is nothing more to drop"
    tree.fs.partitions.tick()
    assert tree.attributes(other).attr_timeout == 0, "it has grown since the last tick"
    tree.fs.partitions.tick()
    assert tree.attributes(other).attr_timeout > 0
    handle.write(10, b"line\n")
    assert tree.notices.attributes == [other.inode]
    assert tree.attributes(other).attr_timeout == tree.attributes(file).attr_timeout == 0


def test_attributes_are_dropped_before_anybody_can_see_the_append(
    tree: Tree, handle: Handle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the kernel could take an older answer after the one with the new size."""
    other = tree.file("t/.kv/0")
    seen = []

    def changed(inode: int) -> None:
        seen.append((inode, tree.attributes(other).size, tree.attributes(other).attr_timeout))

    monkeypatch.setattr(tree.notices, "attributes_changed", changed)
    handle.write(0, b"line\n")
    assert seen == [(other.inode, 0, 0.0)]


def test_nothing_is_dropped_of_a_file_that_somebody_only_writes(tree: Tree) -> None:
    """The kernel drops its size by itself; of its mode and owner it asks no more."""
    file = tree.file()
    for number in range(3):
        handle = tree.open("t/0", APPEND)
        handle.write(5 * number, b"line\n")
        handle.write(5 * number, b"")
        handle.release()
        tree.fs.partitions.tick()
    assert tree.notices.attributes == []
    assert tree.attributes(file).attr_timeout > 0
    assert at_once(tree.file("t/.kv/0").attributes).attr_timeout == 0, "its size was not stored"


@pytest.mark.parametrize("ask", ["stat", "list", "read", "read in a thread", "another view"])
def test_a_written_file_is_dropped_before_its_size_is_told(
    tree: Tree, handle: Handle, ask: str
) -> None:
    """The kernel may not have taken the answer to the write yet, and tells an older size."""
    file, other = tree.file(), tree.file("t/.kv/0")
    reader = at_once(file.open, os.O_RDONLY)
    ways: dict[str, Callable[[], object]] = {
        "stat": lambda: at_once(file.attributes),
        "list": file.listed_attributes,
        "read": lambda: at_once(reader.read, 0, 5),
        "read in a thread": lambda: in_thread(lambda: reader.read(0, 5)),
        "another view": lambda: at_once(other.attributes),
    }
    tree.rest()
    handle.write(0, b"line\n")
    tree.notices.clear()
    ways[ask]()
    assert tree.notices.attributes == [file.inode]
    assert at_once(file.attributes).attr_timeout == 0
    tree.notices.clear()
    handle.write(5, b"line\n")
    ways[ask]()
    assert tree.notices.attributes == [], "nothing was kept since"
    handle.release()
    assert at_once(file.attributes).attr_timeout > 0, "the kernel has the answers to all writes"
    handle = tree.open("t/0", APPEND)
    handle.write(10, b"line\n")
    ways[ask]()
    assert tree.notices.attributes == [file.inode]


def test_the_last_of_two_writers_counts(tree: Tree, handle: Handle) -> None:
    """The kernel sends a write when it has the answer to the one before."""
    file = tree.file()
    other = tree.open("t/0", APPEND)
    handle.write(0, b"line\n")
    other.write(5, b"line\n")
    handle.release()
    assert tree.attributes(file).attr_timeout == 0
    other.release()
    assert tree.attributes(file).attr_timeout > 0


def test_a_written_file_is_dropped_before_it_grows_otherwise(tree: Tree, handle: Handle) -> None:
    file = tree.file()
    handle.write(0, b"line\n")
    handle.release()
    assert tree.attributes(file).attr_timeout > 0
    through = tree.open("t/.append", os.O_WRONLY)
    assert tree.notices.attributes == []
    through.write(0, b"line\n")
    assert tree.notices.attributes == [file.inode]
    assert tree.attributes(file).attr_timeout == 0
    through.release()
    assert tree.attributes(file).attr_timeout == 0


def test_a_written_file_is_dropped_before_another_is_written(tree: Tree, handle: Handle) -> None:
    file, other = tree.file(), tree.file("t/.kv/0")
    handle.write(0, b"line\n")
    handle.release()
    tree.notices.clear()
    size = tree.attributes(other).size
    through = tree.open("t/.kv/0", APPEND)
    through.write(size, b"\tline\n")
    assert tree.notices.attributes == [file.inode]
    through.release()
    assert tree.attributes(file).attr_timeout == 0
    assert tree.attributes(other).attr_timeout > 0


def test_no_size_is_kept_where_the_kernel_guesses_wrong(tree: Tree, handle: Handle) -> None:
    file = tree.file()
    handle.write(0, b"half")
    assert set(tree.notices.attributes) == {file.inode}, "it counts what is not there"
    assert tree.attributes(file).attr_timeout == 0
    tree.rest()
    assert tree.attributes(file).attr_timeout == 0, "the line may become a record at any time"
    handle.release()
    assert tree.notices.attributes == [file.inode], "and not the newline"


def test_every_known_inode_is_told_before_the_reply(tree: Tree, handle: Handle) -> None:
    tree.append("t/0", b"first\n")
    tree.roll()
    old = tree.file()
    tree.remove_head(1)
    writer = tree.open("t/0", APPEND)
    current = tree.file()
    raw, directory = tree.node("t/.raw/0/00000000000000000001.log"), tree.node("t/.raw/0")
    both = [raw.inode, directory.inode]
    view = tree.file("t/.jsonl/0")
    tree.directory("t").create("1", 0o644, APPEND, CALLER)
    other = tree.file("t/1")
    tree.rest()
    writer.write(0, b"line\n")
    assert sorted(tree.notices.attributes) == sorted([old.inode, view.inode, *both])
    assert tree.attributes(old).size == 11
    assert tree.attributes(current).size == 5
    tree.rest()
    handle.write(11, b"line\n")
    assert sorted(tree.notices.attributes) == sorted([current.inode, view.inode, *both])
    tree.fs.inodes.forget(raw.inode, raw.lookups)
    tree.fs.inodes.forget(directory.inode, directory.lookups)
    tree.fs.inodes.forget(old.inode, old.lookups)
    tree.rest()
    writer.write(10, b"line\n")
    assert tree.notices.attributes == [view.inode]
    assert other.inode not in tree.notices.attributes


# -- durability ----------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [0, os.O_SYNC, os.O_DSYNC])
def test_synchronous_handles_ask_for_a_sync(tree: Tree, flag: int) -> None:
    handle = tree.open("t/0", APPEND | flag)
    handle.write(0, b"line\n")
    assert handle.sync_due == bool(flag)
    sync(handle)
    assert tree.log().durability.recovery_point == 1
    assert not handle.sync_due
    assert not handle.sync_plans()
    assert not tree.open("t/0").sync_plans()


def test_fsync_says_that_the_log_takes_nothing(tree: Tree, handle: Handle) -> None:
    """Also where the flush that failed had nothing new to write."""
    handle.write(0, b"line\n")
    durability = tree.log().durability
    durability.flush()
    durability.refuse_appends(OSError(errno.EIO, "an fsync that failed"))
    with pytest.raises(OSError, match="appends are refused"):
        handle.sync_plans()
    tree.manager.rescue(tree.log(), Task())
    assert not handle.sync_plans()


def test_flush_messages_asks_for_a_sync(tree: Tree, handle: Handle) -> None:
    tree.manager.change_topic_settings("t", {"flush.messages": "3"})
    due = []
    for number in range(4):
        handle.write(number * 2, b"x\n")
        due.append(handle.sync_due)
        if handle.sync_due:
            sync(handle)
    assert due == [False, False, True, False]


# -- the time ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-24, 24])
def test_the_time_of_a_log_file_stamps_nothing(tmp_path: Path, hours: int) -> None:
    """An append has the time of now, and is flushed when it is due."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"before\n")
    (log_file,) = (tmp_path / "data" / "t-0").glob("*.log")
    touched_ns = Clock().now_ns + hours * 3_600_000_000_000
    os.utime(log_file, ns=(touched_ns, touched_ns))
    with a_tree(tmp_path / "data") as tree:
        log, now_ms = tree.log(), tree.clock.ms()
        tree.manager.change_topic_settings("t", {"message.timestamp.type": "LogAppendTime"})
        tree.manager.change_topic_settings("t", {"message.timestamp.after.max.ms": "1000"})
        before = tree.attributes(tree.file())
        tree.append("t/0", b"line\n")
        tree.append("t/.batches/0", bytes(batch([b"batch"], now_ms + 500)))
        found = [record.timestamp for record in log.records()]
        assert found[1:] == [now_ms, now_ms]
        assert log.durability.unflushed_since_ms == now_ms
        assert tree.attributes(tree.file()).mtime_ns > before.mtime_ns
