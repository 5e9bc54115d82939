"""`.config`: settings as lines, and the rules of files that act on lines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.tree.files.control_file import LONGEST_LINE
from kafkafs.tree.inodes import Change
from storage.errors import InvalidConfig, UnknownTopicOrPartition
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, asked, read
from tests.storage.logs import append, write_settings


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    (tmp_path / "data").mkdir()
    write_settings(tmp_path / "data", log_retention_hours=1)
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        yield tree


def overrides(tree: Tree, topic: str = "t") -> dict[str, str]:
    return tree.manager.settings.overrides(topic)


def config(tree: Tree, topic: str = "t") -> list[str]:
    node = tree.node(f"{topic}/.config")
    data = tree.read(node)
    assert tree.attributes(node).size == len(data)
    return data.decode().splitlines()


def test_lists_what_is_set_and_then_the_rest(tree: Tree) -> None:
    tree.manager.change_topic_settings("t", {"segment.ms": "5000"})
    lines = config(tree)
    assert lines[0] == "segment.ms=5000"
    assert all(line.startswith("# ") for line in lines[1:])
    assert "# retention.ms=3600000 (log.retention.hours in kafkafs.properties)" in lines
    assert "# flush.ms=1000 (default)" in lines


def test_a_line_acts_in_the_write_that_has_its_newline(tree: Tree) -> None:
    handle = tree.open("t/.config", APPEND)
    assert handle.structural
    assert handle.write(0, b"retention.ms=12") == 15
    assert overrides(tree) == {}
    assert handle.write(0, b"3\nsegment.ms=7") == 14
    assert overrides(tree) == {"retention.ms": "123"}
    handle.release()
    assert overrides(tree) == {"retention.ms": "123", "segment.ms": "7"}
    assert tree.log().config.retention_ms == 123


def test_both_ways_of_redirecting_are_the_same(tree: Tree) -> None:
    for flags in (os.O_WRONLY | os.O_TRUNC, APPEND, os.O_RDWR):
        handle = tree.open("t/.config", flags)
        handle.write(0, b"  segment.ms = 9 \n\n# retention.ms=1\n")
        assert overrides(tree) == {"segment.ms": "9"}
        if flags == os.O_RDWR:
            assert b"# segment.ms=450000 (derived" in read(handle), "as it was at open"
        else:
            with pytest.raises(OSError, match="not open for reading"):
                read(handle)
        handle.write(0, b"segment.ms=\n")
        assert overrides(tree) == {}
        handle.release()
    tree.node("t/.config").set_attributes(Change(size=0))
    with pytest.raises(PermissionError):
        tree.node("t/.config").set_attributes(Change(mode=0o600))


@pytest.mark.parametrize("name", [".config", ".control/roll"])
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (b"a" * (LONGEST_LINE + 1), "a line of more than 65536 bytes"),
        (b"\xff=1\n", "a line is not UTF-8"),
    ],
)
def test_why_a_line_is_refused_stands_in_the_log(
    tree: Tree, name: str, wrong: bytes, why: str
) -> None:
    handle = tree.open(f"t/{name}", APPEND)
    with pytest.raises((InvalidConfig, OSError), match=why):
        handle.write(0, wrong)
    assert tree.events().endswith(f" t/{name}: {why}\n")
    handle.release()


@pytest.mark.parametrize(
    "wrong",
    [b"segment.ms", b"=5", b"no.such.setting=5", b"segment.ms=x", b"\xff=1", b"flush.ms=-1"],
)
def test_a_wrong_line_changes_nothing(tree: Tree, wrong: bytes) -> None:
    tree.manager.change_topic_settings("t", {"segment.ms": "1"})
    handle = tree.open("t/.config", APPEND)
    with pytest.raises(InvalidConfig):
        handle.write(0, b"segment.ms=2\nretention.ms=3\n" + wrong + b"\n")
    assert overrides(tree) == {"segment.ms": "1"}
    if wrong[0] != 255:
        assert "t/.config: line 3: " in tree.events()
    handle.write(0, b"segment.ms=4\n")
    assert overrides(tree) == {"segment.ms": "4"}


def test_units(tree: Tree) -> None:
    tree.append("t/.config", b"retention.ms=7d\nretention.bytes=10GiB\n")
    assert overrides(tree) == {"retention.ms": "604800000", "retention.bytes": "10737418240"}
    for wrong, units in (
        ("retention.ms=1GiB", "ms, s, m, h, d"),
        ("retention.bytes=7d", "B, KiB, MiB, GiB, TiB"),
    ):
        with pytest.raises(InvalidConfig):
            tree.append("t/.config", f"{wrong}\n".encode())
        said = tree.events().splitlines()[-1]
        assert f"{wrong} is not a number with one of the units {units}" in said


def test_what_deletes_data_says_so_and_how_much(tree: Tree) -> None:
    log = tree.log()
    for number in range(3):
        append(log, b"%d" % number, timestamp_ms=1000)
        tree.roll()
    tree.append("t/.config", b"flush.ms=7\nretention.ms=-1\n")
    assert "retention run will delete" not in tree.events()
    tree.append("t/.config", b"retention.ms=7d\nflush.ms=\n")
    told = tree.events()
    assert told.endswith(
        "t: retention.ms=7d, flush.ms=: the next retention run will delete 3 segments "
        f"({log.size} bytes, 3 records)\n"
    )
    tree.append("t/.config", b"retention.ms=14d\n")
    assert tree.events() == told


def test_the_lines_of_a_write_are_judged_together(tree: Tree) -> None:
    tree.append("t/.config", b"min.compaction.lag.ms=5000\n")
    both = b"max.compaction.lag.ms=1000\nmin.compaction.lag.ms=500\n"
    tree.append("t/.config", both)
    assert overrides(tree) == {"max.compaction.lag.ms": "1000", "min.compaction.lag.ms": "500"}
    handle = tree.open("t/.config", APPEND)
    with pytest.raises(InvalidConfig, match=r"min\.compaction\.lag\.ms=1001 is above"):
        handle.write(0, b"segment.ms=7\nmin.compaction.lag.ms=1001\n")
    handle.release()
    assert overrides(tree)["min.compaction.lag.ms"] == "500"
    assert "segment.ms" not in overrides(tree)


def test_no_cleanup_policy_can_be_set_and_copied(tree: Tree) -> None:
    tree.mkdir("u")
    tree.append("t/.config", b"cleanup.policy=none\n")
    assert config(tree)[0] == "cleanup.policy=none"
    tree.append("u/.config", tree.read("t/.config"))
    assert tree.log("u").config.cleanup_policy == ()
    tree.append("u/.config", b"cleanup.policy=\n")
    assert tree.log("u").config.cleanup_policy == ("delete",)


def test_one_topics_file_can_be_appended_to_anothers(tree: Tree) -> None:
    tree.mkdir("u")
    tree.manager.change_topic_settings("t", {"segment.ms": "5000"})
    tree.manager.change_topic_settings("t", {"cleanup.policy": "compact"})
    tree.append("u/.config", tree.read("t/.config"))
    assert overrides(tree, "u") == overrides(tree)


def test_what_is_open_stays_as_it_was(tree: Tree) -> None:
    handle = asked(tree.node("t/.config").open, os.O_RDONLY)
    before = read(handle)
    tree.append("t/.config", b"segment.ms=1\n")
    assert read(handle) == before


def test_a_topic_that_is_deleted_takes_nothing_any_more(tree: Tree) -> None:
    config = tree.open("t/.config", APPEND)
    controls = [
        tree.open(f"t/.control/{name}", APPEND) for name in tree.directory("t/.control").names()
    ]
    tree.fs.root.rmdir("t", CALLER)
    for _ in range(2):
        with pytest.raises(UnknownTopicOrPartition, match="is deleted"):
            config.write(0, b"segment.ms=7\n")
        for handle in controls:
            with pytest.raises(UnknownTopicOrPartition, match="is deleted"):
                handle.write(0, b"run\n")
        # A new topic of that name is another one.
        if "t" not in tree.manager.topics:
            tree.mkdir("t")
    assert overrides(tree) == {}
