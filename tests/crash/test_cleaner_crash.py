"""A crash at every file operation of two cleanings of a log, and of what lies between them.

The cleaned log has several groups of several segments, transactions that were committed, aborted
and are open, tombstones, a producer whose last batch is superseded, and a tail that is not flushed.
The second cleaning replaces segments that the first one has made, when tombstones are over.

Wherever it stops, the log has either every batch from before a cleaning or exactly those that the
model says are left; what is known of producers and of transactions is the same in both; the
checkpoint of the cleaner never goes beyond what is clean; no file of a cleaning is left behind.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from storage import Log, LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from storage.verify.verify import verify
from tests.compaction_model import ModelBatch, clean, cleanable
from tests.crash.cleaned_log import Life
from tests.crash.histories import check_producers, content, known
from tests.crash.moments import Found, Unsynced, during_opening
from tests.observed import observe, rules_of
from tests.storage.logs import opened


def holds(content: Sequence[ModelBatch], got: Sequence[ModelBatch], end: int) -> bool:
    """Whether a log that ends at ``end`` has got this content, as far as it goes."""
    return list(got) == [batch for batch in content if batch.base_offset < end]


def check(life: Life, path: Path, found: Found) -> None:
    (number,) = found.expected
    stage = life.stages[number]
    checkpoint = read_offsets(Files(), str(path / "cleaner-offset-checkpoint")).get(("t", 0), 0)
    if not found.lost:
        assert verify(str(path)).faults == []
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        end = log.log_end_offset
        assert end >= (stage.flushed if found.lost else stage.acknowledged)
        got = content(log)
        before, *after = (holds(each, got, end) for each in stage.contents)
        following = life.stages[number + 1]
        if following.acknowledged > stage.acknowledged:
            # Of an append that was under way all may be there.
            before = before or holds(following.contents[0], got, end)
        assert before or any(after), (got, stage.contents)
        assert log.log_start_offset == 0
        if not before:
            # The cleaner may have removed a record only because of later ones.
            assert end >= stage.acknowledged
        assert checkpoint <= stage.checkpoint or any(after)
        check_readers(life, log)
        remove = manager.sweep(life.now_ms)
        if remove is not None:
            remove()
        names = [each.name for each in (path / "t-0").iterdir()]
        assert not [n for n in names if n.endswith((".cleaned", ".swap", ".deleted"))]


def check_readers(life: Life, log: Log) -> None:
    facts = known(life.history, log.log_end_offset)
    check_producers(facts, log)
    records = [r for batch in content(log) if not batch.control for r in batch.records]
    assert [(r.offset, r.value) for r in log.records(isolation="read_uncommitted")] == [
        (record.offset, record.value) for record in records
    ]
    assert [(r.offset, r.key, r.value) for r in log.records()] == [
        (r.offset, r.key, r.value)
        for r in records
        if r.offset < facts.stable and r.offset not in facts.aborted
    ]


def check_that_it_goes_on(life: Life, path: Path, found: Found) -> None:
    """Clean the log once more, append to it, and open it again."""
    check(life, path, found)
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        log = manager.log("t", 0)
        facts = observe(log)
        cleaner = LogCleaner(manager)
        where = cleanable(facts, cleaner.first_dirty(log), rules_of(log.config), life.now_ms)
        outcome = clean(facts, where, rules_of(log.config), life.now_ms)
        done = cleaner.clean(log, Task())
        if done is not None:
            assert content(log) == outcome.content(facts)
            assert cleaner.first_dirty(log) == outcome.first_dirty == done.end_offset
        check_readers(life, log)


def test_a_kill_and_a_power_cut_at_every_operation(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    life.stops((0, 2)).judge(functools.partial(check, life), tmp_path / "found")


def test_cleaning_once_more(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    life.stops((2,)).judge(
        functools.partial(check_that_it_goes_on, life), tmp_path / "found", one_of=8
    )


def check_that_it_need_not_be_compacted(life: Life, path: Path, found: Found) -> None:
    """The gaps that a cleaning has made are no loss, whatever the settings are later."""
    manager = LogManager.open(str(path), files=Unsynced(), clock_ms=lambda: life.now_ms)
    before = content(manager.log("t", 0))
    manager.change_topic_settings("t", {"cleanup.policy": "delete"})
    manager.abandon()
    with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
        assert content(manager.log("t", 0)) == before
        assert manager.cuts == []


def test_a_log_that_is_not_compacted_any_more_after_a_kill(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    stops = life.stops()
    stops.found = list(filter(swapping, stops.found))
    whole = functools.partial(check_that_it_need_not_be_compacted, life)
    stops.judge(whole, tmp_path / "found")


def swapping(found: Found) -> bool:
    """Whether the names of files are being changed."""
    return "rename" in found.where


def test_an_opening_after_it_that_is_stopped_too(tmp_path: Path) -> None:
    life = Life(tmp_path / "data")
    stops = life.stops()
    stops.found = list(filter(swapping, stops.found))
    again = during_opening(functools.partial(check, life), seeds=(0,), clock_ms=lambda: life.now_ms)
    stops.judge(again, tmp_path / "found", one_of=10)
