"""One bad file or partition is its own fault: everything else opens, and nothing is lost by it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.checkpoints import RepairAnswers
from storage.directory.retain import delete_records, plan_retention
from storage.errors import (
    CorruptCheckpoint,
    FaultyPartition,
    InvalidConfig,
    InvalidRecord,
    UnusableFile,
)
from storage.follow.follow_directory import DirectoryFollower
from storage.log.append import append_batches
from storage.settings.setting_files import TOPIC_FILE
from storage.settings.settings import SETTINGS_FILE
from storage.state.history import FILE_NAME as HISTORY
from storage.state.producer_state import ProducerEntry
from storage.state.producer_state import encode as encode_snapshot
from storage.task import Task
from storage.verify.verify import verify
from tests import metadata_log
from tests.log_check import check
from tests.metadata_log import MetadataLog
from tests.storage.logs import NOW_MS, NOW_NS, append, batch, values

TOPIC_FILE = f"a-0/{TOPIC_FILE}"

RUBBISH: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(b"\xff\x00garbage"),
    "version": lambda path: path.write_bytes(b"7\n0\n"),
    "count": lambda path: path.write_bytes(b"0\n5\n"),
    "digits": lambda path: path.write_bytes(b"0\n1\na 0 " + b"9" * 5000 + b"\n"),
    "link": lambda path: path.symlink_to("/etc/hostname"),
    "looping link": lambda path: path.symlink_to(path.name),
    "pipe": lambda path: os.mkfifo(path),
    "directory": lambda path: path.mkdir(),
    "a hole of 8 GiB": lambda path: hole(path, 8 << 30),
    "a hole of 1 TiB": lambda path: hole(path, 1 << 40),
}
EACH = pytest.mark.parametrize("rubbish", RUBBISH.values(), ids=RUBBISH)
EACH_CLEAN_OR_NOT = pytest.mark.parametrize(
    ("rubbish", "clean"),
    [(make, number % 2 == 0) for number, make in enumerate(RUBBISH.values())],
    ids=RUBBISH,
)
"""In half of the directories that are opened after it, the last owner has not closed its logs."""


def hole(path: Path, size: int) -> None:
    """Make a file longer by bytes that take no room on the disk."""
    with open(path, "ab") as file:
        file.truncate(size)


def opened(data: Path, **options: object) -> LogManager:
    return LogManager.open(str(data), keeps_faulty=True, clock_ms=lambda: NOW_MS, **options)  # type: ignore[arg-type]


def spoil(path: Path, rubbish: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    rubbish(path)


def aside(path: Path) -> bool:
    """Whether what was there has another name now."""
    return os.path.lexists(f"{path}.bad")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Topics a (two partitions) and b; of a-0 the first two of four records are deleted."""
    directory = tmp_path / "data"
    directory.mkdir()
    with opened(directory) as manager:
        manager.create_topic("a", 2)
        manager.create_topic("b", 1)
        for value in (b"1", b"2", b"3", b"4"):
            append(manager.log("a", 0), value)
        append(manager.log("a", 1), b"x")
        append(manager.log("b", 0), b"y")
        assert manager.log("a", 0).history.nonce
        delete_records(manager, manager.log("a", 0), 2, Task())
        manager.log("a", 0).history.save(manager.log("a", 0).segments, 2)
        for log in manager.logs():
            assert log.history.nonce
    return directory


ALL = {("a", 0): [b"3", b"4"], ("a", 1): [b"x"], ("b", 0): [b"y"]}


def everything(manager: LogManager) -> dict[tuple[str, int], list[bytes | None]]:
    return {(log.topic, log.partition): values(log) for log in manager.logs()}


@EACH_CLEAN_OR_NOT
@pytest.mark.parametrize(
    "name", [paths.RECOVERY_POINTS, paths.CLEANER_OFFSETS, paths.HIGH_WATERMARKS, paths.LOG_STARTS]
)
def test_a_bad_checkpoint(
    data: Path, name: str, rubbish: Callable[[Path], object], clean: bool
) -> None:
    if not clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
    spoil(data / name, rubbish)
    with opened(data, read_only=True) as manager:
        assert everything(manager) == ALL
    assert not aside(data / name)
    for _ in range(2):
        with opened(data) as manager:
            assert everything(manager) == ALL
            assert manager.topics.faulty == []
            assert not check(manager)
        assert (data / name).is_file()


