"""A copy aborts transactions whose markers the source has no more, and loses no record."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkafs.mirror import transactions
from kafkafs.mirror.cuts import Marker, Sides
from kafkafs.mirror.transactions import lost_markers, write_markers
from storage import Log, LogManager
from storage.log.append import append_as_follower
from storage.record.control import ABORT, COMMIT
from storage.record.header import parse_header
from storage.settings.messages import Struct
from storage.verify.verify import verify
from tests.kafkafs.mirror.fake_source import Run, Source, SourceLog, SourceTopic
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.log.test_follower import at, emptied, stored
from tests.storage.logs import NOW_MS, NOW_NS, batch, opened
from tests.storage.transactions import marker, produced


def source_of(log: SourceLog, policy: str = "compact") -> Source:
    """Return a cluster with a topic of this cleanup.policy."""
    config = {"name": "cleanup.policy", "value": policy, "configSource": 5}
    settings = {"resourceName": "t", "errorCode": 0, "configs": [config]}
    source = Source(t=SourceTopic(logs={0: log}))
    source.answers["DescribeConfigs"] = lambda *_: {"results": [settings]}
    return source


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[LogManager]:
    make_mirror(tmp_path)
    with opened(tmp_path, mirrors=True) as manager:
        yield manager
    assert verify(str(tmp_path)).faults == []


def new(manager: LogManager, segment_bytes: int = 1 << 20) -> Log:
    settings = {"internal.segment.bytes": str(segment_bytes)}
    return manager.create_mirrored_topic("t", None, 1, settings).partitions[0]


def put(log: Log, *batches: tuple[int, bytes | bytearray]) -> None:
    for offset, data in batches:
        append_as_follower(log, at(data, offset, 3), NOW_NS)


def opening(producer_id: int) -> bytearray:
    return produced([b"open"], producer_id, transactional=True)


def end(manager: LogManager, log: Log) -> list[tuple[int, int]]:
    """Abort what has ended in a source without an open transaction."""
    lost = lost_markers(log, log.log_end_offset)
    if lost:
        write_markers(manager, log, lost, NOW_NS)
    return [(each.producer.producer_id, each.offset) for each in lost]


def shown(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


@pytest.mark.parametrize("segment_bytes", [200, 1 << 20], ids=["segments", "one"])
def test_the_records_after_a_hole_stay(manager: LogManager, segment_bytes: int) -> None:
    """The source may have none of them any more."""
    log = new(manager, segment_bytes)
    put(log, (5, batch([b"first"])), (6, opening(7)), (7, opening(8)))
    before = stored(log)
    later = [(5000 + 2 * n, batch([b"%d" % n] * 2)) for n in range(20)]
    put(log, *later)
    after = stored(log)[len(before) :]
    assert (log.last_stable_offset, log.log_end_offset) == (6, 5040)
    assert end(manager, log) == [(7, 4998), (8, 4999)]
    assert stored(log).startswith(before)
    assert stored(log).endswith(after)
    assert shown(log) == [5, *range(5000, 5040)]
    assert log.last_stable_offset == log.log_end_offset == 5040
    assert list(Path(log.directory).glob("*.diverged")) == []
    assert end(manager, log) == []
    put(log, (5040, batch([b"next"])))
    assert shown(log)[-1] == 5040


def test_the_last_offsets_that_are_free_are_used(manager: LogManager) -> None:
    """Then the fewest batches are moved. Each transaction ends after its records."""
    log = new(manager)
    put(log, (0, opening(7)), (3, batch([b"3"])), (10, opening(8)), (11, opening(9)))
    put(log, (13, batch([b"13"])), (14, batch([b"14"])))
    put(log, (20, opening(6)), (21, marker(6, COMMIT)))
    assert end(manager, log) == [(7, 17), (8, 18), (9, 19)]
    assert shown(log) == [3, 13, 14, 20]


def test_a_transaction_without_a_free_offset_stays(manager: LogManager) -> None:
    log = new(manager)
    put(log, (0, opening(7)), (3, opening(8)), (4, emptied(marker(7, COMMIT))), (5, batch([b"5"])))
    assert end(manager, log) == [(7, 2)]
    assert lost_markers(log, 6) == []
    assert log.last_stable_offset == 3
    put(log, (9, batch([b"9"])))
    assert lost_markers(log, 6, 9) == []
    assert end(manager, log) == [(8, 8)]


def test_a_transaction_that_is_open_in_the_source_stays(manager: LogManager) -> None:
    log = new(manager)
    put(log, (0, opening(7)), (3, opening(8)), (6, batch([b"6"])))
    assert [each.producer.producer_id for each in lost_markers(log, 3)] == [7]
    assert lost_markers(log, 0) == []


@pytest.mark.parametrize("segment_bytes", [100, 1 << 20], ids=["segments", "one"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_transaction_too_far_before_the_end_stays(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch, segment_bytes: int, missing: int
) -> None:
    log = new(manager, segment_bytes)
    moved = [(9, batch([b"9"])), (10, batch([b"10"]))]
    put(log, (0, opening(7)), (5, batch([b"5"])), *moved)
    limit = sum(len(data) for _, data in moved) - missing
    monkeypatch.setattr(transactions, "_MOVED_BYTES", limit)
    found = lost_markers(log, 11)
    assert [(each.offset, each.moved_bytes) for each in found] == [(8, limit)] * (not missing)


def test_a_marker_is_not_newer_than_the_records_after_it(manager: LogManager) -> None:
    log = new(manager)
    put(log, (0, produced([b"open"], 7, transactional=True, timestamp_ms=NOW_MS - 5)))
    put(log, (5, batch([b"5"], NOW_MS - 3)))
    (lost,) = lost_markers(log, 6)
    assert parse_header(lost.marker()).max_timestamp == NOW_MS - 5


def test_no_batch_is_moved_beside_damage(manager: LogManager, tmp_path: Path) -> None:
    log = new(manager)
    put(log, (0, opening(7)), (5, batch([b"five"])), (6, batch([b"six"])), (9, batch([b"9"])))
    (path,) = (tmp_path / "t-0").glob("*.log")
    sound = path.read_bytes()
    path.write_bytes(sound.replace(b"five", b"FIVE"))
    manager.close()
    with opened(tmp_path, mirrors=True) as again:
        assert lost_markers(again.log("t", 0), 10) == []
    path.write_bytes(sound)


def test_records_below_the_log_start_stay_deleted(manager: LogManager) -> None:
    log = new(manager, 200)
    put(log, (0, opening(7)), *((10 + 2 * n, batch([b"%d" % n] * 2)) for n in range(5)))
    log.raise_log_start(1)
    assert end(manager, log) == [(7, 9)]
    assert shown(log) == list(range(10, 20))
    assert log.log_start_offset == 1


@pytest.mark.parametrize(("next_offset", "fault"), [(5, False), (1, True)])
def test_a_mirror_that_is_complete_ends_them(tmp_path: Path, next_offset: int, fault: bool) -> None:
    """… also after damaged records that were skipped. An end without a place is named, once."""
    damaged = bytearray(at(batch([b"damaged"]), 7, 3))
    damaged[70] ^= 1
    batches = [(0, opening(7)), (next_offset, batch([b"1"])), (8, batch([b"2"]))]
    first, second, last = (at(data, offset, 3) for offset, data in batches)
    if not fault:
        log = SourceLog([first, second, bytes(damaged), last])
    else:
        log = SourceLog([first, second])
    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path, accept_loss=True)
        run()
        if fault:
            assert run.lines == list(run.facts.faults.values())
            assert "begins at offset 0 is not in the cluster" in run.lines[0]
        else:
            assert run.facts.faults == {}
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        copy = manager.log("t", 0)
        assert shown(copy) == ([] if fault else [5, 8])
        assert copy.last_stable_offset == (0 if fault else copy.log_end_offset)


def test_a_transaction_stays_if_its_records_cannot_be_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If that fails later, the records are in files that the mirror names."""
    log = SourceLog([at(opening(7), 0, 3), at(batch([b"new"]), 5, 3)])
    space = os.fstatvfs

    def full(fd: int) -> os.statvfs_result:
        found = [*space(fd)]
        found[4] *= not os.readlink(f"/proc/self/fd/{fd}").endswith("t-0")
        return os.statvfs_result(found)

    def failing(*_: Any) -> None:
        raise OSError(errno.EIO, "broken")

    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path, accept_loss=True)
        monkeypatch.setattr(os, "fstatvfs", full)
        run()
        (fault,) = (line for line in run.facts.faults.values() if line.startswith("t:0"))
        assert "no room" in fault
        monkeypatch.setattr(os, "fstatvfs", space)
        monkeypatch.setattr(transactions, "append_as_follower", failing)
        run()
    (kept,) = (path.name for path in (tmp_path / "t-0").glob("*.diverged"))
    assert f"t:0: records from offset 1 on are in {kept}" in run.lines


