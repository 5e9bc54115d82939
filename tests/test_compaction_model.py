"""The model of a cleaning against cases worked out by hand from Kafka's rules."""

from __future__ import annotations

from tests.compaction_model import (
    ABORT,
    COMMIT,
    Aborted,
    ModelBatch,
    ModelLog,
    ModelRecord,
    ModelSegment,
    Range,
    Rules,
    clean,
    cleanable,
)

NOW = 1_000_000
RULES = Rules(segment_bytes=100, delete_retention_ms=100)


def batch(base: int, *pairs: tuple[bytes | None, bytes | None], **fields: object) -> ModelBatch:
    records = tuple(ModelRecord(base + n, NOW, key, value) for n, (key, value) in enumerate(pairs))
    made = ModelBatch(base, base + max(len(pairs), 1) - 1, records, NOW)
    return made._replace(**fields)  # type: ignore[arg-type]


def marker(base: int, producer: int, kind: int, **fields: object) -> ModelBatch:
    return batch(
        base,
        (b"", b""),
        producer_id=producer,
        producer_epoch=0,
        transactional=True,
        control=True,
        marker=kind,
        **fields,
    )


def sent(base: int, producer: int, *pairs: tuple[bytes, bytes | None]) -> ModelBatch:
    return batch(base, *pairs, producer_id=producer, producer_epoch=0, transactional=True)


def log_of(*segments: tuple[ModelBatch, ...], aborted: tuple[Aborted, ...] = ()) -> ModelLog:
    """Sealed segments of 50 bytes each, and an empty active one."""
    made = [
        ModelSegment(batches[0].base_offset, batches, 50, 0, 0, NOW, NOW, aborted * (not n))
        for n, batches in enumerate(segments)
    ]
    end = segments[-1][-1].last_offset + 1
    made.append(ModelSegment(end, (), 0, 0, 0, NOW, NOW))
    return ModelLog(tuple(made), made[0].base_offset, end, end, {})


def all_of(log: ModelLog) -> Range:
    return cleanable(log, None, RULES, NOW)


def left(log: ModelLog, now_ms: int = NOW, **fields: object) -> tuple[ModelBatch, ...]:
    changed = log._replace(**fields)  # type: ignore[arg-type]
    return clean(changed, all_of(changed), RULES, now_ms).content(changed)


def offsets(batches: tuple[ModelBatch, ...]) -> list[int]:
    return [record.offset for each in batches for record in each.records]


A, B = (b"a", b"1"), (b"b", b"1")


def test_of_each_key_the_latest_record_stays() -> None:
    log = log_of((batch(0, A, B), batch(2, A)), (batch(3, B, (None, b"x")), batch(5, B)))
    assert offsets(left(log)) == [2, 5]


def test_a_full_map_ends_the_round() -> None:
    log = log_of(
        (batch(0, A), batch(1, B), batch(2, A), batch(3, (b"c", b""))),
    )
    outcome = clean(log, all_of(log), RULES, NOW, usable=2)
    # Also a key that is there already finds it full.
    assert (outcome.first_dirty, outcome.keys.full) == (2, True)
    assert offsets(outcome.content(log)) == [0, 1, 2, 3]
    assert clean(log, all_of(log), RULES, NOW, usable=3).first_dirty == 4


def test_groups_are_as_large_as_a_segment_may_be() -> None:
    log = log_of(*((batch(n, (b"%d" % n, b"")),) for n in range(5)))
    outcome = clean(log, all_of(log), RULES, NOW)
    assert [base for base, _, _ in outcome.segments] == [0, 2, 4]


def test_a_tombstone_stays_until_its_horizon() -> None:
    log = log_of((batch(0, A), batch(1, (b"a", None)), batch(2, B)))
    once = left(log)
    assert [(each.base_offset, each.horizon) for each in once] == [(1, NOW + 100), (2, None)]
    again = log_of(once)
    assert left(again, NOW + 99) == once
    assert offsets(left(again, NOW + 100)) == [2]


def test_aborted_records_go_at_once_and_their_marker_after_them() -> None:
    entry = Aborted(7, 1, 2)
    log = log_of((batch(0, A), sent(1, 7, A), marker(2, 7, ABORT), batch(3, B)), aborted=(entry,))
    outcome = clean(log, all_of(log), RULES, NOW)
    # The record that was aborted takes no other's place.
    assert [each.base_offset for each in outcome.content(log)] == [0, 2, 3]
    assert [aborted for _, _, aborted in outcome.segments] == [[entry]]
    second = log_of(outcome.content(log), aborted=(entry,))
    outcome = clean(second, all_of(second), RULES, NOW)
    assert outcome.content(second)[1].horizon == NOW + 100
    assert outcome.segments[0][2] == []
    third = log_of(outcome.content(second))
    assert offsets(left(third, NOW + 99)) == [0, 2, 3]
    assert offsets(left(third, NOW + 100)) == [0, 3]


def test_a_commit_stays_as_long_as_it_has_records() -> None:
    log = log_of((sent(0, 7, A), marker(1, 7, COMMIT), batch(2, B)))
    assert left(log) == log.segments[0].batches
    late = log_of((sent(0, 7, A), marker(1, 7, COMMIT), batch(2, A)))
    once = left(late)
    assert [(each.base_offset, each.horizon) for each in once] == [(1, None), (2, None)]
    assert left(log_of(once))[0].horizon == NOW + 100


def test_the_last_batch_of_a_live_producer_stays_empty() -> None:
    log = log_of((batch(0, A, producer_id=7, producer_epoch=0, codec=4), batch(1, A)))
    assert [each.base_offset for each in left(log)] == [1]
    empty, _ = left(log, producers={7: (0, 0)})
    assert (empty.base_offset, empty.records, empty.codec) == (0, (), 0)


def test_the_last_batch_of_the_log_stays_empty() -> None:
    log = log_of((batch(0, A),), (batch(1, (None, b"")),))
    assert [(each.base_offset, each.records) for each in left(log)][1:] == [(1, ())]


def test_old_batches_become_new_ones() -> None:
    log = log_of((batch(0, A, magic=1), batch(1, A, (b"c", None), magic=1, codec=1), batch(3, B)))
    (old, new) = left(log)
    assert (old.magic, old.base_offset, old.codec, old.horizon) == (2, 1, 1, NOW + 100)
    assert new == log.segments[0].batches[2]


def test_the_range_ends_before_what_is_open_or_young() -> None:
    log = log_of((batch(0, A),), (batch(1, B),), (batch(2, B),))
    assert all_of(log)[:4] == (0, 3, 0, 150)
    assert all_of(log._replace(last_stable=2))[:4] == (0, 2, 0, 100)
    young = RULES._replace(min_compaction_lag_ms=10)
    assert cleanable(log, 1, young, NOW)[:4] == (1, 1, 50, 0)
    assert cleanable(log, 1, young, NOW + 10)[:4] == (1, 3, 50, 100)
    assert cleanable(log, 9, RULES, NOW).first_dirty == 0
    late = RULES._replace(max_compaction_lag_ms=10, min_cleanable_ratio=1.0)
    assert not cleanable(log, 1, late, NOW + 10).is_due(late)
    assert cleanable(log, 1, late, NOW + 11).is_due(late)
    assert cleanable(log, 1, RULES, NOW).is_due(RULES)
    assert not cleanable(log, 2, RULES, NOW).is_due(RULES)
