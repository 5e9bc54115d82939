"""One segment: what is appended is indexed and found, damage is not read, and it ends in order."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode, paths
from storage.errors import CorruptRecord, SegmentGone
from storage.files import Files
from storage.record._batch import Rebuild
from storage.segment.damage import Damage
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.summary import SegmentSummary
from storage.segment.walk import sealed_times
from storage.segment.writer import SegmentWriter
from storage.settings.config import LogConfig
from storage.waiting import at_once
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import NOW_MS, NOW_NS, entries_of, overwrite

BASE = 100
CONFIG = LogConfig(index_interval_bytes=200, segment_index_bytes=4096)


def create(path: Path, files: Files | None = None) -> Segment:
    disk = files or Files()
    return SegmentWriter.begin(Segment.create(disk, str(path), BASE, CONFIG, now_ms=NOW_MS)).segment


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = create(tmp_path)
    yield made
    made.close_descriptors()


def put(segment: Segment, *values: bytes, timestamp_ms: int = NOW_MS) -> bytes:
    """Append one batch of these records."""
    first = segment.next_offset
    records = [Record(first + n, timestamp_ms, 0, None, value) for n, value in enumerate(values)]
    data = encode(records)
    writer = SegmentWriter(segment)
    writer.append(data, [(0, len(data), first + len(values) - 1, timestamp_ms)], NOW_NS)
    segment.stable_size = segment.size
    return data


def fill(segment: Segment, count: int = 6) -> list[int]:
    """Append `count` batches of two records; return their positions."""
    starts = []
    for number in range(count):
        starts.append(segment.size)
        put(segment, b"a" * 50, b"b" * 50, timestamp_ms=NOW_MS + number)
    return starts


def names(path: Path) -> set[str]:
    return {each.name.removeprefix(f"{BASE:020}") for each in path.iterdir()}


# -- appending -----------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(-3, 3)), min_size=1, max_size=25))
def test_its_indexes_are_those_of_a_rebuild(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]]
) -> None:
    segment = create(tmp_path_factory.mktemp("d"))
    log = b"".join(put(segment, b"x" * size, timestamp_ms=NOW_MS + at) for size, at in batches)
    SegmentWriter(segment).seal()
    rebuild = Rebuild(BASE, CONFIG.index_interval_bytes)
    assert rebuild.feed(log, len(log), 0) == segment.size
    assert segment.offset_index.data() == bytes(rebuild.offset_entries)
    assert segment.time_index.data() == sealed_times(rebuild)
    assert segment.next_offset == rebuild.next_offset
    segment.close()


def test_what_is_sealed_by_mistake_goes_on(segment: Segment) -> None:
    starts = fill(segment)
    before = entries_of(segment.time_index)
    SegmentWriter(segment).seal()
    SegmentWriter(segment).unseal()
    assert entries_of(segment.time_index) == before
    put(segment, b"more")
    assert [at for at, _ in SegmentReader(segment).batches()][:-1] == starts


# -- indexes that another process has truncated or removed -----------------------------------------


def lose_index(path: Path, kind: str, left: int | None) -> Path:
    file = path / f"{BASE:020}{kind}"
    if left is None:
        file.unlink()
    else:
        os.truncate(file, left)
    return file


@pytest.mark.parametrize("kind", [paths.INDEX, paths.TIMEINDEX])
@pytest.mark.parametrize("left", [None, 0, 9])
def test_a_sealed_index_is_rebuilt_where_a_thread_may_wait(
    segment: Segment, tmp_path: Path, kind: str, left: int | None
) -> None:
    fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.sync()
    index = segment.offset_index if kind == paths.INDEX else segment.time_index
    before = segment.offset_index.data(), segment.time_index.data()
    last, whole = index.last_entry, index.data()
    file = lose_index(tmp_path, kind, left)
    with pytest.raises(BlockingIOError):
        at_once(index.lookup, 1 << 60)
    assert index.lookup(1 << 60) == last
    assert at_once(index.lookup, 1 << 60) == last
    assert file.read_bytes() == whole
    assert (segment.offset_index.data(), segment.time_index.data()) == before


def test_a_whole_index_is_not_written_again(segment: Segment, tmp_path: Path) -> None:
    """The log is damaged, and nobody knows it: an index that is made from it would be shorter."""
    starts = fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.sync()
    before = segment.time_index.data()
    assert segment.offset_index.count
    overwrite(segment.log_path, starts[5] + 30, b"damage")
    file = lose_index(tmp_path, paths.INDEX, 0)
    assert 0 < segment.offset_index.lookup(1 << 60)[1] < starts[5]
    assert file.stat().st_size == 0
    assert segment.time_index.data() == before


def test_an_index_that_cannot_be_written_again_is_loaded(tmp_path: Path) -> None:
    disk = SimulatedDisk(str(tmp_path))
    segment = create(tmp_path, disk)
    fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.sync()
    last = segment.time_index.last_entry
    file = lose_index(tmp_path, paths.TIMEINDEX, 0)
    disk.fail_next("pwrite", errno.ENOSPC, suffix=paths.TIMEINDEX)
    assert segment.time_index.lookup(1 << 60) == last
    assert at_once(segment.time_index.lookup, 1 << 60) == last
    assert file.stat().st_size == 0
    segment.close()


def test_the_end_removes_what_is_cut(segment: Segment, tmp_path: Path) -> None:
    """The next start would take the rest for the whole index."""
    fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.sync()
    file = lose_index(tmp_path, paths.TIMEINDEX, segment.time_index.layout.entry.size)
    segment.close()
    assert not file.exists()
    assert (tmp_path / f"{BASE:020}{paths.INDEX}").exists()


@pytest.mark.parametrize("left", [None, 0, 9])
def test_in_a_directory_that_is_not_ours_nothing_is_rebuilt(
    segment: Segment, tmp_path: Path, left: int | None
) -> None:
    fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.close()
    other = Segment(Files(), str(tmp_path), BASE, CONFIG, writable=False)
    summary = SegmentSummary(segment.size, segment.next_offset, 0, NOW_MS, NOW_MS, BASE)
    other.restore(summary, sealed=True)
    assert other.offset_index.count == len(segment.offset_index.data()) // 8
    file = lose_index(tmp_path, paths.INDEX, left)
    assert other.offset_index.lookup(segment.next_offset) <= other.offset_index.lookup(BASE + 5)
    found = SegmentReader(other).locate(segment.next_offset - 1)
    assert found is not None
    assert found[1].last_offset == segment.next_offset - 1
    assert file.exists() == (left is not None)
    other.close()


def test_an_active_index_is_rebuilt_after_the_roll(segment: Segment, tmp_path: Path) -> None:
    fill(segment, 12)
    first, last = segment.offset_index.entry(0), segment.offset_index.last_entry
    file = lose_index(tmp_path, paths.INDEX, 9)
    full = [segment.index_full]
    assert segment.offset_index.lookup(segment.next_offset) == first
    full.append(segment.index_full)
    assert full == [False, True]
    SegmentWriter(segment).seal()
    assert segment.offset_index.lookup(segment.next_offset) == last
    assert file.read_bytes() == segment.offset_index.data()


def test_a_sealed_and_flushed_index_has_no_descriptor(segment: Segment) -> None:
    fill(segment, 12)
    SegmentWriter(segment).seal()
    assert segment.is_open
    assert not segment.evict()
    segment.sync()
    assert (segment.offset_index.fd, segment.time_index.fd) == (-1, -1)
    assert segment.position_before(segment.next_offset - 1) > 0
    assert segment.evict()
    assert not segment.is_open


class Failing(Files):
    """A disk on which a write fails after it has returned.

    As in Linux, each descriptor that is open at that time reports the failure once. A descriptor
    that is opened after the first report does not report it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.failed_inode = -1
        self.was_told = False
        # Descriptors that are not told any more.
        self.know: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o666) -> int:
        fd = super().open(path, flags, mode)
        self.know.discard(fd)
        if self.was_told:
            self.know.add(fd)
        return fd

    def fdatasync(self, fd: int) -> None:
        super().fdatasync(fd)
        if os.fstat(fd).st_ino == self.failed_inode and fd not in self.know:
            self.know.add(fd)
            self.was_told = True
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("suffix", [paths.LOG, paths.INDEX])
def test_an_early_sync_that_fails_is_no_sync(tmp_path: Path, suffix: str) -> None:
    disk = Failing()
    segment = create(tmp_path, disk)
    fill(segment, 12)
    SegmentWriter(segment).seal()
    disk.failed_inode = os.stat(segment.file_path(suffix)).st_ino
    with pytest.raises(OSError, match="Input/output error"):
        segment.sync_early()
    # The kernel tells no descriptor that is opened now.
    segment.sync_early()
    assert not segment.evict()
    with pytest.raises(OSError, match="Input/output error"):
        segment.sync()
    segment.close()