def test_a_transaction_is_ended_when_the_disk_has_room_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run searches again."""
    log = SourceLog([at(opening(7), 0, 3), at(batch([b"new"]), 5, 3)])
    space = os.fstatvfs
    is_full = True

    def found(fd: int) -> os.statvfs_result:
        values = [*space(fd)]
        values[4] *= not (is_full and os.readlink(f"/proc/self/fd/{fd}").endswith("t-0"))
        return os.statvfs_result(values)

    monkeypatch.setattr(os, "fstatvfs", found)
    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path, accept_loss=True)

        def script() -> Iterator[bool]:
            nonlocal is_full
            while not (fault := run.facts.faults.get("t:0: transaction")):
                yield False
            assert "no room" in fault
            assert "No offset" not in fault
            is_full = False
            log.batches.append(at(batch([b"newer"]), 6, 3))
            (copy,) = run.facts.copies.values()
            while run.facts.faults.get("t:0: transaction") or copy.log.log_end_offset < 7:
                yield False

        steps = script()
        run(lambda: next(steps, True))
    assert gaps_and_records(tmp_path)[1] == [5, 6]


def test_a_kill_keeps_what_was_not_appended_again(
    manager: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = new(manager, 200)
    put(log, (0, opening(7)))
    later = [batch([b"later %d" % n] * 2) for n in range(20)]
    put(log, *((10 + 2 * n, data) for n, data in enumerate(later)))
    left = 9

    def killed(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        append_as_follower(*arguments)

    monkeypatch.setattr(transactions, "append_as_follower", killed)
    with pytest.raises(KeyboardInterrupt):
        end(manager, log)
    kept = b"".join(path.read_bytes() for path in Path(log.directory).glob("*.log*"))
    assert all(b"later %d" % n in kept for n in range(20))
    assert 10 < log.log_end_offset < 50
    assert log.last_stable_offset == log.log_end_offset


def without_end(source: Source, stable: int) -> Any:
    """Let the source report its last stable offset; return the answer before."""
    fetch: Any = source.answers["Fetch"]

    def answer(version: int, data: Struct) -> Any:
        found = fetch(version, data)
        for topic in found["responses"]:
            topic["partitions"] = [
                each | {"lastStableOffset": stable} for each in topic["partitions"]
            ]
        return found

    source.answers["Fetch"] = answer
    return fetch


def gaps_and_records(path: Path) -> tuple[list[tuple[str, int, int]], list[int]]:
    with LogManager.open(str(path), read_only=True) as manager:
        copy = manager.log("t", 0)
        return [gap[:3] for gap in copy.gaps], shown(copy)


def test_a_transaction_whose_marker_was_deleted(tmp_path: Path) -> None:
    """It ends at the end of the gap."""
    log = SourceLog([at(opening(7), 0, 3)])
    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        # ListOffsets has another last stable offset.
        assert (run().gaps, list(run.facts.faults)) == (0, ["point"])
        source.answers["Fetch"] = fetch
        log.start, log.batches = 5000, [at(batch([b"new"]), 5000, 3)]
        assert run().gaps == 2
    found = gaps_and_records(tmp_path)
    assert found == ([("deleted", 1, 4999), ("aborted", 4999, 4999)], [5000])


def test_a_transaction_that_is_open_below_the_log_start_of_the_source(tmp_path: Path) -> None:
    """The log start is then the last stable offset there."""
    log = SourceLog([at(opening(7), 0, 3)])
    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        source.answers["Fetch"] = fetch
        without_end(source, 5000)
        log.start, log.batches = 5000, [at(batch([b"new"]), 5000, 3)]
        run()
        source.answers["Fetch"] = fetch
        log.batches.append(at(marker(7, COMMIT), 5001, 3))
        run()
    assert gaps_and_records(tmp_path) == ([("deleted", 1, 4999)], [0, 5000])


def test_a_transaction_that_is_open_in_the_copy_of_an_empty_log(tmp_path: Path) -> None:
    """It is named until the source has records again."""
    log = SourceLog([at(opening(7), 0, 3), at(batch([b"1"]), 1, 3)])
    with Source(t=SourceTopic(logs={0: log})) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        source.answers["Fetch"] = fetch
        log.start, log.batches = 5, []
        (fault,) = (line for line in run().faults.values() if line.startswith("t:0"))
        assert "transaction that begins at offset 0 has ended" in fault
        log.batches = [at(batch([b"new"]), 5, 3)]
        assert "t:0: transaction" not in run().faults
    assert gaps_and_records(tmp_path)[1] == [1, 5]


@pytest.mark.parametrize("start", [0, 1], ids=["cleaned", "deleted"])
def test_a_transaction_that_the_source_has_compacted(tmp_path: Path, start: int) -> None:
    """It ends where the hole begins, before other markers come; but only a cleaner removes the
    marker with the records. Else the marker may be after the hole.
    """
    log = SourceLog([at(opening(7), 0, 3)])
    with source_of(log) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        source.answers["Fetch"] = fetch
        log.start, log.batches = start, [at(marker(7, COMMIT), 10, 3)]
        run()
    gaps, records = gaps_and_records(tmp_path)
    assert gaps == ([] if start else [("aborted", 1, 1)])
    assert records == ([0] if start else [])


@pytest.mark.parametrize("records", [None, b""], ids=["throttled", "lagging"])
def test_a_leader_that_does_not_send_its_records_has_them(
    tmp_path: Path, records: bytes | None
) -> None:
    """The copy waits, and does not abort a transaction whose COMMIT follows."""
    log = SourceLog([at(opening(7), 0, 3)])
    with source_of(log) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        source.answers["Fetch"] = fetch
        log.batches.append(at(marker(7, COMMIT), 10, 3))

        def withheld(version: int, data: Struct) -> Any:
            found: Any = fetch(version, data)
            if all(each["partitions"][0]["fetchOffset"] for each in data["topics"]):
                return found
            if records is None:
                return {"throttleTimeMs": 100, "responses": []}
            found["responses"][0]["partitions"][0]["records"] = records
            return found

        source.answers["Fetch"] = withheld
        assert list(run().waiting) == [("t", 0)]
        source.answers["Fetch"] = fetch
        assert run().waiting == {}
    assert gaps_and_records(tmp_path) == ([], [0])


def test_a_search_of_the_source_goes_on_after_a_pause_of_the_leader(tmp_path: Path) -> None:
    """Else a long search would never reach its end in a cluster that throttles again and again."""
    log = SourceLog([at(opening(7), 0, 3)])
    with source_of(log) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        log.batches = [at(marker(7, COMMIT), 10, 3)]
        pauses = 1

        def throttled(version: int, data: Struct) -> Any:
            nonlocal pauses
            if data["maxWaitMs"] or not pauses:
                return fetch(version, data)
            pauses -= 1
            return {"throttleTimeMs": 1, "responses": []}

        source.answers["Fetch"] = throttled
        assert (run().waiting, pauses) == ({}, 0)
    assert gaps_and_records(tmp_path) == ([("aborted", 1, 1)], [])


def test_a_run_ends_while_the_source_is_searched(tmp_path: Path) -> None:
    data = (opening(7), batch([b"1"]), batch([b"2"]))
    log = SourceLog([bytes(at(each, offset, 3)) for offset, each in enumerate(data)])
    with source_of(log) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        log.batches = [*log.batches[1:], at(marker(7, COMMIT), 10, 3)]
        is_searched = False

        def one_batch(version: int, data: Struct) -> Any:
            nonlocal is_searched
            found: Any = fetch(version, data)
            for topic in found["responses"]:
                if not data["topics"][0]["partitions"][0]["fetchOffset"]:
                    (part,) = topic["partitions"]
                    part["records"] = log.batches[0]
                    is_searched = True
            return found

        source.answers["Fetch"] = one_batch
        assert list(run(lambda: is_searched).waiting) == [("t", 0)]
    assert gaps_and_records(tmp_path) == ([], [])


@pytest.mark.parametrize(("policy", "end"), [("compact", 1), ("delete", 4999)])
def test_a_marker_that_the_mirror_writes_is_noted(tmp_path: Path, policy: str, end: int) -> None:
    """The marker is noted for restore points."""
    log = SourceLog([at(opening(7), 0, 3)])
    with source_of(log, policy) as source:
        run = Run(source, tmp_path)
        fetch = without_end(source, 0)
        run()
        source.answers["Fetch"] = fetch
        log.start = 0 if policy == "compact" else 5000
        log.batches = [at(batch([b"new"]), 5000, 3)]
        run()
    (copy,) = run.facts.copies.values()
    assert copy.markers.sides(5000, 5001) == {7: Sides(Marker(0, end, 0, ABORT), None)}
