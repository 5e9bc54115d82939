"""storage.split, storage.split_reader: what was planned is read, whatever became of the files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.errors import CorruptRecord, OffsetOutOfRange, SegmentGone, UnknownTopicOrPartition
from storage.files import Files
from storage.read import Isolation
from storage.record.control import ABORT, COMMIT
from storage.record.plain import recompress
from storage.retain import HIGH_WATERMARK, delete_records, retain
from storage.split import Split, Wanted, plan_splits, read_split
from storage.task import Task
from tests.oracle import Shown
from tests.storage.compaction.cleaned import Clock
from tests.storage.logs import NOW_MS, append, write_settings
from tests.storage.old_logs import old_file, write_legacy, write_old
from tests.storage.record.test__columns import shown
from tests.storage.transactions import Client, marker

COMMITTED: Isolation = "read_committed"
UNCOMMITTED: Isolation = "read_uncommitted"
EVERYTHING = 1 << 40


def plan(
    log: Log,
    first: int | None = None,
    end: int | None = None,
    target: int = EVERYTHING,
    isolation: Isolation = COMMITTED,
) -> list[Split]:
    """Splits of the whole log, or of a part of it."""
    bound = log.last_stable_offset if isolation == COMMITTED else log.log_end_offset
    return plan_splits(
        log,
        log.log_start_offset if first is None else first,
        bound if end is None else end,
        target_bytes=target,
        isolation=isolation,
    )


def read(split: Split, files: Files | None = None, chunk_bytes: int = 4 << 20) -> list[Shown]:
    found: list[Shown] = []
    for columns in read_split(files or Files(), split, chunk_bytes=chunk_bytes):
        assert columns.rows
        found += shown(columns, 1000)
    for row in found:
        # In plain forms, which others read, v0 has a type.
        assert row.timestamp_type >= 0 or row.timestamp == -1
        row.timestamp_type = max(row.timestamp_type, 0)
    return found


def read_all(splits: list[Split], chunk_bytes: int = 4 << 20) -> list[Shown]:
    return [row for split in splits for row in read(split, chunk_bytes=chunk_bytes)]


def records(log: Log, first: int, end: int, isolation: Isolation = COMMITTED) -> list[Shown]:
    """What a reader of the log gets of a range."""
    return [
        Shown(
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            list(record.headers) or None,
        )
        for record in log.records(first, isolation)
        if record.offset < end
    ]


@contextlib.contextmanager
def a_log(data: Path, clock: Clock | None = None, **given: object) -> Iterator[Log]:
    """A log whose batches nearly all have index entries."""
    write_settings(data, **{"log_index_interval_bytes": 1, **given})
    with LogManager.open(str(data), clock_ms=clock or Clock()) as manager:
        yield manager.create_topic("t", 1).partitions[0]


def lines(log: Log, count: int, size: int = 90) -> None:
    for number in range(count):
        append(log, *(b"%d.%d" % (number, n) + b"x" * size for n in range(10)))


# -- any log, whatever happens between planning and reading --------------------------------------

values = st.none() | st.binary(max_size=20) | st.just(b"much the same " * 8)
pairs = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), values), min_size=1, max_size=4
)


class History:
    """Things that happen to a log."""

    def __init__(self, manager: LogManager, log: Log, clock: Clock) -> None:
        self.manager = manager
        self.log = log
        self.clock = clock
        self.sequences: dict[int, int] = {}
        self.open: set[int] = set()

    def write(self, draw: Callable[[st.SearchStrategy[object]], object]) -> None:
        """One batch, of a producer's transaction perhaps, in any codec."""
        some = draw(pairs)
        assert isinstance(some, list)
        codec = draw(st.integers(0, 4))
        assert isinstance(codec, int)
        producer = draw(st.sampled_from([7, 8, -1, -1, -1]))
        assert isinstance(producer, int)
        made = [
            Record(n, self.clock.now_ms + n, 0, key, value, (("h", value),) * (n % 3))
            for n, (key, value) in enumerate(some)
        ]
        if producer < 0:
            batch = encode(made)
        else:
            self.open.add(producer)
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(made)
            batch = encode(
                made,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                attributes=0x10,
            )
        self.log.append_batches(
            bytearray(recompress(batch, codec)), now_ns=self.clock.now_ms * 1_000_000
        )

    def end(self, producer: int, kind: int) -> None:
        self.log.append_batches(marker(producer, kind), now_ns=self.clock.now_ms * 1_000_000)

    def roll(self) -> None:
        self.log.roll(self.clock.now_ms)

    def clean(self) -> None:
        self.roll()
        LogCleaner(self.manager).clean(self.log, Task())

    def retain(self) -> None:
        self.clock.now_ms += 40_000
        self.roll()
        retain(self.manager, [self.log], Task(), self.clock.now_ms)

    def delete_records(self) -> None:
        if "delete" in self.log.config.cleanup_policy:
            delete_records(self.manager, self.log, HIGH_WATERMARK, Task())

    def later(self) -> None:
        """What was replaced or deleted is removed."""
        self.clock.now_ms += 100_000
        remove = self.manager.sweep(self.clock.now_ms)
        if remove is not None:
            remove()

    def step(self, data: st.DataObject, kinds: list[str]) -> None:
        kind = data.draw(st.sampled_from(kinds))
        if kind == "write":
            self.write(data.draw)
        elif kind == "end":
            for producer in sorted(self.open):
                self.end(producer, data.draw(st.sampled_from([ABORT, COMMIT])))
            self.open.clear()
        else:
            getattr(self, kind)()


