"""A change of the past writes the history file: the time, the thread, and errors of the disk."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.start_file import StartFile
from kafkafs.tree.partition import partition as partition_module
from kafkafs.tree.partition.partitions import keeping_history
from kafkafs.tree.partition.rewrite import Rewrite
from storage import LogManager
from storage.compaction.replacing import finish_last
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.log.log import Log, Replacement
from storage.segment.segment import Segment
from storage.state.history import Shift
from storage.task import Task
from storage.waiting import may_wait
from tests.kafkafs.trees import Tree, a_tree, asked, cleaned_segment, commit, in_thread, read
from tests.storage.logs import append
from tests.storage.transactions import Client
from tests.waits import HANG_S

T = TypeVar("T")


class HistoryDisk(Files):
    """Counts how often histories are written; holds or refuses the next time. Refuses to open the
    partition's files.
    """

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.threads: set[int] = set()
        self.held: tuple[threading.Event, threading.Event] | None = None
        self.error: OSError | None = None
        self.most_refusals = 10
        self.open_error: OSError | None = None

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if self.open_error is not None and "/t-0/" in path:
            self.most_refusals -= 1
            assert self.most_refusals, "it is tried again and again"
            raise self.open_error
        return super().open(path, flags, mode)

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        if path.endswith("kafkafs.history"):
            self.written += 1
            self.threads.add(threading.get_ident())
            if self.error is not None:
                raise self.error
            if self.held is not None:
                reached, go = self.held
                self.held = None
                reached.set()
                assert go.wait(HANG_S)
        super().replace_atomically(path, data, sync=sync)


@pytest.fixture
def disk() -> HistoryDisk:
    return HistoryDisk()


def filled(tree: Tree, *, is_read: bool = True) -> Tree:
    tree.mkdir("t")
    if is_read:
        tree.read("t/.follow/0")
    for number in range(4):
        if number:
            tree.roll()
        append(tree.log(), b"a%d" % number, b"b%d" % number)
    return tree


@pytest.fixture
def tree(tmp_path: Path, disk: HistoryDisk) -> Iterator[Tree]:
    """Four segments of two records, all shown in `.follow` and in the topic."""
    with a_tree(tmp_path / "data", files=disk) as tree:
        filled(tree)
        # Else the history would note that `.follow` shows what is not flushed.
        tree.log().flush()
        disk.written = 0
        disk.threads.clear()
        yield tree


def text(first: int, end: int = 4) -> bytes:
    return b"".join(b"a%d\nb%d\n" % (number, number) for number in range(first, end))


def first_position(tree: Tree) -> int:
    file = tree.file("t/.follow/0")
    return int(asked(file.xattr, "user.kafkafs.first_position"))


def test_what_is_prepared_is_written_by_another_thread_and_not_again(
    tree: Tree, disk: HistoryDisk
) -> None:
    inode = tree.file().inode
    in_thread(tree.log().prepare_replacement(tree.log().segments[:2], ()))
    assert disk.written == 1
    assert tree.file().inode == inode, "nothing has changed yet"
    assert first_position(tree) == 0
    tree.remove_head(2)
    assert disk.written == 1
    assert threading.get_ident() not in disk.threads
    assert tree.file().inode != inode
    assert tree.read("t/0") == text(2)
    assert first_position(tree) == 12


@pytest.mark.parametrize("prepared", [0, 1, 3])
def test_what_is_carried_out_otherwise_is_written_then(
    tree: Tree, disk: HistoryDisk, prepared: int
) -> None:
    log = tree.log()
    if prepared:
        log.prepare_replacement(log.segments[:prepared], ())()
    else:
        log.prepare_replacement((), (), log_start=1)()
    log.end_change(log.segments[:prepared], ())
    tree.remove_head(2)
    assert disk.written == 2
    assert tree.read("t/0") == text(2)
    assert first_position(tree) == 12
    tree.remove_head(1)
    assert first_position(tree) == 18


def test_what_was_written_in_between_does_not_last(tree: Tree, disk: HistoryDisk) -> None:
    """Somebody else has written down how things are: what comes is written again."""
    log = tree.log()
    log.prepare_replacement(log.segments[:2], ())()
    log.end_change(log.segments[:2], ())
    tree.fs.partitions.of(log).save_history()
    tree.remove_head(2)
    assert disk.written == 3
    assert tree.log().history.base("values") == (4, 12)
    recorded = (Path(tree.log().directory) / "kafkafs.history").read_text()
    assert "base values 4 12 " in recorded


def reopened(tree: Tree) -> tuple[int, int]:
    """The nonces after a kill and a new start."""
    tree.manager.abandon()
    with LogManager.open(tree.manager.path) as manager:
        history = manager.log("t", 0).history
        return history.nonce, history.follow_nonce


def test_what_was_saved_while_it_was_measured_does_not_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change is measured and written again."""
    tree = filled(Tree(tmp_path))
    work_out = Rewrite._work_out
    saves = iter([tree.fs.partitions.of(tree.log()).save_history])

    def saved_meanwhile(rewrite: Rewrite, until: float) -> tuple[Shift, str]:
        worked_out = work_out(rewrite, until)
        for save in saves:
            save()
        return worked_out

    monkeypatch.setattr(Rewrite, "_work_out", saved_meanwhile)
    tree.log().prepare_replacement(tree.log().segments[:2], ())()
    tree.remove_head(2)
    shown = tree.log().history.nonce, tree.log().history.follow_nonce
    assert reopened(tree) == shown