@EACH
def test_deleted_records_are_never_shown_again(
    data: Path, rubbish: Callable[[Path], object]
) -> None:
    """Without its history nothing tells where a partition begins, until the repair does."""
    spoil(data / paths.LOG_STARTS, rubbish)
    (data / "a-0" / HISTORY).unlink()
    for _ in range(2):
        for read_only in (True, False):
            with opened(data, read_only=read_only) as manager:
                assert manager.topics.faulty == [("a", 0)]
                with pytest.raises(FaultyPartition, match="--log-start a:0=OFFSET"):
                    manager.log("a", 0)
                assert values(manager.log("a", 1)) == [b"x"]
    with opened(data, answers=RepairAnswers({("a", 0): 2})) as manager:
        assert everything(manager) == ALL
    with opened(data) as manager:
        assert everything(manager) == ALL
    assert not (data / paths.LOST_STARTS).exists()


def test_the_repair_may_be_told_that_nothing_was_deleted(data: Path) -> None:
    (data / paths.LOG_STARTS).write_bytes(b"?")
    for directory in ("a-0", "a-1"):
        (data / directory / HISTORY).unlink()
    with opened(data) as manager:
        assert manager.topics.faulty == [("a", 0), ("a", 1)]
    with opened(data, answers=RepairAnswers(rest_at_first=True)) as manager:
        assert values(manager.log("a", 0)) == [b"1", b"2", b"3", b"4"]


@EACH
@pytest.mark.parametrize("name", [paths.LEADER_EPOCH_CHECKPOINT, paths.PARTITION_METADATA])
def test_leader_epochs_come_from_the_batches_and_a_topic_id_from_a_sibling(
    data: Path, name: str, rubbish: Callable[[Path], object]
) -> None:
    path = data / "a-0" / name
    before = path.read_bytes()
    spoil(path, rubbish)
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert everything(manager) == ALL
            log = manager.log("a", 0)
            assert log.epochs.entries == [(0, 2)]
            assert log.topic_id == manager.log("a", 1).topic_id
    assert path.read_bytes() == before
    assert aside(path)


@EACH
def test_without_one_the_repair_gives_a_new_id(
    data: Path, rubbish: Callable[[Path], object]
) -> None:
    path = data / "b-0" / paths.PARTITION_METADATA
    spoil(path, rubbish)
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert manager.topics.faulty == [("b", 0)]
            with pytest.raises(FaultyPartition, match="kafkafs repair"):
                manager.log("b", 0)
    with opened(data, answers=RepairAnswers()) as manager:
        assert everything(manager) == ALL
    with opened(data) as manager:
        assert everything(manager) == ALL


def test_a_topic_id_comes_from_the_metadata_log(data: Path) -> None:
    path = data / "b-0" / paths.PARTITION_METADATA
    before = path.read_bytes()
    (data / "meta.properties").write_text("version=1\nnode.id=1\n")
    with opened(data) as manager:
        topic_id = manager.topics["b"].id
    MetadataLog(data).append(metadata_log.topic("b", topic_id))
    path.write_bytes(b"?")
    with opened(data) as manager:
        assert manager.topics.faulty == []
        assert manager.topics["b"].id == topic_id
    assert path.read_bytes() == before
    assert aside(path)


