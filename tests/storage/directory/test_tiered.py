"""Nothing of a tiered topic is written, whoever opens the directory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.compaction.log_cleaner import LogCleaner
from storage.convert.convert import convert
from storage.directory.detach import detach, tiered_lines, undo
from storage.directory.lock import change_settings
from storage.directory.retain import delete_records
from storage.errors import ReadOnlyLog
from storage.files import Files
from storage.log.append import abort_transaction
from storage.owner.staged_orphans import remove_orphans
from storage.settings.settings import Settings
from storage.state import checkpoint_file
from storage.state.tiered import TieredTopics
from storage.task import Task
from storage.verify.reindex import reindex
from tests import metadata_log as made
from tests import tiered
from tests.metadata_log import TOPIC, MetadataLog
from tests.storage.directory.test_reserve import SmallDisk
from tests.storage.logs import write_settings
from tests.storage.segmented import run
from tests.tiered import NOW_MS

DAY_MS = 86_400_000


def opened(data: Path, files: Files | None = None) -> LogManager:
    return LogManager.open(str(data), files=files, clock_ms=lambda: NOW_MS + DAY_MS)


# -- the files of all topics of a broker -----------------------------------------------------------


def epochs_of(data: Path, partition: str) -> list[tuple[int, int]]:
    path = str(data / partition / paths.LEADER_EPOCH_CHECKPOINT)
    return checkpoint_file.read_epochs(Files(), path)


def log_starts(data: Path) -> dict[tuple[str, int], int]:
    return checkpoint_file.read_offsets(Files(), str(data / paths.LOG_STARTS))


@pytest.mark.parametrize("is_clean", [True, False])
def test_the_log_start_checkpoint_alone_cuts_the_epochs(tmp_path: Path, is_clean: bool) -> None:
    """Kafka's rule, of a topic that is known not to be tiered, too: it may have been once."""
    tiered.make(tmp_path, remote_storage_enable="false")
    if not is_clean:
        (tmp_path / paths.CLEAN_SHUTDOWN).unlink()
    opened(tmp_path).close()
    assert epochs_of(tmp_path, "orders-0") == tiered.EPOCHS
    starts = {("orders", 0): 3, ("orders", 1): 0}
    checkpoint_file.write_offsets(Files(), str(tmp_path / paths.LOG_STARTS), starts)
    opened(tmp_path).close()
    assert epochs_of(tmp_path, "orders-0") == [(3, 3), (5, 6)]
    assert log_starts(tmp_path) == starts, "lines stay"


def test_a_line_moves_with_the_log_start_and_stays(tmp_path: Path) -> None:
    tiered.make(tmp_path, remote_storage_enable="false")
    with opened(tmp_path) as manager:
        delete_records(manager, manager.log("orders", 0), 6, Task())
        delete_records(manager, manager.log("plain", 0), 6, Task())
        assert run(manager, NOW_MS).segments == 4
    for _ in range(2):
        starts = {("orders", 0): 6, ("orders", 1): 0, ("plain", 0): 6}
        assert log_starts(tmp_path) == starts
        opened(tmp_path).close()


# -- which topics are tiered -----------------------------------------------------------------------


def why(data: Path, topic: str = "orders") -> str | None:
    return TieredTopics(Files(), str(data), Settings(Files(), str(data))).why(topic)