def replacement(log: Log) -> list[Segment]:
    """A cleaned segment, as the cleaner makes them, for the log's first two, which it drops."""
    new = cleaned_segment(log, 2, lambda record: record.offset % 2 == 0)
    log.flush()
    return [new]


def housekeeping(tree: Tree) -> None:
    tree.fs.partitions.of(tree.log()).note_change()
    tree.fs.partitions.housekeeping()


def a_first_open(tree: Tree) -> None:
    """Nobody has measured anything before."""
    assert not tree.log().history.now.bases
    tree.read("t/.follow/0")


def a_roll(tree: Tree) -> None:
    tree.roll()
    append(tree.log(), b"more")
    housekeeping(tree)


def deletion_of_records(tree: Tree) -> None:
    assert delete_records(tree.manager, tree.log(), 1, Task()) == 1


def deletion_of_records_that_fails(tree: Tree) -> None:
    log = tree.log()
    log.prepare_replacement((), (), log_start=1)()
    log.end_change((), ())
    housekeeping(tree)


@pytest.mark.parametrize(
    "meanwhile",
    [
        housekeeping,
        a_first_open,
        a_roll,
        deletion_of_records,
        deletion_of_records_that_fails,
    ],
)
def test_what_is_prepared_stays_written_until_it_is_carried_out(
    tmp_path: Path, meanwhile: Callable[[Tree], None]
) -> None:
    """From the decision on a start carries it out, whoever has saved the history before."""
    tree = filled(Tree(tmp_path), is_read=meanwhile is not a_first_open)
    log = tree.log()
    old, new = log.segments[:2], replacement(log)
    tree.manager.checkpoint()
    follow = log.history.follow_nonce
    shown = log.history.nonce
    log.prepare_replacement(old, new)()
    meanwhile(tree)
    commit(log, old, new)
    nonce, follow_after = reopened(tree)
    assert follow_after == follow, "positions last"
    assert nonce != shown


def a_removal(log: Log) -> Callable[[], None]:
    removed = log.segments[:2]
    log.prepare_replacement(log.segments[:2], ())()
    return lambda: log.end_change(removed, ())


def a_log_start(log: Log) -> Callable[[], None]:
    log.prepare_replacement((), (), log_start=1)()
    return lambda: log.end_change((), ())


def a_swap(log: Log) -> Callable[[], None]:
    old, new = log.segments[:2], replacement(log)
    log.prepare_replacement(old, new)()
    commit(log, old, new)
    log.replacement = Replacement(old, new, is_done=False)
    return lambda: finish_last(log, Task())


@pytest.mark.parametrize("prepare", [a_removal, a_log_start, a_swap])
def test_what_is_given_up_is_true_again_with_the_next_save(
    tree: Tree, disk: HistoryDisk, prepare: Callable[[Log], Callable[[], None]]
) -> None:
    log = tree.log()
    give_up = prepare(log)
    housekeeping(tree)
    assert disk.written == 1
    give_up()
    tree.fs.partitions.housekeeping()
    assert disk.written == 2
    history = log.history
    assert f"nonce {history.nonce:016x}" in recorded_history(tree)
    assert "base values 0 0 " in recorded_history(tree)
    tree.append("t/0", b"more\n")
    tree.fs.partitions.housekeeping()
    assert disk.written == 2


