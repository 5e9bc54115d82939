"""Damaged places: kept apart from one another, and in the way of reading."""

from __future__ import annotations

import pytest

from storage.damage import Damage, merged, sound_size
from storage.errors import CorruptRecord


def place(start: int, end: int) -> Damage:
    """Of ten bytes an offset."""
    return Damage(start, end, start // 10, end // 10, "reason")


def test_what_touches_becomes_one() -> None:
    known = merged((), [place(50, 60), place(10, 20)])
    assert known == (place(10, 20), place(50, 60))
    assert merged(known, [place(20, 30)]) == (place(10, 30), place(50, 60))
    assert merged(known, [place(10, 20), place(30, 55)]) == (place(10, 20), place(30, 60))
    assert merged(known, [place(0, 100)]) == (place(0, 100),)
    assert merged(known, []) == known


def test_reading_goes_up_to_it() -> None:
    damages = (place(10, 20), place(50, 60))
    assert sound_size((), 15, 100, "path") == 100
    assert sound_size(damages, 0, 5, "path") == 5
    assert sound_size(damages, 0, 100, "path") == 10
    assert sound_size(damages, 20, 100, "path") == 30
    assert sound_size(damages, 60, 100, "path") == 100
    for position in (10, 19, 50):
        with pytest.raises(CorruptRecord, match="damaged: reason") as error:
            sound_size(damages, position, 1, "path")
        assert error.value.path == "path"
        assert error.value.position in (10, 50)
