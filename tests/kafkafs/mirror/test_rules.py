"""The decisions of a mirror, by facts of an answer and of its log."""

from __future__ import annotations

import pytest

from kafka_client.errors import BrokerError, BrokerUnreachable
from kafka_client.requests import Offset, TopicSettings
from kafkafs.mirror import rules
from kafkafs.mirror.rules import (
    Again,
    BeginAt,
    Compare,
    Hole,
    Policy,
    Rounds,
    Skip,
    Truncate,
    Wait,
)
from storage import Record, encode
from storage.errors import CorruptRecord
from storage.record._batch import assign_offsets
from storage.state.gaps_file import Gap

DELETE, COMPACT = Policy(False, 1000), Policy(True, 60_000)
MISSING = [("missing", 5, 9)]


@pytest.mark.parametrize(
    ("holes", "known", "source_start", "policy", "named"),
    [
        ([], [], 50, DELETE, []),
        ([(5, 9)], [], 0, COMPACT, []),
        ([(5, 9)], [], 5, DELETE, [("missing", 5, 9)]),
        ([(5, 9)], [], 10, DELETE, [("deleted", 5, 9)]),
        ([(5, 9)], [], 10, COMPACT, [("deleted", 5, 9)]),
        # The first batch begins below the log start of the leader.
        ([(5, 9)], [], 12, DELETE, [("deleted", 5, 9)]),
        ([(5, 9)], [], 8, DELETE, [("deleted", 5, 7), ("missing", 8, 9)]),
        ([(5, 9)], [], 8, COMPACT, [("deleted", 5, 7)]),
        ([(5, 9), (20, 20)], [], 0, DELETE, [("missing", 5, 9), ("missing", 20, 20)]),
        # Known ones are not named again.
        ([(5, 9)], [Gap("damaged", 5, 9, 1)], 0, DELETE, []),
        (
            [(5, 9)],
            [Gap("deleted", 5, 6, 1), Gap("missing", 7, 7, 1)],
            0,
            DELETE,
            [("missing", 8, 9)],
        ),
        ([(5, 9)], [Gap("diverged", 5, 9, 1)], 0, DELETE, [("missing", 5, 9)]),
        ([(5, 9)], [Gap("deleted", 5, 7, 1)], 12, DELETE, [("deleted", 8, 9)]),
        # A truncation has removed the records around them.
        ([(5, 9)], [Gap("deleted", 5, 9, 1), Gap("diverged", 2, 4, 1)], 0, DELETE, MISSING),
        ([(5, 9)], [Gap("diverged", 2, 4, 1), Gap("deleted", 5, 9, 1)], 0, DELETE, []),
    ],
)
def test_holes_are_named(
    holes: list[tuple[int, int]],
    known: list[Gap],
    source_start: int,
    policy: Policy,
    named: list[tuple[str, int, int]],
) -> None:
    found = rules.on_records(holes, known, source_start, policy, accept_loss=False)
    assert found == [Hole(*each) for each in named]


def test_a_hole_waits_if_nobody_knows_whether_the_topic_is_compacted() -> None:
    found = rules.on_records([(5, 9)], [], 0, Policy(), accept_loss=False)
    assert isinstance(found, Wait)
    assert "DESCRIBE_CONFIGS" in found.reason
    found = rules.on_records([(5, 9)], [], 0, Policy(), accept_loss=True)
    assert found == [Hole("missing", 5, 9)]


@pytest.mark.parametrize(
    ("position", "known", "found"),
    [
        (9, [], Hole("deleted", 5, 8)),
        (9, [Gap("deleted", 5, 7, 1)], Hole("deleted", 8, 8)),
        (9, [Gap("deleted", 5, 20, 1)], None),
        (9, [Gap("deleted", 5, 20, 1), Gap("diverged", 3, 4, 1)], Hole("deleted", 5, 8)),
    ],
)
def test_a_gap_at_the_end_is_named(position: int, known: list[Gap], found: Hole | None) -> None:
    assert rules.without_records(5, position, known) == found


@pytest.mark.parametrize(
    ("error", "attempts", "accept_loss", "found"),
    [
        (BrokerError(1, "t:0"), 1, False, Compare()),
        (BrokerUnreachable("away"), 1, False, Wait("away")),
        (BrokerError(58, "t:0"), 1, False, Wait("SASL_AUTHENTICATION_FAILED")),
        (CorruptRecord("bad"), 1, False, Again()),
        (CorruptRecord("bad"), 1, True, Again()),
        (CorruptRecord("bad"), 3, False, Wait("bad. To skip it: --accept-loss")),
        (CorruptRecord("bad"), 3, True, Skip(15, damaged=True)),
    ],
)
def test_errors(error: Exception, attempts: int, accept_loss: bool, found: object) -> None:
    assert rules.on_error(error, 10, 15, attempts, accept_loss=accept_loss) == found


def test_damaged_records_of_unknown_size_are_skipped_one_by_one() -> None:
    found = rules.on_error(CorruptRecord("bad"), 10, 10, 3, accept_loss=True)
    assert found == Skip(11, damaged=True)


EPOCHS = [(2, 0), (5, 40), (7, 60)]