@pytest.mark.parametrize("suffix", [paths.LOG, paths.INDEX])
def test_a_failed_write_that_another_process_was_told(tmp_path: Path, suffix: str) -> None:
    disk = Failing()
    segment = create(tmp_path, disk)
    fill(segment, 12)
    SegmentWriter(segment).seal()
    disk.failed_inode = os.stat(segment.file_path(suffix)).st_ino
    disk.was_told = True
    with pytest.raises(OSError, match="Input/output error"):
        segment.sync()
    segment.close()


# -- finding -------------------------------------------------------------------------------------


def test_every_offset_is_found(segment: Segment) -> None:
    starts = fill(segment, 12)
    for offset in range(BASE, segment.next_offset):
        start = starts[(offset - BASE) // 2]
        found = SegmentReader(segment).locate(offset)
        assert found is not None
        assert (found[0], SegmentReader(segment).position_of(offset)) == (start, start)
        assert segment.position_before(offset) <= start
    assert SegmentReader(segment).locate(segment.next_offset) is None
    last = SegmentReader(segment).last_batch()
    assert last is not None
    assert last[0] == starts[-1]


def wrong_by(entries: bytes, size: int, wrong: int) -> bytes:
    """Index entries of this size, whose last four bytes have a number that is wrong by `wrong`."""
    return b"".join(
        entries[at : at + size - 4]
        + (int.from_bytes(entries[at + size - 4 : at + size], "big") + wrong).to_bytes(4, "big")
        for at in range(0, len(entries), size)
    )


def sealed_again(segment: Segment, directory: Path, *, writable: bool) -> Segment:
    """The same segment, opened once more."""
    other = Segment(Files(), str(directory), BASE, CONFIG, writable=writable)
    summary = SegmentSummary(segment.size, segment.next_offset, 0, NOW_MS, NOW_MS, BASE)
    other.restore(summary, sealed=True)
    return other


@pytest.mark.parametrize("writable", [False, True])
def test_an_index_counts_where_a_batch_lies_that_it_can_mean(
    segment: Segment, tmp_path: Path, writable: bool
) -> None:
    starts = fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.close()
    index = tmp_path / f"{BASE:020}.index"
    entries = index.read_bytes()
    offset = segment.next_offset - 1
    for damage in (0, 1, 60):
        # The positions of all entries are wrong by `damage` bytes.
        index.write_bytes(wrong_by(entries, 8, damage))
        other = sealed_again(segment, tmp_path, writable=writable)
        assert (other.position_before(offset) > 0) == (damage == 0)
        found = SegmentReader(other).locate(offset)
        assert found is not None
        assert found[0] == starts[-1]
        other.close()


def test_a_time_entry_counts_if_its_batch_has_this_time(segment: Segment, tmp_path: Path) -> None:
    starts = fill(segment, 12)
    SegmentWriter(segment).seal()
    segment.close()
    index = tmp_path / f"{BASE:020}.timeindex"
    entries = index.read_bytes()
    for late in (0, 4):
        # The offsets of all entries are wrong by `late`.
        index.write_bytes(wrong_by(entries, 12, late))
        other = sealed_again(segment, tmp_path, writable=True)
        found = [SegmentReader(other).position_before_time(NOW_MS + n) for n in range(12)]
        assert all(at <= start for at, start in zip(found, starts, strict=True))
        assert any(found) == (late == 0)
        other.close()


# -- damage --------------------------------------------------------------------------------------


def test_no_read_enters_or_crosses_damage(segment: Segment) -> None:
    starts = fill(segment)
    lost = range(BASE + 4, BASE + 6)
    place = Damage(starts[2], starts[3], lost.start, lost.stop, "a test")
    segment.damages = (place,)
    buffer = bytearray(segment.size)
    assert SegmentReader(segment).window(buffer, 0) == starts[2]
    assert len(SegmentReader(segment).read(0, segment.size)) == starts[2]
    for position in (starts[2], starts[3] - 1):
        with pytest.raises(CorruptRecord, match="a test"):
            SegmentReader(segment).window(buffer, position)
        with pytest.raises(CorruptRecord, match="a test"):
            SegmentReader(segment).read(position, 1)
    assert SegmentReader(segment).window(buffer, starts[3]) == segment.size - starts[3]
    assert [at for at, _ in SegmentReader(segment).batches()] == [*starts[:2], *starts[3:]]
    for offset in lost:
        with pytest.raises(CorruptRecord, match="a test"):
            SegmentReader(segment).locate(offset)
        assert SegmentReader(segment).position_of(offset) == starts[2]
    assert SegmentReader(segment).position_of(lost.stop) == starts[3]


def test_bytes_that_were_wrong_once_are_not_returned(tmp_path: Path, segment: Segment) -> None:
    """The bytes that the check found sound are those that the caller gets."""

    class WrongOnce(Files):
        is_wrong = True

        def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
            count = super().preadv(fd, buffer, position)
            if self.is_wrong:
                buffer[100] ^= 1
            self.is_wrong = False
            return count

    fill(segment, 12)
    SegmentWriter(segment).seal()
    other = Segment(WrongOnce(), str(tmp_path), BASE, CONFIG, writable=False)
    summary = SegmentSummary(segment.size, segment.next_offset, 0, NOW_MS, NOW_MS, BASE)
    other.restore(summary, sealed=True)
    buffer = bytearray(segment.size)
    assert SegmentReader(other).window(buffer, 0) == segment.size
    assert buffer == Path(segment.log_path).read_bytes()
    other.close()


def test_a_file_that_is_gone_is_damage(segment: Segment) -> None:
    fill(segment)
    SegmentWriter(segment).seal()
    segment.close_descriptors()
    os.unlink(segment.log_path)
    assert not segment.open_log()
    assert segment.is_lost
    with pytest.raises(CorruptRecord, match="the file is missing"):
        SegmentReader(segment).window(bytearray(1), 0)


# -- the end -------------------------------------------------------------------------------------


def test_a_descriptor_can_be_read_after_its_segment_has_closed_it(segment: Segment) -> None:
    fill(segment)
    SegmentWriter(segment).seal()
    fd = segment.log_fd()
    segment.close_descriptors()
    assert not segment.is_open
    assert segment.disk.size(fd) == segment.size


@pytest.mark.parametrize("kind", [paths.DELETED, paths.CUT])
def test_who_reads_what_has_left_goes_on_until_it_is_let_go(
    segment: Segment, tmp_path: Path, kind: str
) -> None:
    fill(segment)
    SegmentWriter(segment).seal()
    before = segment.deleted
    segment.leave(kind)
    assert (before, segment.deleted) == (False, True)
    assert names(tmp_path) == {f".log{kind}", f".index{kind}", f".timeindex{kind}"}
    segment.close_descriptors()
    assert len(SegmentReader(segment).read(0, segment.size)) == segment.size
    left = segment.let_go()
    assert {os.path.basename(path).removeprefix(f"{BASE:020}") for path in left} == names(tmp_path)
    assert left[-1] == segment.log_path, "as long as it is there its names are taken"
    with pytest.raises(SegmentGone):
        SegmentReader(segment).read(0, 1)
    with pytest.raises(SegmentGone):
        segment.lease()


def test_those_that_leave_under_one_name_stay_apart(tmp_path: Path) -> None:
    for _ in range(3):
        create(tmp_path).leave(paths.DELETED)
    logs = {name for name in names(tmp_path) if name.startswith(".log")}
    assert logs == {".log.deleted", ".log.1.deleted", ".log.2.deleted"}


def test_files_without_a_log_are_not_renamed(segment: Segment) -> None:
    fill(segment)
    os.unlink(segment.log_path)
    with pytest.raises(FileNotFoundError):
        segment.set_suffix(paths.SWAP)
    assert segment.suffix == ""


def test_what_was_never_of_the_log_is_removed(segment: Segment, tmp_path: Path) -> None:
    fill(segment)
    segment.discard()
    assert names(tmp_path) == set()
    create(tmp_path).close()


def test_a_new_one_begins_empty_whatever_lies_there(tmp_path: Path) -> None:
    for suffix in (paths.LOG, paths.INDEX, paths.TIMEINDEX, paths.TXNINDEX):
        (tmp_path / f"{BASE:020}{suffix}").write_bytes(b"left over")
    segment = create(tmp_path)
    assert (segment.size, os.path.getsize(segment.log_path)) == (0, 0)
    assert segment.aborted == ()
    segment.close()
