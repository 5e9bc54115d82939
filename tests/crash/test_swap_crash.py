"""A crash at every file operation of two cleanings by another process, which the owner swaps in.

The same log and the same promises as in ``test_cleaner_crash``: wherever it stops, the log has
every batch from before or exactly those that are left.  A process without an answer asks again.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.swap_request import SwapRequest
from storage.errors import SwapRefused
from storage.task import Task
from tests.compaction_model import clean, cleanable
from tests.crash.cleaned_log import Life
from tests.crash.histories import content
from tests.crash.moments import Found, Unsynced, during_opening
from tests.crash.test_cleaner_crash import check, check_readers
from tests.observed import observe, rules_of
from tests.storage.compaction.staging import staged_request
from tests.storage.logs import opened


class StagedLife(Life):
    """Another process does its cleanings; ``requests``: what was asked of the owner, by stage."""

    kinds = (".staged", *Life.kinds)

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.requests: dict[int, SwapRequest] = {}

    def clean(self) -> None:
        facts, before = observe(self.log), self.stages[-1]
        where = cleanable(facts, before.checkpoint, rules_of(self.log.config), self.now_ms)
        outcome = clean(facts, where, rules_of(self.log.config), self.now_ms)
        assert len(outcome.segments) > 1
        after = outcome.content(facts)
        request = staged_request(self.manager, self.log, len(self.stages))
        self.enter(contents=(before.contents[0], after))
        self.requests[len(self.stages) - 1] = request
        LogCleaner(self.manager).swap_in(request, Task())
        assert content(self.log) == after
        self.enter(contents=(after,), checkpoint=outcome.first_dirty)
        self.requests[len(self.stages) - 1] = request


def check_that_it_is_asked_again(life: StagedLife, path: Path, found: Found) -> None:
    """The swap is carried out now or was before, or it is refused because files are missing."""
    check(life, path, found)
    (number,) = found.expected
    request = life.requests.get(number)
    if request is None:
        return
    stage = life.stages[number]
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        before, end = content(log), log.log_end_offset
        try:
            LogCleaner(manager).swap_in(request, Task())
        except SwapRefused:
            assert content(log) == before
        else:
            after = tuple(b for b in stage.contents[-1] if b.base_offset < end)
            assert content(log) == after
            assert LogCleaner(manager).first_dirty(log) == request.end_offset
        assert not [each for each in (path / "t-0").iterdir() if each.name.endswith(".staged")]
        check_readers(life, log)


def test_a_kill_and_a_power_cut_at_every_operation(tmp_path: Path) -> None:
    life = StagedLife(tmp_path / "data")
    life.stops((0, 2)).judge(functools.partial(check, life), tmp_path / "found")


def test_who_got_no_answer_asks_again(tmp_path: Path) -> None:
    life = StagedLife(tmp_path / "data")
    stops = life.stops((2,))
    stops.found = [each for each in stops.found if each.expected[0] in life.requests]
    assert len(stops.found) > 50
    stops.judge(functools.partial(check_that_it_is_asked_again, life), tmp_path / "found")


@pytest.mark.soak
def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path) -> None:
    life = StagedLife(tmp_path / "data")
    stops = life.stops((2,))
    again = during_opening(
        functools.partial(check, life), seeds=(0, 2), clock_ms=lambda: life.now_ms
    )
    stops.judge(again, tmp_path / "found", one_of=50)
