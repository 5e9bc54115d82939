"""Reading a partition's file: sizes, bytes, and one history per inode."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.partition.partition_text import PartitionText
from storage.files import Files
from storage.waiting import at_once
from tests.kafkafs.trees import Tree, a_tree, asked, clean, in_thread, read
from tests.storage.logs import append
from tests.waits import HANG_S


def lines(start: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, end))


def check_everywhere(handle: Handle, expected: bytes) -> None:
    """Any read at any (position, size) is a slice of the expected bytes."""
    for position in range(0, len(expected) + 3, 3):
        for size in (1, 7, 40):
            assert read(handle, position, size) == expected[position : position + size]
    assert read(handle, 0, len(expected) + 1) == expected


# -- reading and sizes ---------------------------------------------------------------------------


def test_measured_anew_where_the_view_indexes_are_lost(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 200))
        tree.roll()
        tree.append("t/0", lines(200, 300))
        inode = tree.file().inode
    for path in (tmp_path / "data" / "t-0").glob("*.lines"):
        path.unlink()
    with a_tree(tmp_path / "data") as tree:
        file = tree.file()
        assert file.inode == inode
        assert tree.read(file) == lines(0, 300)


def test_large_values_and_many_small_ones(tree: Tree) -> None:
    """More log than one buffer takes, and batches that hold more keys and headers than text."""
    big = os.urandom(900_000).replace(b"\n", b" ")
    tree.append("t/0", big + b"\n" + b"\n" * 100_000 + big + b"\n")
    expected = big + b"\n" + b"\n" * 100_000 + big + b"\n"
    handle = tree.open("t/0")
    position = 0
    while piece := read(handle, position, 1 << 17):
        assert piece == expected[position : position + (1 << 17)]
        position += len(piece)
    assert position == len(expected)
    for position in random.Random(1).sample(range(len(expected)), 50):
        assert read(handle, position, 4096) == expected[position : position + 4096]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_read_is_a_slice(tmp_path: Path, data: st.DataObject) -> None:
    with a_tree(tmp_path / f"data{time.monotonic_ns()}") as tree:
        tree.mkdir("t")
        handle = tree.open("t/0")
        expected = b""
        for _ in range(data.draw(st.integers(1, 6))):
            values = data.draw(st.lists(st.binary(max_size=30), min_size=1, max_size=9))
            append(tree.log(), *values)
            expected += b"".join(value + b"\n" for value in values)
            if data.draw(st.booleans()):
                tree.roll()
            for _ in range(3):
                position = data.draw(st.integers(0, len(expected) + 2))
                size = data.draw(st.integers(1, 200))
                assert read(handle, position, size) == expected[position : position + size]
                assert read(handle, position + size, 9) == expected[position + size :][:9]


def test_the_log_start_may_lie_inside_a_segment(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 10))
        tree.roll()
        tree.append("t/0", lines(10, 20))
        tree.append("t/0", lines(20, 30))
    (tmp_path / "data" / "log-start-offset-checkpoint").write_text("0\n1\nt 0 14\n")
    with a_tree(tmp_path / "data") as tree:
        file = tree.file()
        assert tree.read(file) == lines(14, 30)
        assert asked(file.xattr, "user.kafkafs.records") == b"16"


# -- waiting for the disk ------------------------------------------------------------------------


class ColdFiles(Files):
    """Nothing of a log is in the page cache, once `cold` is set."""

    cold = False

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        return None if self.cold else super().preadv_nowait(fd, buffer, position)


def test_cold_reads_wait_in_a_worker_thread(tmp_path: Path) -> None:
    files = ColdFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 100))
        handle = tree.open("t/0")
        files.cold = True
        with pytest.raises(BlockingIOError):
            at_once(handle.read, 0, 100)
        assert in_thread(lambda: bytes(handle.read(0, 100))) == lines(0, 100)[:100]
        with pytest.raises(BlockingIOError):
            at_once(handle.read, 100, 100)
        files.cold = False
        assert bytes(at_once(handle.read, 100, 100)) == lines(0, 100)[100:200]


class PartlyColdFiles(Files):
    """The page cache holds the first `warm` bytes of each file."""

    warm = 1 << 40

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        if position >= self.warm:
            return None
        return super().preadv_nowait(fd, memoryview(buffer)[: self.warm - position], position)


def test_partly_cold_reads_start_over_in_a_worker_thread(tmp_path: Path) -> None:
    files = PartlyColdFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 500))
        handle = tree.open("t/0")
        for warm in range(60, 200):
            files.warm = warm
            assert read(handle, 0, 300) == lines(0, 500)[:300]
            assert read(handle, 300, 300) == lines(0, 500)[300:600]
        files.warm = 1 << 40


def test_measuring_that_takes_long_is_eagain_and_a_line_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        append(tree.log(), b"value")
    monkeypatch.setattr("kafkafs.tree.files.view_file.MEASURE_S", 0)
    with a_tree(tmp_path / "data") as tree:
        file = asked(tree.directory("t").lookup, "0")
        with pytest.raises(BlockingIOError) as caught:
            in_thread(file.attributes)
        assert caught.value.errno == errno.EAGAIN
        assert "t/0: indexed 0 of 73 bytes so far" in tree.events()
        monkeypatch.undo()
        assert tree.attributes(file).size == 6


# -- one history per inode -----------------------------------------------------------------------


def test_what_is_kept_before_a_cut_may_have_to_wait(tmp_path: Path) -> None:
    files = ColdFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        tree.mkdir("t")
        file = tree.file()
        tree.append(file, lines(0, 10))
        tree.roll()
        tree.append(file, lines(10, 20))
        old = tree.open(file)
        files.cold = True
        tree.remove_head(1)
        tree.delete_files()
        files.cold = False
        assert list(Path(tree.log().directory).glob("*.deleted")), "the lease keeps the files"
        in_thread(tree.fs.partitions.housekeeping)
        tree.delete_files()
        assert not list(Path(tree.log().directory).glob("*.deleted"))
        assert read(old) == lines(0, 20)


def test_several_histories_are_open_at_once(tree: Tree) -> None:
    """Roll, clean, remove the head, clean again, with a reader of each history."""
    text = b""
    readers: list[tuple[Handle, ViewFile, bytes]] = []

    def grow(number: int) -> None:
        nonlocal text
        more = lines(number * 10, number * 10 + 10)
        tree.append("t/0", more)
        tree.roll()
        text += more
        for at, (handle, file, expected) in enumerate(readers):
            readers[at] = (handle, file, expected + more)

    def look() -> None:
        file = tree.file()
        handle = tree.open(file)
        assert read(handle) == text
        readers.append((handle, file, text))
        for handle, file, expected in readers:
            check_everywhere(handle, expected)
            assert tree.attributes(file).size == len(expected)

    for number in range(3):
        grow(number)
    look()
    clean(tree.log(), 2, lambda record: record.offset % 3 == 0)
    text = tree.read("t/0")
    look()
    grow(3)
    tree.remove_head(1)
    text = lines(20, 40)
    look()
    grow(4)
    clean(tree.log(), 2, lambda record: record.offset % 2 == 0)
    text = b"".join(b"line %d\n" % number for number in range(21, 40, 2)) + lines(40, 50)
    look()
    grow(5)
    look()
    assert len({file.inode for _, file, _ in readers[:4]}) == 4


def test_an_inode_that_was_never_seen_is_stale_once_history_is_new(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 10))
        tree.roll()
    with a_tree(tmp_path / "data") as tree:
        file = asked(tree.directory("t").lookup, "0")
        tree.remove_head(1)
        with pytest.raises(OSError, match="rewritten") as caught:
            tree.attributes(file)
        assert caught.value.errno == errno.ESTALE


def test_forgotten_histories_are_let_go(tree: Tree) -> None:
    file = tree.file()
    tree.append(file, lines(0, 10))
    tree.roll()
    tree.remove_head(1)
    assert len(file.text.timeline.open) == 1
    tree.file()
    assert len(file.text.timeline.open) == 2
    tree.fs.inodes.forget(file.inode, file.lookups)
    assert len(file.text.timeline.open) == 1
    assert file.inode not in file.partition.known


def test_two_threads_that_ask_at_once_hold_one_generation(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the second one would follow every change, and never be freed."""
    append(tree.log(), b"one", b"two")
    tree.roll()
    file = tree.fs.inodes.remember(asked(tree.directory("t").lookup, "0"))
    assert isinstance(file, ViewFile)
    both = threading.Barrier(2)
    position = PartitionText.position

    def together(text: PartitionText, offset: int) -> int:
        found = position(text, offset)
        both.wait(HANG_S)
        return found

    monkeypatch.setattr(PartitionText, "position", together)
    threads = [threading.Thread(target=file.attributes) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert len(file.text.timeline.open) == 1
    tree.fs.inodes.forget(file.inode, file.lookups)
    assert not file.text.timeline.open


def test_worker_threads_read_while_the_log_changes(tree: Tree) -> None:
    """Each reader of an inode sees slices of one text, whatever the owner does meanwhile."""
    stop = threading.Event()
    failures: list[BaseException] = []
    threads: list[threading.Thread] = []

    def reading(handle: Handle, known: bytes, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not stop.is_set():
                position = chance.randrange(len(known))
                size = chance.randrange(1, 300)
                data = bytes(handle.read(position, size))
                assert known[position : position + size] == data[: len(known) - position]
        except BaseException as error:
            failures.append(error)

    for number in range(5):
        tree.append("t/0", lines(number * 100, number * 100 + 100))
        tree.append("t/0", lines(number * 100, number * 100 + 50))
        tree.roll()
        if number % 3 == 1:
            tree.remove_head(1)
        if number % 3 == 2:
            clean(tree.log(), 2, lambda record: record.offset % 5 == 0)
        handle = tree.open("t/0")
        known = read(handle)
        for seed in range(2):
            threads.append(threading.Thread(target=reading, args=(handle, known, seed)))
            threads[-1].start()
        tree.fs.partitions.tick()
        assert read(handle) == known
    stop.set()
    for thread in threads:
        thread.join()
    assert not failures


def test_worker_threads_measure_while_the_log_grows(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        for number in range(5):
            append(tree.log(), *[b"value"] * 2000)
            if number % 2:
                tree.roll()
    for round_ in range(10):
        for path in (tmp_path / "data" / "t-0").glob("*.lines"):
            path.unlink()
        with a_tree(tmp_path / "data") as tree:
            # Here the log can change; there it is measured.
            view = tree.fs.partitions.of(tree.log()).text(tree.fs.mount.views[0])
            tree.fs.partitions.of(tree.log()).nonce()
            measuring = [threading.Thread(target=view.measure) for _ in range(2)]
            for thread in measuring:
                thread.start()
            for number in range(20):
                append(tree.log(), b"more")
                if number % 7 == round_ % 7:
                    tree.roll()
            for thread in measuring:
                thread.join()
            expected = b"value\n" * 10_000 + b"more\n" * 20 * (round_ + 1)
            assert tree.attributes(tree.file()).size == len(expected)
            handle = tree.open("t/0")
            assert read(handle, len(expected) - 300, 400) == expected[-300:]
            assert view.records() == 10_000 + 20 * (round_ + 1)


# -- attributes ----------------------------------------------------------------------------------


def test_mtime_rises_and_lasts_where_the_disks_clock_stands(tree: Tree) -> None:
    file = tree.file()
    tree.append(file, b"x\n")
    seen = [tree.attributes(file).mtime_ns]
    for roll in (False, True, False):
        log = tree.log().active.log_path
        tree.append(file, b"x\n")
        os.utime(log, ns=(1, seen[0]))
        if roll:
            tree.roll()
            # A sealed file that changes is another one to those who follow the log.
            on_disk = os.stat(log).st_mtime_ns
        seen.append(tree.attributes(file).mtime_ns)
        assert os.stat(log).st_mtime_ns == seen[-1]
        assert not roll or on_disk == seen[-1]
    assert seen == sorted(set(seen))


def test_blocks_are_those_of_the_disk(tree: Tree) -> None:
    file = tree.file()
    assert tree.attributes(file).blocks == 0
    for _ in range(3):
        tree.append(file, b"x" * 10_000 + b"\n")
        tree.roll()
        on_disk = sum(
            path.stat().st_blocks
            for path in Path(tree.log().directory).glob("0*")
            if path.suffix in (".log", ".index", ".timeindex")
        )
        assert tree.attributes(file).blocks == on_disk
    tree.remove_head(1)
    assert tree.attributes(file).blocks == on_disk * 2 / 3


def test_extended_attributes(tree: Tree) -> None:
    file = tree.file()
    empty = {name: asked(file.xattr, name) for name in file.xattr_names()}
    assert empty["user.kafkafs.first_timestamp"] == b"-1"
    tree.append(file, b"a\nb\n")
    tree.clock.now_ns += 5_000_000_000
    tree.append(file, b"c\n")
    tree.roll()
    facts = {
        name.removeprefix("user.kafkafs."): asked(file.xattr, name) for name in file.xattr_names()
    }
    assert facts == {
        "log_start": b"0",
        "log_end": b"3",
        "last_stable": b"3",
        "records": b"3",
        "bytes": b"%d" % tree.log().size,
        "segments": b"2",
        "first_timestamp": b"1700000000000",
        "last_timestamp": b"1700000005000",
        "generation": b"%016x" % tree.log().history.nonce,
    }
    for view in (".kv", ".jsonl", ".batches"):
        other = tree.file(f"t/{view}/0")
        assert [asked(other.xattr, name) for name in other.xattr_names()] == [*facts.values()]
    with pytest.raises(OSError, match="no such attribute") as caught:
        at_once(file.xattr, "security.capability")
    assert caught.value.errno == errno.ENODATA


# -- opening and changing ------------------------------------------------------------------------


def test_read_only_mounts_keep_their_indexes_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", lines(0, 300))
        tree.roll()
        tree.append("t/0", lines(300, 310))
    for path in (tmp_path / "data" / "t-0").glob("*.lines"):
        path.unlink()
    before = sorted(path.name for path in (tmp_path / "data" / "t-0").iterdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for _ in range(2):
        with a_tree(tmp_path / "data", MountOptions(read_only=True)) as tree:
            assert tree.read("t/0") == lines(0, 310)
    assert sorted(path.name for path in (tmp_path / "data" / "t-0").iterdir()) == before
    cached = list((tmp_path / "cache" / "kafkafs").glob("*/*.lines"))
    assert sorted(path.name for path in cached) == [
        "00000000000000000000.lines",
        "00000000000000000300.lines",
    ]


def test_partitions_of_others_are_measured_in_the_background(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        append(tree.log(), *[b"v"] * 10)
    assert not list((tmp_path / "data" / "t-0").glob("*.lines"))
    with a_tree(tmp_path / "data") as tree:
        tree.fs.partitions.tick()
        in_thread(tree.fs.partitions.housekeeping)
        assert at_once(at_once(tree.directory("t").lookup, "0").attributes).size == 20
