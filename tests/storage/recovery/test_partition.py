"""A directory is recovered after any stop: torn tails, holes, missing indexes."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from struct import pack

import pytest

from storage import LogManager, paths
from storage.errors import CorruptRecord
from storage.files import Files
from storage.log.append import append_as_follower
from storage.record.header import parse_header
from storage.segment.reader import SegmentReader
from storage.settings.setting_files import TOPIC_FILE
from storage.state import manifest_file
from storage.state.checkpoint_file import read_offsets
from storage.state.producer_state import EMPTY_SNAPSHOT, ProducerEntry, encode
from storage.verify.verify import verify
from tests import oracle
from tests.broker_files import BadFile
from tests.crash.disk import Crashed, SimulatedDisk
from tests.storage.logs import (
    NOW_MS,
    CountedReads,
    append,
    batch,
    flip,
    opened,
    opened_log,
    overwrite,
    readable,
    values,
    write_topic_settings,
)


def fill(data: Path, count: int = 12, per_segment: int = 4, **overrides: object) -> list[bytes]:
    """A log of ``count`` one-record batches, flushed before the last segment; then a crash."""
    manager = LogManager.open(str(data))
    log = manager.create_topic("t", 1).partitions[0]
    small = {"index_interval_bytes": 100, "segment_bytes": 1 << 22}
    for name, value in {**small, **overrides}.items():
        manager.change_topic_settings("t", {name.replace("_", "."): str(value)})
    lines = [b"line %d" % n for n in range(count)]
    for n, line in enumerate(lines):
        if n % per_segment == 0 and n:
            log.roll(NOW_MS)
        append(log, line, timestamp_ms=NOW_MS + n)
    manager.abandon()
    return lines


def last_log(data: Path) -> Path:
    return sorted((data / "t-0").glob("*.log"))[-1]


# Around the fields of the header that say where a batch ends, the CRC, and the ends of the header
# and of the batch.
@pytest.mark.parametrize("left", [0, 1, 7, 8, 11, 12, 16, 17, 20, 21, 57, 60, 61, 62, 74])
def test_a_torn_last_batch_is_cut_and_kept(tmp_path: Path, left: int) -> None:
    lines = fill(tmp_path)
    path = last_log(tmp_path)
    size = path.stat().st_size
    torn = size - len(batch([lines[-1]]))
    assert left < size - torn
    os.truncate(path, torn + left)
    tail = path.read_bytes()[torn:]
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert values(log) == lines[:-1]
        if any(tail):
            (cut,) = manager.cuts
            assert (cut.position, cut.size) == (torn, len(tail))
            assert cut.kept_as is not None
            assert Path(cut.kept_as).read_bytes() == tail
            assert str(len(tail)) in str(cut)
        else:
            assert manager.cuts == []
        assert append(log, b"next") == len(lines) - 1


@pytest.mark.parametrize("size", [20 << 30, 1 << 40], ids=["20 GiB", "1 TiB"])
@pytest.mark.parametrize("torn", [b"", b"rubbish" * 100], ids=["", "behind rubbish"])
@pytest.mark.parametrize("number", [0, -1], ids=["sealed", "active"])
@pytest.mark.parametrize("is_clean", [False, True], ids=["killed", "closed"])
def test_a_hole_takes_no_time(
    tmp_path: Path, size: int, torn: bytes, number: int, is_clean: bool
) -> None:
    lines = fill(tmp_path)
    if is_clean:
        with opened(tmp_path):
            pass
    path = sorted((tmp_path / "t-0").glob("*.log"))[number]
    with path.open("ab") as file:
        file.write(torn)
        file.truncate(size)
    files = CountedReads()
    verify(str(tmp_path), files=files)
    with LogManager.open(str(tmp_path), files=files) as manager:
        assert values(manager.log("t", 0)) == lines
    # Most of it are the pre-sized indexes that a killed process leaves.
    assert files.bytes_read < 48 << 20
    for cut in (tmp_path / "t-0").glob("*.cut"):
        assert cut.stat().st_size > 1 << 30
        assert cut.stat().st_blocks * 512 < 1 << 20


@pytest.mark.parametrize("torn", [0, 1000, 5000])
def test_a_preallocated_log_after_a_kill(tmp_path: Path, torn: int) -> None:
    """The zeros after the last batch are no damage; only the bytes of an unfinished write are."""
    lines = fill(tmp_path, preallocate="true")
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    log.roll(NOW_MS)
    append(log, b"last")
    path = Path(log.active.log_path)
    size = path.stat().st_size
    assert size > log.active.size
    if torn:
        overwrite(path, log.active.size, batch([b"x" * 10_000])[:torn])
    manager.abandon()
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [*lines, b"last"]
        assert len(manager.cuts) == bool(torn)
        assert path.stat().st_size == manager.log("t", 0).active.size
        append(manager.log("t", 0), b"next")


def _six_batches(data: Path) -> None:
    """A log of one segment after a clean stop, whose indexes have entries, none of the last batch
    but the final one.
    """
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"index.interval.bytes": "100"})
        for n in range(6):
            append(log, b"%d" % n, timestamp_ms=NOW_MS + n)


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_stop_within_a_roll(tmp_path: Path, power_cut: bool) -> None:
    """A roll is cut off anywhere. Afterwards the sealed segment's time index is whole.

    All of the log was flushed before, so that nothing of it is read for its own sake.
    """
    _six_batches(tmp_path)
    found: set[tuple[int, bool]] = set()
    at = 1
    while True:
        data = tmp_path.with_name(f"{tmp_path.name}-{at}")
        shutil.copytree(tmp_path, data)
        disk = SimulatedDisk(str(data))
        manager = LogManager.open(str(data), files=disk)
        disk.crash_after(at)
        try:
            manager.log("t", 0).roll(NOW_MS)
            whole = True
        except Crashed:
            whole = False
        disk.materialise(at) if power_cut else disk.kill()
        with opened(data) as manager:
            log = manager.log("t", 0)
            found.add((len(log.segments), whole))
            assert log.reader.offset_for_timestamp(NOW_MS + 5) == (NOW_MS + 5, 5)
            assert manager.cuts == []
        assert verify(str(data)).faults == []
        if whole:
            break
        at += 1
    assert at > 5
    assert (1, False) in found
    assert power_cut or (2, True) in found


def test_a_time_index_that_lost_its_last_entry_in_a_power_cut(tmp_path: Path) -> None:
    """A roll after a flush writes nothing that the recovery point would speak of."""
    _six_batches(tmp_path)
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    log.roll(NOW_MS)
    manager.abandon()
    index = tmp_path / "t-0" / f"{0:020d}.timeindex"
    assert index.stat().st_size == 3 * 12
    os.truncate(index, 2 * 12)
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).reader.offset_for_timestamp(NOW_MS + 5) == (NOW_MS + 5, 5)


def test_an_index_that_is_made_anew_before_producers_are_looked_for_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A power cut has taken the snapshot at a new segment, so that the one before it is read."""
    _six_batches(tmp_path)
    manager = LogManager.open(str(tmp_path))
    manager.log("t", 0).roll(NOW_MS)
    manager.abandon()
    for path in (tmp_path / "t-0").glob(f"*{paths.SNAPSHOT}"):
        path.unlink()
    for _ in range(2):
        with opened(tmp_path) as manager:
            first = manager.log("t", 0).segments[0]
            assert SegmentReader(first).last_batch() is not None
        assert (tmp_path / "t-0" / f"{0:020d}.index").exists()
    assert "another process" not in caplog.text


