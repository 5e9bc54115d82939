"""Which part of a log can be cleaned: facts of segments in, a range out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from storage.compaction.cleanable import CleanableRange, cleanable
from storage.settings.config import LONG_MAX, LogConfig

NOW = 1_000_000


@dataclass
class Facts:
    """The attributes of a segment that `cleanable` reads."""

    base_offset: int
    size: int = 100
    largest_timestamp: int = 0
    first_timestamp: int = -1
    damages: tuple[str, ...] = ()


def plan(
    segments: list[Facts],
    checkpointed: int | None = None,
    *,
    log_start: int = 0,
    decided_end: int = 1000,
    log_end: int = 1000,
    **settings: object,
) -> CleanableRange:
    config = LogConfig(**{"cleanup_policy": ("compact",), **settings})  # type: ignore[arg-type]
    return cleanable(
        segments,  # type: ignore[arg-type]
        config,
        checkpointed,
        log_start=log_start,
        decided_end=decided_end,
        log_end=log_end,
        now_ms=NOW,
    )


FOUR = [Facts(0, 100), Facts(10, 200), Facts(20, 400), Facts(30, 800)]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_damage_ends_what_can_be_cleaned(number: int) -> None:
    segments = [replace(each, damages=("some",) * (n == number)) for n, each in enumerate(FOUR)]
    found = plan(segments)
    assert found.first_uncleanable_offset == 10 * number
    assert found.cleanable_bytes == sum(each.size for each in FOUR[:number])
    assert not plan(segments, 10 * number).is_due(LogConfig(cleanup_policy=("compact",)))


def test_damage_in_the_active_segment_ends_nothing() -> None:
    segments = [*FOUR[:3], replace(FOUR[3], damages=("some",))]
    assert plan(segments) == plan(FOUR)


@pytest.mark.parametrize("checkpointed", [-1, 4, 1001])
def test_a_checkpoint_outside_of_the_log_counts_as_the_log_start(checkpointed: int) -> None:
    found = plan(FOUR, checkpointed, log_start=5)
    assert found.first_dirty_offset == 5


@pytest.mark.parametrize(("stable", "bound"), [(30, 30), (29, 20), (20, 20), (19, 10), (3, 0)])
def test_nothing_from_the_segment_of_an_open_transaction_on(stable: int, bound: int) -> None:
    assert plan(FOUR, decided_end=stable).first_uncleanable_offset == bound


def test_young_records_and_all_behind_them_stay() -> None:
    segments = [Facts(0), Facts(10, 100, NOW - 50), Facts(20), Facts(30)]
    assert plan(segments, min_compaction_lag_ms=50).first_uncleanable_offset == 30
    assert plan(segments, min_compaction_lag_ms=51).first_uncleanable_offset == 10
    # The lag does not apply to segments that are already clean.
    assert plan(segments, 20, min_compaction_lag_ms=51).first_uncleanable_offset == 30


def test_overdue_when_the_oldest_dirty_batch_is() -> None:
    segments = [Facts(0, first_timestamp=1), Facts(10, first_timestamp=NOW - 10), Facts(20)]
    assert plan(segments, 10, max_compaction_lag_ms=9).overdue
    assert not plan(segments, 10, max_compaction_lag_ms=10).overdue
    assert not plan(segments, 10, max_compaction_lag_ms=LONG_MAX).overdue
    # The active segment does not count, nor one without timestamps.
    assert not plan(segments, 20, max_compaction_lag_ms=1).overdue
    assert not plan([Facts(0), Facts(10)], max_compaction_lag_ms=1).overdue


@pytest.mark.parametrize(
    ("ratio", "overdue", "due"), [(0.4, False, False), (0.5, False, True), (0.4, True, True)]
)
def test_due_by_ratio_or_by_age(ratio: float, overdue: bool, due: bool) -> None:
    config = LogConfig(min_cleanable_dirty_ratio=0.4999)
    dirty = int(ratio * 1000)
    found = CleanableRange(0, 0, 10, 1000 - dirty, dirty, overdue, 10)
    assert found.is_due(config) is due
    # As Kafka has it: more than the ratio, and never without dirty bytes.
    assert not CleanableRange(0, 0, 10, 50, 50, False, 10).is_due(LogConfig())
    assert not CleanableRange(0, 0, 0, 100, 0, True, 0).is_due(config)
    assert not CleanableRange(0, 0, 0, 0, 0, False, 0).is_due(config)
