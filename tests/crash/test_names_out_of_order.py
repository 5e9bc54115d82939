"""A power cut that keeps any of a directory's unsynced names, whichever came before.

Only a sync keeps the names of a swap in order: that it is decided, that the old segments have
theirs no more, that what was decided is taken back.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.log.listener import LogListener
from storage.segment.segment import Segment
from storage.task import Task
from tests.compaction_model import clean, cleanable
from tests.crash.cleaned_log import Life
from tests.crash.disk import SimulatedDisk
from tests.crash.moments import Found, during_opening
from tests.crash.test_cleaner_crash import check
from tests.observed import observe, rules_of
from tests.storage.logs import NOW_MS, append, opened, values

pytestmark = pytest.mark.soak

SEEDS = range(-6, 0)


def changes_names(found: Found) -> bool:
    return found.lost and any(kind in found.where for kind in ("rename", "unlink", "sync_dir"))


def test_a_swap(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    stops = life.stops(SEEDS)
    stops.found = list(filter(changes_names, stops.found))
    stops.judge(functools.partial(check, life), tmp_path / "found")


class BrokersLife(Life):
    """In a broker's directory, without a manifest, whose sync would keep names in order."""

    def build(self) -> None:
        super().build()
        (self.data / paths.META_PROPERTIES).write_text("version=1\nnode.id=1\n")


def test_a_swap_where_nothing_else_is_written(tmp_path: Path) -> None:
    life = BrokersLife(tmp_path / "data")
    stops = life.stops(range(-40, 0))
    stops.found = [
        found
        for found in stops.found
        if changes_names(found) and names_end(found, ".swap") and "rename" in found.where
    ]
    stops.judge(functools.partial(check, life), tmp_path / "found")


class FullDisk(LogListener[Log]):
    """A listener that fails before a swap, as if the disk was full."""

    def swapping(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TakenBack(Life):
    """A swap is decided and taken back."""

    kinds = (".swap",)

    def run(self, files: Files) -> None:
        self.begin(files)
        now = self.stages[-1]
        facts, rules = observe(self.log), rules_of(self.log.config)
        outcome = clean(facts, cleanable(facts, None, rules, self.now_ms), rules, self.now_ms)
        # A restart may carry out what was decided.
        self.enter(contents=(now.contents[0], outcome.content(facts)))
        self.log.listeners.append(FullDisk())
        with pytest.raises(OSError, match="No space left"):
            LogCleaner(self.manager).clean(self.log, Task())
        self.log.listeners.clear()
        self.enter(contents=(now.contents[0],))


def test_a_swap_that_is_taken_back(tmp_path: Path) -> None:
    life = TakenBack(tmp_path / "data")
    stops = life.stops(range(-40, 0))
    stops.found = list(filter(changes_names, stops.found))
    stops.judge(functools.partial(check, life), tmp_path / "found")


def names_end(found: Found, end: str) -> bool:
    """Whether any name in a partition's directory ends so."""
    directories = [each for each in found.state.values() if isinstance(each, dict)]
    return any(name.endswith(end) for names in directories for name in names)


@pytest.mark.parametrize("is_decided", [False, True])
def test_an_opening_amid_a_swap(tmp_path: Path, is_decided: bool) -> None:
    """The process was killed, and the machine stops while the next one takes the swap back, or
    carries it out.
    """
    life = Life(tmp_path / "data")
    stops = life.stops()
    stops.found = [
        found
        for found in stops.found
        if names_end(found, ".log.swap") and names_end(found, ".cleaned") != is_decided
    ]
    judge = during_opening(
        functools.partial(check, life), seeds=SEEDS, clock_ms=lambda: life.now_ms
    )
    stops.judge(judge, tmp_path / "found", one_of=8)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_roll_that_was_taken_back(tmp_path: Path, seed: int) -> None:
    """Flushed, none of its files comes back: a broker would go on in the one that is empty."""
    disk = SimulatedDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log = manager.create_topic("t", 1).partitions[0]
    append(log, b"a")
    log.flush()
    disk.fail_next("ftruncate", errno.ENOSPC, suffix="1.timeindex")
    with pytest.raises(OSError, match="No space left"):
        log.roll(NOW_MS)
    append(log, b"b")
    log.flush()
    disk.materialise(seed)
    names = {each.name for each in (tmp_path / "t-0").iterdir()}
    assert not names & {f"{1:020}.{kind}" for kind in ("log", "index", "timeindex")}
    with opened(tmp_path) as again:
        assert values(again.log("t", 0)) == [b"a", b"b"]