ALL_KINDS = (paths.LOG, paths.INDEX, paths.TIMEINDEX)


@pytest.mark.parametrize(("size", "kinds"), [(0, [paths.LOG]), (0, ALL_KINDS), (4096, [paths.LOG])])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("later", [True, False])
def test_an_empty_segment_that_a_failed_roll_has_left(
    tmp_path: Path, size: int, kinds: Sequence[str], clean: bool, later: bool
) -> None:
    """It begins in the midst of the one before it, in which the log went on."""
    lines = fill(tmp_path, per_segment=100, preallocate="true" if size else "false")
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    if later:
        log.roll(NOW_MS)
        append(log, b"later")
        lines.append(b"later")
    log.flush()
    manager.checkpoint()
    manager.close() if clean else manager.abandon()
    left = [tmp_path / "t-0" / paths.file_name(7, kind) for kind in kinds]
    for path in left:
        path.write_bytes(b"\0" * size)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert values(manager.log("t", 0)) == lines
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert values(log) == lines
        assert manager.cuts == []
        assert manager.faults == []
        assert not any(path.exists() for path in left)
        assert append(log, b"next") == len(lines)


def test_a_damaged_unflushed_batch_ends_the_log_and_sets_the_rest_aside(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    second = sorted((tmp_path / "t-0").glob("*.log"))[1]
    flip(second, -3)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert values(log) == lines[:7]
        names = sorted(os.path.basename(cut.kept_as or "") for cut in manager.cuts)
        assert names[0].startswith(f"{4:020d}.log.")
        assert names[1] == f"{8:020d}.log.cut"
        assert "CRC" in manager.cuts[0].reason
        append(log, b"after")
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == [*lines[:7], b"after"]


def test_what_was_set_aside_is_not_overwritten(tmp_path: Path) -> None:
    kept: list[bytes] = []
    for round_number in range(3):
        manager = LogManager.open(str(tmp_path))
        if round_number == 0:
            manager.create_topic("t", 1)
        log = manager.log("t", 0)
        append(log, b"before")
        log.roll(NOW_MS)
        append(log, b"behind, %d" % round_number)
        manager.abandon()
        first, second = sorted((tmp_path / "t-0").glob("*.log"))
        kept.append(second.read_bytes())
        flip(first, -3)
        LogManager.open(str(tmp_path)).abandon()
    names = [f"{1:020d}.log{number}.cut" for number in ("", ".1", ".2")]
    assert [(tmp_path / "t-0" / name).read_bytes() for name in names] == kept


def test_damage_in_a_flushed_sealed_segment_hits_only_its_own_records(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    with opened(tmp_path):
        pass
    first = sorted((tmp_path / "t-0").glob("*.log"))[0]
    flip(first, -3)
    first.with_suffix(".index").unlink()
    manager = LogManager.open(str(tmp_path))
    log = manager.log("t", 0)
    assert manager.cuts == []
    assert len(manager.faults) == 1
    assert values(log, 4) == lines[4:]
    with pytest.raises(CorruptRecord):
        values(log)
    assert append(log, b"next") == len(lines)
    manager.close()


@pytest.mark.parametrize("number", [1, 3], ids=["second batch", "last batch"])
@pytest.mark.parametrize("at", [3, 6, 24], ids=["base offset", "by 256", "last offset delta"])
def test_damage_of_an_offset_before_an_empty_segment_does_not_end_the_log(
    tmp_path: Path, number: int, at: int
) -> None:
    lines = fill(tmp_path, index_interval_bytes=4096)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        log.roll(NOW_MS)
        segment = log.segments[-2]
        starts = [position for position, _ in SegmentReader(segment).batches()]
    flip(segment.log_path, starts[number] + at)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        assert (manager.cuts, log.log_end_offset) == ([], len(lines))
        assert append(log, b"next") == len(lines)
        lost = segment.base_offset + number
        assert readable(log) == [*lines[:lost], None, *lines[lost + 1 :], b"next"]


def test_times_are_found_after_a_good_copy_replaces_a_damaged_log(tmp_path: Path) -> None:
    """The first start could not index the batches after the damage."""
    fill(tmp_path)
    with opened(tmp_path):
        pass
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    good = path.read_bytes()
    path.write_bytes(good[:150] + b"!!" + good[152:])
    path.with_suffix(".index").unlink()
    with LogManager.open(str(tmp_path)) as manager:
        assert len(manager.faults) == 1
    path.write_bytes(good)
    with opened_log(tmp_path) as log:
        found = [log.reader.offset_for_timestamp(NOW_MS + n) for n in range(12)]
        assert found == [(NOW_MS + n, n) for n in range(12)]


def test_an_index_leads_past_damage_after_a_start_that_has_written_it(tmp_path: Path) -> None:
    """The damage hides the end of a batch and the header of the next one."""
    lines = fill(tmp_path, count=24, per_segment=8)
    with opened(tmp_path):
        pass
    path = sorted((tmp_path / "t-0").glob("*.log"))[1]
    overwrite(path, 140, bytes(40))
    path.with_suffix(".timeindex").unlink()
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        expected = readable(manager.log("t", 0))
    assert expected.count(None) < 5
    assert [line for line in lines if line not in expected] == lines[9 : 9 + expected.count(None)]
    for _ in range(2):
        with LogManager.open(str(tmp_path)) as manager:
            assert readable(manager.log("t", 0)) == expected


def test_times_below_0_in_an_index_that_is_only_read(tmp_path: Path) -> None:
    fill(tmp_path)
    path = last_log(tmp_path).with_suffix(".timeindex")
    path.write_bytes(path.read_bytes()[:12] + b"\xff" * 8 + b"\0\0\0\2")
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        reader = manager.log("t", 0).reader
        found = [reader.offset_for_timestamp(NOW_MS + n) for n in range(12)]
        assert found == [(NOW_MS + n, n) for n in range(12)]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage", ["missing", "odd length", "zeros", "beyond the log", "no batch there"]
)
def test_a_missing_or_insane_index_is_made_again(
    tmp_path: Path, suffix: str, clean: bool, damage: str
) -> None:
    lines = fill(tmp_path, count=40, per_segment=20)
    if clean:
        with opened(tmp_path):
            pass
    path = sorted((tmp_path / "t-0").glob("*" + suffix))[0]
    before = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "odd length":
        path.write_bytes(before + b"x")
    elif damage == "zeros":
        path.write_bytes(before + bytes(24))
    elif suffix == ".index":
        entry = (5).to_bytes(4, "big") + (10**6 if damage == "beyond the log" else 3).to_bytes(
            4, "big"
        )
        path.write_bytes(before[:-8] + entry)
    else:
        path.write_bytes(before[:-12] + before[-12:-4] + (10**6).to_bytes(4, "big"))
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == lines
        assert path.read_bytes() == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_time_index_that_was_cut_is_made_again(tmp_path: Path, left: int, clean: bool) -> None:
    """Otherwise the largest timestamp is unknown, by which retention deletes the segment."""
    fill(tmp_path, count=40, per_segment=20)
    with opened(tmp_path) as manager:
        manager.checkpoint()
        if not clean:
            manager.abandon()
    path = sorted((tmp_path / "t-0").glob("*.timeindex"))[0]
    before = path.read_bytes()
    assert len(before) > 12 * left
    path.write_bytes(before[: 12 * left])
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).segments[0].largest_timestamp == NOW_MS + 19
        assert path.read_bytes() == before


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        None,
        b"",
        b"garbage",
        bytes(10),
        pytest.param(encode([ProducerEntry(7, 0, 0, 8, 0, NOW_MS, -1, -1)]), id="later"),
        pytest.param(encode([ProducerEntry(7, 0, 0, 3, 0, NOW_MS, -1, 8)]), id="later open"),
    ],
)
def test_a_missing_or_damaged_snapshot_is_made_again(
    tmp_path: Path, clean: bool, damage: bytes | None
) -> None:
    lines = fill(tmp_path)
    if clean:
        with opened(tmp_path):
            pass
    paths = [tmp_path / "t-0" / f"{base:020d}.snapshot" for base in (4, 8)]
    for path in paths:
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == lines
        assert [path.read_bytes() for path in paths] == [EMPTY_SNAPSHOT] * 2


