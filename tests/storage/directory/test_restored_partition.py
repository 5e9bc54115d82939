"""A partition that is put back without its lines in the checkpoints, as from a backup of it alone:
deleted records are not shown again where its own files know where it begins.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.directory.retain import delete_records
from storage.state import history, manifest_file
from storage.task import Task
from tests.storage.logs import NOW_MS, append, opened, values

RECORDS = [b"%d" % number for number in range(10)]
ROLLS = (3, 6)
START = 4


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """Of a partition that begins inside its second segment; `older`: before the deletion."""
    data = tmp_path / "data"
    data.mkdir()
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number, record in enumerate(RECORDS):
            if number in ROLLS:
                log.roll(NOW_MS)
            append(log, record)
    shutil.copytree(data / "t-0", tmp_path / "older")
    with opened(data) as manager:
        log = manager.log("t", 0)
        assert log.history.now.log_start == 0
        manager.checkpoint()
        delete_records(manager, log, START, Task())
    return data / "t-0"


@pytest.mark.parametrize("beside", ["another topic", "nothing"])
@pytest.mark.parametrize("lacking", ["nothing", history.FILE_NAME, manifest_file.FILE_NAME])
def test_what_was_deleted_stays_so(tmp_path: Path, backup: Path, lacking: str, beside: str) -> None:
    data = tmp_path / "restored"
    data.mkdir()
    if beside == "another topic":
        with opened(data) as manager:
            append(manager.create_topic("other", 1).partitions[0], b"x")
    shutil.copytree(backup, data / "t-0")
    if lacking != "nothing":
        os.unlink(data / "t-0" / lacking)
    for _ in "once", "and again":
        with opened(data) as manager:
            assert values(manager.log("t", 0)) == RECORDS[START:]
        assert f"t 0 {START}\n" in (data / paths.LOG_STARTS).read_text()


def test_a_reader_of_a_backup_is_not_shown_it_either(tmp_path: Path, backup: Path) -> None:
    shutil.copytree(backup, tmp_path / "restored" / "t-0")
    with LogManager.open(str(tmp_path / "restored"), read_only=True) as manager:
        assert values(manager.log("t", 0)) == RECORDS[START:]


@pytest.mark.parametrize("clean", [True, False])
def test_nor_where_the_checkpoint_of_log_starts_is_gone(backup: Path, clean: bool) -> None:
    data = backup.parent
    (data / paths.LOG_STARTS).unlink()
    if not clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
    with opened(data) as manager:
        assert values(manager.log("t", 0)) == RECORDS[START:]


def test_an_older_backup_shows_nothing_deleted_where_the_checkpoint_knows_it(
    tmp_path: Path, backup: Path
) -> None:
    shutil.rmtree(backup)
    (tmp_path / "older").rename(backup)
    with opened(backup.parent) as manager:
        assert values(manager.log("t", 0)) == RECORDS[START:]


def test_where_its_line_is_there_that_counts(tmp_path: Path, backup: Path) -> None:
    """The log start in the partition's own files does not count if a checkpoint has its line.

    It may be the start of a deletion that was given up.
    """
    data = backup.parent
    (data / paths.LOG_STARTS).write_text("0\n0\n")
    with opened(data) as manager:
        assert values(manager.log("t", 0)) == RECORDS
