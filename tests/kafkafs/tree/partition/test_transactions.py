"""A partition's file shows committed transactions, from their end on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kafkafs.line_index import NEVER, SegmentLines
from kafkafs.mount_options import MountOptions
from kafkafs.tree.partition.partition_text import CATCH_UP_AT_ONCE
from storage import Log, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.retain import delete_records
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import TRANSACTIONAL_BIT
from storage.record.plain import recompress
from storage.task import Task
from storage.waiting import at_once
from tests.kafkafs.trees import a_tree, in_thread, read
from tests.storage.logs import NOW_MS, append
from tests.waits import HANG_S

NOW_NS = NOW_MS * 1_000_000


class Producer:
    """A transactional producer that knows its sequence numbers."""

    def __init__(self, log: Log, number: int, codec: int = 0) -> None:
        self.log = log
        self.number = number
        self.codec = codec
        self.sequence = 0

    def send(self, *values: bytes, key: bytes | None = None) -> None:
        records = [Record(n, NOW_MS, 0, key, value) for n, value in enumerate(values)]
        batch = encode(
            records,
            attributes=TRANSACTIONAL_BIT,
            producer_id=self.number,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.sequence += len(values)
        append_batches(self.log, recompress(batch, self.codec), now_ns=NOW_NS)

    def end(self, marker: int) -> None:
        batch = encode_marker(marker, self.number, 0, 0, 0, NOW_MS, 0)
        append_batches(self.log, batch, now_ns=NOW_NS)


@pytest.mark.parametrize("codec", [0, 4])
def test_committed_records_are_shown_and_aborted_ones_are_not(tmp_path: Path, codec: int) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        file = tree.file()
        handle = tree.open(file)
        tree.append(file, b"before\n")
        one, two = Producer(tree.log(), 1, codec), Producer(tree.log(), 2, codec)
        one.send(b"one", b"and one")
        two.send(b"two")
        tree.append(file, b"behind it\n")
        one.send(b"and another")
        assert read(handle) == b"before\n"
        assert tree.attributes(file).size == 7
        tree.rest()
        two.end(ABORT)
        assert read(handle) == b"before\n", "the older transaction is still open"
        one.end(COMMIT)
        assert file.inode in tree.notices.attributes
        text = b"before\none\nand one\nbehind it\nand another\n"
        assert tree.attributes(file).size == len(text)
        assert read(handle) == text
        tree.append(file, b"after\n")
        assert read(handle) == text + b"after\n"
        assert read(handle, 9, 20) == (text + b"after\n")[9:29]
    names = ("t/0", "t/.follow/0")
    found: dict[str, list[int]] = {}
    for isolation, more in [("read_committed", b""), ("read_uncommitted", b"two\n")] * 2:
        with a_tree(tmp_path / "data", MountOptions(isolation=isolation)) as tree:
            shown = tree.read("t/0")
            assert shown == b"before\none\nand one\n" + more + b"behind it\nand another\nafter\n"
            inodes = [tree.file(name).inode for name in names]
            assert found.setdefault(isolation, inodes) == inodes
    assert not {*found["read_committed"]} & {*found["read_uncommitted"]}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("end", [ABORT, COMMIT])
@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("name", ["0", "0@{}", "0@-9", "0@start"])
def test_records_are_deleted_into_an_open_transaction(
    tmp_path: Path, name: str, start: int, end: int, is_known: bool
) -> None:
    """`is_known`: the kernel knows the file, which shows nothing yet; it stays the same file."""
    path = f"t/{name.format(start)}"
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        log = tree.log()
        append(log, b"zero")
        one = Producer(log, 1)
        one.send(b"one", b"two")
        one.send(b"three")
        append(log, b"four", b"five")
        assert tree.read("t/0") == b"zero\n"
        delete_records(tree.fs.mount.manager, log, start, Task())
        file = tree.file(path) if is_known else None
        if file is not None:
            before = b"" if start else b"zero\n"
            assert tree.attributes(file).size == len(before)
            assert tree.read(file) == before
        one.end(end)
        values = [b"zero", b"one", b"two", b"three", b"four", b"five"]
        shown = b"".join(
            value + b"\n"
            for offset, value in enumerate(values)
            if offset >= start and (end == COMMIT or offset not in (1, 2, 3))
        )
        for each in (tree.file(path), file or tree.file(path)):
            assert tree.attributes(each).size == len(shown)
            assert tree.read(each) == shown
    with a_tree(tmp_path / "data") as tree:
        assert tree.read(path) == shown


def test_a_cleaner_leaves_transactions_alone_that_are_open_below_the_log_start(
    tmp_path: Path,
) -> None:
    """Their text is not known before their end."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        log = tree.log()
        one, two, three = (Producer(log, number) for number in (1, 2, 3))
        tree.manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
        one.send(b"first", key=b"a")
        two.send(b"second", key=b"a")
        for _ in range(2):
            tree.roll()
            three.send(b"deleted", key=b"b")
            three.end(COMMIT)
        tree.roll()
        end = log.log_end_offset
        assert in_thread(lambda: delete_records(tree.manager, log, end, Task())) == end
        # Otherwise, it would join these segments.
        in_thread(lambda: LogCleaner(tree.manager).clean_all(log, Task()))
        assert tree.read("t/0") == b""
        three.send(b"more", key=b"b")
        three.end(COMMIT)
        for producer in (one, two):
            assert tree.read("t/0") == b""
            producer.end(ABORT)
        assert tree.read("t/0") == b"more\n"