@pytest.mark.parametrize("is_missing", [False, True])
def test_leader_epochs_that_rise_in_mid_log_are_recorded(tmp_path: Path, is_missing: bool) -> None:
    fill(tmp_path, count=6, per_segment=3)
    for base in (0, 3):
        path = tmp_path / "t-0" / f"{base:020d}.log"
        data = bytearray(path.read_bytes())
        at = 0
        while at < len(data):
            header = parse_header(data, at)
            data[at + 12 : at + 16] = (header.base_offset // 2 * 5).to_bytes(4, "big")
            at += header.size
        path.write_bytes(data)
    checkpoint = tmp_path / "t-0" / "leader-epoch-checkpoint"
    if is_missing:
        # After a clean stop, a start reads no batches.
        with opened(tmp_path):
            checkpoint.unlink()
    with opened_log(tmp_path) as log:
        assert log.epochs.entries == [(0, 0), (5, 2), (10, 4)]
        append(log, b"next")
        assert [header.leader_epoch for _, header in SegmentReader(log.active).batches()] == [
            5,
            10,
            10,
            10,
        ]
    assert checkpoint.read_text() == "0\n3\n0 0\n5 2\n10 4\n"


@pytest.mark.parametrize(
    ("magics", "unreadable", "entries"),
    [
        ([2, 2, 2], None, [(5, 0), (6, 1), (7, 2)]),
        ([2, 2, 2], 0, [(6, 1), (7, 2)]),
        ([2, 2, 2], 1, [(5, 0), (7, 2)]),
        ([2, 1, 2], None, [(7, 2)]),
        ([2, 2, 1], None, []),
    ],
)
def test_leader_epochs_of_segments_without_their_file(
    tmp_path: Path, magics: list[int], unreadable: int | None, entries: list[tuple[int, int]]
) -> None:
    with opened_log(tmp_path) as log:
        for number, magic in enumerate(magics):
            if number:
                log.roll(NOW_MS)
            if magic < 2:
                data = oracle.put_message(oracle.Message(number, None, b"value", NOW_MS), magic)
            else:
                data = bytes(batch([b"value"]))
                data = pack(">q", number) + data[8:12] + pack(">i", number + 5) + data[16:]
            append_as_follower(log, data, NOW_MS * 1_000_000)
        inodes = [os.stat(each.log_path).st_ino for each in log.segments]
    (tmp_path / "t-0" / paths.LEADER_EPOCH_CHECKPOINT).unlink()
    files = BadFile(str(tmp_path))
    if unreadable is not None:
        files.inode = inodes[unreadable]
    with opened_log(tmp_path, files=files) as log:
        assert log.epochs.entries == entries
        assert not any(each.is_open for each in log.segments)
        files.inode = -1


def test_a_read_only_opening_changes_nothing(tmp_path: Path) -> None:
    lines = fill(tmp_path)
    os.truncate(last_log(tmp_path), last_log(tmp_path).stat().st_size - 3)
    sorted((tmp_path / "t-0").glob("*.index"))[0].unlink()

    def tree() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    before = tree()
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert values(manager.log("t", 0)) == lines[:-1]
        assert [record.offset for record in manager.log("t", 0).records(5)] == list(range(5, 11))
    assert tree() == before


@pytest.mark.parametrize("sign", ["meta.properties", "cleaner-offset-checkpoint"])
def test_gaps_that_a_brokers_cleaner_left_are_no_damage(tmp_path: Path, sign: str) -> None:
    """A broker keeps elsewhere which of its topics are compacted."""
    lines = fill(tmp_path)
    first = tmp_path / "t-0" / f"{0:020}.log"
    os.truncate(first, len(batch([lines[0]])) * 3)
    (tmp_path / sign).write_text("0\n1\nt 0 8\n" if sign.startswith("c") else "version=1\n")
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == lines[:3] + lines[4:]
        assert manager.cuts == []


def with_a_gap(data: Path) -> list[bytes]:
    """Remove offset 3, the last one of a segment, as a cleaner does; return the values that stay.

    The log's manifest and its topic's settings are missing.
    """
    lines = fill(data)
    os.truncate(data / "t-0" / f"{0:020}.log", len(batch([lines[0]])) * 3)
    for name in (manifest_file.FILE_NAME, TOPIC_FILE):
        (data / "t-0" / name).unlink()
    return lines[:3] + lines[4:]


@pytest.mark.parametrize("read_only", [True, False])
def test_a_cleaned_log_that_was_copied_here_is_whole(tmp_path: Path, read_only: bool) -> None:
    left = with_a_gap(tmp_path)
    with LogManager.open(str(tmp_path), read_only=read_only) as manager:
        assert values(manager.log("t", 0)) == left
        assert manager.cuts == []
    for reads_all in (False, True):
        with LogManager.open(str(tmp_path), verify=reads_all) as manager:
            assert values(manager.log("t", 0)) == left
            assert manager.cuts == []


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("line", ["none", "unreadable", "whole"])
def test_gaps_of_a_cleaned_log_outlive_kills(tmp_path: Path, line: str, verify: bool) -> None:
    """A start that has not flushed the log writes no file by which the gaps would be damage.

    `line`: the log's line in the recovery point checkpoint. `verify`: the start checks all batches.
    """
    left = with_a_gap(tmp_path)
    with opened(tmp_path):
        pass  # it rebuilds the indexes
    (tmp_path / ".kafka_cleanshutdown").unlink()
    points = tmp_path / "recovery-point-offset-checkpoint"
    if line == "unreadable":
        points.write_bytes(b"\xff")
    elif line == "none":
        points.unlink()
    for _ in range(3):
        manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS, verify=verify)
        assert values(manager.log("t", 0)) == left
        assert manager.cuts == []
        manager.checkpoint()
        manager.abandon()
    with opened(tmp_path) as manager:
        manager.log("t", 0).flush()
        manager.checkpoint()
        assert read_offsets(Files(), str(points)) == {("t", 0): 12}


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("kills", [0, 1, 2])
@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_gap_in_a_log_that_was_just_made_is_a_loss(
    tmp_path: Path, policy: str, kills: int, verify: bool
) -> None:
    """No cleaner can have been there, and nothing of it has been flushed yet."""
    lines = fill(tmp_path)
    for _ in range(kills):
        manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS, verify=verify)
        manager.checkpoint()
        manager.abandon()
    write_topic_settings(tmp_path, "t", {"cleanup.policy": policy, "index.interval.bytes": 100})
    os.truncate(tmp_path / "t-0" / f"{0:020}.log", len(batch([lines[0]])) * 3)
    for _ in range(2):
        with opened(tmp_path) as manager:
            assert values(manager.log("t", 0)) == lines[:3]