BEFORE = ["write"] * 8 + ["end"] * 4 + ["roll"] * 3 + ["clean", "retain", "delete_records"]
BETWEEN = ["write", "end", "roll", "clean", "clean", "retain", "delete_records", "later"]


@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_what_was_planned_is_read(data: st.DataObject) -> None:
    run_history(data)


@pytest.mark.soak
@settings(deadline=None, max_examples=2000)
@given(data=st.data())
def test_what_was_planned_is_read_at_length(data: st.DataObject) -> None:
    run_history(data)


def run_history(data: st.DataObject) -> None:
    path = Path(tempfile.mkdtemp())
    clock = Clock()
    write_settings(
        path,
        log_index_interval_bytes=data.draw(st.sampled_from([1, 200])),
        log_cleanup_policy=data.draw(st.sampled_from(["compact", "compact,delete"])),
        log_retention_ms=data.draw(st.sampled_from([30_000, 100_000])),
        log_cleaner_min_cleanable_ratio=0,
        log_cleaner_delete_retention_ms=50_000,
        log_segment_delete_delay_ms=10_000,
    )
    try:
        magic = data.draw(st.sampled_from([None, None, 0, 1]))
        if magic is not None:
            write_legacy(path, "t", magic)
        with LogManager.open(str(path), clock_ms=clock) as manager:
            if magic is None:
                manager.create_topic("t", 1)
            history = History(manager, manager.log("t", 0), clock)
            for _ in range(data.draw(st.sampled_from([10, 20, 30]))):
                history.step(data, BEFORE)
            check_range(data, history)
    finally:
        shutil.rmtree(path)


def check_range(data: st.DataObject, history: History) -> None:
    log = history.log
    isolation = data.draw(st.sampled_from([COMMITTED, UNCOMMITTED]))
    bound = log.last_stable_offset if isolation == COMMITTED else log.log_end_offset
    start = log.log_start_offset
    first = data.draw(st.just(start) | st.integers(start, bound))
    end = data.draw(st.just(bound) | st.integers(first, bound))
    target = data.draw(st.sampled_from([1, 200, 1000, EVERYTHING]))
    chunk = data.draw(st.sampled_from([1, 100, 1000, 1 << 20]))
    splits = plan(log, first, end, target, isolation)
    check_splits(splits, first, end)
    assert read_all(splits, chunk) == records(log, first, end, isolation)
    for _ in range(data.draw(st.sampled_from([2, 4, 1, 0]))):
        history.step(data, BETWEEN)
    for split in splits:
        lost = split.from_offset < log.segments[0].base_offset
        if lost:
            with pytest.raises(OffsetOutOfRange) as caught:
                read(split, chunk_bytes=chunk)
            assert caught.value.log_start == log.segments[0].base_offset
        elif split.from_offset >= log.log_start_offset:
            now = records(log, split.from_offset, split.to_offset, isolation)
            assert read(split, chunk_bytes=chunk) == now


def check_splits(splits: list[Split], first: int, end: int) -> None:
    """One behind the other, with some bytes each; outside of them there is no batch."""
    at = first
    for split in splits:
        assert split.size > 0
        assert at == split.from_offset < split.to_offset <= end
        at = split.to_offset
    assert at == end or not splits


