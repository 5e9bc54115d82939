"""A crash at every file operation while a log is truncated, and while it gets its first batch.

After each one the log has the old batches up to some batch, and what it lacks of them lies beside
it; epochs and producers are those of its batches. So a follower that asks its leader again goes on
where it ended: the second truncation, and what it fetches then, give the same log. A gap is noted
before the change that it explains: where a crash finds the change, it finds the gap.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Log, LogManager
from storage.files import Files
from storage.log.append import append_as_follower
from storage.segment.cut import cut_files
from storage.state.gaps_file import Gap
from tests.crash.moments import Found, Life, Unsynced
from tests.storage.log.test_follower import at, stored
from tests.storage.log.test_truncate import batches_of, last_offset, removed
from tests.storage.logs import NOW_MS, NOW_NS, batch, opened
from tests.storage.transactions import marker, produced

ID = "AAECAwQFBgcICQoLDA0ODw"


def check_read_only(data: Path, *, start: int) -> None:
    """Before a start has repaired anything, the log can be read from `start` on."""
    with LogManager.open(str(data), read_only=True, files=Unsynced()) as manager:
        if "t" in manager.topics:
            log = manager.log("t", 0)
            assert log.log_start_offset >= start or not log.size
            assert log.log_start_offset <= log.log_end_offset


def sent(first: int, epoch: int, count: int) -> list[bytes]:
    """Batches of two offsets: plain ones, transactions of one producer, some of them aborted."""
    made = []
    for n in range(count):
        offset = first + 2 * n
        if n % 3 == 0:
            made.append(at(batch([b"%d" % offset * 9, b"x"]), offset, epoch + n // 4))
        elif n % 3 == 1:
            values = [b"%d" % offset * 9, b"t"]
            ours = produced(values, 7, 2 * n, epoch=epoch, transactional=True)
            made.append(at(ours, offset, epoch + n // 4))
        else:
            # One offset stays unused, as after compaction.
            made.append(at(marker(7, n % 2, epoch=epoch), offset, epoch + n // 4))
    return made


def epochs_of(batches: list[bytes]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for each in batches:
        epoch = int.from_bytes(each[12:16], "big")
        if not found or epoch > found[-1][0]:
            found.append((epoch, int.from_bytes(each[:8], "big")))
    return found


def put(log: Log, batches: list[bytes]) -> None:
    for each in batches:
        append_as_follower(log, each, NOW_NS)


OLD = sent(0, 0, 16)


class Truncation(Life):
    """A log of some segments is truncated, and gets what the leader has instead."""

    def __init__(self, data: Path, offset: int, log_start: int) -> None:
        super().__init__(data)
        self.offset = offset
        self.log_start = log_start
        stays = [each for each in OLD if last_offset(each) < offset]
        if stays and last_offset(stays[-1]) < log_start:
            stays = []
        self.stays = stays
        self.gap = Gap("diverged", offset, last_offset(OLD[-1]), NOW_MS)
        first = offset if stays or offset < log_start else log_start
        self.new = sent(first, 20, 5)
        # How far the life has come: batches that were acknowledged and flushed, of the old ones and
        # of the new ones.
        self.phase = "appending"
        self.acknowledged = self.flushed = 0

    def build(self) -> None:
        super().build()
        with LogManager.open(str(self.data), files=Unsynced()) as manager:
            topic = manager.create_mirrored_topic(
                "t", ID, 1, {"internal.segment.bytes": "400", "index.interval.bytes": "100"}
            )
            log = topic.partitions[0]
            put(log, OLD[:9])
            log.load_history()
            if self.log_start:
                log.raise_log_start(self.log_start)
        self.acknowledged = self.flushed = 9

    def expected(self) -> tuple[object, ...]:
        return (self.phase, self.acknowledged, self.flushed)

    def append(self, log: Log, batches: list[bytes]) -> None:
        for each in batches:
            append_as_follower(log, each, NOW_NS)
            self.acknowledged += 1

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: NOW_MS)
        log = manager.log("t", 0)
        self.append(log, OLD[9:12])
        log.flush()
        self.flushed = self.acknowledged
        manager.checkpoint()
        self.append(log, OLD[12:])
        log.note_gaps(self.gap)
        self.phase = "truncating"
        manager.truncate(log, self.offset)
        self.phase, self.acknowledged, self.flushed = "truncated", 0, 0
        self.append(log, self.new[:3])
        log.flush()
        self.flushed = 3
        self.append(log, self.new[3:])
        manager.close()
        self.flushed = self.acknowledged

    def with_head(self, there: list[bytes]) -> list[bytes]:
        """These batches, with the old ones before them if a start has deleted their segments."""
        if there and there[0] in OLD and there[0] != OLD[0]:
            head = OLD[: OLD.index(there[0])]
            assert last_offset(head[-1]) < self.log_start
            return [*head, *there]
        return there

    def epochs(self, entries: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those that begin after the log start."""
        return [entry for entry in entries if entry[1] > self.log_start]

    def check(self, data: Path, found: Found) -> None:
        phase, acknowledged, flushed = found.expected
        at_least = flushed if found.lost else acknowledged
        lowest = self.offset if phase == "truncated" else self.log_start
        check_read_only(data, start=min(self.log_start, lowest))
        with opened(data, Unsynced()) as manager:
            log = manager.log("t", 0)
            assert {*log.gaps} == {self.gap} or (phase == "appending" and not log.gaps)
            there = batches_of(stored(log))
            kept = removed(manager, log)
            before = self.with_head(there)
            if phase == "truncated":
                count = len(before) - len(self.stays)
                assert before == [*self.stays, *self.new[:count]]
                assert count >= at_least
                gone = OLD[len(self.stays) :]
            else:
                assert before == OLD[: len(before)]
                gone = OLD[len(before) :] if phase == "truncating" else []
                assert len(before) >= min(at_least, len(self.stays) if gone else at_least)
            if not found.lost:
                # A start deletes segments below the log start.
                gone = [each for each in gone if last_offset(each) >= self.log_start]
                assert [each for each in gone if each not in kept] == []
                if phase == "truncating":
                    # Salvage takes nothing back: at most deleted records lie there.
                    cut = cut_files(manager.files, log.directory)
                    logs = [Path(each).read_bytes() for each in cut if ".log" in each]
                    deleted = [last_offset(each) for data in logs for each in batches_of(data)]
                    assert all(each < self.log_start for each in deleted)
            if there:
                assert log.log_start_offset == min(self.log_start, lowest)
                assert log.epochs.latest == epochs_of(there)[-1][0]
                assert self.epochs(log.epochs.entries) == self.epochs(epochs_of(there))
                assert log.log_end_offset == last_offset(there[-1]) + 1
            # The follower goes on, as its leader says that they diverge.
            if phase != "truncated":
                if log.log_end_offset < self.offset:
                    put(log, OLD[len(before) :])
                log.note_gaps(self.gap)
                manager.truncate(log, self.offset)
            put(log, self.new[len(self.with_head(batches_of(stored(log)))) - len(self.stays) :])
            expected = [*self.stays, *self.new]
            assert self.with_head(batches_of(stored(log))) == expected
        with opened(data, Unsynced()) as manager:
            log = manager.log("t", 0)
            assert self.with_head(batches_of(stored(log))) == expected
            assert {*log.gaps} == {self.gap}
            assert log.epochs.entries[-1][0] == 21


