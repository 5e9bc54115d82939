"""Files that start somewhere else: which bytes they show, and one history per inode."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.tree.filesystem import TreeOptions
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Change
from kafkafs.tree.start_file import StartFile
from storage import Log, Record, encode
from storage.errors import OffsetOutOfRange, SegmentGone
from storage.files import Files
from storage.record.batch import parse_header
from storage.record.control import ABORT, COMMIT
from storage.record.legacy_07 import encode_entry
from tests.broker_files import BrokerDirectory
from tests.kafkafs.tree.test_transactions import Producer
from tests.kafkafs.trees import Tree, a_tree, clean, in_thread, read
from tests.storage.logs import NOW_MS, append

DIRECTORIES = ["", ".kv/", ".jsonl/", ".batches/"]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        yield tree


def start_file(tree: Tree, name: str) -> StartFile:
    file = tree.file(f"t/{name}")
    assert isinstance(file, StartFile)
    return file


def text(tree: Tree, name: str) -> bytes:
    """All of it; its size agrees."""
    file = start_file(tree, name)
    data = tree.read(file)
    assert tree.attributes(file).size == len(data)
    return data


def lines(start: int, end: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, end))


def fill(tree: Tree, segments: int = 4) -> None:
    """Ten lines in each, in batches of three, three and four."""
    for number in range(0, segments * 10, 10):
        for begin, end in ((0, 3), (3, 6), (6, 10)):
            tree.append("t/0", lines(number + begin, number + end))
        tree.roll()


def iso(timestamp_ms: int) -> str:
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC).replace(tzinfo=None)
    return f"{moment.isoformat()}.{timestamp_ms % 1000:03d}Z"


# -- which records -------------------------------------------------------------------------------


class Oracle:
    """A log as a list, and what its files show, found without any index."""

    def __init__(self, tree: Tree) -> None:
        log = tree.log()
        self.log = log
        self.records = list(log.records(isolation="read_committed"))
        self.texts = {
            directory: tree.read(f"t/{directory}0").splitlines(keepends=True)
            for directory in DIRECTORIES[:3]
        }
        for shown in self.texts.values():
            assert len(shown) == len(self.records)
        self.batches: list[tuple[int, int, bytes]] = []
        stored = tree.read("t/.batches/0")
        at = 0
        while at < len(stored):
            header = parse_header(stored[at:])
            batch = stored[at : at + header.size]
            self.batches.append((header.base_offset, header.last_offset, batch))
            at += header.size

    def of_time(self, timestamp_ms: int) -> int | None:
        """As LogSegment.findOffsetByTimestamp: in the first segment that can have it."""
        for segment in self.log.segments:
            if segment.largest_timestamp >= timestamp_ms:
                for record in self.records:
                    inside = segment.base_offset <= record.offset < segment.next_offset
                    if inside and record.timestamp >= timestamp_ms:
                        return record.offset
                return None
        return None

    def of_last(self, count: int) -> int:
        if not count:
            return self.log.log_end_offset
        return self.records[-count].offset if count <= len(self.records) else 0

    def text(self, directory: str, start: int, end: int | None) -> bytes:
        end = self.log.log_end_offset if end is None else end
        if directory in self.texts:
            numbers = range(len(self.records))
            shown = [n for n in numbers if start <= self.records[n].offset < end]
            return b"".join(self.texts[directory][n] for n in shown)
        if end <= start:
            return b""
        return b"".join(data for first, last, data in self.batches if last >= start and first < end)


TIMES = st.integers(0, 40) | st.just(-1 - NOW_MS)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_name_in_any_log(tmp_path: Path, data: st.DataObject) -> None:
    """Timestamps out of order, equal and missing; LogAppendTime; gaps; batches of any size."""
    with a_tree(tmp_path / f"data{next(_numbers)}") as tree:
        tree.mkdir("t")
        if data.draw(st.booleans(), "append time"):
            tree.manager.set_topic_setting("t", "message.timestamp.type", "LogAppendTime")
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
                listed = tree.log().list_offsets(time)[1]
                assert listed == (-1 if found is None else found)
                return iso(time), found
            return kind, 0 if kind == "start" else end

        start_text, start = draw_point("start")
        name = f"0@{start_text}"
        until = None
        if data.draw(st.booleans(), "range"):
            end_text, until = draw_point("end")
            name += f"..{end_text}"
        for directory in DIRECTORIES:
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


def test_an_offset_outside_of_the_log_may_be_refused(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", TreeOptions(out_of_range="error")) as tree:
        tree.mkdir("t")
        fill(tree)
        tree.remove_head(1)
        for name, directory in itertools.product(("0@9", "0@41", "0@3..20"), DIRECTORIES):
            with pytest.raises(OffsetOutOfRange):
                tree.node(f"t/{directory}{name}")
        assert "lookup of t/0@41 refused" in tree.events()
        for name in ("0@40", "0@end", "0@2099-01-01", "0@-1000", "0@10..99"):
            start_file(tree, name)
        assert text(tree, "0@10") == lines(10, 40)


# -- growing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_grows_up_to_an_offset_and_never_past_it(tree: Tree, directory: str) -> None:
    fill(tree, 1)
    file = start_file(tree, f"{directory}0@8..17")
    handle = tree.open(file)
    seen = b""
    for number in range(10, 22):
        append(tree.log(), b"line %d" % number)
        if number % 4 == 0:
            tree.roll()
        size = tree.attributes(file).size
        assert size >= len(seen)
        seen += read(handle, len(seen), size - len(seen) + 100)
        assert len(seen) == size
        assert read(handle, size) == b""
    assert seen == Oracle(tree).text(directory, 8, 17)
    # Without anybody who asks on the way, and read in one piece.
    assert text(tree, f"{directory}0@8..17") == seen


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_grows_up_to_a_time_that_a_record_reaches(tree: Tree, directory: str) -> None:
    append(tree.log(), b"a", timestamp_ms=NOW_MS)
    file = start_file(tree, f"{directory}0@0..{iso(NOW_MS + 100)}")
    handle = tree.open(file)
    sizes = []
    # One that is late does not end it, and one that is late after the end does not come in.
    for number, timestamp in enumerate((50, 99, 10, 100, 20, 300)):
        append(tree.log(), b"%d" % number, timestamp_ms=NOW_MS + timestamp)
        if number == 2:
            tree.roll()
        sizes.append(tree.attributes(file).size)
    assert sizes == [*sizes[:3], *sizes[2:3] * 3]
    assert sizes[0] < sizes[1] < sizes[2]
    assert read(handle) == Oracle(tree).text(directory, 0, 4)


def test_a_file_that_begins_in_an_open_transaction(tree: Tree) -> None:
    append(tree.log(), b"before")
    one, two = Producer(tree.log(), 1), Producer(tree.log(), 2)
    one.send(b"one", b"two")  # 1, 2
    two.send(b"dropped")  # 3
    append(tree.log(), b"plain", b"plain too")  # 4, 5
    at_two, at_five = start_file(tree, "0@2"), start_file(tree, "0@5..7")
    handles = [tree.open(at_two), tree.open(at_five)]
    at_end = start_file(tree, "0@end")
    for file in (at_two, at_five, at_end):
        assert tree.attributes(file).size == 0
    assert [read(handle) for handle in handles] == [b"", b""]
    two.end(ABORT)  # 6
    append(tree.log(), b"last")  # 7
    assert [read(handle) for handle in handles] == [b"", b""]
    one.end(COMMIT)  # 8
    assert read(handles[0]) == b"two\nplain\nplain too\nlast\n"
    assert read(handles[1]) == b"plain too\n"
    assert tree.attributes(at_two).size == len(b"two\nplain\nplain too\nlast\n")
    # Where a committed reader stood when it looked for the end.
    assert tree.read(at_end) == b"one\ntwo\nplain\nplain too\nlast\n"
    assert tree.file("t/0@2") is at_two


def test_transactions_of_every_count(tree: Tree) -> None:
    """Records that are not shown are not counted."""
    append(tree.log(), b"a", b"b")
    gone, stays = Producer(tree.log(), 1), Producer(tree.log(), 2)
    gone.send(b"x", b"y", b"z")
    gone.end(ABORT)
    stays.send(b"c")
    stays.end(COMMIT)
    append(tree.log(), b"d")
    shown = [b"a\n", b"b\n", b"c\n", b"d\n"]
    for count in range(6):
        assert text(tree, f"0@-{count}") == b"".join(shown[len(shown) - min(count, 4) :])


# -- one inode -----------------------------------------------------------------------------------


def test_a_name_leads_to_the_open_file(tree: Tree) -> None:
    fill(tree)
    for name in ("0@-10", "0@end", "0@-1h", "0@-10..-2"):
        file = start_file(tree, name)
        assert tree.attributes(file).entry_timeout == 0
        first, second = tree.open(file), tree.open(file)
        tree.clock.now_ns += 3_600_000_000_000 * 2
        append(tree.log(), b"x", b"y", timestamp_ms=tree.clock.ms())
        assert start_file(tree, name) is file
        first.release()
        assert start_file(tree, name) is file
        second.release()
        assert start_file(tree, name) is not file
        assert tree.attributes(file).size >= 0


def test_two_files_of_one_name_are_open(tree: Tree) -> None:
    """Both were looked up before either was opened: the name leads to one of them."""
    fill(tree)
    first = start_file(tree, "0@-10")
    tree.append("t/0", b"x\n")
    second = start_file(tree, "0@-10")
    assert second is not first
    handle = tree.open(first)
    assert start_file(tree, "0@-10") is first
    other = tree.open(second)
    assert start_file(tree, "0@-10") is second
    other.release()
    assert start_file(tree, "0@-10") is first
    handle.release()
    known = tree.fs.start_names.inodes(tree.node("t").inode, "0@-10")
    assert sorted(known) == sorted([first.inode, second.inode])
    tree.fs.inodes.forget(first.inode, first.lookups)
    tree.fs.inodes.forget(second.inode, second.lookups)
    assert tree.fs.start_names.inodes(tree.node("t").inode, "0@-10") == []


def test_names_of_one_meaning_are_one_inode(tree: Tree) -> None:
    fill(tree)
    inode = start_file(tree, "0@30").inode
    assert start_file(tree, "0@-10").inode == inode
    assert start_file(tree, "0@30..99").inode != inode
    assert start_file(tree, ".kv/0@30").inode != inode
    assert start_file(tree, "0@start").inode != tree.file().inode


def test_the_inode_is_the_same_after_a_remount(tmp_path: Path) -> None:
    names = ["0@13", "0@13..20", ".jsonl/0@-4"]
    inodes: list[list[int]] = []
    for _ in range(2):
        with a_tree(tmp_path / "data") as tree:
            if not inodes:
                tree.mkdir("t")
                fill(tree)
            inodes.append([start_file(tree, name).inode for name in names])
    assert inodes[0] == inodes[1]


# -- history -------------------------------------------------------------------------------------


def check(handle: Handle, expected: bytes) -> None:
    for position in range(0, len(expected) + 3, 7):
        assert read(handle, position, 20) == expected[position : position + 20]


def test_retention_below_the_start_changes_nothing(tree: Tree) -> None:
    fill(tree)
    file = start_file(tree, "0@25")
    handle = tree.open(file)
    tree.remove_head(2)
    in_thread(tree.fs.housekeeping)
    tree.delete_files()
    assert start_file(tree, "0@25") is file
    check(handle, lines(25, 40))
    tree.append("t/0", b"more\n")
    check(handle, lines(25, 40) + b"more\n")
    handle.release()
    # Nobody is left who would mind.
    assert start_file(tree, "0@25").inode != file.inode
    assert text(tree, "0@25") == lines(25, 40) + b"more\n"


def test_retention_of_what_it_shows(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafkafs.tree.partition_view.KEPT", 15)
    fill(tree)
    file, ranged = start_file(tree, "0@5"), start_file(tree, "0@5..18")
    handle, of_range = tree.open(file), tree.open(ranged)
    tree.remove_head(2)
    check(handle, lines(5, 40))
    check(of_range, lines(5, 18))
    # What the name says is another history now.
    assert start_file(tree, "0@5").inode != file.inode
    assert text(tree, "0@5") == lines(20, 40)
    assert text(tree, "0@5..18") == b""
    in_thread(tree.fs.housekeeping)
    tree.delete_files()
    with pytest.raises(SegmentGone):
        read(handle, 0, 10)
    cut = len(lines(5, 20))
    assert read(handle, cut - 15) == lines(5, 40)[cut - 15 :]
    assert tree.attributes(file).size == len(lines(5, 40))
    assert tree.attributes(ranged).size == len(lines(5, 18))
    assert read(of_range, len(lines(5, 18))) == b""


def test_cleaning_what_it_shows(tree: Tree, tmp_path: Path) -> None:
    fill(tree)
    file, ranged = start_file(tree, "0@5"), start_file(tree, "0@15..35")
    reached = start_file(tree, "0@15..45")
    handles = [tree.open(file), tree.open(ranged), tree.open(reached)]
    # The log passes the end, and nobody asks before it is rewritten.
    tree.append("t/0", lines(40, 50))
    tree.roll()
    tree.append("t/0", lines(50, 55))
    clean(tree.log(), 5, lambda record: record.offset % 2 == 0, tmp_path / "cleaned")
    for handle, text_ in zip(handles, (lines(5, 55), lines(15, 35), lines(15, 45)), strict=True):
        check(handle, text_)
    assert tree.attributes(reached).size == len(lines(15, 45))
    odd = b"".join(b"line %d\n" % number for number in range(5, 50, 2)) + lines(50, 55)
    assert text(tree, "0@5") == odd
    assert text(tree, "0@16..19") == b"line 17\n"
    assert text(tree, ".batches/0@16..17") != b""


def test_cleaning_before_an_end_that_is_still_to_come(tree: Tree, tmp_path: Path) -> None:
    fill(tree)
    file = start_file(tree, "0@5..45")
    handle = tree.open(file)
    clean(tree.log(), 3, lambda record: record.offset % 2 == 0, tmp_path / "cleaned")
    tree.append("t/0", lines(40, 43))
    assert tree.attributes(file).size == len(lines(5, 43))
    tree.roll()
    tree.append("t/0", lines(43, 50))
    check(handle, lines(5, 45))
    assert tree.attributes(file).size == len(lines(5, 45))


def test_a_file_that_nobody_has_open_holds_nothing(tree: Tree) -> None:
    fill(tree)
    for start in range(20):
        tree.read(start_file(tree, f"0@{start}"))
    part = tree.file().part
    assert len(part.open) == 1, "the partition's own"
    assert list(tree.file().partition.known) == [tree.file().inode]
    tree.notices.clear()
    tree.append("t/0", b"x\n")
    assert len(tree.notices.attributes) <= 1


# -- what is measured ----------------------------------------------------------------------------


class WatchedFiles(Files):
    """Knows the names of the files that were read."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.read: set[str] = set()

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def note(self, fd: int) -> None:
        self.read.add(os.path.basename(self.paths[fd]))

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.note(fd)
        return super().pread(fd, size, position)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self.note(fd)
        return super().preadv(fd, buffer, position)

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        self.note(fd)
        return super().preadv_nowait(fd, buffer, position)