# -- planning ------------------------------------------------------------------------------------


def test_splits_are_of_about_the_size_asked_for(tmp_path: Path) -> None:
    with a_log(tmp_path, log_index_interval_bytes=4096) as log:
        lines(log, 300)
        for target in (10_000, 50_000, 100_000):
            splits = plan(log, target=target)
            assert len(splits) == pytest.approx(log.size / target, abs=1.5 + log.size / target / 3)
            assert sum(split.size for split in splits) == log.size
            for split in splits[:-1]:
                assert target <= split.size <= target + 6000
            check_splits(splits, 0, 3000)
            assert [row.offset for row in read_all(splits)] == list(range(3000))


def test_small_segments_share_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        for _ in range(10):
            lines(log, 3)
            log.roll(NOW_MS)
        splits = plan(log, target=log.size // 3 + 1)
        assert len(splits) == 3
        assert [row.offset for row in read_all(splits)] == list(range(300))
        (whole,) = plan(log)
        assert (whole.base_offset, whole.position, whole.size) == (0, 0, log.size)
        assert [row.offset for row in read(whole)] == list(range(300))


def test_an_empty_range_has_no_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        assert plan(log) == []
        lines(log, 1)
        assert plan(log, 4, 4) == []
        assert plan(log, 10, 10) == []
        for first, end in ((-1, 5), (0, 11), (11, 12)):
            with pytest.raises(OffsetOutOfRange):
                plan(log, first, end)


class CountingFiles(Files):
    """Counts what is read."""

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.reads: list[str] = []

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        fd = super().open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.reads.append(self.paths[fd])
        return super().pread(fd, size, position)


def test_planning_reads_a_few_index_entries_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path, log_index_interval_bytes=200) as log:
        lines(log, 2000, 10)
    files = CountingFiles()
    with LogManager.open(str(tmp_path), files=files, read_only=True) as manager:
        log = manager.log("t", 0)
        plan(log)
        for target, count in ((log.size // 4, 4), (log.size // 40, 40)):
            files.reads.clear()
            assert len(plan(log, target=target)) == pytest.approx(count, abs=2)
            assert not [path for path in files.reads if path.endswith(".log")]
            assert len(files.reads) < 60 * (count + 2)


def spoil(path: Path, data: bytes) -> None:
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["missing", "empty", "zeros", "falling", "odd", "beyond"])
def test_an_index_that_is_of_no_use(tmp_path: Path, kind: str) -> None:
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        expected = records(log, 0, 310)
        splits = plan(log, target=1)
        index = Path(log.directory) / f"{0:020}.index"
    stored = index.read_bytes()
    data = {
        "empty": b"",
        "zeros": bytes(len(stored)),
        "falling": stored[8:] + stored[:8],
        "odd": stored + b"abc",
        "beyond": stored + b"\x7f\xff\xff\xff" * 2,
    }
    index.unlink()
    if kind in data:
        index.write_bytes(data[kind])
    assert read_all(splits) == expected
    assert read(splits[5]._replace(position=17)) == read(splits[5])
    assert read(splits[5]._replace(position=1 << 40)) == read(splits[5])
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        again = plan(log, target=1)
        assert read_all(again) == expected
        assert len(again) < 5 or kind in ("odd", "beyond")


def test_aborted_transactions_that_touch_a_split(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        one, two = Client(log, 1), Client(log, 2)
        one.send(b"lost 0", b"lost 1")  # 0, 1
        two.send(b"kept 2")  # 2
        lines(log, 2)  # 3 to 22
        log.roll(NOW_MS)
        one.abort()  # 23
        two.send(b"kept 24")
        two.commit()
        one.send(b"kept 26")
        one.commit()
        two.send(b"lost 28")
        two.abort()
        spans = [[tuple(span) for span in split.aborted] for split in plan(log, target=1)]
        assert spans[0] == [(1, 0, 23)]
        assert spans[-1] == [(2, 28, 29)]
        assert all(len(some) <= 1 for some in spans)
        for target in (1, 500, EVERYTHING):
            found = read_all(plan(log, target=target))
            assert found == records(log, 0, 30)
            assert [row.offset for row in found] == [2, *range(3, 23), 24, 26]
            everything = read_all(plan(log, target=target, isolation=UNCOMMITTED))
            assert [row.offset for row in everything] == [*range(23), 24, 26, 28]
        two.send(b"undecided")
        assert plan(log)[-1].to_offset == 30
        with pytest.raises(OffsetOutOfRange):
            plan(log, 0, 31)
        assert [row.offset for row in read_all(plan(log, 30, 31, isolation=UNCOMMITTED))] == [30]


# -- reading -------------------------------------------------------------------------------------


def test_only_what_is_wanted_is_decoded(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 3)
        (split,) = plan(log)
        (columns,) = read_split(Files(), split, Wanted(*[False] * 6))
        assert columns.rows == 30
        assert not columns.offsets + columns.timestamps
        for name in ("keys", "values", "header_positions", "timestamp_types"):
            assert getattr(columns, name) is None
        (columns,) = read_split(Files(), split, Wanted(headers=False))
        assert columns.header_positions is None
        assert columns.values is not None


def test_batches_larger_than_a_chunk(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        append(log, b"1")
        append(log, *(b"%d" % n + b"y" * 5000 for n in range(100)))
        append(log, b"2")
        (split,) = plan(log, 50, 51)
        for chunk in (1, 1000, 1 << 20):
            assert [row.offset for row in read(split, chunk_bytes=chunk)] == [50]
            assert read_all(plan(log), chunk) == records(log, 0, 102)


def test_what_lies_behind_a_split_is_not_looked_at(tmp_path: Path) -> None:
    """A broker appends there, and has preallocated the file perhaps."""
    with a_log(tmp_path) as log:
        lines(log, 3)
        expected = records(log, 0, 30)
        (split,) = plan(log)
    path = Path(split.directory) / f"{0:020}.log"
    stored = path.read_bytes()
    for tail in (bytes(1 << 20), stored[:100], b"\xff" * 5000, stored):
        path.write_bytes(stored + tail)
        for chunk in (100, 1 << 20):
            assert read(split, chunk_bytes=chunk) == expected
            assert read(split._replace(to_offset=25), chunk_bytes=chunk) == expected[:25]
    path.write_bytes(stored[:-1])
    with pytest.raises(OffsetOutOfRange, match="runs from 0 to 20"):
        read(split)


def test_damage(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 30)
        log.roll(NOW_MS)
        lines(log, 1)
        expected = records(log, 0, 310)
        splits = plan(log, target=3000)
        path = Path(log.directory) / f"{0:020}.log"
    stored = path.read_bytes()
    size = len(stored) // 30
    wrong = bytearray(stored)
    at = stored.index(b"17.3x")
    wrong[at] ^= 1
    path.write_bytes(wrong)
    batch = stored.rindex((170).to_bytes(8, "big"), 0, at)
    sound: list[Shown] = []
    for split in splits:
        if split.from_offset <= 170 < split.to_offset:
            with pytest.raises(CorruptRecord, match="CRC") as caught:
                read(split)
            error = caught.value
            assert (error.path, error.position, error.offset) == (str(path), batch, 170)
        else:
            sound += read(split)
    assert sound == [row for row in expected if row in sound]
    assert len(sound) >= 310 - 3 * 3000 // size * 10
    # No CRC covers a base offset.
    far = bytearray(stored)
    far[batch : batch + 8] = (5000).to_bytes(8, "big")
    path.write_bytes(far)
    with pytest.raises(CorruptRecord, match="not below the next segment's") as caught:
        read(splits[0]._replace(to_offset=310))
    assert caught.value.position == batch
    between = bytearray(stored)
    between[batch : batch + 8] = (300).to_bytes(8, "big")
    path.write_bytes(between)
    with pytest.raises(CorruptRecord, match="309 is not below the next segment's"):
        read(splits[0]._replace(to_offset=310))
    near = bytearray(stored)
    near[batch : batch + 8] = (160).to_bytes(8, "big")
    path.write_bytes(near)
    with pytest.raises(CorruptRecord, match="go on"):
        read(splits[0]._replace(to_offset=310))
    path.write_bytes(stored[:-10])
    with pytest.raises(CorruptRecord, match="incomplete") as caught:
        read(splits[0]._replace(to_offset=310))
    assert caught.value.path == str(path)


def test_batches_of_markers_and_of_nothing(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        one = Client(log, 1)
        one.send(b"0")
        one.commit()
        one.send(b"2")
        one.abort()
        assert [list(read_split(Files(), split)) for split in plan(log, 1, 2)] == [[]]
        assert read_all(plan(log, 1, 4)) == []
        assert [row.offset for row in read_all(plan(log))] == [0]


# -- other formats -------------------------------------------------------------------------------


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("chunk", [1, 300, 1 << 20])
def test_older_formats(tmp_path: Path, magic: int, chunk: int) -> None:
    write_legacy(tmp_path, "t", magic)
    write_settings(tmp_path, log_index_interval_bytes=1)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        append(log, b"of today")
        expected = records(log, 5, log.log_end_offset)
        for target in (1, 300, EVERYTHING):
            splits = plan(log, target=target)
            assert read_all(splits, chunk) == expected
            check_splits(splits, 5, log.log_end_offset)
            for first, end in ((30, 31), (47, 110), (100, 206)):
                some = read_all(plan(log, first, end, target), chunk)
                assert some == [row for row in expected if first <= row.offset < end]


@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_format_07(tmp_path: Path, chunk: int) -> None:
    first = old_file(b"one", b"two", b"three" * 20)
    second = old_file(b"four", b"", b"six")
    directory = write_old(tmp_path, "t", first, second)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        end = log.log_end_offset
        expected = records(log, 0, end)
        for row in expected:
            assert row.timestamp == -1
        types = b"".join(
            columns.timestamp_types or b""
            for split in plan(log)
            for columns in read_split(Files(), split)
        )
        assert types == b"\xff" * 4 * len(expected)
        for target in (1, EVERYTHING):
            splits = plan(log, target=target)
            assert len(splits) == (2 if target == 1 else 1)
            assert read_all(splits, chunk) == expected
            for a, b in ((1, end), (expected[2].offset, expected[-2].offset), (5, 6), (0, 1)):
                some = read_all(plan(log, a, b, target), chunk)
                assert some == [row for row in expected if a <= row.offset < b]
        (split,) = plan(log)
        last = directory / f"{len(first):020}.kafka"
        last.write_bytes(second + b"\0\0\0")
        assert read(split, chunk_bytes=chunk) == expected
        wrong = bytearray(first)
        wrong[first.index(b"two")] ^= 1
        (directory / f"{0:020}.kafka").write_bytes(wrong)
        with pytest.raises(CorruptRecord) as caught:
            read(split, chunk_bytes=chunk)
        assert caught.value.position == caught.value.offset == expected[1].offset


# -- while the files change ----------------------------------------------------------------------


def rewritten(log: Log) -> list[tuple[str, str]]:
    """The renamings by which a cleaner replaces the sealed segments of a log with equal ones."""
    directory = Path(log.directory)
    old = sorted(str(path) for path in directory.iterdir() if path.suffix in (".log", ".index"))
    old = [path for path in old if f"{log.segments[-1].base_offset:020}" not in path]
    for path in old:
        shutil.copy(path, path + ".cleaned")
    return (
        [(path + ".cleaned", path + ".swap") for path in reversed(old)]
        + [(path, path + ".deleted") for path in old]
        + [(path + ".swap", path) for path in old]
    )


class ChangingFiles(Files):
    """A change to the directory comes before each look at it, each opening, each read."""

    def __init__(self, changes: list[tuple[str, str]], skip: int) -> None:
        self.changes = changes
        self.skip = skip

    def _change(self) -> None:
        self.skip -= 1
        if self.skip < 0 and self.changes:
            os.rename(*self.changes.pop(0))

    def scan(self, path: str) -> list[tuple[str, bool]]:
        self._change()
        return super().scan(path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._change()
        return super().open(path, flags, mode)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._change()
        return super().preadv(fd, buffer, position)


def segmented_log(log: Log, count: int = 3) -> None:
    for _ in range(count):
        lines(log, 3)
        log.roll(NOW_MS)
    lines(log, 3)


@pytest.mark.parametrize("skip", range(0, 24, 2))
def test_read_while_a_cleaner_swaps(tmp_path: Path, skip: int) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        expected = records(log, 0, 120)
        (split,) = plan(log, 35)
        changes = rewritten(log)
    assert read(split, ChangingFiles(changes, skip), 1000) == expected[35:]


class ReplacingFiles(Files):
    """A segment is replaced by two between being listed and being opened."""

    def __init__(self, path: Path, made: dict[Path, bytes]) -> None:
        self.path = path
        self.made = made

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        if path == str(self.path):
            for name, data in self.made.items():
                name.write_bytes(data)
            self.made = {}
        return super().open(path, flags, mode)


def test_a_segment_that_becomes_two_before_it_is_opened(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        expected = records(log, 0, 120)
        (split,) = plan(log)
        (_, _), (second, _), (third, _) = log.segments[1].batches()
    path = Path(split.directory) / f"{30:020}.log"
    stored = path.read_bytes()
    path.with_suffix(".index").unlink()
    for cut, base in ((second, 40), (third, 50)):
        extra = path.with_name(f"{base:020}.log")
        files = ReplacingFiles(path, {path: stored[:cut], extra: stored[cut:]})
        assert read(split, files) == expected
        assert files.made == {}
        extra.unlink()
        path.write_bytes(stored)


def test_a_cleaner_that_was_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.split_finder.PATIENCE_S", 0.02)
    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
        (behind,) = plan(log, 90)
        changes = rewritten(log)
    for old, new in changes[:14]:
        os.rename(old, new)
    with pytest.raises(SegmentGone, match="for writing"):
        read(split)
    # What is being cleaned ends where the last segment begins.
    assert [row.offset for row in read(behind)] == list(range(90, 120))


def test_a_log_that_has_gone(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 1)
        (split,) = plan(log)
    (Path(split.directory) / f"{0:020}.log").unlink()
    with pytest.raises(UnknownTopicOrPartition):
        read(split)
    shutil.rmtree(split.directory)
    with pytest.raises(UnknownTopicOrPartition):
        read(split)


def test_another_topic_of_the_same_name(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 1)
        (split,) = plan(log)
        assert len(read(split)) == 10
    metadata = Path(split.directory) / "partition.metadata"
    text = metadata.read_text()
    assert split.topic_id in text
    metadata.write_text(text.replace(split.topic_id, "AAAAAAAAAAAAAAAAAAAAAQ"))
    with pytest.raises(UnknownTopicOrPartition, match="another topic"):
        read(split)
    metadata.unlink()
    assert len(read(split)) == 10


def test_a_segment_that_somebody_has_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.split_finder.PATIENCE_S", 0.02)
    with a_log(tmp_path) as log:
        segmented_log(log)
        (split,) = plan(log)
        (behind,) = plan(log, 65)
    (Path(split.directory) / f"{30:020}.log").unlink()
    with pytest.raises(SegmentGone, match="missing"):
        read(split)
    assert len(read(behind)) == 55
    # A cleaner may have put it together with others.
    assert len(read(split._replace(segments=()))) == 90


def test_retention_takes_what_was_planned(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        segmented_log(log)
        splits = plan(log, target=1)
        (whole,) = plan(log)
        reading = read_split(Files(), whole, chunk_bytes=1)
        next(reading)
        log.remove_head(2, NOW_MS)
        for path in log.release_retired(NOW_MS * 2):
            os.unlink(path)
        with pytest.raises(OffsetOutOfRange) as caught:
            read(splits[0])
        assert (caught.value.offset, caught.value.log_start) == (0, 60)
        with pytest.raises(OffsetOutOfRange, match="60"):
            read(whole)
        # The file that is open goes on to its end.
        with pytest.raises(OffsetOutOfRange) as caught:
            list(reading)
        assert (caught.value.offset, caught.value.log_start) == (30, 60)
        left = [split for split in splits if split.from_offset >= 60]
        assert [row.offset for row in read_all(left)] == list(range(60, 120))


def test_a_log_that_was_cut(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 3)
        (split,) = plan(log)
        path = Path(log.directory) / f"{0:020}.log"
    for size, end in ((0, 0), (path.stat().st_size * 2 // 3, 20)):
        stored = path.read_bytes()
        path.write_bytes(stored[:size])
        with pytest.raises(OffsetOutOfRange, match=f"runs from 0 to {end}"):
            read(split)
        path.write_bytes(stored)


def test_a_segment_that_is_rolled_meanwhile(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines(log, 3)
        (split,) = plan(log)
        log.roll(NOW_MS)
        lines(log, 3)
        assert read(split) == records(log, 0, 30)
        assert [row.offset for row in read(split._replace(to_offset=60))] == list(range(60))
