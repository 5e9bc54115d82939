"""`.control/abort-transaction`: what it takes, does and shows."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import InvalidTxnState
from storage.task import Task
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, read, sync
from tests.storage.logs import NOW_MS, values
from tests.storage.producers import Producer
from tests.storage.staging import staged

F = "t/.control/abort-transaction"
COLUMNS = ["partition", "producer_id", "epoch", "first_offset", "last_offset", "last_timestamp"]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """A topic of two partitions; producer 7 has a transaction open in both, 8 in the second."""
    with a_tree(tmp_path / "data") as tree:
        topic = tree.mkdir("t")
        topic.create("1", 0o644, APPEND, CALLER)
        tree.append("t/0", b"before\n")
        for partition in "01":
            seven = Producer(7, epoch=2, transactional=True)
            tree.append(f"t/.batches/{partition}", seven.batch(b"a", b"b") + seven.batch(b"c"))
        tree.append("t/.batches/1", Producer(8, transactional=True).batch(b"d"))
        tree.append("t/0", b"held back\n")
        yield tree


def state(tree: Tree) -> tuple[str, list[tuple[int, ...]]]:
    """(last outcome, open transactions)"""
    node = tree.node(F)
    data = tree.read(node)
    assert tree.attributes(node).size == len(data)
    outcome, header, *rows = data.decode().splitlines()
    assert header.split() == COLUMNS
    assert {len(row) for row in rows} <= {len(header)}
    name, _, said = outcome.partition(" ")
    assert name == "last_outcome"
    return said, [tuple(int(word) for word in row.split()) for row in rows]


def test_it_shows_what_is_open(tree: Tree) -> None:
    assert state(tree) == (
        "none",
        [
            (0, 7, 2, 1, 3, NOW_MS),
            (1, 7, 2, 0, 2, NOW_MS),
            (1, 8, 0, 3, 3, NOW_MS),
        ],
    )
    tree.mkdir("u")
    assert tree.read("u/.control/abort-transaction").decode().split() == [
        *("last_outcome", "none", *COLUMNS)
    ]


@pytest.mark.parametrize("flags", [APPEND, os.O_WRONLY | os.O_TRUNC, os.O_RDWR])
def test_a_line_acts_in_its_write(tree: Tree, flags: int) -> None:
    node = tree.file("t/0")
    assert tree.read(node) == b"before\n"
    handle = tree.open(F, flags)
    assert not handle.structural, "a log is its owner's"
    handle.write(0, b"0 ")
    tree.rest()
    handle.write(0, b"7\n")
    assert node.inode in tree.notices.attributes
    assert tree.read(node) == b"before\nheld back\n"
    assert tree.log().last_stable_offset == tree.log().log_end_offset == 6
    assert [entry.producer_id for entry in tree.log().transactions.aborted()] == [7]
    said, rows = state(tree)
    assert said == f"{tree.clock.ms()} aborted partition 0 producer 7 marker 5"
    assert [row[:2] for row in rows] == [(1, 7), (1, 8)]
    assert "t/.control/abort-transaction: aborted partition 0 producer 7" in tree.events()
    assert tree.read("t/1") == b""
    handle.write(0, b"\n1 7\n  1\t8  ")
    assert tree.read("t/1") == b""
    handle.release()
    assert state(tree)[1] == []
    assert values(tree.log(partition=1)) == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (b"0", "'0' is not PARTITION PRODUCER_ID"),
        (b"0 7 8", "'0 7 8' is not PARTITION PRODUCER_ID"),
        (b"run", "'run' is not PARTITION PRODUCER_ID"),
        (b"2 7", "'2 7' is not PARTITION PRODUCER_ID"),
        (b"0 -7", "'0 -7' is not PARTITION PRODUCER_ID"),
        (b"0 x", "is not PARTITION PRODUCER_ID"),
        ("0 \u0667".encode(), "is not PARTITION PRODUCER_ID"),
        (b"0 " + b"7" * 5000, "is not PARTITION PRODUCER_ID"),
        (b"0 99999999999999999999", "producer 99999999999999999999: no open transaction"),
        (b"0 8", "producer 8: no open transaction in partition 0"),
        (b"1 7", "'1 7' is given twice"),
    ],
)
def test_a_wrong_line_changes_nothing(tree: Tree, wrong: bytes, reason: str) -> None:
    handle = tree.open(F, APPEND)
    with pytest.raises((OSError, InvalidTxnState)) as caught:
        handle.write(0, b"1 7\n" + wrong + b"\n")
    assert not isinstance(caught.value, OSError) or caught.value.errno == errno.EINVAL
    assert reason in tree.events()
    said, rows = state(tree)
    assert said == "none"
    assert len(rows) == 3
    handle.write(0, b"1 7\n")
    assert len(state(tree)[1]) == 2


def test_an_adoption_is_ended_by_what_began_it(tree: Tree) -> None:
    """Aborted in one partition it would be committed in the others, and said to be whole."""
    manager = tree.fs.mount.manager
    refused: list[int] = []

    class Aborting(Task):
        def begin(self, phase: str, total: int) -> None:
            super().begin(phase, total)
            if phase == "flushing":
                pending = manager.adopter.adoptions.pending
                assert pending is not None
                assert len(state(tree)[1]) == 4
                with pytest.raises(InvalidTxnState, match="it belongs to a commit of staged files"):
                    tree.append(F, b"1 7\n1 %d\n" % pending.producer_id)
                refused.append(pending.producer_id)

    request = staged(manager.files, manager.path, "q", 0, {("t", 1): [[b"adopted"]]})
    manager.adopter.adopt(request, Aborting(), tree.clock)
    assert refused
    assert len(state(tree)[1]) == 3
    tree.append(F, b"1 7\n1 8\n")
    assert values(tree.log(partition=1)) == [b"adopted"]


def test_it_outlives_what_the_kernel_forgets(tree: Tree) -> None:
    tree.append(F, b"0 7\n")
    node = tree.node(F)
    tree.fs.inodes.forget(node.inode, node.lookups)
    assert state(tree)[0].endswith("aborted partition 0 producer 7 marker 5")


def test_a_deleted_topic_leaves_no_outcome(tree: Tree) -> None:
    topic_id = tree.manager.topic("t").id
    tree.append(F, b"0 7\n")
    tree.fs.root.rmdir("t", CALLER)
    tree.manager.undelete_topic("t")
    assert tree.manager.topic("t").id == topic_id
    assert state(tree)[0] == "none"


def test_the_producer_goes_on(tree: Tree) -> None:
    tree.append(F, b"0 7\n")
    seven = Producer(7, epoch=2, transactional=True)
    seven.sequence = 3
    tree.append("t/.batches/0", seven.batch(b"next") + seven.commit())
    assert tree.read("t/0") == b"before\nheld back\nnext\n"


def test_what_the_disk_refuses_is_told(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.log().flush_error = OSError(errno.EIO, "an fsync that failed")
    with pytest.raises(OSError, match="fsync failed"):
        tree.open(F, APPEND).write(0, b"0 7\n")
    assert state(tree)[0] == f"{tree.clock.ms()} failed partition 0 producer 7"
    assert "t/.control/abort-transaction: fsync failed" in tree.events()
    tree.log().flush_error = None


@pytest.mark.parametrize("flag", [0, os.O_SYNC, os.O_DSYNC])
def test_the_marker_is_flushed_as_an_append(tree: Tree, flag: int) -> None:
    handle = tree.open(F, APPEND | flag)
    handle.write(0, b"0 7\n")
    assert handle.sync_due == bool(flag)
    tree.manager.change_topic_settings("t", {"flush.messages": "1"})
    handle.write(0, b"1 7\n")
    assert handle.sync_due
    sync(handle)
    for partition in (0, 1):
        log = tree.log(partition=partition)
        assert log.durability.recovery_point == log.log_end_offset
    assert not handle.sync_plans()


def test_who_may_write_it(tree: Tree) -> None:
    assert tree.attributes(tree.node(F)).mode & 0o777 == 0o644
    assert tree.attributes(tree.node("t/.control")).mode & 0o777 == 0o555
    handle = tree.open(F)
    with pytest.raises(OSError, match="not open for writing"):
        handle.write(0, b"0 7\n")
    with pytest.raises(OSError, match="not open for reading"):
        read(tree.open(F, APPEND))
