"""A mirror is followed: its process appends, truncates, renames, and writes line indexes; an inode
shows one history.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.mirror.line_indexes import LineIndexes
from storage import Log, LogManager
from storage.log.append import append_as_follower
from storage.paths import partition_directory
from tests.kafkafs.mirror.test_line_indexes import index_all
from tests.kafkafs.tree.test_following import Shown
from tests.kafkafs.trees import Following, Tree
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_MS, NOW_NS, Unsynced, batch, remove_head, values

IDS = ("AAAAAAAAAAAAAAAAAAAAAQ", "BBBBBBBBBBBBBBBBBBBBBQ")
NAMES = b"xy"
SETTINGS = {"internal.segment.bytes": "300", "index.interval.bytes": "100"}
PATHS = ("t/0", "t/.follow/0", "t/.batches/0")


class Mirror:
    """The process that writes the directory."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.number = 0
        self.count = 0
        self.open()

    def open(self) -> None:
        self.manager = LogManager.open(str(self.data), files=Unsynced(), clock_ms=lambda: NOW_MS)
        topic = self.manager.create_mirrored_topic("t", IDS[self.number], 1, SETTINGS)
        self.log: Log = topic.partitions[0]
        self.line_indexes = LineIndexes(self.manager)

    def append(self, count: int) -> None:
        """One batch; each fourth one is after a gap. Values begin with the number of the topic."""
        offset = self.log.log_end_offset + 3 * (self.count % 4 == 3)
        made = [b"%c%d" % (NAMES[self.number], self.count + n) for n in range(count)]
        self.count += count
        append_as_follower(self.log, at(batch(made), offset, 0), NOW_NS)

    def truncate(self, number: int) -> None:
        # The worker may still index a segment of the log.
        self.line_indexes.run()
        end = self.log.log_end_offset
        self.manager.truncate(self.log, max(end - number * number, 0))

    def delete(self, number: int) -> None:
        count = min(number, len(self.log.segments) - 1)
        if number % 2 and count:
            remove_head(self.log, count, 0)
        elif (start := self.log.log_start_offset + number) <= self.log.log_end_offset and number:
            self.log.raise_log_start(start)
        self.manager.checkpoint()

    def begin(self, number: int) -> None:
        if not self.log.size:
            self.manager.start_at(self.log, self.log.log_start_offset + number)

    def restart(self, *, killed: bool) -> None:
        self.close(killed=killed)
        self.open()

    def close(self, *, killed: bool) -> None:
        self.line_indexes.close()
        self.manager.abandon() if killed else self.manager.close()

    def replace(self) -> None:
        """The topic was created again."""
        self.close(killed=False)
        kept = f"t.{IDS[self.number]}-0"
        if self.number + 1 < len(IDS):
            (self.data / partition_directory("t", 0)).rename(self.data / kept)
            self.number += 1
        self.open()

    def text(self) -> bytes:
        return b"".join(b"%s\n" % value for value in values(self.log))


def shown(tree: Tree, path: str) -> Shown:
    """A file that has no records of the other topic."""
    tree.node(path)
    other = IDS.index(tree.log().topic_id) ^ 1
    return Shown(tree, path, NAMES[other : other + 1] if "batches" not in path else b"")


_OPERATION = st.sampled_from(
    [
        *("append", "append", "append", "roll", "truncate", "truncate", "delete", "begin"),
        *("restart", "kill", "replace", "open", "sweep", "index", "index"),
    ]
)


@given(st.lists(st.tuples(_OPERATION, st.integers(0, 7), st.booleans()), max_size=25))
def test_an_inode_never_shows_two_histories(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, bool]]
) -> None:
    base = tmp_path_factory.mktemp("mirror")
    (base / "data").mkdir()
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        patch.setattr(os, "geteuid", lambda: 1000)
        mirror = Mirror(base / "data")
        stack.callback(lambda: mirror.close(killed=True))
        mirror.append(1)
        tree = Tree(base / "data", Following(read_only=True))
        stack.callback(tree.stop)
        opened = [shown(tree, path) for path in PATHS]
        for name, number, look in operations:
            if name == "append" and number:
                mirror.append(number)
            elif name == "roll":
                mirror.log.roll(NOW_MS)
            elif name == "truncate":
                mirror.truncate(number)
            elif name == "delete":
                mirror.delete(number)
            elif name == "begin":
                mirror.begin(number)
            elif name in ("restart", "kill"):
                mirror.restart(killed=name == "kill")
            elif name == "index":
                index_all(mirror.line_indexes)
            elif name == "replace":
                mirror.replace()
            elif name == "open":
                opened.append(shown(tree, PATHS[number % len(PATHS)]))
            elif name == "sweep":
                tree.manager.sweep(1 << 62)
            if look:
                for each in opened:
                    each.check()
        for each in opened:
            each.check()
        tree.fs.partitions.tick()
        assert tree.read("t/0") == mirror.text()
        assert tree.log().log_start_offset == mirror.log.log_start_offset
