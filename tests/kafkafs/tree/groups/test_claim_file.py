"""`.claims`: what an open one does to the group."""

from __future__ import annotations

import os
from pathlib import Path

from kafkafs.tree.groups.claim_file import ClaimHandle
from kafkafs.tree.handles import Opener
from storage.task import Task
from tests.kafkafs.trees import CALLER, Tree, a_tree, write
from tests.storage.groups.records import positions
from tests.storage.logs import write_settings

RETENTION_NS = 10 * 60_000_000_000


def consumer(tree: Tree) -> ClaimHandle:
    """One that wants all of topic `t` for group `g`."""
    handle = tree.open(".groups/g/.claims", os.O_RDWR)
    assert isinstance(handle, ClaimHandle)
    handle.opened_by(Opener(0, 0, (), 0))
    write(handle, 0, b"claim t\n")
    return handle


def test_positions_do_not_expire_under_a_consumer(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_settings(data, offsets_topic_num_partitions=1, offsets_retention_minutes=10)
    with a_tree(data) as tree:
        groups = tree.manager.groups
        tree.mkdir("t")
        tree.directory(".groups").mkdir("g", 0o700, CALLER)
        one = consumer(tree)
        write(one, 8, b"commit t 0 0\n")
        tree.clock.now_ns += 5 * RETENTION_NS
        two = consumer(tree)
        one.release()
        tree.clock.now_ns += RETENTION_NS
        assert groups.sweep(Task()) == 0
        two.release()
        tree.clock.now_ns += RETENTION_NS - 1_000_000
        assert groups.sweep(Task()) == 0
        assert positions(tree.manager, "g") == {("t", 0): 0}
        tree.clock.now_ns += 1_000_000
        assert groups.sweep(Task()) == 1
        assert positions(tree.manager, "g") == {}
