"""A mirror has one writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import Log, LogManager, paths
from storage.directory.lock import alone, change_settings
from storage.directory.mirror import end_mirror
from storage.directory.retain import delete_records, retain
from storage.errors import CorruptCheckpoint, InvalidConfig, LogLocked, MirroredDirectory
from storage.files import Files
from storage.log.append import append_as_follower
from storage.state import mirror_file, point_file
from storage.state.mirror_file import MirrorFile
from storage.state.point_file import Point, Range, keep, name_at
from storage.task import Task
from storage.verify.verify import verify
from tests.storage.groups.records import position, positions, write
from tests.storage.log.test_follower import FAR, at
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, opened, values
from tests.storage.segmented import DAY_MS, bases, run, segmented

SOURCE = "kafka://one:9092"

T = TypeVar("T")


def make_mirror(directory: Path, ids: dict[str, str] | None = None) -> None:
    with alone(str(directory)) as files:
        mirror_file.write(files, str(directory), MirrorFile("C", SOURCE, ("*",), ids or {}))


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


@pytest.mark.parametrize(
    "offsets",
    [[5, 9, 30, 31, 32, 80, 200, 201, 950], [3, 9, FAR + 100, FAR + 101, 3 * FAR, 5 * FAR]],
    ids=["near", "too far for a segment"],
)
@pytest.mark.parametrize("flushes", [False, True])
@pytest.mark.parametrize("has_checkpoints", [True, False])
def test_gaps_are_no_losses(
    tmp_path: Path, offsets: list[int], flushes: bool, has_checkpoints: bool
) -> None:
    """… after a kill, in a mirror, and once it has ended."""

    def kill(manager: LogManager) -> None:
        manager.abandon()
        for name in () if has_checkpoints else (paths.RECOVERY_POINTS, paths.LOG_STARTS):
            (tmp_path / name).unlink(missing_ok=True)

    def judge(manager: LogManager, *more: int) -> Log:
        log = manager.log("t", 0)
        assert [record.offset for record in log.records()] == [*offsets, *more]
        assert log.log_start_offset == 2
        assert (manager.faults, manager.cuts, log.lost_ranges) == ([], [], [])
        return log

    make_mirror(tmp_path)
    manager = LogManager.open(str(tmp_path), mirrors=True)
    settings = {"internal.segment.bytes": "200"}
    log = manager.create_mirrored_topic("t", None, 1, settings).partitions[0]
    manager.start_at(log, 2)
    for number, offset in enumerate(offsets):
        append_as_follower(log, at(batch([b"%d" % offset * 9]), offset), NOW_NS)
        if flushes and number == 2:
            log.flush()
            manager.checkpoint()
            log.roll(NOW_MS)
    kill(manager)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        judge(manager)
    with opened(tmp_path, mirrors=True) as manager:
        judge(manager)
    assert verify(str(tmp_path)).faults == []
    with alone(str(tmp_path), mirrors=True) as files:
        end_mirror(files, str(tmp_path))
    manager = LogManager.open(str(tmp_path))
    append(judge(manager), b"ours")
    kill(manager)
    with opened(tmp_path) as manager:
        judge(manager, offsets[-1] + 1)
    assert verify(str(tmp_path)).faults == []


@pytest.mark.parametrize("was_interrupted", [False, True])
def test_the_end_resets_offsets_that_are_ahead_of_the_copy(
    tmp_path: Path, was_interrupted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise, consumers would skip new records."""
    make_mirror(tmp_path)
    manager = LogManager.open(str(tmp_path), mirrors=True)
    manager.create_mirrored_topic("orders", None, 1, {})
    offsets = manager.create_mirrored_topic(paths.CONSUMER_OFFSETS, None, 1, {}).partitions[0]
    write(offsets, position("g", "orders", 0, 500))
    manager.close()
    if was_interrupted:
        with alone(str(tmp_path), mirrors=True) as files:
            end_mirror(files, str(tmp_path))
    done = CliRunner().invoke(main, ["detach", "--json", str(tmp_path)])
    line = (
        "group 'g': committed offset 500 of orders/0 was beyond the log end; "
        "reset to 0, because the records before it are missing"
    )
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout)["result"]["reset"] == [line]
    assert caplog.messages == [line]
    with opened(tmp_path) as manager:
        assert positions(manager, "g") == {("orders", 0): 0}


def test_the_end_is_unfinished_while_an_offset_cannot_be_reset(tmp_path: Path) -> None:
    """… because its partition cannot be opened."""
    make_mirror(tmp_path)
    with opened(tmp_path, mirrors=True) as manager:
        manager.create_mirrored_topic("orders", None, 1, {})
        offsets = manager.create_mirrored_topic(paths.CONSUMER_OFFSETS, None, 1, {}).partitions[0]
        write(offsets, position("g", "orders", 0, 500))
    with alone(str(tmp_path), mirrors=True) as files:
        end_mirror(files, str(tmp_path))
    metadata = tmp_path / "orders-0" / paths.PARTITION_METADATA
    content = metadata.read_bytes()
    metadata.write_bytes(b"?")
    with LogManager.open(str(tmp_path), keeps_faulty=True) as manager:
        assert manager.topics.faulty
        assert positions(manager, "g") == {("orders", 0): 500}
    metadata.write_bytes(content)
    # This process needs no topic.
    with LogManager.open(str(tmp_path), needs=lambda _: frozenset()) as manager:
        assert positions(manager, "g") == {("orders", 0): 0}
    assert not (tmp_path / paths.MIRROR_ENDED).exists()


