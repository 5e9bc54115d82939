"""Words for one of a thing and for several."""

from __future__ import annotations

from storage.plural import counted


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
