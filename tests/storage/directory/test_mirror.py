"""A mirror has one writer."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.directory.lock import alone, change_settings
from storage.errors import CorruptCheckpoint, InvalidConfig, LogLocked, MirroredDirectory
from storage.files import Files
from storage.state import mirror_file
from storage.state.mirror_file import MirrorFile
from tests.storage.logs import append, opened, values

SOURCE = "kafka://one:9092"


def make_mirror(directory: Path) -> None:
    with alone(str(directory)) as files:
        mirror_file.write(files, str(directory), MirrorFile("C", SOURCE, ("*",)))


def mirrored_line(directory: Path) -> str:
    """The refusal of other writers."""
    return (
        f"{directory}: this directory is a mirror of {SOURCE}; only `kafkafs mirror` writes it. "
        f"To end the mirror: kafkafs detach {directory}"
    )


def test_only_the_mirror_writes(tmp_path: Path) -> None:
    path = str(tmp_path)
    with opened(tmp_path) as manager:
        append(manager.create_topic("a", 1).partitions[0], b"1")
    with pytest.raises(InvalidConfig, match="not a mirror"):
        LogManager.open(path, mirrors=True)
    make_mirror(tmp_path)
    with LogManager.open(path, mirrors=True) as manager:
        append(manager.log("a", 0), b"2")
        with pytest.raises(LogLocked):
            LogManager.open(path, mirrors=True)
        # Also while the mirror runs.
        with pytest.raises(MirroredDirectory) as caught:
            LogManager.open(path)
        assert str(caught.value) == mirrored_line(tmp_path)
    with pytest.raises(MirroredDirectory):
        LogManager.open(path)
    with pytest.raises(MirroredDirectory):
        change_settings(path, "a", {"segment.bytes": "1000000"})
    with LogManager.open(path, read_only=True) as manager:
        assert values(manager.log("a", 0)) == [b"1", b"2"]


def test_the_lock_is_released_if_the_directory_became_a_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror may begin between the check and the lock."""
    lock = Files.lock

    def begin_and_lock(files: Files, path: str) -> int:
        monkeypatch.undo()
        make_mirror(tmp_path)
        return lock(files, path)

    monkeypatch.setattr(Files, "lock", begin_and_lock)
    with pytest.raises(MirroredDirectory):
        LogManager.open(str(tmp_path))
    with LogManager.open(str(tmp_path), mirrors=True):
        pass


def test_a_damaged_file_still_refuses_writers(tmp_path: Path) -> None:
    (tmp_path / paths.MIRROR).write_text("version 1\n")
    with pytest.raises(CorruptCheckpoint):
        LogManager.open(str(tmp_path))
