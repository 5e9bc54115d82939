"""An error says what, where, and what is known of the place."""

from __future__ import annotations

import pytest

from storage import errors


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.StorageError("bad"), "bad"),
        (errors.CorruptRecord("bad", path="/d/a.log"), "bad (file /d/a.log)"),
        (
            errors.CorruptRecord("bad", path="/d/a.log", position=0, offset=0),
            "bad (file /d/a.log, position 0, offset 0)",
        ),
        (errors.CorruptCheckpoint("no", path="/f", line=2), "line 2: no (file /f)"),
        (errors.CorruptCheckpoint("no", path="/f"), "no (file /f)"),
        (
            errors.OffsetOutOfRange(9, 1, 5),
            "offset 9 is outside the log, which runs from 1 to 5",
        ),
        (
            errors.OffsetOutOfRange(9, 1, 5, path="/d"),
            "offset 9 is outside the log, which runs from 1 to 5 (file /d)",
        ),
        (
            errors.RecordTooLarge(11, 10),
            "a batch of 11 bytes exceeds max.message.bytes=10",
        ),
        (
            errors.RecordTooLarge(11, 10, line=3),
            "line 3: a batch of 11 bytes exceeds max.message.bytes=10",
        ),
        (errors.LogLocked(7), "the data directory is in use by process 7"),
        (
            errors.LogLocked(None, path="/d/.lock"),
            "the data directory is in use by another process (file /d/.lock)",
        ),
    ],
)
def test_text(error: errors.StorageError, text: str) -> None:
    assert str(error) == text


def test_facts_can_be_read() -> None:
    error = errors.OffsetOutOfRange(9, 1, 5)
    assert (error.offset, error.log_start, error.log_end) == (9, 1, 5)
    assert errors.RecordTooLarge(11, 10).size == 11
    assert errors.CorruptRecord("bad", position=3).position == 3


def test_every_error_is_a_storage_error_but_what_the_system_refuses() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    for refused in (errors.UnusableFile, errors.IgnoredEntry, errors.CutShort, errors.NoThread):
        classes.remove(refused)
        assert issubclass(refused, OSError)
    assert len(classes) > 15
    assert all(issubclass(value, errors.StorageError) for value in classes)
