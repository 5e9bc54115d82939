"""storage.log.epochs: which leader epochs a log has, and when its file has to say so."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.files import Files
from storage.log.epochs import LeaderEpochs
from storage.paths import LEADER_EPOCH_CHECKPOINT
from storage.record.header import BatchHeader, entry_header
from storage.state.checkpoint_file import read_epochs


def led(epoch: int, offset: int, magic: int = 2) -> BatchHeader:
    """The header of a batch of a leader epoch."""
    return entry_header(offset, 50, magic, 0, 0)._replace(leader_epoch=epoch)


@pytest.mark.parametrize(
    ("before", "batches", "after"),
    [
        ([], [(0, 7)], [(0, 7)]),
        ([], [(-1, 7)], []),
        ([(0, 0)], [(0, 5)], [(0, 0)]),
        ([(0, 0)], [(4, 5), (4, 9)], [(0, 0), (4, 5)]),
        ([(0, 0)], [(4, 5), (3, 9), (6, 10)], [(0, 0), (4, 5), (6, 10)]),
        # The epoch before has no record.
        ([(0, 0), (2, 5)], [(4, 5)], [(0, 0), (4, 5)]),
        # A batch of v0 or v1 has none.
        ([], [(-1, 7, 1), (3, 8)], [(3, 8)]),
        ([(0, 0), (2, 5)], [(-1, 7, 0)], []),
    ],
)
def test_batches_begin_epochs(
    before: list[tuple[int, int]], batches: list[tuple[int, ...]], after: list[tuple[int, int]]
) -> None:
    epochs = LeaderEpochs(list(before))
    epochs.assign(led(*batch) for batch in batches)
    assert epochs.entries == after
    assert epochs.latest == (after[-1][0] if after else 0)
    assert epochs.is_unflushed == (after != before)


@pytest.mark.parametrize(
    ("start", "after"),
    [
        (0, [(1, 3), (4, 10)]),
        (3, [(1, 3), (4, 10)]),
        (7, [(1, 7), (4, 10)]),
        (10, [(4, 10)]),
        (20, [(4, 20)]),
    ],
)
def test_the_log_start_moves_up(start: int, after: list[tuple[int, int]]) -> None:
    before = [(1, 3), (4, 10)]
    epochs = LeaderEpochs(list(before))
    epochs.truncate_from_start(start)
    assert epochs.entries == after
    assert epochs.is_unflushed == (after != before)


def test_what_has_changed_since_a_flush_began_is_written_by_the_next(tmp_path: Path) -> None:
    files, path = Files(str(tmp_path)), str(tmp_path / LEADER_EPOCH_CHECKPOINT)
    epochs = LeaderEpochs([])
    epochs.assign([led(1, 0)])
    flushed = epochs.entries
    epochs.assign([led(2, 5)])
    epochs.write(files, str(tmp_path), flushed)
    epochs.written(flushed)
    assert read_epochs(files, path) == [(1, 0)]
    assert epochs.is_unflushed
    epochs.write(files, str(tmp_path), epochs.entries)
    epochs.written(epochs.entries)
    assert read_epochs(files, path) == [(1, 0), (2, 5)]
    assert not epochs.is_unflushed
