"""Words for one of a thing and for several."""

from __future__ import annotations

from storage.plural import counted, lasting


def test_one_and_several() -> None:
    assert [counted(number, "partition") for number in (0, 1, 2)] == [
        "0 partitions",
        "1 partition",
        "2 partitions",
    ]
    assert [counted(2, thing) for thing in ("batch", "entry", "staged file")] == [
        "2 batches",
        "2 entries",
        "2 staged files",
    ]


def test_durations() -> None:
    times = (9, 1000, 1500, 59_999, 60_000, 5_400_000, 86_400_000, 604_800_001)
    assert [lasting(time_ms) for time_ms in times] == [
        *("9 ms", "1 s", "1.5 s", "59.999 s"),
        *("1 minute", "1.5 hours", "1 day", "7 days"),
    ]