@pytest.mark.parametrize(
    ("offset", "log_start"),
    [(26, 0), (11, 0), (13, 5), (0, 0), (9, 9), (6, 9), (11, 11)],
    ids=str,
)
def test_a_crash_during_a_truncation(tmp_path: Path, offset: int, log_start: int) -> None:
    life = Truncation(tmp_path / "data", offset, log_start)
    life.stops((0, 2)).judge(life.check, tmp_path / "found")


class Beginning(Life):
    """A mirrored topic is made, and its first batch contains the log start."""

    START = 7777
    FIRST = at(produced([b"%d" % n for n in range(100)], 7), 7697, 3)
    BEFORE = Gap("deleted", 0, START - 1, NOW_MS)
    BETWEEN = Gap("missing", 7797, 7899, NOW_MS)
    NEXT = at(batch([b"next"]), 7900, 3)

    def __init__(self, data: Path, *, closes: bool) -> None:
        super().__init__(data)
        self.closes = closes
        self.phase = 0

    def expected(self) -> tuple[object, ...]:
        return (self.phase,)

    def run(self, files: Files) -> None:
        manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: NOW_MS)
        log = manager.create_mirrored_topic("t", ID, 3, {}).partitions[0]
        self.phase = 1
        manager.checkpoint()
        log.note_gaps(self.BEFORE)
        manager.start_at(log, self.START)
        self.phase = 2
        if self.closes:
            manager.close()
            manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: NOW_MS)
            log = manager.log("t", 0)
        append_as_follower(log, self.FIRST, NOW_NS)
        self.phase = 3
        log.flush()
        self.phase = 4
        log.note_gaps(self.BETWEEN)
        self.phase = 5
        append_as_follower(log, self.NEXT, NOW_NS)
        manager.close()

    def check(self, data: Path, found: Found) -> None:
        (phase,) = found.expected
        check_read_only(data, start=self.START if phase >= 2 else 0)
        with opened(data, Unsynced()) as manager:
            if phase:
                assert sorted(manager.topics["t"].numbers) == [0, 1, 2]
            topic = manager.create_mirrored_topic("t", ID, 3, {})
            assert (topic.id, sorted(topic.numbers)) == (ID, [0, 1, 2])
            log = topic.partitions[0]
            gaps = [self.BEFORE, self.BETWEEN]
            noted = len(log.gaps)
            assert list(log.gaps) == gaps[:noted]
            assert noted >= (log.log_end_offset > 0) + (phase >= 5)
            if not log.log_end_offset:
                assert phase < 2
                log.note_gaps(self.BEFORE)
                manager.start_at(log, self.START)
            assert log.log_start_offset == self.START
            batches = [self.FIRST, self.NEXT]
            there = batches_of(stored(log))
            assert there == batches[: len(there)]
            assert len(there) >= (phase >= 4) + (phase == 3 and not found.lost) * 1
            log.note_gaps(self.BETWEEN)
            put(log, batches[len(there) :])
        with opened(data, Unsynced()) as manager:
            log = manager.log("t", 0)
            assert log.log_start_offset == self.START
            assert batches_of(stored(log)) == batches
            assert list(log.gaps) == gaps
            assert log.producers.by_id[7].last_sequence == 99


@pytest.mark.parametrize("closes", [False, True])
def test_a_crash_before_the_first_batch(tmp_path: Path, closes: bool) -> None:
    life = Beginning(tmp_path / "data", closes=closes)
    life.stops((0, 2)).judge(life.check, tmp_path / "found")
