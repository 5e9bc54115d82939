"""`.control/compaction`: what a run and a dry-run do and tell. Stopping it: tests/mount."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree
from tests.storage.logs import write_settings

F = "t/.control/compaction"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    (tmp_path / "data").mkdir()
    # A map for some forty thousand keys.
    write_settings(tmp_path / "data", log_cleaner_dedupe_buffer_size=1048577)
    with a_tree(tmp_path / "data") as tree:
        fill(tree)
        yield tree


def fill(tree: Tree) -> None:
    """`t` is compacted. In both of its partitions half of the sealed records may go."""
    tree.mkdir("t").create("1", 0o644, APPEND, CALLER)
    tree.manager.change_topic_settings("t", {"cleanup.policy": "compact"})
    for partition in "01":
        for value in (b"old", b"new"):
            lines = b"".join(b"%d\t%s\n" % (key, value) for key in range(10))
            tree.append(f"t/.kv/{partition}", lines)
        tree.log("t", int(partition)).roll(tree.clock.ms())


def do(tree: Tree, line: bytes) -> None:
    """Jobs are done here when the write returns."""
    tree.append(F, line + b"\n")


def facts(tree: Tree) -> dict[str, str]:
    lines = tree.read(F).decode().splitlines()
    return dict(line.partition(" ")[::2] for line in lines if not line.startswith(" "))


def rows(tree: Tree) -> list[list[str]]:
    lines = tree.read(F).decode().splitlines()
    return [line.split() for line in lines if line.startswith(" ")]


def test_a_run(tree: Tree) -> None:
    do(tree, b"run")
    for partition in "01":
        assert tree.read(f"t/{partition}") == b"new\n" * 10
    told = facts(tree)
    assert told["last_outcome"] == "done"
    assert {name: told[f"last_{name}"] for name in FIGURES} == FIGURES
    assert int(told["last_bytes_after"]) < int(told["last_bytes_before"])
    header, *each = rows(tree)
    assert header[:3] == ["partition", "first_dirty", "clean_up_to"]
    assert [row[:5] for row in each] == [["0", "0", "20", "1", "1"], ["1", "0", "20", "1", "1"]]
    assert f"{F}: run: done: partitions 2, rounds 2, " in tree.events()


FIGURES = {
    "partitions": "2",
    "rounds": "2",
    "segments_before": "2",
    "segments_after": "2",
    "records_read": "40",
    "records_kept": "20",
    "records_dropped": "20",
    "dropped_superseded": "20",
    "dropped_without_key": "0",
    "dropped_aborted": "0",
    "dropped_markers": "0",
    "map_keys": "20",
    "map_full": "false",
}


def test_a_dry_run_says_the_same_and_does_nothing(tree: Tree) -> None:
    before = [tree.log("t", number).segments for number in (0, 1)]
    do(tree, b"dry-run")
    told = facts(tree)
    assert {name: told[f"last_{name}"] for name in FIGURES} == FIGURES
    assert [tree.log("t", number).segments for number in (0, 1)] == before
    do(tree, b"dry-run 1")
    assert facts(tree)["last_records_dropped"] == "10"


def test_one_partition(tree: Tree) -> None:
    do(tree, b"run 1")
    assert facts(tree)["last_partitions"] == "1"
    assert tree.read("t/1") == b"new\n" * 10
    assert tree.read("t/0") == b"old\n" * 10 + b"new\n" * 10


def test_as_many_rounds_as_it_takes(tree: Tree) -> None:
    for value in (b"old", b"new"):
        for start in range(0, 60_000, 10_000):
            keys = range(start, start + 10_000)
            tree.append("t/.kv/0", b"".join(b"%d\t%s\n" % (key, value) for key in keys))
        # A round ends with a segment at the latest where its map is full.
        tree.roll()
    do(tree, b"run 0")
    told = facts(tree)
    assert int(told["last_rounds"]) > 1
    assert told["last_map_full"] == "true"
    assert tree.read("t/0", size=1 << 23) == b"new\n" * 60_000


def test_retention_follows_where_the_policy_has_both(tree: Tree) -> None:
    tree.manager.change_topic_settings(
        "t", {"cleanup.policy": "compact,delete", "retention.bytes": "0"}
    )
    do(tree, b"run")
    told = facts(tree)
    assert told["last_records_dropped"] == "20"
    assert told["last_deleted_segments"] == "2"
    assert tree.read("t/0") == tree.read("t/1") == b""


def test_a_topic_that_is_not_compacted(tree: Tree) -> None:
    tree.manager.change_topic_settings("t", {"cleanup.policy": "delete"})
    handle = tree.open(F, APPEND)
    for line in (b"run\n", b"dry-run\n"):
        with pytest.raises(OSError, match=r"cleanup\.policy is delete") as refused:
            handle.write(0, line)
        assert refused.value.errno == errno.EINVAL
    assert handle.write(0, b"cancel\n") == 7
    assert facts(tree) == {"state": "idle", "last_outcome": "none"}


def test_a_damaged_segment_is_left_alone(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    fill(tree)
    path = Path(tree.log("t", 0).segments[0].log_path)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[damaged.index(b"old")] ^= 1
    path.write_bytes(damaged)
    for _ in range(2):
        do(tree, b"run")
        told = facts(tree)
        assert told["last_outcome"] == "failed"
        assert told["uncleanable"].startswith("0 offsets 0 to 9 are damaged")
        assert told["last_partitions"] == "1", "the other one had its turn"
    assert tree.read("t/1") == b"new\n" * 10
    assert path.read_bytes() == damaged
    tree.stop()
    path.write_bytes(whole)
    tree = Tree(tmp_path)
    do(tree, b"run")
    assert "uncleanable" not in facts(tree)
    assert tree.read("t/0") == b"new\n" * 10
    tree.stop()