def test_a_change_that_is_given_up_while_it_is_saved_is_not_saved_for_good(
    tmp_path: Path, disk: HistoryDisk
) -> None:
    with a_tree(tmp_path / "data", files=disk) as tree:
        filled(tree, is_read=False)
        log = tree.log()
        give_up = a_removal(log)
        # Begins to count, so that the prepared change has to be written again.
        tree.read("t/0")
        disk.held = reached, go = threading.Event(), threading.Event()
        saving = threading.Thread(target=housekeeping, args=(tree,))
        saving.start()
        assert reached.wait(HANG_S)
        give_up()
        go.set()
        saving.join()
        tree.fs.partitions.housekeeping()
        assert f"nonce {log.history.nonce:016x}" in recorded_history(tree)
        assert "base values 0 0 " in recorded_history(tree)


def recorded_history(tree: Tree) -> str:
    return (Path(tree.log().directory) / "kafkafs.history").read_text()


def test_a_disk_that_refuses_keeps_the_past(tree: Tree, disk: HistoryDisk) -> None:
    inode = tree.file().inode
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        tree.log().prepare_replacement(tree.log().segments[:2], ())()
    with pytest.raises(OSError, match="No space left"):
        tree.remove_head(2)
    disk.error = None
    assert tree.file().inode == inode
    assert tree.read("t/0") == tree.read("t/.follow/0") == text(0)
    tree.remove_head(1)
    assert tree.read("t/0") == text(1)
    assert first_position(tree) == 6


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOMEM])
@pytest.mark.parametrize("is_measured", [False, True])
def test_a_disk_that_refuses_after_the_log_start_has_moved_keeps_the_positions(
    tmp_path: Path, disk: HistoryDisk, number: int, is_measured: bool
) -> None:
    """The periodic work writes the history later."""
    data = tmp_path / "data"
    with a_tree(data) as tree:
        filled(tree).read("t/.follow/0")
        inode = tree.file("t/.follow/0").inode
    tree = Tree(data, files=disk)
    log = tree.log()
    tree.fs.partitions.of(log).nonce()
    if is_measured:
        tree.read("t/.follow/0")
    log.flush()
    housekeeping(tree)
    for segment in log.segments:
        assert segment.evict()
    error = OSError(number, os.strerror(number))
    disk.error, disk.open_error = (error, None) if number == errno.ENOSPC else (None, error)
    log.raise_log_start(5)
    disk.error = disk.open_error = None
    assert "cannot save its history" in tree.events()
    tree.fs.partitions.housekeeping()
    assert tree.file("t/.follow/0").inode == inode
    assert first_position(tree) == 15
    tree.manager.checkpoint()
    # Below the log start.
    tree.remove_head(2)
    tree.manager.abandon()
    with a_tree(data) as tree:
        assert tree.file("t/.follow/0").inode == inode
        assert first_position(tree) == 15
        assert log.history.now.bases == tree.log().history.now.bases