def foreign(data: Path) -> None:
    """Five segments of 2000 records, as another has written them."""
    with a_tree(data) as tree:
        tree.mkdir("t")
        for number in range(5):
            for batch in range(20):
                append(
                    tree.log(),
                    *(b"%06d" % (number * 2000 + batch * 100 + n) for n in range(100)),
                    timestamp_ms=NOW_MS + number * 20 + batch,
                )
            if number < 4:
                tree.roll()
    for path in (data / "t-0").glob("*.lines"):
        path.unlink()


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("0@-10", b"009990"),
        ("0@-2500", b"007500"),
        ("0@6100", b"006100"),
        (f"0@{iso(NOW_MS + 3 * 20 + 1)}", b"006100"),
    ],
)
@pytest.mark.parametrize("directory", DIRECTORIES[:2])
def test_nothing_before_the_segment_of_its_start_is_measured(
    tmp_path: Path, name: str, first: bytes, directory: str
) -> None:
    foreign(tmp_path / "data")
    files = WatchedFiles()
    with a_tree(tmp_path / "data", files=files) as tree:
        # What opening the directory has read does not count, nor the check afterwards.
        files.read.clear()
        with_handle = tree.open(f"t/{directory}{name}")
        assert read(with_handle, 0, 6) == first
        logs = [int(name[:20]) // 2000 for name in files.read if name.endswith(".log")]
        assert min(logs) == int(first) // 2000
        # The rest is measured when somebody asks for it, and moves nothing.
        whole = b"".join(b"%06d\n" % number for number in range(10_000))
        assert tree.read(f"t/{directory}0") == whole
        assert read(with_handle, 0, 70_000) == whole[int(first) * 7 :]
        with_handle.release()


def test_what_is_left_unplaced_changes(tmp_path: Path) -> None:
    """The head that nobody has asked for is removed and cleaned, while the tail is read."""
    foreign(tmp_path / "data")
    expected = b"".join(b"%06d\n" % number for number in range(8500, 10_000))
    with a_tree(tmp_path / "data") as tree:
        file = start_file(tree, "0@8500")
        handle = tree.open(file)
        tree.remove_head(1)
        assert read(handle) == expected
        clean(tree.log(), 2, lambda record: record.offset % 2 == 0, tmp_path / "cleaned")
        assert read(handle) == expected
        assert start_file(tree, "0@8500") is file
        odd = b"".join(b"%06d\n" % number for number in range(2001, 6000, 2))
        rest = b"".join(b"%06d\n" % number for number in range(6000, 10_000))
        assert tree.read("t/0") == odd + rest
        tree.append("t/0", b"more\n")
        assert read(handle) == expected + b"more\n"
        assert (
            text(tree, "0@5990")
            == b"".join(b"%06d\n" % number for number in range(5991, 6000, 2)) + rest + b"more\n"
        )


def test_a_base_once_written_stays(tmp_path: Path) -> None:
    """Whoever keeps absolute positions finds them, whatever was looked at first."""

    def base(log: Log) -> int:
        """The absolute position of the log start, as far as the recorded base tells."""
        offset, position = log.history.base("values")
        return position - 7 * offset

    foreign(tmp_path / "data")
    with a_tree(tmp_path / "data") as tree:
        assert text(tree, "0@8500")
        assert tree.log().history.base("values")[0] == 8000
        first = base(tree.log())
        assert tree.read("t/0")[:7] == b"000000\n"
        assert base(tree.log()) == first
    with a_tree(tmp_path / "data") as tree:
        # From another place, with another beginning of the timeline.
        assert text(tree, "0@9999") == b"009999\n"
        tree.remove_head(2)
        assert tree.read("t/0")[:7] == b"004000\n"
        tree.remove_head(1)
        assert base(tree.log()) == first
    with a_tree(tmp_path / "data") as tree:
        tree.file()
        tree.remove_head(1)
        assert base(tree.log()) == first


# -- other logs ----------------------------------------------------------------------------------


def test_beside_a_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    broker = BrokerDirectory(tmp_path / "data")
    partition = broker.partition()
    for number in range(4):
        partition.append(b"a%d" % number)
        partition.append(b"b%d" % number, b"c%d" % number)
        partition.roll()
    tree = Tree(broker.data, TreeOptions(read_only=True, attr_timeout=0))
    try:
        file, ranged = start_file(tree, "0@7"), start_file(tree, "0@7..13")
        handle, of_range = tree.open(file), tree.open(ranged)
        assert read(handle) == b"b2\nc2\na3\nb3\nc3\n"
        for value in (b"a4", b"b4"):
            partition.append(value)
            tree.attributes(file)
        assert tree.attributes(file).size == 21
        assert tree.attributes(ranged).size == 18
        assert read(of_range) == b"b2\nc2\na3\nb3\nc3\na4\n"
        partition.delete_head(2)
        assert tree.attributes(file).size == 21
        assert start_file(tree, "0@7") is file
        # A new leader cuts what nobody else has got, and goes on otherwise.
        partition.truncate(13)
        partition.append(b"other", b"and more")
        size = tree.attributes(file).size
        assert size == 21 + len(b"other\nand more\n")
        assert read(handle, 21) == b"other\nand more\n"
        assert read(handle, 0, 18) == b"b2\nc2\na3\nb3\nc3\na4\n"[:18]
        assert tree.attributes(ranged).size == 18
        assert read(of_range) == b"b2\nc2\na3\nb3\nc3\na4\n"
        assert start_file(tree, "0@7") is not file
        assert text(tree, "0@7") == b"b2\nc2\na3\nb3\nc3\na4\nother\nand more\n"
    finally:
        tree.stop()


def test_a_log_of_kafka_0_7(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    directory = tmp_path / "data" / "t-0"
    directory.mkdir(parents=True)
    ids, texts, at = [], [], 0
    for file, mtime in enumerate((1_000_000, 2_000_000, 3_000_000)):
        base, data = at, b""
        for number in range(30):
            entry = encode_entry(b"%d/%d" % (file, number), magic=number % 2)
            ids.append(at)
            texts.append(b"%d/%d\n" % (file, number))
            data += entry
            at += len(entry)
        path = directory / f"{base:020d}.kafka"
        path.write_bytes(data)
        os.utime(path, (mtime, mtime))
    with a_tree(tmp_path / "data", TreeOptions(read_only=True)) as tree:
        for number in (0, 1, 29, 30, 31, 59, 60, 89):
            assert text(tree, f"0@{ids[number]}") == b"".join(texts[number:])
            # Offsets are bytes there: the next record has the next id.
            assert text(tree, f"0@{ids[number] + 1}") == b"".join(texts[number + 1 :])
            assert text(tree, f"0@{ids[0]}..{ids[number]}") == b"".join(texts[:number])
        for count in (0, 1, 29, 30, 31, 90, 99):
            assert text(tree, f"0@-{count}") == b"".join(texts[max(90 - count, 0) :])
        # Only files have times: from the newest one that was last written then, or before.
        for seconds, first in ((500_000, 0), (1_500_000, 0), (2_500_000, 30), (4_000_000, 60)):
            moment = datetime.fromtimestamp(seconds, UTC).isoformat()[:19]
            assert text(tree, f"0@{moment}Z") == b"".join(texts[first:])
        assert (
            text(tree, f".batches/0@{ids[31]}..{ids[33]}")
            == tree.read("t/.batches/0")[ids[31] : ids[33]]
        )


# -- only for reading ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags", [os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY]
)
def test_it_is_a_place_to_read(tree: Tree, flags: int) -> None:
    file = start_file(tree, "0@end")
    with pytest.raises(PermissionError, match="t/0@… is a place to read; >> t/0 appends"):
        tree.open(file, flags)
    with pytest.raises(PermissionError):
        file.set_attributes(Change(mode=0o600))
    with pytest.raises(PermissionError):
        file.set_attributes(Change(size=0))
    file.set_attributes(Change(times=True))
    with pytest.raises(PermissionError):
        tree.directory("t").unlink("0@end")


def test_not_listed(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data", TreeOptions(show_dot=True)) as tree:
        tree.mkdir("t")
        start_file(tree, "0@end")
        assert not any("@" in name for name in tree.directory("t").names())
        assert not any("@" in name for name in tree.directory("t/.kv").names())


def test_extended_attributes_are_the_partitions(tree: Tree) -> None:
    fill(tree)
    file, plain = start_file(tree, "0@13..20"), tree.file()
    assert file.xattr_names() == plain.xattr_names()
    for name in file.xattr_names():
        assert file.xattr(name, True) == plain.xattr(name, True)
    plain_attributes, attributes = tree.attributes(plain), tree.attributes(file)
    assert attributes[1] == plain_attributes[1]
    assert attributes.mtime_ns == plain_attributes.mtime_ns
    assert attributes.blocks == plain_attributes.blocks


def test_what_was_looked_up_before_the_past_changed_is_stale(tree: Tree) -> None:
    fill(tree)
    file = start_file(tree, "0@5")
    tree.remove_head(1)
    for ask in (lambda: tree.attributes(file), lambda: tree.open(file)):
        with pytest.raises(OSError, match="rewritten") as caught:
            ask()
        assert caught.value.errno == errno.ESTALE
    assert text(tree, "0@5") == lines(10, 40)
