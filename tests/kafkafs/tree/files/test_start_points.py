"""Which records a file shows that starts somewhere else, against a list."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from storage import Record, encode
from storage.errors import OffsetOutOfRange
from storage.groups.offset_records import partition_for
from tests.kafkafs.start_files import (
    DIRECTORIES,
    Oracle,
    fill,
    forget,
    iso,
    lines,
    start_file,
    text,
)
from tests.kafkafs.trees import Tree, a_tree, read
from tests.storage.groups import records
from tests.storage.logs import NOW_MS

TIMES = st.integers(0, 40) | st.just(-1 - NOW_MS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_name_in_any_log(tmp_path: Path, data: st.DataObject) -> None:
    """Timestamps out of order, equal and missing; LogAppendTime; gaps; batches of any size."""
    with a_tree(tmp_path / f"data{next(_numbers)}") as tree:
        tree.mkdir("t")
        if data.draw(st.booleans(), "append time"):
            tree.manager.change_topic_settings("t", {"message.timestamp.type": "LogAppendTime"})
        for _ in range(data.draw(st.integers(0, 8), "batches")):
            times = data.draw(st.lists(TIMES, min_size=1, max_size=5))
            records = [
                Record(number, NOW_MS + time, 0, None, b"%d" % number)
                for number, time in enumerate(times)
            ]
            now_ms = NOW_MS + data.draw(st.integers(0, 40), "now")
            tree.log().append(bytearray(encode(records)), now_ns=now_ms * 1_000_000)
            if data.draw(st.booleans(), "roll"):
                tree.roll()
        oracle = Oracle(tree)
        end = tree.log().log_end_offset

        def draw_point(what: str) -> tuple[str, int | None]:
            kind = data.draw(st.sampled_from(["offset", "last", "time", "start", "end"]), what)
            number = data.draw(st.integers(0, 45))
            if kind == "offset":
                return str(number), number
            if kind == "last":
                return f"-{number}", oracle.of_last(number)
            if kind == "time":
                time = NOW_MS - 2 + number
                found = oracle.of_time(time)
                listed = tree.log().reader.offset_for_timestamp(time)
                assert (None if listed is None else listed[1]) == found
                return iso(time), found
            return kind, 0 if kind == "start" else end

        start_text, start = draw_point("start")
        name = f"0@{start_text}"
        until = None
        if data.draw(st.booleans(), "range"):
            end_text, until = draw_point("end")
            name += f"..{end_text}"
        unmeasured = data.draw(st.booleans(), "unmeasured")
        for directory in DIRECTORIES:
            if unmeasured:
                forget(tree)
            from_offset = end if start is None else min(start, end)
            expected = oracle.text(directory, from_offset, until)
            assert text(tree, directory + name) == expected, (directory, name)


_numbers = itertools.count()


def test_every_position_of_every_start(tree: Tree) -> None:
    fill(tree, 3)
    for directory in DIRECTORIES:
        whole = Oracle(tree)
        for start in range(31):
            handle = tree.open(f"t/{directory}0@{start}")
            expected = whole.text(directory, start, None)
            for position in range(0, len(expected) + 5, 11):
                assert read(handle, position, 25) == expected[position : position + 25]
            handle.release()


def test_outside_of_the_log(tree: Tree) -> None:
    fill(tree)
    tree.remove_head(2)
    assert text(tree, "0@3") == text(tree, "0@start") == lines(20, 40)
    assert text(tree, "0@-1000") == lines(20, 40)
    for name in ("0@40", "0@41", f"0@{10**30}", "0@end", "0@2099-01-01", "0@-0"):
        file = start_file(tree, name)
        assert tree.attributes(file).size == 0
        handle = tree.open(file)
        size = tree.log().log_end_offset
        tree.append("t/0", b"new %d\n" % size)
        assert read(handle) == b"new %d\n" % size
        handle.release()
    with pytest.raises(FileNotFoundError):
        tree.node("t/1@5")
    with pytest.raises(FileNotFoundError):
        tree.node("t/00@5")
    with pytest.raises(FileNotFoundError):
        tree.node("t/0@x")


def test_a_group_beyond_the_end_starts_at_the_end(tree: Tree) -> None:
    """In a mirror, the records that the group has read may not be copied yet."""
    fill(tree)
    tree.manager.groups.prepare()
    logs = tree.manager.groups.logs
    records.write(logs[partition_for("g", len(logs))], records.position("g", "t", 0, 50))
    assert text(tree, "0@group=g") == b""
    line = "t/0: group g is at offset 50, beyond the log end, 40; it starts at the log end"
    assert line in tree.events()


def test_an_offset_outside_of_the_log_may_be_refused(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", MountOptions(out_of_range="error")) as tree:
        tree.mkdir("t")
        fill(tree)
        tree.remove_head(1)
        for name, directory in itertools.product(("0@9", "0@41", "0@3..20"), DIRECTORIES):
            with pytest.raises(OffsetOutOfRange):
                tree.node(f"t/{directory}{name}")
        for name in ("0@40", "0@end", "0@2099-01-01", "0@-1000", "0@10..99"):
            start_file(tree, name)
        assert text(tree, "0@10") == lines(10, 40)