@EACH
def test_a_bad_history_begins_anew(
    data: Path, rubbish: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    path = data / "a-0" / HISTORY
    with opened(data) as manager:
        before = manager.log("a", 0).history.now
    spoil(path, rubbish)
    with opened(data) as manager:
        assert everything(manager) == ALL
        now = manager.log("a", 0).history.now
        assert now.nonce != before.nonce
        assert now.follow_nonce != before.follow_nonce
    assert "readers start again" in caplog.text
    assert aside(path)


@EACH_CLEAN_OR_NOT
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot", ".lines"])
def test_what_comes_from_the_log(
    data: Path, suffix: str, rubbish: Callable[[Path], object], clean: bool
) -> None:
    if not clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
    name = "00000000000000000004" if suffix == ".snapshot" else "00000000000000000000"
    path = data / "a-0" / (name + suffix)
    spoil(path, rubbish)
    with opened(data, read_only=True) as manager:
        assert everything(manager) == ALL
    with opened(data) as manager:
        assert everything(manager) == ALL
        append(manager.log("a", 0), b"5")
        assert not check(manager)


@pytest.mark.parametrize("clean", [True, False])
def test_a_snapshot_counts_as_far_as_it_says(data: Path, clean: bool) -> None:
    """A state that the log cannot tell, as its records are deleted."""
    path = data / "a-0" / "00000000000000000004.snapshot"
    entry = ProducerEntry(7, 0, 0, 1, 0, NOW_MS, -1, -1)
    sound = encode_snapshot([entry])
    path.write_bytes(sound)
    hole(path, 1 << 40)
    if not clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
    verified = verify(str(data))
    found = verified.faults if clean else verified.left_over
    assert [each.path for each in found if "follow its last producer" in each.reason] == [str(path)]
    with opened(data) as manager:
        assert list(manager.log("a", 0).producers.by_id) == [7]
    assert path.read_bytes() == sound
    assert verify(str(data)).faults == []


@pytest.mark.parametrize("kind", ["link", "looping link", "pipe", "directory"])
def test_a_log_that_is_none_is_its_partitions_fault(data: Path, kind: str) -> None:
    path = data / "a-0" / "00000000000000000000.log"
    kept = path.rename(path.with_suffix(".kept"))
    RUBBISH[kind](path)
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert manager.topics.faulty == [("a", 0)]
            assert str(path) in manager.topics["a"].faults[0]
            assert values(manager.log("a", 1)) == [b"x"]
            if not read_only:
                append(manager.log("a", 1), b"more")
                manager.checkpoint()
        with pytest.raises(OSError, match="instead of a regular file"):
            LogManager.open(str(data), read_only=True)
    path.rmdir() if kind == "directory" else path.unlink()
    kept.rename(path)
    with opened(data) as manager:
        # Its entries in the checkpoints are still there.
        assert values(manager.log("a", 0)) == [b"3", b"4"]


@pytest.mark.parametrize("kind", ["link", "looping link", "pipe", "directory"])
def test_a_lock_that_is_no_file_stops_only_writers(data: Path, kind: str) -> None:
    spoil(data / ".lock", RUBBISH[kind])
    with pytest.raises(UnusableFile):
        opened(data)
    with opened(data, read_only=True) as manager:
        assert everything(manager) == ALL


def test_a_partition_that_is_a_link(data: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (data / "a-0").rename(elsewhere)
    (data / "a-0").symlink_to(elsewhere)
    before = sorted(os.listdir(elsewhere))
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert manager.topics.faulty == [("a", 0)]
            assert manager.topics["a"].numbers == [0, 1]
            if not read_only:
                assert manager.create_partition("a", 2).partition == 2
    assert sorted(os.listdir(elsewhere)) == before
    with opened(data) as manager:
        manager.delete_topic("a")
        manager.create_topic("a", 1)
        assert manager.topics.faulty == []
        remove = manager.deleted.remove(NOW_MS + 3_600_000)
        assert remove is not None
        remove()
    assert sorted(os.listdir(elsewhere)) == before
    assert sorted(name for name in os.listdir(data) if "-" in name and "." not in name[:4]) == [
        *("a-0", "b-0", "cleaner-offset-checkpoint"),
        *("log-start-offset-checkpoint", "recovery-point-offset-checkpoint"),
        "replication-offset-checkpoint",
    ]


@pytest.mark.parametrize("kind", ["link", "looping link", "pipe"])
def test_settings_are_a_fault_while_a_partition_is_no_directory(data: Path, kind: str) -> None:
    (data / "b-0").rename(data / "aside")
    RUBBISH[kind](data / "b-0")
    with opened(data, read_only=True) as manager:
        assert manager.topics.faulty == [("b", 0)]
        DirectoryFollower(manager)
        assert manager.settings.fault_of("b") is not None
        assert manager.settings.fault_of("a") is None
        (data / "b-0").unlink()
        (data / "aside").rename(data / "b-0")
        assert manager.settings.fault_of("b") is None


def test_what_is_swept_is_never_a_link(data: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    link = data / f"foo-0.{'0' * 32}-delete"
    link.symlink_to(precious)
    with opened(data) as manager:
        remove = manager.deleted.remove(NOW_MS + 3_600_000)
        if remove is not None:
            remove()
    assert os.listdir(precious) == ["file"]


def test_of_two_topic_ids_one_is_a_fault(data: Path) -> None:
    other = (data / "b-0" / paths.PARTITION_METADATA).read_bytes()
    (data / "a-1" / paths.PARTITION_METADATA).write_bytes(other)
    with opened(data) as manager:
        assert manager.topics.faulty == [("a", 1)]
        assert values(manager.log("a", 0)) == [b"3", b"4"]
    with pytest.raises(CorruptCheckpoint, match="differs from"):
        LogManager.open(str(data))


def test_what_was_adopted_is_not_known(data: Path) -> None:
    (data / "kafkafs.adopted").write_bytes(b"?")
    with opened(data) as manager:
        assert everything(manager) == ALL
        with pytest.raises(CorruptCheckpoint):
            manager.adopter.decide()
    assert (data / "kafkafs.adopted").read_bytes() == b"?"
    with pytest.raises(CorruptCheckpoint):
        LogManager.open(str(data))


# -- the ends of numbers -----------------------------------------------------------------------

END = 2**63 - 1


def log_at(data: Path, base: int) -> Path:
    """A partition e-0 whose only, empty segment begins there."""
    with opened(data) as manager:
        manager.create_topic("e", 1)
    for path in (data / "e-0").iterdir():
        if path.name[:20].isdecimal():
            path.rename(path.with_name(f"{base:020}{path.suffix}"))
    return data / "e-0" / f"{base:020}.log"


def test_an_append_past_the_last_offset_is_refused(data: Path) -> None:
    log_at(data, END - 2)
    with opened(data) as manager:
        with pytest.raises(InvalidRecord, match="no offsets left"):
            append(manager.log("e", 0), b"v", b"v", b"v")
        with pytest.raises(InvalidRecord, match="no offsets left"):
            append_batches(manager.log("e", 0), batch([b"v"] * 3), now_ns=NOW_NS)
        append(manager.log("e", 0), b"one")
        append(manager.log("e", 0), b"two")
        assert manager.log("e", 0).log_end_offset == END
        for _ in range(2):
            with pytest.raises(InvalidRecord, match="no offsets left"):
                append(manager.log("e", 0), b"three")
    (data / paths.CLEAN_SHUTDOWN).unlink()
    with opened(data) as manager:
        assert values(manager.log("e", 0)) == [b"one", b"two"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_last_offset_at_the_end_of_all(data: Path, clean: bool) -> None:
    path = log_at(data, END - 1)
    path.write_bytes((END - 1).to_bytes(8, "big") + batch([b"v", b"v"])[8:])
    if not clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert values(manager.log("b", 0)) == [b"y"]
            assert values(manager.log("e", 0)) == []
            if not read_only:
                assert any("exceeds the largest offset" in cut.reason for cut in manager.cuts)


# -- settings ----------------------------------------------------------------------------------


@EACH
@pytest.mark.parametrize("name", [SETTINGS_FILE, TOPIC_FILE])
def test_with_bad_settings_nothing_goes(
    data: Path, name: str, rubbish: Callable[[Path], object]
) -> None:
    with opened(data) as manager:
        manager.change_topic_settings("a", {"retention.ms": "1"})
        manager.change_topic_settings("a", {"internal.segment.bytes": "1024"})
        for _ in range(5):
            append(manager.log("a", 0), b"5" * 500)
        count = len(manager.log("a", 0).segments)
        assert count > 2
        manager.settings.set_owner("a", None, 1, 2, 0o600)
    kept = (data / name).read_bytes() if (data / name).exists() else None
    spoil(data / name, rubbish)
    later_ms = NOW_MS + 90 * 24 * 3_600_000
    for read_only in (True, False):
        with opened(data, read_only=read_only) as manager:
            assert (manager.settings.fault is None) == (name == TOPIC_FILE)
            assert manager.settings.owners_known("a") == (name == SETTINGS_FILE)
            assert values(manager.log("b", 0))[0] == b"y"
            # A topic's file is the matter of that topic alone.
            assert manager.settings.owners_known("b")
            assert (manager.settings.why_no_deletion("b") is None) == (name == TOPIC_FILE)
            with pytest.raises(CorruptCheckpoint, match=name):
                manager.settings.explain("a")
            if not read_only:
                with pytest.raises(CorruptCheckpoint, match=name):
                    manager.change_topic_settings("a", {"retention.ms": "2"})
                if name == SETTINGS_FILE:
                    with pytest.raises(CorruptCheckpoint, match=name):
                        manager.delete_topic("a")
                else:
                    manager.change_topic_settings("b", {"retention.ms": "2"})
                assert plan_retention(manager.log("a", 0), later_ms, {}).doomed == ()
                assert not LogCleaner(manager).filthiest(later_ms)
                append(manager.log("b", 0), b"z")
        with pytest.raises(InvalidConfig):
            LogManager.open(str(data))
    if (data / name).is_dir():
        (data / name).rmdir()
    else:
        (data / name).unlink()
    if kept is not None:
        (data / name).write_bytes(kept)
    with opened(data) as manager:
        assert manager.settings.fault_of("a") is None
        assert len(manager.log("a", 0).segments) == count
        assert manager.settings.overrides("a")["retention.ms"] == "1"


def test_what_a_kill_left_of_a_replacement_goes(data: Path) -> None:
    left = [data / f"{'0' * 16}-{name}.tmp" for name in ("kafkafs.owner", paths.LOG_STARTS)]
    left.append(data / "a-0" / f"{'1' * 16}-{paths.LEADER_EPOCH_CHECKPOINT}.tmp")
    theirs = data / "notes.tmp"
    for path in (*left, theirs):
        path.write_bytes(b"x")
    with opened(data, read_only=True):
        assert all(path.exists() for path in left)
    with opened(data) as manager:
        assert everything(manager) == ALL
    assert not any(path.exists() for path in left)
    assert theirs.exists()