def test_the_mirror_copies_a_lost_end_again(tmp_path: Path) -> None:
    make_mirror(tmp_path)
    with opened(tmp_path, mirrors=True) as manager:
        log = manager.create_mirrored_topic("t", None, 1, {}).partitions[0]
        append(log, b"1")
        append(log, b"2")
    path = tmp_path / "t-0" / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    manager = LogManager.open(str(tmp_path), mirrors=True)
    assert [line.partition(": ")[2] for line in manager.faults] == [
        "offsets 1 to 1 had been flushed but are missing; the mirror copies them again"
    ]
    append(manager.log("t", 0), b"2")
    manager.abandon()
    with opened(tmp_path, mirrors=True) as manager:
        assert values(manager.log("t", 0)) == [b"1", b"2"]
        assert manager.faults == []


def test_named_restore_points_keep_their_records(tmp_path: Path) -> None:
    path = str(tmp_path)
    make_mirror(tmp_path)
    files = Files()
    for time_ms, name, start in ((1000, None, 0), (2000, "second", 6), (3000, "first", 3)):
        at = point_file.write(
            files, path, Point(time_ms, "C", ids={"t": "-"}, partitions={("t", 0): Range(start, 8)})
        )
        if name is not None:
            keep(files, path, at, name)
    with opened(tmp_path, mirrors=True) as manager:
        log = segmented(manager, retention_ms="1")
        assert delete_records(manager, log, 7, Task()) == 3
        point_file.remove(files, path, "first")
        assert run(manager, NOW_MS + 9 * DAY_MS).segments == 3
        assert bases(log) == [6]
        damaged = tmp_path / f"{paths.POINT}damaged"
        damaged.write_text("?")
        with pytest.raises(CorruptCheckpoint):
            run(manager, NOW_MS + 9 * DAY_MS)
        damaged.unlink()
        point_file.remove(files, path, "second")
        assert delete_records(manager, log, 7, Task()) == 7
        # The cluster has created the topic again.
        renamed = Point(4000, "C", ids={"a": "b"}, partitions={("a", 0): Range(2, 8)})
        point_file.write(files, path, renamed)
        keep(files, path, name_at(4000), "renamed")
        log = manager.create_mirrored_topic("a.b", None, 1, {}).partitions[0]
        append(log, *[b"x"] * 4)
        assert delete_records(manager, log, 4, Task()) == 2


def test_a_restore_point_that_is_named_during_a_deletion_keeps_its_records(tmp_path: Path) -> None:
    path = str(tmp_path)
    make_mirror(tmp_path)
    files = Files()
    point = Point(1000, "C", ids={"t": "-"}, partitions={("t", 0): Range(2, 8)})

    def naming(function: Callable[[], T]) -> T:
        if "mine" not in point_file.names(files, path):
            keep(files, path, name_at(1000), "mine")
        return function()

    with opened(tmp_path, mirrors=True) as manager:
        log = segmented(manager, retention_ms="1")
        kept = bases(log)
        for _ in range(2):
            point_file.write(files, path, point)
            assert delete_records(manager, log, 7, Task(naming)) == 0
            point_file.remove(files, path, "mine")
            point_file.write(files, path, point)
            assert retain(manager, [log], Task(naming), NOW_MS + 9 * DAY_MS).segments == 0
            assert bases(log)[: len(kept)] == kept
            point_file.remove(files, path, "mine")
        # A partition without records in a point needs none.
        point.partitions["t", 0] = Range(2, 2)
        point_file.write(files, path, point)
        assert delete_records(manager, log, 7, Task(naming)) == 7


@pytest.mark.parametrize("content", [None, b"rubbish"])
def test_a_lost_topic_id_is_that_of_the_mirror(tmp_path: Path, content: bytes | None) -> None:
    """With another id, the mirror would copy the topic from the beginning."""
    make_mirror(tmp_path, {"t": "AAECAwQFBgcICQoLDA0ODw", "u": "-"})
    with opened(tmp_path, mirrors=True) as manager:
        ids = {name: manager.create_mirrored_topic(name, None, 1, {}).id for name in ("t", "u")}
    for name in ids:
        metadata = tmp_path / f"{name}-0" / paths.PARTITION_METADATA
        metadata.unlink()
        if content is not None and name == "t":
            metadata.write_bytes(content)
    with opened(tmp_path, mirrors=True) as manager:
        assert manager.topics["t"].id == "AAECAwQFBgcICQoLDA0ODw"
        assert len(manager.topics["u"].id) == 22


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
    (fault,) = verify(str(tmp_path)).faults
    assert fault.path == str(tmp_path / paths.MIRROR)
