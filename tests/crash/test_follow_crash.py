"""A crash at every file operation of compaction, delete-records and retention, while `.follow` is
shown.

Killed anywhere, the daemon finds positions as they were: the same inode, every byte counted, and
what can be read begins where it did or where it was about to. Where the machine went down, it is
another inode only while `.follow` has shown what was not flushed; else it has all that it showed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from storage import LogManager, Record, encode
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.task import Task
from tests.crash import moments
from tests.crash.moments import Found, Stops, Unsynced, after_reboot, chosen_numbers
from tests.kafkafs.trees import Tree, asked, in_thread
from tests.storage.logs import NOW_MS, NOW_NS, append, write_settings
from tests.storage.transactions import Client

T = TypeVar("T")
FIRST = "user.kafkafs.first_position"
FOLLOW = "t/.follow/0"


class Stage(NamedTuple):
    """Where reading may begin, how much there is, and how much of that `.follow` has shown.

    `may_be_lost`: `.follow` may have shown what was not flushed.
    """

    firsts: tuple[int, ...] = (0,)
    written: int = 0
    shown: int = 0
    may_be_lost: bool = False


class Life(moments.Life):
    """The run, and the facts that must hold at each of its stages."""

    kinds = ("kafkafs.history",)

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.text = b""
        self.ends = [0]
        self.stage = Stage()

    def build(self) -> None:
        super().build()
        with LogManager.open(str(self.data)) as manager:
            manager.create_topic("t", 1)
            manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
            # All of it is looked at again and again.
            manager.change_topic_settings("t", {"segment.index.bytes": "4096"})
        self.mount(Files())
        self.inode = self.tree.file(FOLLOW).inode
        self.tree.read(FOLLOW)
        self.tree.stop()

    def mount(self, files: Files) -> None:
        self.tree = Tree(self.data, files=files)

    def expected(self) -> tuple[object, ...]:
        return (self.stage,)

    def segment(self) -> None:
        """Three records more, and a new segment."""
        start = len(self.ends) - 1
        records = []
        for number in range(3):
            value = b"%d " % (start + number) + b"." * (7 * number)
            records.append(Record(number, NOW_MS, 0, b"%d" % number, value))
            self.text += value + b"\n"
            self.ends.append(len(self.text))
        self.tree.log().append(bytearray(encode(records)), now_ns=NOW_NS)
        self.stage = self.stage._replace(written=len(self.text))
        self.tree.roll()

    def follow(self) -> None:
        """A follower reads all that there is."""
        self.stage = self.stage._replace(may_be_lost=True)
        assert self.tree.read(FOLLOW, self.stage.firsts[-1]) == self.text[self.stage.firsts[-1] :]
        self.stage = self.stage._replace(shown=len(self.text))

    def flush(self) -> None:
        """Flush, and have the periodic work notice that."""
        self.tree.log().flush()
        self.tree.fs.partitions.housekeeping()
        self.stage = self.stage._replace(may_be_lost=False)

    def change(self, act: Callable[[], object], first: int, *, is_followed: bool = True) -> None:
        """The past changes; the record `first` is the first that can be read then."""
        self.stage = self.stage._replace(firsts=(*self.stage.firsts, self.ends[first]))
        in_thread(act)
        self.stage = self.stage._replace(firsts=(self.ends[first],))
        if is_followed:
            self.follow()
            assert first_position(self.tree) == self.ends[first]

    def run(self, files: Files) -> None:
        self.mount(files)
        tree, manager, log = self.tree, self.tree.manager, self.tree.log()
        for _ in range(3):
            self.segment()
        self.follow()
        self.change(lambda: tree.fs.mount.cleaner.clean(log, Task()), 9)
        self.flush()
        for _ in range(2):
            self.segment()
        # The history counts segments that are not flushed.
        tree.fs.partitions.housekeeping()
        self.change(lambda: delete_records(manager, log, 10, Task()), 10, is_followed=False)
        self.follow()
        self.segment()
        manager.change_topic_settings("t", {"retention.bytes": "100"})
        assert len(log.segments) > 4
        self.flush()
        self.change(lambda: retain(manager, [log], Task()), 15, is_followed=False)
        self.segment()
        tree.fs.partitions.housekeeping()
        self.change(lambda: tree.fs.mount.cleaner.clean(log, Task()), 21)
        tree.delete_files()
        tree.stop()
        self.stage = self.stage._replace(may_be_lost=False)

    # -- what is found -------------------------------------------------------------------------

    def check(self, path: Path, found: Found) -> None:
        (stage,) = found.expected
        tree = Tree(path, files=Unsynced())
        file = tree.file(FOLLOW)
        size, first = tree.attributes(file).size, first_position(tree)
        shown = tree.read(file, first)
        assert len(shown) == size - first
        if file.inode == self.inode:
            assert shown == self.text[first:size]
            # An append that was under way may be there.
            assert size >= (stage.shown if found.lost else stage.written)
            # It may have begun to change when it stopped.
            assert first in stage.firsts or found.lost
        else:
            assert found.lost
            assert stage.may_be_lost
            assert shown in self.text
        assert tree.read("t/0").endswith(shown)
        tree.stop()


def first_position(tree: Tree) -> int:
    file = tree.file(FOLLOW)
    return int(asked(file.xattr, FIRST))


def test_a_kill_and_a_power_cut_at_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(tmp_path / "data")
    life.stops((0, 2)).judge(after_reboot(life.check, monkeypatch), tmp_path / "found")


class EndingLife:
    """A deletion of the records of an open transaction, which ends before the operation `number`.

    Text follows them in the segment that stays. `.follow` shows it once the transaction has ended.
    """

    def __init__(self, data: Path, number: int) -> None:
        self.data = data
        self.number = number
        self.operations = 0
        self.shown = b""
        self.is_ending, self.is_log_thread = False, True
        data.mkdir()
        write_settings(data, log_index_size_max_bytes=240)
        self.tree = tree = Tree(data)
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"segment.index.bytes": "4096"})
        log = tree.log()
        append(log, b"before")
        self.client = Client(log, 7)
        for _ in range(2):
            self.client.send(b"inside")
            tree.roll()
        append(log, b"after")
        self.inode = tree.file(FOLLOW).inode
        assert tree.read(FOLLOW) == b"before\n"
        self.left = log.active.size
        tree.stop()
        self.stops = Stops(data, expected=self.expected)
        self.stops.disk.armed = False

    def expected(self) -> tuple[object, ...]:
        """Runs before each operation."""
        if not self.is_log_thread:
            self.operations += 1
            moment = self.stops.moments[-1]
            is_history = "kafkafs.history" in moment or moment == "sync_directory t-0"
            if self.operations == self.number:
                self.on_log_thread(self.client.commit)
                self.is_ending = True
            if self.is_ending and not is_history:
                # Else the history's lock is held.
                self.is_ending = False
                self.on_log_thread(self.read)
        return (self.shown,)

    def on_log_thread(self, function: Callable[[], T], /) -> T:
        self.is_log_thread = True
        try:
            return function()
        finally:
            self.is_log_thread = False

    def read(self) -> None:
        # In the thread that holds the locks of the operation.
        self.shown = bytes(self.handle.read(0, 100))

    def run(self, delete: Callable[[EndingLife, Task], object]) -> None:
        self.tree = tree = Tree(self.data, files=self.stops.disk)
        self.client.log = tree.log()
        self.handle = tree.open(FOLLOW)
        self.read()
        assert self.shown == b"before\n"
        self.is_log_thread = False
        self.stops.disk.armed = True
        delete(self, Task(self.on_log_thread))
        self.stops.end()
        # A reader has seen the position of the text after the transaction.
        self.stops.found = [each for each in self.stops.found if b"after" in each.expected[0]]

    def check(self, path: Path, found: Found) -> None:
        (shown,) = found.expected
        tree = Tree(path, files=Unsynced())
        file = tree.file(FOLLOW)
        assert file.inode == self.inode
        assert tree.attributes(file).size >= len(shown)
        first = first_position(tree)
        assert tree.read(file, first, len(shown) - first) == shown[first:]
        tree.stop()


def its_segments_expire(life: EndingLife, task: Task) -> None:
    manager = life.tree.manager
    manager.change_topic_settings("t", {"retention.bytes": f"{life.left}"})
    assert not retain(manager, [life.tree.log()], task).notes


def its_records_are_deleted(life: EndingLife, task: Task) -> None:
    assert delete_records(life.tree.manager, life.tree.log(), 3, task) == 3


@pytest.mark.parametrize("delete", [its_segments_expire, its_records_are_deleted])
def test_a_transaction_that_ends_during_the_deletion(
    tmp_path: Path, delete: Callable[[EndingLife, Task], object]
) -> None:
    for number in chosen_numbers():
        life = EndingLife(tmp_path / f"data-{number}", number)
        life.run(delete)
        if life.operations < number:
            break
        assert life.shown == b"before\ninside\ninside\nafter\n"
        life.stops.judge_all(life.check, tmp_path / "found")
    assert number > 20
