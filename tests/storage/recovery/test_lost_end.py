"""A log that ends before what was flushed of it takes nothing, so that no offset is given twice."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.directory.retain import delete_records
from storage.files import Files
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests.storage.logs import NOW_MS, append, flip, log_file, opened, values
from tests.storage.state.test_segment_manifest import BASES, LINES, fill


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("gone", [[9], [6, 9], [0, 3, 6, 9]])
def test_it_takes_nothing_until_the_loss_is_accepted(
    tmp_path: Path, clean: bool, gone: list[int]
) -> None:
    fill(tmp_path, clean=clean)
    for base in gone:
        log_file(tmp_path, base).unlink()
    for _ in range(3):
        with opened(tmp_path) as manager:
            log = manager.log("t", 0)
            assert values(log) == LINES[: gone[0]]
            with pytest.raises(OSError, match="accept-loss") as caught:
                append(log, b"again")
            assert caught.value.errno == errno.EIO
            with pytest.raises(OSError, match="accept-loss"):
                log.roll(NOW_MS)
            (fault,) = manager.faults
            assert f"offsets {gone[0]} to 11" in fault
            manager.checkpoint()
    outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path), "--accept-loss"])
    assert outcome.exit_code == 0
    assert f"gave up offsets {gone[0]} to 11" in outcome.output
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert append(manager.log("t", 0), b"again") == gone[0]
        assert values(manager.log("t", 0)) == [*LINES[: gone[0]], b"again"]


def test_other_partitions_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        for log in manager.create_topic("t", 2).partitions.values():
            append(log, *LINES)
    log_file(tmp_path, 0).unlink()
    with opened(tmp_path) as manager:
        append(manager.log("t", 1), b"next")
        with pytest.raises(OSError, match="accept-loss"):
            append(manager.log("t", 0), b"next")


def test_what_comes_back_ends_it(tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    path = log_file(tmp_path, 9)
    kept = path.read_bytes()
    path.unlink()
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).log_end_offset == 9
    path.write_bytes(kept)
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert append(manager.log("t", 0), b"next") == 12


def test_salvage_brings_the_end_back(tmp_path: Path) -> None:
    """The damage is within the last flushed records. The valid ones after it reach the end."""
    fill(tmp_path, clean=False)
    path = log_file(tmp_path, 9)
    flip(path, 60)
    with opened(tmp_path) as manager, pytest.raises(OSError, match="salvage"):
        append(manager.log("t", 0), b"again")
    outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path), "--salvage"])
    assert outcome.exit_code == 1, "one batch is damaged"
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert append(manager.log("t", 0), b"next") == 12
        assert values(manager.log("t", 0)) == [*LINES[:9], *LINES[10:], b"next"]


def test_what_was_deleted_is_not_lost(tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    with opened(tmp_path) as manager:
        delete_records(manager, manager.log("t", 0), 12, Task())
    for base in BASES:
        log_file(tmp_path, base).unlink()
    with opened(tmp_path) as manager:
        assert manager.faults == []
        assert append(manager.log("t", 0), b"next") == 12


def test_a_reader_is_told_too(tmp_path: Path) -> None:
    fill(tmp_path, clean=True)
    log_file(tmp_path, 9).unlink()
    before = read_offsets(Files(), str(tmp_path / "recovery-point-offset-checkpoint"))
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        assert values(manager.log("t", 0)) == LINES[:9]
        assert "offsets 9 to 11" in manager.faults[0]
    assert read_offsets(Files(), str(tmp_path / "recovery-point-offset-checkpoint")) == before
