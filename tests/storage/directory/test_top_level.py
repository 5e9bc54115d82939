"""The entries that count at the top of a data directory that others may write."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager, paths
from storage.convert.convert import convert
from storage.directory.mirror import refuse_mirror
from storage.directory.retain import delete_records
from storage.errors import CorruptCheckpoint, HandoverRefused, IgnoredEntry, MirroredDirectory
from storage.files import Files
from storage.handover.handover import hand_over
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess
from storage.task import Task
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.handed import write_broker
from tests.storage.logs import append, opened, values

STRANGER, ANOTHER = 65534, 65533
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of root that others may write, with a topic whose log starts at offset 1."""
    tmp_path.chmod(0o1777)
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)
        log = manager.log("t", 0)
        append(log, b"1")
        append(log, b"2")
        delete_records(manager, log, 1, Task())
    return tmp_path


def give(path: Path, uid: int) -> None:
    os.chown(path, uid, uid)


@pytest.mark.parametrize("mode", [0o775, 0o755])
def test_all_count_where_others_may_not_write(data: Path, mode: int) -> None:
    give(data / "t-0", STRANGER)
    data.chmod(mode)
    with opened(data) as manager:
        assert values(manager.log("t", 0)) == [b"2"]


def test_all_count_for_a_reader(data: Path) -> None:
    give(data / "t-0", STRANGER)
    with LogManager.open(str(data), read_only=True) as manager:
        assert values(manager.log("t", 0)) == [b"2"]


def test_the_owner_of_the_directory_counts(data: Path) -> None:
    give(data, ANOTHER)
    give(data / "t-0", ANOTHER)
    with opened(data) as manager:
        assert values(manager.log("t", 0)) == [b"2"]


def test_an_ignored_partition_keeps_its_checkpoint_lines(data: Path) -> None:
    give(data / "t-0", STRANGER)
    for name in ("a", "b"):
        with opened(data) as manager:
            assert "t" not in manager.topics
            with pytest.raises(IgnoredEntry, match=f"{data}/t-0"):
                manager.create_topic("t", 1)
            manager.create_topic(name, 1)
            manager.checkpoint()
    give(data / "t-0", 0)
    with opened(data) as manager:
        assert manager.log("t", 0).log_start_offset == 1
        assert values(manager.log("t", 0)) == [b"2"]


def test_a_lost_log_start_of_an_ignored_partition_stays_lost(data: Path) -> None:
    give(data / "t-0", STRANGER)
    (data / paths.LOG_STARTS).write_bytes(b"?")
    for name in ("a", "b"):
        with LogManager.open(str(data)) as manager:
            manager.create_topic(name, 1)
    give(data / "t-0", 0)
    with pytest.raises(CorruptCheckpoint, match="--log-start t:0=OFFSET"):
        LogManager.open(str(data))


def test_a_topic_beside_an_ignored_partition_with_a_lost_log_start_can_be_undeleted(
    data: Path,
) -> None:
    with opened(data) as manager:
        manager.create_partition("t", 1)
    give(data / "t-0", STRANGER)
    (data / paths.LOG_STARTS).write_bytes(b"?")
    with LogManager.open(str(data)) as manager:
        manager.delete_topic("t")
        manager.undelete_topic("t")
        assert list(manager.topic("t").partitions) == [1]


@pytest.mark.parametrize("is_corrupt", [False, True])
def test_a_removed_one_hands_no_line_to_a_new_partition(data: Path, is_corrupt: bool) -> None:
    give(data / "t-0", STRANGER)
    if is_corrupt:
        (data / paths.LOG_STARTS).write_bytes(b"?")
    manager = LogManager.open(str(data))
    (data / "t-0").rename(data.parent / "removed")
    manager.create_topic("t", 1)
    append(manager.log("t", 0), b"new")
    manager.abandon()
    with opened(data) as again:
        assert values(again.log("t", 0)) == [b"new"]


@pytest.mark.parametrize("name", ["meta.properties", "meta.properties.detached"])
def test_the_volume_of_a_container_counts(data: Path, name: str) -> None:
    (data / name).write_text("version=1\nnode.id=1\ncluster.id=x\n")
    for path in (data / name, data / "t-0"):
        give(path, STRANGER)
    with opened(data) as manager:
        assert values(manager.log("t", 0)) == [b"2"]
    # As soon as one of them is another user's, none of the stranger's counts.
    (data / "t-1").mkdir()
    give(data / "t-1", ANOTHER)
    with opened(data) as manager:
        assert list(manager.topics) == []
        assert not manager.settings.is_brokers


def test_without_a_partition_meta_properties_does_not_count(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    give(tmp_path / "meta.properties", STRANGER)
    with opened(tmp_path) as manager:
        manager.create_topic("t", 1)


def test_a_lock_of_a_stranger_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (tmp_path / ".lock").touch()
    give(tmp_path / ".lock", STRANGER)
    with pytest.raises(IgnoredEntry, match=f"{tmp_path}/.lock"):
        LogManager.open(str(tmp_path))


def test_there_are_not_more_lines_than_somebody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o777)
    for number in range(150):
        (tmp_path / f"{number:03}").touch()
        give(tmp_path / f"{number:03}", STRANGER)
    with opened(tmp_path):
        assert len(caplog.messages) == 101
        assert caplog.messages[-1] == f"{tmp_path}: 50 more are ignored"


def test_the_owner_file_of_a_stranger_leads_nobody_astray(tmp_path: Path) -> None:
    files, owner = Files(str(tmp_path)), OwnerProcess(os.getpid(), "/elsewhere")
    owner_file.write(files, str(tmp_path), owner)
    give(tmp_path / "kafkafs.owner", STRANGER)
    assert owner_file.read(files, str(tmp_path)) == owner
    tmp_path.chmod(0o1777)
    assert owner_file.read(files, str(tmp_path)) is None


def test_the_file_of_a_stranger_makes_no_mirror(data: Path) -> None:
    make_mirror(data)
    give(data / "kafkafs.mirror", STRANGER)
    refuse_mirror(str(data))
    with opened(data) as manager:
        append(manager.log("t", 0), b"3")
    data.chmod(0o755)
    with pytest.raises(MirroredDirectory):
        refuse_mirror(str(data))


def test_the_file_of_a_stranger_stops_no_command(
    data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """… that also works in a mirror."""
    make_mirror(data)
    give(data / "kafkafs.mirror", STRANGER)
    for words in (["detach", "--dry-run"], ["detach"]):
        done = CliRunner().invoke(main, [*words, str(data)])
        assert "not the directory of a broker" in done.stderr
    done = CliRunner().invoke(main, ["repair", "--apply", str(data)])
    assert (done.exit_code, done.stderr) == (0, "")
    broker = tmp_path_factory.mktemp("other") / "broker"
    write_broker(broker)
    LogManager.open(str(data)).abandon()
    with pytest.raises(HandoverRefused, match="the broker has no topic t"):
        hand_over(str(data), str(broker), ["t"])


def test_a_conversion_leaves_out_the_partition_of_a_stranger(data: Path) -> None:
    with opened(data) as manager:
        manager.create_topic("u", 1)
    give(data / "u-0", STRANGER)
    outcome = convert(str(data))
    assert (outcome.faults, outcome.converted) == ([], [])
