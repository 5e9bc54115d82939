"""`.control/retention`: what a run and a dry-run do and tell."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.tree.files.control_file import ControlHandle
from storage.errors import StorageError
from storage.files import Files
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree

F = "t/.control/retention"


class BadDisk(Files):
    """Refuses to rename anything of partition 0 to `.deleted` while `bad`."""

    bad = False

    def rename(self, source: str, target: str) -> None:
        is_its = os.path.basename(os.path.dirname(source)) == "t-0"
        if self.bad and is_its and target.endswith(".deleted"):
            raise OSError(errno.EIO, "Input/output error", source)
        super().rename(source, target)


@pytest.fixture
def disk() -> BadDisk:
    return BadDisk()


@pytest.fixture
def tree(tmp_path: Path, disk: BadDisk) -> Iterator[Tree]:
    """Two partitions of two sealed segments with two records each, and one that is not."""
    with a_tree(tmp_path / "data", files=disk) as tree:
        tree.mkdir("t").create("1", 0o644, APPEND, CALLER)
        for partition in (0, 1):
            for _ in range(2):
                tree.append(f"t/{partition}", b"one\ntwo\n")
                tree.log("t", partition).roll(tree.clock.ms())
            tree.append(f"t/{partition}", b"three\n")
        yield tree


def facts(tree: Tree) -> dict[str, str]:
    lines = tree.read(F).decode().splitlines()
    return dict(line.partition(" ")[::2] for line in lines if not line.startswith(" "))


def rows(tree: Tree) -> list[list[str]]:
    lines = tree.read(F).decode().splitlines()
    return [line.split(maxsplit=5) for line in lines if line.startswith(" ")]


def do(tree: Tree, line: bytes) -> None:
    handle = tree.open(F, APPEND)
    assert isinstance(handle, ControlHandle)
    handle.write(0, line + b"\n")
    handle.awaited_over()


def test_a_dry_run_names_every_segment_with_its_reason(tree: Tree) -> None:
    tree.log("t", 1).raise_log_start(3)
    tree.manager.change_topic_settings("t", {"retention.ms": "1000"})
    do(tree, b"dry-run")
    header, *each = rows(tree)
    assert header == ["partition", "base_offset", "next_offset", "bytes", "records", "why"]
    assert [row[:3] + row[4:] for row in each] == [
        ["1", "0", "2", "0", "its last offset, 1, is below the log start offset, 3"]
    ]
    tree.clock.now_ns += 5_000_000_000
    do(tree, b"dry-run 1")
    _, _, *each = rows(tree)
    assert [row[:3] + row[4:5] for row in each] == [["1", "2", "4", "1"], ["1", "4", "5", "1"]]
    assert all("retention.ms=1000" in row[5] for row in each)
    told = facts(tree)
    assert (told["last_segments"], told["last_records"]) == ("3", "2")
    assert len(tree.log("t", 1).segments) == 3


def test_a_run(tree: Tree) -> None:
    tree.manager.change_topic_settings("t", {"retention.bytes": "0"})
    do(tree, b"run 1")
    assert tree.read("t/1") == b""
    assert tree.read("t/0") == b"one\ntwo\n" * 2 + b"three\n"
    told = facts(tree)
    assert (told["last_segments"], told["last_records"]) == ("3", "5")
    do(tree, b"run")
    assert facts(tree)["last_segments"] == "3"
    assert tree.read("t/0") == b""


def test_a_partition_that_cannot_be_done_keeps_no_other_from_its_turn(
    tree: Tree, disk: BadDisk
) -> None:
    tree.manager.change_topic_settings("t", {"retention.bytes": "0"})
    disk.bad = True
    with pytest.raises((StorageError, OSError)):
        do(tree, b"run")
    disk.bad = False
    told = facts(tree)
    assert told["last_outcome"] == "failed"
    assert "t-0" in told["last_reason"]
    assert told["last_segments"] == "3", "of the other one"
    assert tree.read("t/1") == b""
    assert f"{F}: run: failed: " in tree.events()