def test_a_log_that_ends_before_its_start_offset_begins_there(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 100\n")
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert (log.log_start_offset, log.log_end_offset) == (100, 100)
        assert append(log, b"new") == 100
        assert len(manager.cuts) == 3, "what was there is set aside, not deleted"


def test_damage_of_all_records_is_no_log_without_records(tmp_path: Path) -> None:
    """A read-only opening of a log that ends before its start offset."""
    fill(tmp_path, 1)
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 100\n")
    path = last_log(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptRecord, match="before its start offset 100"):
        LogManager.open(str(tmp_path), read_only=True)


def misplaced(data: Path, lines: list[bytes]) -> bool:
    """Whether a base offset is wrong: then only its batch cannot be read."""
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        places = [place for segment in log.segments for place in segment.damages]
        for place in places:
            assert log.log_end_offset == len(lines)
            assert values(log, place.next_offset) == lines[place.next_offset :]
            with pytest.raises(CorruptRecord, match="base offset"):
                values(log, place.first_offset)
    return bool(places)


def test_after_any_damage_the_log_opens_to_a_prefix(tmp_path: Path) -> None:
    """Random bytes flipped in unflushed data: what is left is what was written, from the start."""
    lines = fill(tmp_path, count=30, per_segment=10)
    random_bits = random.Random(1)
    for round_number in range(20):
        copy = tmp_path.parent / f"damaged-{round_number}"
        shutil.copytree(tmp_path, copy)
        path = random_bits.choice(sorted((copy / "t-0").glob("*.log")))
        data = bytearray(path.read_bytes())
        data[random_bits.randrange(len(data))] ^= 1 << random_bits.randrange(8)
        path.write_bytes(data)
        if misplaced(copy, lines):
            continue
        with opened(copy) as manager:
            found = values(manager.log("t", 0))
            assert found == lines[: len(found)]
            assert len(found) < len(lines) or not manager.cuts
        assert read_offsets(Files(), str(copy / "recovery-point-offset-checkpoint")) == {
            ("t", 0): len(found)
        }


@pytest.mark.parametrize("magic", [0, 1])
def test_segments_of_older_formats_are_not_read(tmp_path: Path, magic: int) -> None:
    """A broker before 0.11 leaves no snapshots, and had no producers to speak of; before 0.10 it
    leaves no time index, which a mount that only reads does not miss.
    """

    message = oracle.put_message(oracle.Message(5, b"k", b"hello", NOW_MS), magic)
    (tmp_path / "t-0").mkdir()
    for base in (0, 1000, 2000):
        (tmp_path / "t-0" / f"{base:020d}.log").write_bytes(
            b"".join((base + n).to_bytes(8, "big") + message[8:] for n in range(1000))
        )
    with opened(tmp_path):
        pass
    missing = ["*.snapshot"] if magic else ["*.snapshot", "*.timeindex"]
    for path in [path for each in missing for path in (tmp_path / "t-0").glob(each)]:
        path.unlink()
    for read_only in (True, False) if magic else (True,):
        files = CountedReads()
        with LogManager.open(str(tmp_path), read_only=read_only, files=files) as manager:
            assert manager.log("t", 0).log_end_offset == 3000
            # Of 120,000 bytes: twice the part after the last index entry of each segment.
            assert files.log_bytes_read < 18_000


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_that_a_roll_had_not_trimmed_is_made_anew(tmp_path: Path, kind: str) -> None:
    """Also where all of the log had been flushed, and so counts as read before."""
    lines = fill(tmp_path, retention_ms=-1)
    with LogManager.open(str(tmp_path)) as manager:
        manager.log("t", 0).flush()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    for path in (tmp_path / "t-0").glob(f"*.{kind}"):
        size = path.stat().st_size
        os.truncate(path, 0)
        os.truncate(path, max(size, 240))
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == lines


def test_a_torn_snapshot_of_the_first_segment_goes_too(tmp_path: Path) -> None:
    """It is not asked for, since there are newer ones."""
    lines = fill(tmp_path)
    torn = tmp_path / "t-0" / f"{0:020}.snapshot"
    torn.write_bytes(bytes(10))
    with opened(tmp_path) as manager:
        assert values(manager.log("t", 0)) == lines
    assert not torn.exists()


@pytest.mark.parametrize("broker", [True, False])
@pytest.mark.parametrize("zeros", [True, False])
def test_a_hole_that_a_power_cut_has_left_is_no_cleaners(
    tmp_path: Path, broker: bool, zeros: bool
) -> None:
    """The last batches of a sealed segment that had not been flushed, in a compacted topic."""
    lines = fill(tmp_path)
    (tmp_path / "kafkafs.properties").write_text("log.cleanup.policy=compact\n")
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    if broker:
        (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=1\n")
    second = sorted((tmp_path / "t-0").glob("*.log"))[1]
    size = second.stat().st_size
    os.truncate(second, size // 2)
    if zeros:
        os.truncate(second, size)
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        if broker:
            assert values(log) == [*lines[:6], *lines[8:]]
        else:
            assert values(log) == lines[:6]
            (cut,) = manager.cuts
            assert cut.kept_as is not None
            assert os.path.basename(cut.kept_as) == f"{8:020d}.log.cut"


@pytest.mark.parametrize("written", range(1, 12))
def test_a_time_entry_that_was_half_written(tmp_path: Path, written: int) -> None:
    """It lies on two pages. Only the first one reached the disk."""
    manager = LogManager.open(str(tmp_path))
    log = manager.create_topic("t", 1).partitions[0]
    manager.change_topic_settings("t", {"index.interval.bytes": "1"})
    times = tmp_path / "t-0" / f"{0:020}.timeindex"
    for n in range(6):
        append(log, b"line %d" % n, timestamp_ms=NOW_MS + n * 1_000_000)
        if n == 3:
            log.flush()
            manager.checkpoint()
            entries = log.active.time_index.count
    manager.abandon()
    with times.open("r+b") as file:
        file.seek(entries * 12 + written)
        file.write(bytes(12 - written))
        file.write(bytes(times.stat().st_size - file.tell()))
    assert entries > 1
    with opened_log(tmp_path) as log:
        assert len(values(log)) == 6
        assert log.active.largest_timestamp == NOW_MS + 5_000_000
    assert verify(str(tmp_path)).faults == []


@pytest.mark.parametrize("position", [-(2**31), -1, 2**31 - 1])
def test_an_index_that_leads_nowhere_before_a_roll_that_was_just_made(
    tmp_path: Path, position: int
) -> None:
    """Whether the new segment is half a roll is asked of the log itself then."""
    manager = LogManager.open(str(tmp_path))
    manager.create_topic("t", 1)
    log = manager.log("t", 0)
    append(log, b"one", b"two")
    log.roll(NOW_MS)
    manager.abandon()
    entry = (0).to_bytes(4, "big") + position.to_bytes(4, "big", signed=True)
    index = Path(log.directory) / "00000000000000000000.index"
    index.write_bytes(entry * 2)
    with LogManager.open(str(tmp_path), read_only=True) as again:
        assert values(again.log("t", 0)) == [b"one", b"two"]


@pytest.mark.parametrize("damaged", [1, 2, 3])
@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("killed", [True, False])
def test_what_comes_before_damage_that_the_last_index_entries_lead_to(
    tmp_path: Path, killed: bool, read_only: bool, damaged: int
) -> None:
    """That batch tells no offset, but what lies before it does."""
    manager = LogManager.open(str(tmp_path))
    log = manager.create_topic("t", 1).partitions[0]
    manager.change_topic_settings("t", {"index.interval.bytes": "10"})
    starts = []
    for number in range(6):
        starts.append(log.active.size)
        append(log, b"%d" % number)
    log.flush()
    if killed:
        manager.checkpoint()
        manager.abandon()
    else:
        manager.close()
    with last_log(tmp_path).open("r+b") as file:
        for start in starts[-damaged:]:
            file.seek(start + 61)
            file.write(b"????")
    again = LogManager.open(str(tmp_path), read_only=read_only)
    try:
        log = again.log("t", 0)
        assert log.log_end_offset == 6 - damaged
        assert values(log) == [b"%d" % number for number in range(6 - damaged)]
    finally:
        again.abandon()