def test_a_disk_that_refuses_again_after_a_periodic_save_is_tried_later(
    tree: Tree, disk: HistoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The periodic save wrote the state before the log start had moved."""
    log, events = tree.log(), tree.fs.mount.events
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def periodic_save(line: str) -> None:
        disk.error = None
        housekeeping(tree)
        disk.error = error
        events(line)

    monkeypatch.setattr(tree.fs.mount, "events", periodic_save)
    disk.error = error
    log.raise_log_start(5)
    disk.error = None
    tree.fs.partitions.housekeeping()
    assert f"nonce {log.history.nonce:016x}" in recorded_history(tree)


def two_segments_expire(tree: Tree, task: Task) -> None:
    log = tree.log()
    left = sum(segment.size for segment in log.segments[2:])
    tree.manager.change_topic_settings("t", {"retention.bytes": str(left)})
    for note in retain(tree.manager, [log], task).notes:
        raise OSError(note)


def two_segments_records_are_deleted(tree: Tree, task: Task) -> None:
    assert delete_records(tree.manager, tree.log(), 4, task) == 4


def with_owner(work: Callable[[Task], None]) -> None:
    """Have it done in another thread, and here what it asks the owner for."""
    turns: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    def on_log_thread(function: Callable[[], T], /) -> T:
        turn: Future[T] = Future()
        turns.put((turn, function))
        return turn.result()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work, Task(on_log_thread))
        done.add_done_callback(lambda _: turns.put(None))
        while (asked_for := turns.get()) is not None:
            turn, function = asked_for
            try:
                turn.set_result(function())
            except BaseException as error:
                turn.set_exception(error)
        done.result()


DELETIONS = pytest.mark.parametrize(
    "delete", [two_segments_expire, two_segments_records_are_deleted]
)


@DELETIONS
def test_a_deletion_holds_up_nobody_while_it_is_written_down(
    tree: Tree, disk: HistoryDisk, delete: Callable[[Tree, Task], None]
) -> None:
    with_owner(lambda task: delete(tree, task))
    assert disk.written == 1
    assert threading.get_ident() not in disk.threads
    assert tree.read("t/0") == text(2)
    assert first_position(tree) == 12


@DELETIONS
def test_what_cannot_be_written_down_is_not_deleted(
    tree: Tree, disk: HistoryDisk, delete: Callable[[Tree, Task], None]
) -> None:
    """Neither now nor by the next start, which carries out what the checkpoints say."""
    disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        delete(tree, Task())
    disk.error = None
    assert tree.read("t/0") == tree.read("t/.follow/0") == text(0)
    tree.manager.abandon()
    with LogManager.open(tree.manager.path) as manager:
        assert manager.log("t", 0).log_start_offset == 0


def test_what_cannot_be_measured_begins_anew(tmp_path: Path) -> None:
    """A damaged segment can be deleted, too. Positions in `.follow` restart."""
    data = tmp_path / "data"
    with a_tree(data) as tree:
        tree.mkdir("t")
        for number in range(3):
            append(tree.log(), b"a%d" % number, b"b%d" % number)
            tree.roll()
        inode = tree.file("t/.follow/0").inode
        tree.read("t/.follow/0")
    for path in (data / "t-0").glob("*.lines"):
        path.unlink()
    with a_tree(data) as tree:
        first = Path(tree.log().segments[0].log_path)
        damaged = bytearray(first.read_bytes())
        damaged[8:12] = b"\x7f\xff\xff\xff"
        first.write_bytes(damaged)
        tree.remove_head(1)
        assert ".follow/0: positions restart" in tree.events()
        assert tree.read("t/0") == tree.read("t/.follow/0") == text(1, 3)
        assert tree.file("t/.follow/0").inode != inode


def nothing_more(tree: Tree) -> None:
    """The deletion is prepared, and comes next."""


def its_log_start_in_the_checkpoint(tree: Tree) -> None:
    """A start carries the deletion out."""
    log = tree.log()
    log.pending_log_starts.append(log.active.base_offset)
    tree.manager.checkpoint()


def its_end(tree: Tree) -> None:
    """The deletion is given up, and no history is saved yet."""
    tree.log().end_change(tree.log().segments[:2], ())


@pytest.mark.parametrize("then", [nothing_more, its_log_start_in_the_checkpoint, its_end])
def test_a_transaction_that_ends_before_a_deletion_moves_no_position(
    tmp_path: Path, then: Callable[[Tree], None]
) -> None:
    """The text after it was measured without the transaction's, and is shown after it."""
    tree = Tree(tmp_path)
    tree.mkdir("t")
    log = tree.log()
    append(log, b"before")
    client = Client(log, 7)
    for _ in range(2):
        client.send(b"inside")
        tree.roll()
    append(log, b"after")
    handle = tree.open("t/.follow/0")
    assert read(handle) == b"before\n"
    log.flush()
    housekeeping(tree)
    in_thread(log.prepare_replacement(log.segments[:2], (), log_start=log.active.base_offset))
    then(tree)
    client.commit()
    log.flush()
    assert read(handle) == b"before\ninside\ninside\nafter\n"
    inode = tree.file("t/.follow/0").inode
    tree.manager.abandon()
    tree = Tree(tmp_path)
    file = tree.file("t/.follow/0")
    assert file.inode == inode
    assert tree.attributes(file).size == 27
    assert tree.read(file, 21) == b"after\n"
    tree.stop()


def test_a_large_transaction_that_ends_before_a_deletion_is_left_to_a_worker_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no process has looked at the partition since the mount before."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        append(tree.log(), b"before")
        tree.read("t/.follow/0")
    with a_tree(tmp_path / "data") as tree:
        log = tree.log()
        client = Client(log, 7)
        for _ in range(4):
            client.send(b"inside")
            tree.roll()
        removed = log.segments[:2]
        in_thread(log.prepare_replacement(removed, ()))
        client.commit()
        monkeypatch.setattr(partition_module, "LOOK_S", 0)
        with pytest.raises(BlockingIOError):
            tree.remove_head(2)
        log.end_change(removed, ())
        in_thread(log.prepare_replacement(removed, ()))
        tree.remove_head(2)
        assert first_position(tree) == 7 + 2 * 7


def test_delete_records_leaves_a_large_transaction_that_has_just_ended_to_its_worker_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        append(tree.log(), b"before")
        assert tree.read("t/.follow/0") == b"before\n"
        log = tree.log()
        client = Client(log, 7)
        for _ in range(4):
            client.send(b"inside")
            tree.roll()
        in_thread(log.prepare_replacement((), (), log_start=3))
        client.commit()
        monkeypatch.setattr(partition_module, "LOOK_S", 0)
        with pytest.raises(BlockingIOError):
            log.raise_log_start(3)
        assert log.log_start_offset == 0
        assert tree.read("t/0") == b"before\n" + 4 * b"inside\n"
        log.end_change((), ())
        client = Client(log, 8)
        for _ in range(3):
            client.send(b"again")
            tree.roll()
        blocked: list[bool] = []

        def then_committed(work: Callable[[], T]) -> T:
            if log.pending_log_starts and log.producers.first_undecided_offset is not None:
                # The log start is about to move.
                client.commit()
            try:
                return work()
            except BlockingIOError:
                blocked.append(log.log_start_offset > 0)
                raise

        assert delete_records(tree.manager, log, 8, Task(then_committed)) == 8
        assert blocked == [False]
        assert tree.read("t/0") == b"again\n"
        assert first_position(tree) == 7 + 4 * 7 + 2 * 6


def test_a_deletion_of_an_open_transaction_measures_only_the_deleted_text(tmp_path: Path) -> None:
    options = MountOptions(isolation="read_uncommitted")
    with a_tree(tmp_path / "data", options) as tree:
        tree.mkdir("t")
        append(tree.log(), b"before")
        tree.read("t/.follow/0")
    with a_tree(tmp_path / "data", options) as tree:
        log = tree.log()
        client = Client(log, 7)
        for _ in range(3):
            client.send(b"inside")
            tree.roll()
        in_thread(log.prepare_replacement(log.segments[:2], ()))
        text = tree.fs.partitions.of(log).text(tree.fs.mount.views[0])
        assert [bool(each.covered) for each in text.timeline.extents] == [True, True, False, False]


def test_a_deletion_of_an_open_transaction_notes_offsets_of_readers_in_a_worker_thread(
    tree: Tree,
) -> None:
    """The log's thread notes them again without waiting: readers may have read on."""
    log = tree.log()
    Client(log, 7).send(b"inside")
    tree.roll()
    noted: list[tuple[bool, int]] = []
    partition = tree.fs.partitions.of(log)
    partition.add_follow_reader(object(), lambda end: noted.append((may_wait(), end)))
    removed = log.segments[:4]
    in_thread(log.prepare_replacement(removed, ()))
    assert noted == [(True, 9)]
    tree.remove_head(4)
    assert noted == [(True, 9), (False, 9)]


def test_a_command_without_a_mount_logs_that_the_history_cannot_be_saved(
    tmp_path: Path, disk: HistoryDisk, caplog: pytest.LogCaptureFixture
) -> None:
    with a_tree(tmp_path / "data", files=disk) as tree:
        filled(tree)
    with LogManager.open(str(tmp_path / "data"), files=disk) as manager:
        log = manager.log("t", 0)
        with keeping_history(manager):
            log.prepare_replacement((), (), log_start=5)()
            log.end_change((), ())
            disk.error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            log.raise_log_start(5)
            disk.error = None
        assert "t/0: cannot save its history: No space left on device" in caplog.text
        manager.duties.failed("flush", OSError(errno.EIO, os.strerror(errno.EIO)), "t-0")
        assert "t-0: flush failed" in caplog.text


# -- at the same time ----------------------------------------------------------------------------


def test_who_looks_while_it_is_written_sees_what_was(tree: Tree, disk: HistoryDisk) -> None:
    """An inode made under the old nonce shows the old text, however late it is first read."""
    disk.held = reached, go = threading.Event(), threading.Event()
    owner = threading.Thread(target=tree.remove_head, args=(2,))
    owner.start()
    assert reached.wait(HANG_S)
    file = tree.file("t/.jsonl/0")
    values = tree.file("t/0")
    handle = tree.open(values)
    go.set()
    owner.join()
    assert read(handle) == text(0)
    assert tree.file("t/0") is not values
    assert tree.read("t/0") == text(2)
    later = tree.file("t/.jsonl/0")
    assert later.inode != file.inode
    assert b"".join(tree.read(file).splitlines(True)[4:]) == tree.read(later)


def test_who_begins_to_count_while_it_is_written_counts_right(
    tmp_path: Path, disk: HistoryDisk
) -> None:
    """The first who looks at all: what was to be written said nothing of a base."""
    data = tmp_path / "data"
    with a_tree(data, files=disk) as tree:
        tree.mkdir("t")
        for number in range(4):
            append(tree.log(), b"a%d" % number, b"b%d" % number)
            tree.roll()
        # The history is there, and the view, but nobody has measured anything.
        partition = tree.fs.partitions.of(tree.log())
        partition.nonce()
        view = partition.text(tree.fs.mount.views[0])
        disk.held = reached, go = threading.Event(), threading.Event()
        owner = threading.Thread(target=tree.remove_head, args=(2,))
        owner.start()
        assert reached.wait(HANG_S)
        assert not tree.log().history.now.bases
        generation = in_thread(view.generation)
        assert view.attach(generation)
        assert view.base == (0, 0)
        go.set()
        owner.join()
        assert view.base == (4, 12)
        assert first_position(tree) == 12
        assert tree.attributes(tree.file("t/.follow/0")).size == 24
    with a_tree(data) as tree:
        assert first_position(tree) == 12


# -- what nobody sees ----------------------------------------------------------------------------


def test_segments_below_the_log_start_leave_without_a_new_history(
    tree: Tree, disk: HistoryDisk
) -> None:
    in_thread(tree.log().prepare_replacement((), (), log_start=5))
    tree.log().raise_log_start(5)
    assert disk.written == 1
    file = tree.file()
    from_three = tree.node("t/0@3")
    assert isinstance(from_three, StartFile)
    assert tree.read(from_three) == b"b2\na3\nb3\n"
    handle = tree.open(file)
    tree.log().prepare_replacement(tree.log().segments[:2], ())()
    tree.remove_head(2)
    tree.delete_files()
    assert disk.written == 1
    assert tree.file() is file
    assert tree.read(from_three) == read(handle) == b"b2\na3\nb3\n"
    assert tree.attributes(from_three).size == 9
    assert first_position(tree) == 15
    tree.append("t/0", b"more\n")
    assert read(handle) == tree.read("t/0") == b"b2\na3\nb3\nmore\n"


# -- what was sealed since -----------------------------------------------------------------------


def test_another_program_after_a_kill_is_noticed(tmp_path: Path) -> None:
    """Also where it has rewritten what was sealed since the history was last written."""
    tree = Tree(tmp_path)
    tree.manager.create_topic("t", 1)
    inode = tree.file("t/0").inode
    tree.read("t/.follow/0")
    for number in range(3):
        append(tree.log(), b"a%d" % number, b"b%d" % number)
        tree.roll()
    tree.fs.partitions.housekeeping()
    tree.manager.abandon()
    tree = Tree(tmp_path)
    assert tree.file("t/0").inode == inode
    follow = tree.file("t/.follow/0").inode
    tree.manager.abandon()
    for path in (tmp_path / "t-0").glob(f"{2:020}.*"):
        path.unlink()
    tree = Tree(tmp_path)
    assert tree.file("t/0").inode != inode
    assert tree.file("t/.follow/0").inode != follow
    tree.stop()


def test_nothing_is_written_while_nothing_is_sealed(tree: Tree, disk: HistoryDisk) -> None:
    tree.fs.partitions.housekeeping()
    assert disk.written == 1
    tree.append("t/0", b"more\n")
    tree.fs.partitions.housekeeping()
    assert disk.written == 1
    tree.remove_head(2)
    tree.fs.partitions.housekeeping()
    assert disk.written == 2
