"""Reindex makes what a log had written, from the log alone, and says what differed."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager
from storage.directory.retain import delete_records
from storage.errors import LogLocked
from storage.segment.reader import SegmentReader
from storage.task import Task
from storage.verify.reindex import log_bytes, reindex
from storage.verify.verify import verify
from tests.crash.disk import Crashed, SimulatedDisk
from tests.storage.compaction.cleaned import Clock, clean, compacted, put, roll
from tests.storage.logs import opened
from tests.storage.old_logs import content, copy, write_legacy
from tests.storage.transactions import Client
from tests.storage.verify.test_verify import fill, patch, per_append, segments

INDEXES = (".index", ".timeindex", ".txnindex", ".snapshot")


def indexes(data: Path) -> dict[str, bytes]:
    return {name: file for name, file in content(data / "t-0").items() if name.endswith(INDEXES)}


def remade(*targets: Path) -> list[str]:
    """The names of the files that differed."""
    outcome = reindex(map(str, targets))
    assert outcome.damaged == []
    return sorted(Path(difference.path).name for difference in outcome.different)


def test_what_is_right_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    before = content(tmp_path)
    read: list[int] = []
    outcome = reindex([str(tmp_path)], progress=read.append)
    assert outcome.different == []
    assert outcome.segments == len(segments(tmp_path))
    assert sum(read) == log_bytes([str(tmp_path)])
    assert content(tmp_path) == before


@pytest.mark.parametrize("suffix", INDEXES)
def test_what_is_missing_comes_back_the_same(tmp_path: Path, suffix: str) -> None:
    fill(tmp_path)
    before = indexes(tmp_path)
    doomed = segments(tmp_path, suffix)
    if suffix == ".snapshot":
        doomed.pop()  # that of the log's end is no segment's; the next start does without it
    for path in doomed:
        path.unlink()
    assert remade(tmp_path) == [path.name for path in doomed]
    assert indexes(tmp_path) == before
    with opened(tmp_path):
        pass


def test_what_is_wrong_is_made_anew(tmp_path: Path) -> None:
    fill(tmp_path)
    before = indexes(tmp_path)
    index = segments(tmp_path, ".index")[1]
    times = segments(tmp_path, ".timeindex")[0]
    aborted = segments(tmp_path, ".txnindex")[0]
    producers = segments(tmp_path, ".snapshot")[0]
    patch(index, 8, b"\0\0\1\0")
    times.write_bytes(times.read_bytes()[:-12])
    patch(aborted, 5, b"?")
    patch(producers, 7, b"?")
    outcome = reindex([str(tmp_path)], check_only=True)
    said = {Path(difference.path).name: difference.reason for difference in outcome.different}
    count = len(before[times.name]) // 12
    assert said == {
        index.name: f"1 of {len(before[index.name]) // 8} entries wrong",
        times.name: f"{count - 1} entries, not {count}",
        aborted.name: said[aborted.name],
        producers.name: "unreadable",
    }
    assert "no ABORT marker of producer" in said[aborted.name]
    assert indexes(tmp_path) != before
    names = sorted(path.name for path in (index, times, aborted, producers))
    assert remade(tmp_path) == names
    assert indexes(tmp_path) == before
    assert verify(str(tmp_path)).faults == []


def test_an_index_of_no_transaction_is_removed(tmp_path: Path) -> None:
    fill(tmp_path)
    first = segments(tmp_path)[0].with_suffix(".txnindex")
    first.write_bytes(segments(tmp_path, ".txnindex")[0].read_bytes())
    assert remade(tmp_path) == [first.name]
    assert not first.exists()


def test_an_index_that_was_not_trimmed(tmp_path: Path) -> None:
    fill(tmp_path)
    before = indexes(tmp_path)
    first, last = segments(tmp_path, ".index")[0], segments(tmp_path, ".index")[-1]
    for path in (first, last):
        path.write_bytes(path.read_bytes() + bytes(800))
    assert remade(tmp_path) == [first.name], "the last one's writer extends it"
    assert indexes(tmp_path)[first.name] == before[first.name]


def test_one_segment_and_one_partition(tmp_path: Path) -> None:
    fill(tmp_path)
    before = indexes(tmp_path)
    wrong = segments(tmp_path, ".index")[:3]
    for path in wrong:
        path.write_bytes(per_append([1], [1]))
    assert remade(wrong[1].with_suffix(".log")) == [wrong[1].name]
    assert remade(wrong[2], wrong[1]) == [wrong[2].name]
    assert remade(tmp_path / "t-0") == [wrong[0].name]
    assert indexes(tmp_path) == before


def test_a_segment_of_transactions_alone(tmp_path: Path) -> None:
    """The snapshot or the earlier segments name the transactions that are open at its start."""
    fill(tmp_path)
    before = indexes(tmp_path)
    aborted = segments(tmp_path, ".txnindex")[0]
    for others in ([], segments(tmp_path, ".snapshot")):
        aborted.unlink()
        for path in others:
            path.unlink()
        reindex([str(aborted.with_suffix(".log"))])
        assert indexes(tmp_path)[aborted.name] == before[aborted.name]


def test_a_transaction_that_was_aborted_below_the_log_start(tmp_path: Path) -> None:
    """A cleaner keeps its batches, but neither its entry nor, in the end, its marker."""
    clock = Clock()
    with compacted(tmp_path, clock=clock, log_cleaner_delete_retention_ms=0) as (manager, log):
        manager.change_topic_settings("t", {"cleanup.policy": "compact,delete"})
        producer = Client(log, 7)
        producer.send(b"aborted")
        producer.abort()
        put(log, (b"a", b"1"))
        roll(log)
        delete_records(manager, log, 2, Task())
        clean(manager, log)
    assert remade(tmp_path) == []
    with compacted(tmp_path, clock=clock, log_cleaner_delete_retention_ms=0) as (manager, log):
        clean(manager, log)
        headers = [header for _, header in SegmentReader(log.segments[0]).batches()]
        assert [header.base_offset for header in headers] == [0, 2]
        producer.log = log
        producer.send(b"aborted, too")
        producer.abort()
    assert remade(tmp_path) == []
    assert verify(str(tmp_path)).faults == []


def test_logs_of_old_brokers(tmp_path: Path) -> None:
    write_legacy(tmp_path, "t", 1)
    assert len(remade(tmp_path)) == 5, "two of each kind, and the second one's snapshot"
    before = indexes(tmp_path)
    with opened(tmp_path):
        pass
    assert before.items() <= indexes(tmp_path).items()


def test_a_damaged_log_is_left_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[1]
    patch(path, 100, b"???")
    for index in segments(tmp_path, ".index"):
        index.unlink()
    outcome = reindex([str(tmp_path)])
    assert [fault.path for fault in outcome.damaged] == [str(path)]
    assert "not reindexed" in outcome.damaged[0].reason
    assert len(segments(tmp_path, ".index")) == 1


def test_what_is_open_is_refused_but_can_be_checked(tmp_path: Path) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)):
        with pytest.raises(LogLocked):
            reindex([str(tmp_path)])
        assert reindex([str(tmp_path)], check_only=True).different == []


def test_what_is_no_directory_of_a_log(tmp_path: Path) -> None:
    assert reindex([str(tmp_path)]).segments == 0
    with pytest.raises(NotADirectoryError):
        reindex([str(tmp_path / "nothing")])


def test_a_crash_at_every_operation(tmp_path: Path) -> None:
    original = tmp_path / "original"
    original.mkdir()
    fill(original)
    before = indexes(original)
    for path in segments(original, ".timeindex"):
        path.unlink()
    at = 0
    ended = False
    while not ended:
        at += 1
        data = copy(original, tmp_path / "data")
        disk = SimulatedDisk(str(data), crash_at=at)
        try:
            reindex([str(data)], files=disk)
            ended = True
        except Crashed:
            pass
        disk.materialise(at)
        disk = SimulatedDisk(str(data))
        assert reindex([str(data)], files=disk).damaged == []
        assert indexes(data) == before
        disk.kill()
    assert at > 10
