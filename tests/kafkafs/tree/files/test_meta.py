"""`.meta/N`: the log's state as text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.tree.handles import Handle
from storage.state.gaps_file import FILE_NAME as GAPS
from storage.state.gaps_file import Gap
from tests.kafkafs.trees import APPEND, Following, Tree, a_tree, asked, read
from tests.storage.logs import NOW_MS, append, entries_of
from tests.storage.producers import Producer


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.manager.change_topic_settings("t", {"index.interval.bytes": "100"})
        yield tree


def text(tree: Tree, name: str) -> str:
    """Return the content of the file. Its length is the size that stat reports."""
    node = tree.node(f"t/.meta/0/{name}")
    size = tree.attributes(node).size
    data = tree.read(node)
    assert len(data) == size
    return data.decode()


def rows(tree: Tree, name: str) -> list[dict[str, str]]:
    header, *lines = text(tree, name).splitlines()
    return [dict(zip(header.split(), line.split(), strict=True)) for line in lines]


def fill(tree: Tree, segments: int = 3, batches: int = 30) -> None:
    for _ in range(segments):
        for number in range(batches):
            append(tree.log(), b"value", timestamp_ms=1_700_000_000_000 + number)
        tree.roll()


def test_offsets(tree: Tree) -> None:
    assert text(tree, "offsets") == (
        "log_start 0\nlog_end 0\nlast_stable 0\nhigh_watermark 0\nrecovery_point 0\n"
    )
    fill(tree)
    tree.log().flush()
    append(tree.log(), b"x")
    tree.remove_head(1)
    assert text(tree, "offsets") == (
        "log_start 30\nlog_end 91\nlast_stable 91\nhigh_watermark 91\nrecovery_point 90\n"
    )


def test_gaps_of_a_mirror(tree: Tree) -> None:
    before = text(tree, "offsets")
    for gap in (Gap("deleted", 0, 9, NOW_MS), Gap("missing", 12, 12, NOW_MS + 1)):
        tree.log().note_gaps(gap)
    lines = f"gap deleted 0 9 {NOW_MS}\ngap missing 12 12 {NOW_MS + 1}\n"
    assert text(tree, "offsets") == before + lines
    Path(tree.log().directory, GAPS).write_text("rubbish")
    assert text(tree, "offsets") == f"{before}gap unreadable -1 -1 -1\n"


def test_segments(tree: Tree) -> None:
    fill(tree)
    append(tree.log(), b"a", b"b")
    tree.remove_head(1)
    found = rows(tree, "segments")
    assert [row["state"] for row in found] == ["being_deleted", "sealed", "sealed", "active"]
    assert [row["base_offset"] for row in found] == ["0", "30", "60", "90"]
    assert [row["next_offset"] for row in found] == ["30", "60", "90", "92"]
    assert [row["records"] for row in found] == ["-1", "30", "30", "2"]
    log = tree.log()
    for row, segment in zip(found[1:], log.segments, strict=True):
        assert int(row["bytes"]) == segment.size
        assert int(row["index_entries"]) == segment.offset_index.count
        assert int(row["timeindex_entries"]) == segment.time_index.count
        assert int(row["first_timestamp"]) == segment.first_timestamp
        assert int(row["last_timestamp"]) == segment.max_timestamp
    assert found[0]["index_fill"] == "0.0%"


def test_index_and_timeindex_show_every_entry(tree: Tree) -> None:
    fill(tree)
    fill(tree, 1, 5)
    append(tree.log(), *[b"value"] * 50)
    append(tree.log(), b"the active one has an entry")
    log = tree.log()
    offsets = [entry for segment in log.segments for entry in entries_of(segment.offset_index)]
    assert len(offsets) > 30
    found = rows(tree, "index")
    assert [(int(row["offset"]), int(row["position"])) for row in found] == offsets
    times = [entry for segment in log.segments for entry in entries_of(segment.time_index)]
    found = rows(tree, "timeindex")
    assert [(int(row["timestamp"]), int(row["offset"])) for row in found] == times


@pytest.mark.parametrize("name", ["index", "timeindex"])
def test_any_part_of_a_table_can_be_read(tree: Tree, name: str) -> None:
    fill(tree)
    whole = text(tree, name).encode()
    handle = tree.open(f"t/.meta/0/{name}")
    for position in range(0, len(whole) + 40, 13):
        for size in (1, 33, 200):
            assert read(handle, position, size) == whole[position : position + size]


PRODUCERS = [
    *("producer_id", "epoch", "last_sequence", "last_offset", "last_timestamp"),
    *("coordinator_epoch", "transaction_first_offset"),
]


def test_producers(tree: Tree) -> None:
    assert text(tree, "producers").split() == PRODUCERS
    nine, two = Producer(9, epoch=3), Producer(2**62, transactional=True)
    five = Producer(5, epoch=1, transactional=True)
    made = [nine.batch(b"a", b"b"), five.batch(b"c"), five.commit(), two.batch(b"d", b"e")]
    five.now_ms += 5
    made += [five.batch(b"f"), two.batch(b"g")]
    tree.append("t/.batches/0", b"".join(made))
    assert rows(tree, "producers") == [
        dict(zip(PRODUCERS, map(str, row), strict=True))
        for row in (
            (5, 1, 1, 6, NOW_MS + 5, 0, 6),
            (9, 3, 1, 1, NOW_MS, -1, -1),
            (2**62, 0, 2, 7, NOW_MS, -1, 4),
        )
    ]


def test_txnindex(tmp_path: Path) -> None:
    columns = ["producer_id", "first_offset", "last_offset", "last_stable_offset"]
    expected = [
        dict(zip(columns, row, strict=True)) for row in (["1", "0", "2", "1"], ["2", "1", "5", "6"])
    ]
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        assert text(tree, "txnindex").split() == columns
        one, two = Producer(1, transactional=True), Producer(2, transactional=True)
        tree.append("t/.batches/0", one.batch(b"a") + two.batch(b"b") + one.abort())
        tree.roll()
        tree.append("t/.batches/0", one.batch(b"c") + one.commit() + two.abort())
        assert rows(tree, "txnindex") == expected
    with a_tree(tmp_path / "data") as tree:
        assert rows(tree, "txnindex") == expected
        assert len(rows(tree, "producers")) == 2
        whole = text(tree, "txnindex").encode()
        assert tree.read("t/.meta/0/txnindex", 100, 50) == whole[100:150]
        tree.roll()
        assert text(tree, "txnindex").encode() == whole
        tree.remove_head(1)
        assert rows(tree, "txnindex") == expected[1:], "of the segments that are left"


def test_what_is_open_stays_as_it_was(tree: Tree) -> None:
    fill(tree)
    names = ("offsets", "segments", "index", "timeindex", "producers", "txnindex")
    before = {name: text(tree, name) for name in names}
    handles: dict[str, Handle] = {name: tree.open(f"t/.meta/0/{name}") for name in before}
    fill(tree, 2)
    one = Producer(1, transactional=True)
    tree.append("t/.batches/0", one.batch(b"a") + one.abort())
    for name, handle in handles.items():
        assert read(handle).decode() == before[name]
        assert len(text(tree, name)) > len(before[name]) or name == "offsets"


def test_it_follows_the_process_that_writes(tree: Tree, home: Path) -> None:
    with a_tree(home / "data", Following(read_only=True)) as follower:
        for _ in range(3):
            fill(tree, 1, 10)
            append(tree.log(), *[b"value"] * 20)
            for name in ("offsets", "segments", "index", "timeindex", "producers", "txnindex"):
                assert text(follower, name) == text(tree, name), name
            for name in ("log_end", "records", "bytes", "segments", "last_timestamp"):
                found = asked(follower.file().xattr, f"user.kafkafs.{name}")
                assert found == asked(tree.file().xattr, f"user.kafkafs.{name}"), name


def test_of_a_partition_that_was_never_looked_at(tmp_path: Path, tree: Tree) -> None:
    fill(tree)
    tree.fs.stop()
    tree.manager.close()
    again = Tree(tmp_path / "data")
    try:
        node = asked(again.directory("t/.meta/0").lookup, "segments")
        assert node.listed_attributes().size == 0, "not measured yet"
        handle = again.open(node)
        assert b" 30 " in read(handle)
    finally:
        again.manager.abandon()


@pytest.mark.parametrize("name", ["offsets", "index", "producers", "txnindex"])
def test_nothing_can_be_written(tree: Tree, name: str) -> None:
    with pytest.raises(PermissionError):
        tree.open(f"t/.meta/0/{name}", APPEND)