def test_the_metadata_log_decides(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    assert why(tmp_path) == "remote.storage.enable=true"
    assert why(tmp_path, "plain") is None
    change_settings(str(tmp_path), "orders", {"remote.storage.enable": "false"})
    assert why(tmp_path) is None
    change_settings(str(tmp_path), "orders", {"remote.storage.enable": None})
    assert why(tmp_path) is not None
    change_settings(str(tmp_path), "plain", {"remote.storage.enable": "true"})
    assert why(tmp_path, "plain") == "remote.storage.enable=true"


# The settings of a topic in the metadata log, and whether it is tiered then.
KNOWN = {
    "true": ({"remote.storage.enable": "true"}, True),
    "false": ({"remote.storage.enable": "false"}, False),
    "not set": ({}, False),
    "compacted": ({"remote.storage.enable": "true", "cleanup.policy": "compact"}, False),
    "compacted, too": ({"cleanup.policy": "compact,delete"}, False),
    "not understood": ({"remote.storage.enable": "maybe"}, True),
}


@pytest.mark.parametrize("case", KNOWN)
def test_by_what_is_set(tmp_path: Path, case: str) -> None:
    settings, is_tiered = KNOWN[case]
    tiered.make(tmp_path, is_set=False)
    log = MetadataLog(tmp_path)
    path = str(tmp_path / "orders-0" / paths.PARTITION_METADATA)
    topic_id = checkpoint_file.read_partition_metadata(Files(), path)
    assert topic_id is not None
    log.append(made.topic("orders", topic_id))
    for name, value in settings.items():
        log.append(made.config(TOPIC, "orders", name, value))
    assert (why(tmp_path) is not None) == is_tiered


def test_a_newer_kafka_may_have_ended_it(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    (tmp_path / paths.LOG_STARTS).unlink()
    (tmp_path / "orders-0" / paths.LEADER_EPOCH_CHECKPOINT).unlink()
    log = tmp_path / "__cluster_metadata-0" / f"{0:020}.log"
    log.write_bytes(log.read_bytes() + made.batch([made.later(111, 0)], 3))
    assert why(tmp_path) == "remote.storage.enable=true"
    assert why(tmp_path, "plain") is None


# The log-start line and the epochs of a partition whose first segment begins at offset 4, and
# whether its topic counts as tiered without known settings.
UNKNOWN = {
    "epochs begin below": (None, [(0, 0)], True),
    "the line lies below": (3, [(5, 6)], True),
    "the line cuts the epochs": (4, [(0, 0)], False),
    "the line lies inside": (5, [(0, 0), (1, 5)], False),
    "all begin here": (None, [(3, 4)], False),
    "no epochs": (None, [], False),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_by_the_files_where_nothing_is_known(tmp_path: Path, case: str) -> None:
    line, epochs, is_tiered = UNKNOWN[case]
    tiered.make(tmp_path, is_set=False)
    starts = {} if line is None else {("orders", 0): line}
    checkpoint_file.write_offsets(Files(), str(tmp_path / paths.LOG_STARTS), starts)
    path = str(tmp_path / "orders-0" / paths.LEADER_EPOCH_CHECKPOINT)
    checkpoint_file.write_epochs(Files(), path, epochs)
    found = why(tmp_path)
    assert (found is not None) == is_tiered
    if found is not None:
        assert "partition 0 begins at offset" in found


@pytest.mark.parametrize("name", ["__consumer_offsets", "__remote_log_metadata"])
def test_a_brokers_own_topics_never_are(tmp_path: Path, name: str) -> None:
    tiered.make(tmp_path, is_set=False)
    (tmp_path / "orders-0").rename(tmp_path / f"{name}-0")
    assert why(tmp_path, name) is None


def test_in_a_directory_made_here_the_setting_has_no_effect(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1, settings={"remote.storage.enable": "true"}).partitions[0]
        assert why(tmp_path, "t") is None
        assert not log.read_only
    with opened(tmp_path) as manager:
        assert not manager.log("t", 0).read_only
        manager.change_topic_settings("t", {"remote.storage.enable": "false"})


# -- what is refused -------------------------------------------------------------------------------


def adopted(manager: LogManager) -> None:
    name = "query-1-2-3.staged"
    request = AdoptRequest("query", 1, "run", (StagedFile("orders", 0, name, 7),))
    manager.adopter.adopt(request, Task(), lambda: NOW_MS * 1_000_000)


# An empty batch: nothing of it is looked at.
REFUSED: dict[str, Callable[[LogManager], object]] = {
    "append": lambda manager: manager.log("orders", 1).append(bytearray(), now_ns=1),
    "roll": lambda manager: manager.log("orders", 1).roll(NOW_MS),
    "flush": lambda manager: manager.log("orders", 1).flush(),
    "abort": lambda manager: abort_transaction(manager.log("orders", 1), 1, 1),
    "delete records": lambda manager: delete_records(manager, manager.log("orders", 0), 6, Task()),
    "delete": lambda manager: manager.delete_topic("orders"),
    "extend": lambda manager: manager.create_partition("orders", 2),
    "chmod": lambda manager: manager.set_owner("orders", None, (1, 1, 0o700)),
    "settings": lambda manager: manager.change_topic_settings("orders", {"retention.ms": "1"}),
    "its own setting": lambda manager: manager.change_topic_settings(
        "orders", {"remote.storage.enable": "false"}
    ),
    "adopt": adopted,
}


REMEDY = "orders remote.storage.enable=false"


def refusal(call: Callable[[LogManager], object], manager: LogManager) -> str:
    try:
        call(manager)
    except ReadOnlyLog as error:
        return str(error)
    return "none"


@pytest.mark.parametrize("is_detached", [False, True])
@pytest.mark.parametrize("is_set", [True, False])
def test_what_changes_it_is_refused(tmp_path: Path, is_set: bool, is_detached: bool) -> None:
    """With the command that ends it; and nothing of it has changed."""
    tiered.make(tmp_path, is_set=is_set)
    if is_detached:
        detach(Files(), str(tmp_path))
    before = tiered.state(tmp_path)
    with opened(tmp_path) as manager:
        taken = [name for name, call in REFUSED.items() if REMEDY not in refusal(call, manager)]
        assert taken == []
        assert tiered.state(tmp_path) == before
        # The others are as ever.
        manager.log("plain", 0).roll(NOW_MS)
        manager.checkpoint()
    assert tiered.state(tmp_path) == before


# All that decides is known, and every segment is too old.
EXPIRED = {"retention_ms": "1", "retention_bytes": "-1", "cleanup_policy": "delete"}


@pytest.mark.parametrize("is_set", [True, False])
def test_what_is_done_by_the_clock_passes_it_over(tmp_path: Path, is_set: bool) -> None:
    before = tiered.make(tmp_path, is_set=is_set, **EXPIRED)
    with opened(tmp_path) as manager:
        assert run(manager, NOW_MS + DAY_MS).segments == 0
        assert remove_orphans(manager, Task(), lambda *names: False).files == 0
        assert manager.due_flushes(manager.monotonic_ms() + DAY_MS) == []
        assert LogCleaner(manager).filthiest(NOW_MS + DAY_MS) is None
        remove = manager.sweep(manager.monotonic_ms() + DAY_MS)
        assert remove is None
        manager.checkpoint()
    assert tiered.state(tmp_path) == before


def test_a_policy_that_is_set_here_has_it_compacted_by_nobody(tmp_path: Path) -> None:
    """It may be of a time before the topic was tiered."""
    tiered.make(tmp_path)
    (tmp_path / "orders-0/kafkafs-topic.properties").write_text("cleanup.policy=compact\n")
    before = tiered.state(tmp_path)
    with opened(tmp_path) as manager:
        cleaner = LogCleaner(manager)
        assert cleaner.filthiest(NOW_MS + DAY_MS) is None
        assert cleaner.clean_all(manager.log("orders", 0), Task()) == []
    assert tiered.state(tmp_path) == before


@pytest.mark.parametrize("is_set", [True, False])
def test_on_a_full_disk_nothing_of_it_goes(tmp_path: Path, is_set: bool) -> None:
    before = tiered.make(tmp_path, is_set=is_set, **EXPIRED)
    write_settings(tmp_path, kafkafs_reserve_bytes=0)
    opened(tmp_path, SmallDisk(0)).close()
    assert tiered.state(tmp_path) == before


def test_its_line_indexes_are_not_given_up(tmp_path: Path) -> None:
    before = tiered.make(tmp_path)
    path = tmp_path / "plain-0/00000000000000000000.lines"
    path.write_bytes(b"a line index")
    with opened(tmp_path) as manager:
        while manager.reserve.give_up():
            pass
        assert not path.exists()
    assert tiered.state(tmp_path) == before


def test_settings_change_by_command_only_if_they_end_it(tmp_path: Path) -> None:
    before = tiered.make(tmp_path)
    for change in ({"retention.ms": "1"}, {"remote.storage.enable": "true"}):
        with pytest.raises(ReadOnlyLog):
            change_settings(str(tmp_path), "orders", change)
    assert tiered.state(tmp_path) == before
    ending = {"remote.storage.enable": "false", "retention.ms": "5"}
    change_settings(str(tmp_path), "orders", ending)
    with opened(tmp_path) as manager:
        log = manager.log("orders", 0)
        assert (log.tiered, log.read_only, log.config.retention_ms) == (None, False, 5)
        log.roll(NOW_MS)


def test_indexes_stay(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    (tmp_path / "orders-0" / "00000000000000000004.index").write_bytes(b"12345678")
    before = tiered.state(tmp_path)
    outcome = reindex([str(tmp_path)])
    assert outcome.segments == 4, "of the other topic"
    assert [line.split()[0] for line in outcome.tiered] == ["orders"]
    outcome = reindex([str(tmp_path / "orders-0")])
    assert (outcome.segments, len(outcome.tiered)) == (0, 1)
    assert len(reindex([str(tmp_path / "orders-0")], check_only=True).different) > 0
    assert tiered.state(tmp_path) == before


def test_formats_stay(tmp_path: Path) -> None:
    before = tiered.make(tmp_path)
    for is_clean in (True, False):
        if not is_clean:
            tiered.crash(tmp_path)
            before = tiered.state(tmp_path)
        outcome = convert(str(tmp_path))
        assert [line.split()[0] for line in outcome.tiered] == ["orders"]
        with pytest.raises(ReadOnlyLog):
            convert(str(tmp_path), topics=["orders"])
        assert tiered.state(tmp_path) == before


# -- after a crash, and without a broker -----------------------------------------------------------


@pytest.mark.parametrize("is_set", [True, False])
def test_its_recovery_is_left_to_the_broker(tmp_path: Path, is_set: bool) -> None:
    """All that is whole can be read, and the next start must not take the stop for a clean one."""
    tiered.make(tmp_path, is_set=is_set)
    tiered.crash(tmp_path)
    before = tiered.state(tmp_path)
    for verify in (False, True):
        with LogManager.open(str(tmp_path), verify=verify) as manager:
            values = [record.value for record in manager.log("orders", 0).records()]
            assert values == [b"4", b"5", b"6", b"7"]
            assert manager.log("plain", 0).log_end_offset == 8
        assert tiered.state(tmp_path) == before
        assert not (tmp_path / paths.CLEAN_SHUTDOWN).exists()
    assert list(tmp_path.glob("plain-0/*.cut")) != [], "the others are recovered"
    change_settings(str(tmp_path), "orders", {"remote.storage.enable": "false"})
    opened(tmp_path).close()
    assert (tmp_path / paths.CLEAN_SHUTDOWN).exists()


def test_small_files_that_cannot_be_read_stay_as_they_are(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    for name in (paths.LEADER_EPOCH_CHECKPOINT, paths.PARTITION_METADATA):
        (tmp_path / "orders-0" / name).write_text("rubbish")
    (tmp_path / "orders-1" / paths.PARTITION_METADATA).unlink()
    before = tiered.state(tmp_path)
    with opened(tmp_path) as manager:
        assert manager.log("orders", 0).log_end_offset == 8
        assert manager.log("orders", 1).log_end_offset == 8
    assert tiered.state(tmp_path) == before


def test_detaching_names_it_and_it_stays_read_only(tmp_path: Path) -> None:
    before = tiered.make(tmp_path)
    for _ in range(2):
        lines = tiered_lines(Files(), str(tmp_path))
        assert len(lines) == 2
        assert lines[0].endswith(f"kafkafs config {tmp_path} orders remote.storage.enable=false")
        assert lines[1] == (
            "orders: these offsets are only in remote storage: partition 0 from 0 to 3"
        )
        assert not any(line.startswith("orders") for line in detach(Files(), str(tmp_path)))
    opened(tmp_path).close()
    assert tiered.state(tmp_path) == before
    undo(Files(), str(tmp_path))
    assert tiered.state(tmp_path) == before
    detach(Files(), str(tmp_path))
    change_settings(str(tmp_path), "orders", {"remote.storage.enable": "false"})
    with opened(tmp_path) as manager:
        manager.log("orders", 0).roll(NOW_MS)
    assert tiered_lines(Files(), str(tmp_path)) == []


def test_where_it_begins_is_known(tmp_path: Path) -> None:
    tiered.make(tmp_path)
    for read_only in (True, False):
        with LogManager.open(str(tmp_path), read_only=read_only) as manager:
            log = manager.log("orders", 0)
            assert (log.remote_log_start, log.log_start_offset) == (0, tiered.FIRST)
            assert manager.log("orders", 1).remote_log_start is None
            assert manager.log("plain", 0).remote_log_start is None
            (line,) = manager.remote_lines()
            assert line.endswith("only in remote storage: partition 0 from 0 to 3")
            assert any("so it is read-only" in each for each in manager.kept_topics())
    assert os.path.exists(tmp_path / paths.CLEAN_SHUTDOWN)
