"""Positions in `.follow` against a model, whatever rewrites the past, in whatever state it was."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kafkafs.tree.handles import Handle
from kafkafs.tree.partition.partitions import keeping_history
from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.task import Task
from tests.in_memory import PLACE
from tests.kafkafs.trees import Tree, asked, clean, read
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, remove_head

FIRST = "user.kafkafs.first_position"
WAYS = st.sampled_from(["mounted", "prepared", "unmounted"])


class Followed(RuleBasedStateMachine):
    """`text` is all that was ever shown, `starts` where the record of each offset begins in it.
    What lies before the record `valid` cannot be read by who opens the file; what lies before `cut`
    was in segments that were deleted or cleaned.
    """

    @initialize()
    def create(self) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="followed", dir=PLACE))
        self.numbers = itertools.count()
        with LogManager.open(str(self.data)) as manager:
            manager.create_topic("t", 1)
            manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
        self.text = b""
        self.starts: list[int] = []
        self.valid = self.cut = 0
        # Handles, where each reads on, and what it can read at least.
        self.readers: dict[Handle, tuple[int, int]] = {}
        self.has_read: set[Handle] = set()
        self.has_given_up = False
        self.tree: Tree | None = Tree(self.data)
        self.inode = self.tree.file("t/.follow/0").inode
        self.tree.open("t/.follow/0").release()
        self.head = self.tree.read("t/.ship/0")

    def teardown(self) -> None:
        if self.tree is not None:
            self.unmount(True)
        shutil.rmtree(self.data)

    @property
    def mounted(self) -> Tree:
        assert self.tree is not None
        return self.tree

    def log(self) -> Log:
        return self.mounted.log()

    def unmount(self, orderly: bool) -> None:
        tree = self.mounted
        for handle in self.readers:
            handle.release()
        self.readers.clear()
        if orderly:
            assert check(tree.manager) == []
            tree.stop()
        else:
            tree.manager.abandon()
        self.tree = None
        self.has_given_up = False

    def are_gone(self, first: int) -> None:
        """The records before `first` are."""
        self.valid, self.cut = max(self.valid, first), max(self.cut, first)

    # -- what happens --------------------------------------------------------------------------

    @rule(lengths=st.lists(st.integers(0, 30), min_size=1, max_size=5), seal=st.booleans())
    def write(self, lengths: list[int], seal: bool) -> None:
        values = [b"%06d" % next(self.numbers) + b"." * length for length in lengths]
        records = [Record(n, NOW_MS, 0, b"key", value) for n, value in enumerate(values)]
        self.log().append(bytearray(encode(records)), now_ns=NOW_NS)
        for value in values:
            self.starts.append(len(self.text))
            self.text += value + b"\n"
        if seal:
            self.log().roll(NOW_MS)

    @rule(orderly=st.booleans(), forget=st.booleans(), look=st.sampled_from(["", "0@-1", "0"]))
    def remount(self, orderly: bool, forget: bool, look: str) -> None:
        if self.has_given_up:
            # Within a second. Before that, a kill is `killed_before_it_is_carried_out`.
            self.mounted.fs.partitions.housekeeping()
        self.unmount(orderly)
        if forget:
            for path in (self.data / "t-0").glob("*.lines"):
                path.unlink()
        self.tree = Tree(self.data)
        if look:
            self.mounted.read(f"t/{look}")

    def change(self, way: str, act: Callable[[Log], None], prepare: Callable[[Log], None]) -> None:
        """Change the past, mounted or by a command while it is not."""
        if way == "unmounted":
            self.unmount(True)
            with LogManager.open(str(self.data)) as manager, keeping_history(manager):
                act(manager.log("t", 0))
            self.tree = Tree(self.data)
        else:
            if way == "prepared":
                prepare(self.log())
            act(self.log())

    @precondition(lambda self: len(self.log().segments) > 1)
    @rule(way=WAYS, data=st.data())
    def remove_head(self, way: str, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, len(self.log().segments) - 1))
        first = self.log().segments[count].base_offset
        self.change(
            way,
            lambda log: remove_head(log, count, NOW_MS),
            lambda log: log.prepare_replacement(log.segments[:count], ())(),
        )
        self.are_gone(first)

    @precondition(lambda self: len(self.log().segments) > 1)
    @rule(way=WAYS, data=st.data(), divisor=st.integers(1, 3))
    def clean(self, way: str, data: st.DataObject, divisor: int) -> None:
        count = data.draw(st.integers(1, len(self.log().segments) - 1))
        first = self.log().segments[count].base_offset
        # Before a cleaner makes holes, what is flushed is written down.
        self.log().flush()
        self.mounted.manager.checkpoint()
        self.change(
            "mounted" if way == "prepared" else way,
            lambda log: clean(log, count, lambda record: record.offset % divisor == 0),
            lambda log: None,
        )
        self.are_gone(first)

    def files(self) -> dict[str, int]:
        return {path.name: path.stat().st_ino for path in (self.data / "t-0").glob("*.log")}

    @precondition(lambda self: len(self.log().segments) > 1)
    @rule(is_mounted=st.booleans())
    def clean_as_the_cleaner_does(self, is_mounted: bool) -> None:
        """All have one key: one record is left of what is sealed, or nothing changes."""
        before = self.files()
        if is_mounted:
            self.mounted.fs.mount.cleaner.clean(self.log(), Task())
        else:
            self.unmount(True)
            with LogManager.open(str(self.data)) as manager, keeping_history(manager):
                LogCleaner(manager).clean(manager.log("t", 0), Task())
            self.tree = Tree(self.data)
        if self.files() != before:
            self.are_gone(self.log().active.base_offset)

    @precondition(lambda self: self.log().log_start_offset < self.log().log_end_offset)
    @rule(way=WAYS, data=st.data())
    def delete_records(self, way: str, data: st.DataObject) -> None:
        log = self.log()
        start = data.draw(st.integers(log.log_start_offset + 1, log.log_end_offset))
        self.change(
            way,
            lambda log: self.raise_log_start(log, start),
            lambda log: log.prepare_replacement((), (), log_start=start)(),
        )
        self.valid = max(self.valid, start)

    def raise_log_start(self, log: Log, offset: int) -> None:
        log.raise_log_start(offset)
        if self.tree is not None:
            self.tree.manager.checkpoint()

    @precondition(lambda self: len(self.log().segments) > 1)
    @rule()
    def killed_before_it_is_carried_out(self) -> None:
        first = self.log().segments[1].base_offset
        self.log().prepare_replacement(self.log().segments[:1], ())()
        self.unmount(False)
        self.tree = Tree(self.data)
        # Exactly the records that the removal would have left can be read.
        self.valid = max(self.valid, first)

    @rule()
    def given_up(self) -> None:
        """Prepared, and not carried out; something else comes next."""
        log = self.log()
        if len(log.segments) > 1:
            log.prepare_replacement(log.segments[:1], ())()
            log.end_change(log.segments[:1], ())
            self.has_given_up = True

    @rule()
    def delete_files(self) -> None:
        tree = self.mounted
        tree.fs.partitions.housekeeping()
        tree.delete_files()
        self.readers = {
            handle: (at, max(least, self.start_of(self.cut)))
            for handle, (at, least) in self.readers.items()
        }

    # -- who reads -----------------------------------------------------------------------------

    def start_of(self, offset: int) -> int:
        return self.starts[offset] if offset < len(self.starts) else len(self.text)

    @rule(back=st.integers(0, 200))
    def open_follower(self, back: int) -> None:
        at = max(len(self.text) - back, self.start_of(self.valid))
        self.readers[self.mounted.open("t/.follow/0")] = (at, self.start_of(self.valid))

    @rule(size=st.integers(1, 100))
    def followers_read(self, size: int) -> None:
        for handle, (at, least) in list(self.readers.items()):
            if at >= least:
                assert read(handle, at, size) == self.text[at : at + size]
                self.readers[handle] = (min(at + size, len(self.text)), least)
            else:
                if handle in self.has_read:
                    with pytest.raises(OSError, match="deleted"):
                        read(handle, at, size)
                shown = b"\n" * (least - at) + self.text[least:]
                assert read(handle, at, size) == shown[:size]
                del self.readers[handle]
                handle.release()
            self.has_read.add(handle)

    @invariant()
    def nothing_has_moved(self) -> None:
        tree = self.tree
        if tree is None:
            return
        node = tree.file("t/.follow/0")
        assert node.inode == self.inode
        assert tree.attributes(node).size == len(self.text)
        first = int(asked(node.xattr, FIRST))
        assert first == self.start_of(self.valid)
        with contextlib.closing(_Opened(tree)) as opened:
            assert opened.read(first) == self.text[first:]
            if first:
                assert opened.read(first - 1) == b"\n" + self.text[first:]
        assert tree.read("t/0").endswith(self.text[first:])
        ship, shown = tree.file("t/.ship/0"), self.head + b"\n" * first + self.text[first:]
        assert tree.attributes(ship).size == len(shown)
        assert int(asked(ship.xattr, FIRST)) == len(self.head) + first
        for position in (0, 1000, len(self.head) - 1, len(self.head)):
            assert tree.read(ship, position) == shown[position:]
        assert tree.read(ship, 1000, 101) == shown[1000:1101]


class _Opened:
    def __init__(self, tree: Tree) -> None:
        self.handle = tree.open("t/.follow/0")

    def read(self, position: int) -> bytes:
        return read(self.handle, position)

    def close(self) -> None:
        self.handle.release()


Followed.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestFollowed = Followed.TestCase