def test_a_cleaner_keeps_records_that_were_aborted_below_the_log_start(tmp_path: Path) -> None:
    """It forgets that they were aborted. So their text counts from then on, though none sees it."""
    data = tmp_path / "data"
    with a_tree(data) as tree:
        tree.mkdir("t")
        log, producer = tree.log(), Producer(tree.log(), 1)
        tree.manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
        producer.send(b"aborted", key=b"a")
        producer.end(ABORT)
        producer.send(b"replaced", b"by this", key=b"b")
        producer.end(COMMIT)
        tree.roll()
        start = 3
        assert in_thread(lambda: delete_records(tree.manager, log, start, Task())) == start
        handle = tree.open("t/0")
        cleaned = in_thread(lambda: LogCleaner(tree.manager).clean_all(log, Task()))
        assert [each.records_superseded for each in cleaned] == [1]
        assert tree.read("t/0") == b"by this\n"
        tree.delete_files()
        producer.send(b"more", key=b"c")
        producer.end(COMMIT)
        tree.roll()
        assert tree.read("t/0") == read(handle) == b"by this\nmore\n"
        handle.release()
    with a_tree(data) as tree:
        assert tree.read("t/0") == b"by this\nmore\n"


@pytest.mark.parametrize("large", [False, True])
def test_a_transaction_over_several_segments(tmp_path: Path, large: bool) -> None:
    """Where much has to be measured at its end, that is a worker thread's."""
    value = b"v" * (CATCH_UP_AT_ONCE // 3 if large else 10)
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        file = tree.file()
        handle = tree.open(file)
        tree.append(file, b"before\n")
        one = Producer(tree.log(), 1)
        for _ in range(5):
            one.send(value)
            tree.roll()
            tree.append(file, b"between\n")
        tree.roll()
        one.end(COMMIT)
        text = b"before\n" + (value + b"\nbetween\n") * 5
        if large:
            with pytest.raises(BlockingIOError):
                at_once(file.attributes)
            with pytest.raises(BlockingIOError):
                at_once(handle.read, 7, 100)
            append(tree.log(), b"meanwhile")
            text += b"meanwhile\n"
        assert tree.attributes(file).size == len(text)
        tree.append(file, b"after\n")
        text += b"after\n"
        assert tree.attributes(file).size == len(text)
        assert read(handle, 0, 4 << 20) == text
    with a_tree(tmp_path / "data") as tree:
        assert tree.read("t/0", 0, 4 << 20) == text
        assert in_thread(lambda: tree.file().xattr("user.kafkafs.records")) == b"%d" % (
            text.count(b"\n")
        )


def test_an_open_transaction_survives_a_remount(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"before\n")
        Producer(tree.log(), 1).send(b"one")
        tree.append("t/0", b"behind\n")
    with a_tree(tmp_path / "data") as tree:
        assert tree.read("t/0") == b"before\n"
        tree.append("t/0", b"more\n")
        assert tree.read("t/0") == b"before\n"
        Producer(tree.log(), 1).end(COMMIT)
        assert tree.read("t/0") == b"before\none\nbehind\nmore\n"


def test_a_transaction_ends_while_the_partition_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that was measured has grown by it before the others are."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"before\n")
        producer = Producer(tree.log(), 1)
        producer.send(b"one", b"two")
        tree.roll()
        tree.append("t/0", b"after\n")
    for lines in (tmp_path / "data" / "t-0").glob("*.lines"):
        lines.unlink()
    with a_tree(tmp_path / "data") as tree:
        log = producer.log = tree.log()
        partition = tree.fs.partitions.of(log)
        partition.nonce()
        view = partition.text(tree.fs.mount.views[0])
        measure, measured, ended = SegmentLines.measure, threading.Event(), threading.Event()

        def first_segment_first(lines: SegmentLines, until: float = NEVER) -> None:
            measure(lines, until)
            if not measured.is_set():
                measured.set()
                assert ended.wait(HANG_S)

        monkeypatch.setattr(SegmentLines, "measure", first_segment_first)
        worker = threading.Thread(target=view.measure)
        worker.start()
        assert measured.wait(HANG_S)
        producer.end(COMMIT)
        ended.set()
        worker.join()
        assert tree.read("t/0") == b"before\none\ntwo\nafter\n"


def test_what_cannot_be_measured_as_it_is_appended_is_measured_later(tmp_path: Path) -> None:
    """It waits for an index to be opened; the append is in the file, and is no error."""
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.append("t/0", b"before\n")
        views = ("t/0", "t/.kv/0")
        shown = {view: tree.read(view) for view in views}
        tree.roll()
        records = [Record(0, NOW_MS, 0, b"k", b"one")]
        batch = encode(
            records, attributes=TRANSACTIONAL_BIT, producer_id=1, producer_epoch=0, base_sequence=0
        )
        marker = encode_marker(COMMIT, 1, 0, 0, 0, NOW_MS, 0)
        append_batches(tree.log(), batch + marker, now_ns=NOW_NS)
        for view in views:
            assert tree.read(view).removeprefix(shown[view]).endswith(b"one\n"), view