@pytest.mark.parametrize(
    ("epoch", "epoch_end", "offset"),
    [
        (7, 80, 80),
        (5, 70, 60),
        (5, 50, 50),
        (6, 70, 60),
        (4, 90, 40),
        (1, 90, 0),
        # Nothing tells from where on it is another one.
        (7, 100, None),
        (-1, -1, None),
    ],
)
def test_a_divergence_ends_where_both_have_the_epoch(
    epoch: int, epoch_end: int, offset: int | None
) -> None:
    found = rules.on_divergence(100, EPOCHS, epoch, epoch_end)
    assert found == Truncate(offset) if offset is not None else isinstance(found, Wait)


@pytest.mark.parametrize(
    ("position", "earliest", "latest", "epoch_end", "found"),
    [
        (100, 120, 150, Offset(150, 7), Skip(120)),
        (100, 0, 80, Offset(80, 7), Truncate(80)),
        (100, 0, 80, Offset(70, 5), Truncate(60)),
        (100, 0, 150, Offset(120, 7), Again()),
        (
            100,
            0,
            80,
            Offset(-1, -1),
            Wait("the leader does not know epoch 7, which our log has"),
        ),
        (100, 0, 80, None, Wait("our log ends at offset 100, that of the leader at offset 80")),
        (110, 0, 120, Offset(90, 7), Truncate(90)),
        # Another leader has less than the one that had deleted records, or had damaged ones.
        (200, 0, 150, Offset(150, 7), Skip(100)),
        (200, 120, 150, Offset(150, 7), Skip(120)),
        (200, 0, 90, None, Wait("our log ends at offset 100, that of the leader at offset 90")),
    ],
)
def test_a_refused_position(
    position: int, earliest: int, latest: int, epoch_end: Offset | None, found: object
) -> None:
    offsets = Offset(earliest, 0), Offset(latest, 0)
    assert rules.on_comparison(100, position, EPOCHS, *offsets, epoch_end) == found


@pytest.mark.parametrize(
    ("position", "earliest", "latest", "found"),
    [
        (100, 0, 80, BeginAt(80)),
        (110, 0, 80, BeginAt(80)),
        (100, 0, 100, Again()),
        (100, 120, 150, Skip(120)),
    ],
)
def test_a_refused_position_of_a_log_without_records(
    position: int, earliest: int, latest: int, found: object
) -> None:
    offsets = Offset(earliest, 0), Offset(latest, 0)
    assert rules.on_comparison(100, position, [], *offsets, None, is_empty=True) == found


def test_a_refused_position_waits_for_an_answer() -> None:
    away = BrokerUnreachable("away")
    assert rules.on_comparison(100, 100, EPOCHS, away, Offset(0, 0), None) == Wait("away")


@pytest.mark.parametrize(
    ("policy", "away_ms", "found"),
    [
        (DELETE, 10**9, False),
        (COMPACT, 30_000, False),
        (COMPACT, 60_001, True),
        # The time at the end may be some seconds too late.
        (COMPACT, 45_000, True),
        # A cleaner may remove them at once, but each short delay would be a gap.
        (Policy(True, 100), 20_000, False),
        (Policy(True, 100), 20_001, True),
        (Policy(), 10_000, False),
        (Policy(), 61_000, True),
        # The clock was set back.
        (COMPACT, -20_000, False),
        (COMPACT, -20_001, True),
    ],
)
def test_tombstones_may_be_missed(policy: Policy, away_ms: int, found: bool) -> None:
    assert rules.may_show_deleted(policy, 5, 5 + away_ms) == found


@pytest.mark.parametrize(
    ("rounds_s", "at_end_s", "now_s", "found_s"),
    [
        ([100], 100, 101, 101),
        ([100, 109], 100, 109, 109),
        # An answer after a stop may be from before it.
        ([100, 111], 100, 111, 100),
        ([100, 111, 112], 111, 112, 112),
        ([100, 111], 100, 140, 100),
        ([100, 111], 100, 141, 141),
        # The second stop comes before all have answered after the first one.
        ([100, 120, 140], 100, 140, 100),
        ([100, 120, *range(130, 160, 10), 170], 100, 170, 150),
        ([200, 100], 200, 100, 200),
    ],
)
def test_a_copy_is_not_complete_while_the_process_is_stopped(
    rounds_s: list[int], at_end_s: int, now_s: int, found_s: int
) -> None:
    rounds = Rounds()
    for at_s in rounds_s:
        rounds.begin(at_s * 1000)
    assert rounds.complete_until_ms(at_end_s * 1000, now_s * 1000) == found_s * 1000


def test_settings_that_decide() -> None:
    settings = {"cleanup.policy": "delete,compact", "delete.retention.ms": "5"}
    assert Policy.of(TopicSettings(settings, {})) == Policy(True, 5)
    assert Policy.of(TopicSettings({"cleanup.policy": "delete"}, {})) == Policy(False, None)


def test_a_batch_that_a_cleaner_has_rewritten_is_the_same() -> None:
    def at(offset: int, *values: bytes) -> bytes:
        data = bytearray(encode([Record(n, 1, 0, b"k", value) for n, value in enumerate(values)]))
        assign_offsets(data, offset, 3)
        return bytes(data)

    ours = at(5, b"a", b"b")
    for theirs, policy, is_same in (
        (ours + at(7, b"c"), DELETE, True),
        (at(5, b"a", b"c"), DELETE, False),
        (at(5, b"a", b"c"), Policy(), False),
        (b"", COMPACT, False),
        (at(5, b"a", b"c"), COMPACT, True),
        (at(5, b"a"), COMPACT, False),
        (at(7, b"c"), COMPACT, True),
        (at(7, b"c"), DELETE, False),
    ):
        assert rules.is_same_batch(ours, memoryview(theirs), policy) == is_same
