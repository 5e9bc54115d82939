"""A truncated log equals one that never had the removed batches, and these are kept beside it."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.errors import InvalidRecord
from storage.log.append import append_as_follower
from storage.log.listener import LogListener
from storage.log.salvage import salvage
from storage.record.header import parse_header
from storage.segment.cut import cut_files, purge
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.state.manifest_file import FILE_NAME as MANIFEST
from storage.state.manifest_file import ManifestContent
from storage.state.manifest_file import read as read_manifest
from tests.crash.disk import SimulatedDisk
from tests.storage.log.test_follower import at, facts, fetched, judged_again, led, stored
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, remove_head, values
from tests.storage.transactions import Client, new_log, produced

SMALL = {"internal_segment_bytes": 400, "index_interval_bytes": 100}


def batches_of(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = parse_header(data).size
        found.append(data[:size])
        data = data[size:]
    return found


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Batches of a leader: transactions, other producers, an epoch for each four batches."""
    with opened(tmp_path_factory.mktemp("leader")) as manager:
        batches = batches_of(b"".join(fetched(led(manager), 1 << 20)))
    return [at(each, parse_header(each).base_offset, n // 4) for n, each in enumerate(batches)]


def put(log: Log, batches: list[bytes]) -> None:
    for each in batches:
        append_as_follower(log, each, NOW_NS)


def removed(manager: LogManager, log: Log) -> bytes:
    """All that was kept of removed batches, in the order of the log."""
    names = cut_files(manager.files, log.directory, paths.DIVERGED)
    return b"".join(Path(n).read_bytes() for n in names if ".log." in n)


def last_offset(data: bytes) -> int:
    return parse_header(data).last_offset


def test_a_truncated_log_never_had_the_rest(tmp_path: Path, history: list[bytes]) -> None:
    """At each offset, also at those inside a batch; then the log goes on."""
    end = last_offset(history[-1]) + 1
    for offset in range(end):
        stay = [each for each in history if last_offset(each) < offset]
        ours, theirs = tmp_path / f"{offset}", tmp_path / f"{offset}-other"
        ours.mkdir()
        theirs.mkdir()
        with opened(ours) as manager, opened(theirs) as other:
            log, expected = new_log(manager, **SMALL), new_log(other, **SMALL)
            put(log, history)
            Path(log.segments[1].file_path(paths.LINES)).write_bytes(b"lines")
            if offset % 2:
                manager.checkpoint()
                log.load_history()
            cuts = manager.truncate(log, offset)
            put(expected, stay)
            assert facts(log) == facts(expected)
            assert stored(log) == b"".join(stay)
            assert removed(manager, log) == b"".join(history[len(stay) :])
            assert sum(cut.size for cut in cuts) == len(removed(manager, log))
            assert log.durability.recovery_point == log.log_end_offset
            for each in (log, expected):
                put(each, [at(batch([b"new"]), end, 9), at(batch([b"newer"]), end + 1, 9)])
            assert facts(log) == facts(expected)
            assert values(log) == values(expected)
            known = facts(log)
        if offset in (3, end // 2, end - 1):
            judged_again(ours, partial(has, known))


def has(known: tuple[object, ...], log: Log) -> None:
    assert facts(log) == known


def test_nothing_reaches_the_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, b"a", b"b")
        before = facts(log)
        assert manager.truncate(log, 2) == []
        assert facts(log) == before


@pytest.mark.parametrize("killed", [False, True])
def test_shown_text_does_not_continue(tmp_path: Path, killed: bool) -> None:
    """Also if as many bytes as before are there again."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk)
    log = new_log(manager)
    append(log, b"a")
    log.history.set_base("values", 0, 0)
    log.history.save(log.segments)
    append(log, b"b")
    shown = log.history.now
    if killed:
        disk.fail_next("fsync", errno.EIO, suffix=".log")
        with pytest.raises(OSError, match="Input/output"):
            manager.truncate(log, 1)
        disk.kill()
        manager = LogManager.open(str(tmp_path))
        log = manager.log("t", 0)
    else:
        manager.truncate(log, 1)
    assert values(log) == [b"a"]
    append(log, b"c")
    manager.close()
    with opened(tmp_path) as manager:
        now = manager.log("t", 0).history.now
        assert now.nonce != shown.nonce
        assert now.follow_nonce != shown.follow_nonce
        assert not now.bases


@pytest.mark.parametrize("kind", [paths.LINES, paths.WORDS])
def test_the_text_files_of_a_cut_segment_go(tmp_path: Path, kind: str) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for value in (b"a", b"b"):
            append(log, value)
        log.roll(NOW_MS)
        append(log, b"c")
        made = [Path(each.file_path(kind)) for each in log.segments]
        for each in made:
            each.write_bytes(b"text")
        manager.truncate(log, 1)
        assert [each.exists() for each in made] == [False, False]
        kept = [Path(each).name for each in cut_files(manager.files, log.directory, ".diverged")]
        assert (f"{2:020}{kind}.diverged" in kept) == (kind == paths.LINES)


def test_below_the_log_start(tmp_path: Path) -> None:
    """The log begins where the leader ends, and a start finds that."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for value in (b"0", b"1", b"2", b"3"):
            append(log, value)
        log.raise_log_start(3)
        manager.checkpoint()
        manager.truncate(log, 2)
        assert (log.log_start_offset, log.log_end_offset, log.size) == (2, 2, 0)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (2, 2)
        append_as_follower(log, at(batch([b"new"]), 2, 7), NOW_NS)
        assert (values(log), log.epochs.entries) == ([b"new"], [(7, 2)])


def test_the_manifest_has_no_higher_log_start_on_a_full_disk(tmp_path: Path) -> None:
    """It would count if no segment is there."""
    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log = new_log(manager)
        for value in (b"0", b"1", b"2"):
            append(log, value)
            log.roll(NOW_MS)
        manager.checkpoint()
        for count in (2, 1):
            remove_head(log, count, NOW_MS)
            manager.checkpoint()
        assert read_manifest(disk, log.directory) == ManifestContent(2, [])
        disk.fail_next("open", errno.ENOSPC, suffix=f"{MANIFEST}.tmp", times=9)
        manager.truncate(log, 1)
        assert not disk.exists(str(Path(log.directory, MANIFEST)))
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)


def test_salvage_takes_no_older_bytes_of_the_other_history(tmp_path: Path) -> None:
    """A recovery has cut them off before the leader was known to have others."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        append(log, b"a")
        append(log, b"b")
        names = [f"{0:020}.log.{log.size}", f"{3:020}.log", f"{3:020}.index"]
        for offset, name in enumerate(names, 2):
            old = at(batch([b"old"]), offset) if ".log" in name else b""
            Path(log.directory, f"{name}.cut").write_bytes(old)
        manager.truncate(log, 1)
        assert salvage(log, NOW_NS) == []
        kept = {path.name for path in Path(log.directory).glob("*.diverged")}
        assert kept > {f"{name}.diverged" for name in names}
        assert len(purge(manager.files, log.directory)) == len(kept)
        assert removed(manager, log) == b""


@pytest.mark.parametrize(
    ("operation", "suffix"), [("pwrite", ".diverged"), ("rename", ".log"), ("ftruncate", ".log")]
)
def test_a_disk_that_fails_leaves_a_log_that_goes_on(
    tmp_path: Path, operation: str, suffix: str, history: list[bytes]
) -> None:
    disk = SimulatedDisk(str(tmp_path))
    offset = last_offset(history[2])
    with opened(tmp_path, disk) as manager:
        log = new_log(manager, **SMALL)
        put(log, history)
        disk.fail_next(operation, errno.EIO, suffix=suffix)
        with pytest.raises(OSError, match="Input/output"):
            manager.truncate(log, offset)
        there = batches_of(stored(log))
        assert there == history[: len(there)]
        assert len(there) > 2
        epochs = log.epochs.entries
        assert epochs == [
            (n // 4, parse_header(there[n]).base_offset) for n in range(0, len(there), 4)
        ]
        manager.truncate(log, offset)
        assert batches_of(stored(log)) == history[:2]


# A rename fails: before the removal, while segments are removed, after it.
RENAMED = [
    f"{paths.RECOVERY_POINTS}.tmp",
    *(f"{base:020}.log" for base in (0, 4, 2)),
    f"{paths.LOG_STARTS}.tmp",
]


@pytest.mark.parametrize("name", RENAMED)
@pytest.mark.parametrize("killed", [False, True])
def test_deleted_records_do_not_return(tmp_path: Path, name: str, killed: bool) -> None:
    """A disk that fails leaves a log that begins at its log start."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = new_log(manager)
    for value in (b"0", b"1", b"2", b"3", b"4"):
        append(log, value)
        if log.log_end_offset % 2 == 0:
            log.roll(NOW_MS)
    log.raise_log_start(3)
    manager.checkpoint()
    disk.fail_next("rename", errno.EIO, suffix=name)
    with pytest.raises(OSError, match="Input/output"):
        manager.truncate(log, 1)
    if killed:
        disk.kill()
        manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
        log = manager.log("t", 0)
    assert log.log_start_offset == 3
    there = values(log)
    assert there == [b"3", b"4"][: len(there)]
    manager.truncate(log, 1)
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    manager.close()
    with opened(tmp_path) as again:
        log = again.log("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (1, 1)


def test_a_removed_abort_hides_no_new_record(tmp_path: Path) -> None:
    """Readers may still be in a deleted segment that has the abort."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        client = Client(log, 7)
        client.send(b"aborted")
        client.abort()
        log.roll(NOW_MS)
        append(log, b"old")
        remove_head(log, 1, NOW_MS)
        assert values(log) == [b"old"]
        manager.truncate(log, 0)
        client.send(b"new")
        client.commit()
        assert values(log) == [b"new"]


def test_a_removed_abort_that_another_thread_has_just_read_hides_no_new_record(
    tmp_path: Path,
) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        client = Client(log, 7)
        client.send(b"aborted")
        client.abort()
        log.roll(NOW_MS)
        retired = log.segments[0]
        remove_head(log, 1, NOW_MS)
        # With the segments that the log has now.
        assert log.transactions.is_aborted(7, 0)
        log.transactions.forget_from([retired], 0)
        assert not log.transactions.is_aborted(7, 0)


class Reader(LogListener[Log]):
    """Reads what was truncated, as those do who measure it."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.nonces: list[int] = []

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        self.nonces.append(log.history.nonce)
        for segment in (old[0], new[0]):
            assert segment.size == segment.stable_size
            self.offsets += [header.base_offset for _, header in SegmentReader(segment).batches()]


def test_listeners_read_what_is_left(tmp_path: Path) -> None:
    """The nonce that they then show is the one that lasts."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for value in (b"a", b"b", b"c"):
            append(log, value)
        reader = Reader()
        log.listeners.append(reader)
        log.load_history()
        manager.truncate(log, 2)
        assert reader.offsets == [0, 1, 0, 1]
        assert reader.nonces == [log.history.nonce]
        assert log.counters.truncations == 1


def test_what_was_shown_above_the_end_is_forgotten(tmp_path: Path) -> None:
    """A start would take it for lost."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for value in (b"a", b"b"):
            append(log, value)
        assert log.history.note_shown(2)
        manager.truncate(log, 1)
        assert not log.history.is_marked
        nonce = log.history.follow_nonce
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).history.follow_nonce == nonce


def retired_head(manager: LogManager) -> tuple[Log, Segment]:
    """A log without its first segment, which readers may still read; a file is being written."""
    log = new_log(manager)
    for value in (b"a", b"b"):
        append(log, value)
        log.roll(NOW_MS)
    first = log.segments[0]
    remove_head(log, 2, NOW_MS)
    first.close_descriptors()
    (Path(log.directory) / "other.tmp").write_bytes(b"being written")
    return log, first


@pytest.mark.parametrize("empty", [False, True])
def test_files_in_use_stay(tmp_path: Path, empty: bool) -> None:
    with opened(tmp_path) as manager:
        log, first = retired_head(manager)
        if empty:
            manager.start_at(log, 7)
        else:
            for value in (b"c", b"d"):
                append(log, value)
            assert manager.truncate(log, 3)
        assert [header.base_offset for _, header in SegmentReader(first).batches()] == [0]
        (Path(log.directory) / "other.tmp").unlink()


# -- where a log begins --------------------------------------------------------------------------


@pytest.mark.parametrize("start", [5, 1 << 40])
@pytest.mark.parametrize("below", [0, 3])
@pytest.mark.parametrize("closed", [False, True])
def test_a_log_start_inside_the_first_batch(
    tmp_path: Path, start: int, below: int, closed: bool
) -> None:
    first = at(produced([b"0", b"1", b"2", b"3"], 7), start - below, 2)
    manager = LogManager.open(str(tmp_path))
    log = new_log(manager)
    manager.start_at(log, start)
    assert (log.log_start_offset, log.log_end_offset) == (start, start)
    if closed:
        manager.close()
        manager = LogManager.open(str(tmp_path))
        log = manager.log("t", 0)
    with pytest.raises(InvalidRecord, match="below the log start"):
        append_as_follower(log, at(first, start - 4), NOW_NS)
    append_as_follower(log, first, NOW_NS)
    manager.close()

    def judge(log: Log) -> None:
        assert (log.log_start_offset, log.log_end_offset) == (start, start + 4 - below)
        assert log.active.base_offset == start - below
        assert values(log) == [b"0", b"1", b"2", b"3"][below:]
        assert log.producers.by_id[7].last_sequence == 3

    with opened(tmp_path) as again:
        judge(again.log("t", 0))


def test_a_first_batch_begins_below_the_log_start_of_the_manifest(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for value in (b"0", b"1", b"2"):
            append(log, value)
            log.roll(NOW_MS)
        manager.checkpoint()
        for count in (2, 1):
            remove_head(log, count, NOW_MS)
            manager.checkpoint()
        assert read_manifest(manager.files, log.directory) == ManifestContent(2, [])
        append_as_follower(log, at(batch([b"a", b"b", b"c"]), 1), NOW_NS)
        assert (log.log_start_offset, log.active.base_offset, values(log)) == (3, 1, [b"c"])
