"""Damaged places: kept apart from one another, and in the way of reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager
from storage.errors import CorruptRecord
from storage.segment.damage import Damage, merged, sound_size
from tests.storage.logs import NOW_MS, append, opened_log


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


@pytest.mark.parametrize("last", [False, True])
def test_a_segment_without_a_sound_batch_is_not_passed(tmp_path: Path, *, last: bool) -> None:
    """Nor one whose first batch is damaged, when what lies before it has been read."""
    with opened_log(tmp_path) as log:
        for values in ((b"a", b"b"), (b"c", b"d"), (b"e", b"f")):
            append(log, *values)
            if not last:
                append(log, *values)
            log.roll(NOW_MS)
        base = log.segments[1].base_offset
    path = tmp_path / "t-0" / f"{base:020d}.log"
    content = bytearray(path.read_bytes())
    content[(len(content) if last else len(content) // 2) - 1] ^= 1
    path.write_bytes(content)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        found: list[int] = []
        with pytest.raises(CorruptRecord, match="CRC"):
            found.extend(record.offset for record in log.records())
        assert found == list(range(base))
        with pytest.raises(CorruptRecord, match="CRC"):
            log.read(base, 1000)
