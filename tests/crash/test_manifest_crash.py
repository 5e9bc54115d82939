"""A crash at every file operation of retention and of cleaning: the manifest lists what is there.

After a crash at any operation, the next start reports no loss of files that retention or cleaning
has deleted or replaced. If segments vanish after that start, the one after it reports them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.task import Task
from tests.crash import cleaned_log, moments, test_retention_crash
from tests.crash.moments import Found, Unsynced, during_opening
from tests.storage.logs import NOW_MS


class Superseded(moments.Life):
    """Of the first segments nothing is left, so that no batch tells that they were replaced."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.now_ms = NOW_MS
        self.manager: LogManager

    @property
    def log(self) -> Log:
        return self.manager.log("t", 0)

    def build(self) -> None:
        super().build()
        with LogManager.open(str(self.data), files=Unsynced(), clock_ms=lambda: NOW_MS) as manager:
            log = manager.create_topic("t", 1).partitions[0]
            manager.change_topic_settings("t", {"cleanup.policy": "compact"})
            for n in range(16):
                record = Record(0, NOW_MS + n, 0, b"k", b"%d" % n * 60)
                log.append(bytearray(encode([record])), now_ns=NOW_MS * 1_000_000)
                if n % 2:
                    log.roll(NOW_MS)
            manager.change_topic_settings("t", {"internal.segment.bytes": "600"})

    def run(self, files: Files) -> None:
        self.manager = LogManager.open(str(self.data), files=files, clock_ms=lambda: NOW_MS)
        before = len(self.log.segments)
        assert LogCleaner(self.manager).clean(self.log, Task()) is not None
        assert len(self.log.segments) < before
        self.manager.checkpoint()


Life = cleaned_log.Life | Superseded | test_retention_crash.Life


def open_again(life: Life, path: Path) -> LogManager:
    return LogManager.open(str(path), files=Unsynced(), clock_ms=lambda: life.now_ms)


def misses_nothing(life: Life, path: Path, _: Found) -> None:
    with open_again(life, path) as manager:
        log = manager.log(life.log.topic, 0)
        assert log.losses == []
        sealed = [segment.log_path for segment in log.segments[:-1] if segment.size]
    with open_again(life, path) as manager:
        assert manager.log(life.log.topic, 0).losses == []
    # The head, and one in the midst.
    for gone in sealed[::2]:
        Path(gone).unlink()
    with open_again(life, path) as manager:
        log = manager.log(life.log.topic, 0)
        assert [segment.log_path for segment in log.segments if segment.is_lost] == sealed[::2]
        assert len(log.losses) == len(sealed[::2])


@pytest.mark.parametrize("kind", [cleaned_log.Life, Superseded, test_retention_crash.Life])
def test_wherever_it_stops(tmp_path: Path, kind: type[Life]) -> None:
    life = kind(tmp_path / "data")
    check = functools.partial(misses_nothing, life)
    life.stops((0, 2)).judge(check, tmp_path / "found", one_of=5)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [cleaned_log.Life, Superseded, test_retention_crash.Life])
def test_wherever_openings_stop_too(tmp_path: Path, kind: type[Life]) -> None:
    life = kind(tmp_path / "data")
    check = functools.partial(misses_nothing, life)
    again = during_opening(check, seeds=(0, 2), clock_ms=lambda: life.now_ms)
    life.stops(range(4)).judge(again, tmp_path / "found", one_of=40)
