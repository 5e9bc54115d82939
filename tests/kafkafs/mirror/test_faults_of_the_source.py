"""A mirror names what it cannot copy, waits for it, and ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kafka_client.cluster import Cluster, Metadata
from kafka_client.errors import ClientError
from kafka_client.properties import ClientSettings, Tls
from kafka_client.requests import LATEST
from kafkafs.mirror import mirror as module
from kafkafs.mirror import topics
from kafkafs.mirror.lookups import Lookups
from storage.files import Files
from storage.manager import LogManager
from storage.record.header import parse_header
from storage.settings.messages import Struct
from storage.state import point_file
from tests.crash.failing_disk import FailingDisk
from tests.kafka_client.fake_broker import HANG_S, answer, batch, partition
from tests.kafkafs.mirror.fake_source import (
    ID,
    NO_ID,
    OTHER_ID,
    Run,
    Source,
    SourceLog,
    SourceTopic,
)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_MS", 0)
    monkeypatch.setattr(module, "_GROUPS_EACH", 1)


def ends(data: Path, topic: str = "t") -> list[int]:
    with LogManager.open(str(data), read_only=True) as manager:
        return [each.log_end_offset for each in manager.topics[topic].partitions.values()]


def steps(script: Iterator[None]) -> Callable[[], bool]:
    """Return a `stop` that goes one step on each time, and ends the run after the last one."""
    return lambda: next(script, True) is True


def test_a_later_session_begins_although_the_cluster_is_away(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic is created again, and the cluster refuses requests about groups and offsets."""
    run = Run(source, tmp_path)

    def script() -> Iterator[None]:
        while run.facts.left or not run.facts.copied_offsets:
            yield
        source.topics["t"] = SourceTopic(OTHER_ID, logs={0: SourceLog([batch(0)])})
        answers = dict(source.answers)

        def once(version: int, data: Struct) -> Any:
            """Let a look find the new topic, and no more."""
            if data["topics"] is None:
                source.answers["Metadata"] = lambda *_: {"errorCode": 58}
                source.answers["ListOffsets"] = lambda *_: None
            return answers["Metadata"](version, data)

        source.answers["Metadata"] = once
        monkeypatch.setattr("kafka_client.cluster.TIMEOUT_S", 0.3)
        while not run.facts.faults:
            yield
        source.answers.update(answers)
        while run.facts.copied_offsets < 15:
            yield

    assert run(steps(script())).faults == {}
    assert ends(tmp_path) == [5]


def test_a_certificate_that_cannot_be_read_does_not_end_a_run(source: Source) -> None:
    """It may just be replaced by the next one."""
    settings = ClientSettings(tls=Tls("/none/ca.pem"))
    with (
        Cluster([source.address], settings) as cluster,
        closing(Lookups[Metadata](cluster)) as lookups,
    ):
        lookups.begin(lambda cluster: cluster.refresh())
        while (found := lookups.take()) is None:
            pass
    assert isinstance(found, ClientError)


def test_a_full_disk_does_not_end_a_run(
    source: Source, log: SourceLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new topic is not created before its start is durable."""
    run = Run(source, tmp_path)
    run()
    disk = FailingDisk(str(tmp_path))
    monkeypatch.setattr("storage.manager.Files", lambda _: disk)

    def script() -> Iterator[None]:
        disk.fail_from_now(errno.ENOSPC, 1)
        log.batches.append(batch(10))
        source.topics["u"] = SourceTopic(OTHER_ID, logs={0: SourceLog([batch(0)])})
        looks = source.count("Metadata")
        while not run.facts.waiting or source.count("Metadata") < looks + 5:
            yield
        assert not (tmp_path / "u-0").exists()
        disk.fail_from_now(0, 0)
        while run.facts.waiting or run.facts.copied_offsets < 10:
            yield

    assert run(steps(script())).faults == {}
    assert (ends(tmp_path), ends(tmp_path, "u")) == ([15], [5])


def test_a_run_ends_although_the_cluster_has_lost_its_last_records(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """The end that the run has asked for is lost before it is copied."""
    fetch = source.answers["Fetch"]

    def lost(version: int, data: Struct) -> Any:
        del log.batches[1:]
        return fetch(version, data)

    source.answers["Fetch"] = lost
    run = Run(source, tmp_path)
    assert (run().gaps, run.lines) == (0, [])
    assert ends(tmp_path) == [5]


def test_a_run_reads_from_the_leader_what_a_replica_in_its_rack_lacks(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """The replica does not replicate any more, and the leader still names it."""
    metadata, fetch = source.answers["Metadata"], source.answers["Fetch"]
    with Source(t=SourceTopic(logs={0: SourceLog(log.batches[:1])})) as replica:

        def listed(version: int, data: Struct) -> Any:
            found: Any = metadata(version, data)
            node = {"nodeId": 1, "host": replica.address.host, "port": replica.address.port}
            return {**found, "brokers": [*found["brokers"], node]}

        def fetched(version: int, data: Struct) -> Any:
            return (
                answer(partition(preferredReadReplica=1))
                if data["rackId"]
                else fetch(version, data)
            )

        source.answers |= {"Metadata": listed, "Fetch": fetched}
        run = Run(source, tmp_path)
        run.options.consumer["rack_id"] = "r"
        run()
    assert ends(tmp_path) == [10]


def test_damaged_records_that_begin_an_epoch_are_skipped(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    damaged = bytearray(batch(5, epoch=4))
    damaged[70] ^= 1
    log.batches = [batch(0, epoch=3), bytes(damaged), batch(10, epoch=4)]
    log.epochs = {3: 5}
    assert Run(source, tmp_path, accept_loss=True)().waiting == {}
    assert ends(tmp_path) == [15]


def test_damaged_records_are_read_again_before_they_are_skipped(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """… wherever they are."""
    for offset in (5, 10):
        damaged = bytearray(batch(offset))
        damaged[70] ^= 1
        log.batches[offset // 5 :] = [bytes(damaged), batch(offset + 5)]
    assert Run(source, tmp_path, accept_loss=True)().waiting == {}
    read = [
        each["fetchOffset"]
        for name, _, data in source.requests
        if name == "Fetch"
        for topic in data["topics"]
        for each in topic["partitions"]
    ]
    assert (read.count(5), read.count(10)) == (3, 3)
    assert ends(tmp_path) == [20]


def test_damaged_records_at_the_end_are_skipped(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """In a session, a broker does not answer about a partition that has no news."""
    damaged = bytearray(batch(10))
    damaged[70] ^= 1
    log.batches.append(bytes(damaged))
    fetch, end = source.answers["Fetch"], 0
    asked: list[Struct] = []

    def in_session(version: int, data: Struct) -> Any:
        nonlocal asked, end
        asked, end = data["topics"] or asked, end if data["sessionEpoch"] else 0
        found: Any = fetch(version, {**data, "topics": asked})
        is_news = log.end != end or found["responses"][0]["partitions"][0]["records"]
        end = log.end
        return {"responses": found["responses"] if is_news else [], "sessionId": 1}

    source.answers["Fetch"] = in_session
    assert Run(source, tmp_path, accept_loss=True)().gaps == 1
    assert ends(tmp_path) == [10]


def test_partitions_without_a_leader_are_faults(source: Source, tmp_path: Path) -> None:
    """Each is named once, and copied when it has one."""
    logs = source.topics["t"].logs
    logs[1] = SourceLog([batch(0)], leader=-1)
    line = "t:1: waits: LEADER_NOT_AVAILABLE"
    point = "the last restore point is invalid; `kafkafs points` has the reason"
    assert Run(source, tmp_path)().faults == {"t:1": line, "point": point}
    run = Run(source, tmp_path)

    def script() -> Iterator[None]:
        logs[2] = SourceLog([batch(0)], leader=-1)
        while "t:2" not in run.facts.faults:
            yield
        logs[1].leader = logs[2].leader = 0
        while run.facts.copied_offsets < 10:
            yield

    assert run(steps(script())).faults == {}
    assert run.lines == [line, line.replace("1", "2")]


def test_a_leader_of_offsets_is_not_needed_at_first(source: Source, tmp_path: Path) -> None:
    """A copy of the other topics may begin at their ends. Restore points are not valid before."""
    offsets = SourceLog(leader=-1)
    source.topics["__consumer_offsets"] = SourceTopic(OTHER_ID, logs={0: offsets})
    facts = Run(source, tmp_path, start=LATEST)()
    assert list(facts.faults) == ["__consumer_offsets:0", "point"]
    assert facts.point is not None
    assert facts.point[1].state_text == "invalid: __consumer_offsets:0 was not copied yet"


def test_a_run_that_has_copied_everything_has_no_fault_of_a_look(
    source: Source, tmp_path: Path
) -> None:
    run = Run(source, tmp_path)
    cluster = source.answers["Metadata"]
    fetch = source.answers["Fetch"]

    def away(_version: int, data: Struct) -> Any:
        source.answers["Metadata"] = lambda *_: {"errorCode": 58}
        source.answers["Fetch"] = held
        return answer()

    def held(version: int, data: Struct) -> Any:
        return fetch(version, data) if run.facts.faults else answer()

    source.answers["Fetch"] = away
    assert list(run().faults) == ["point"]
    assert ends(tmp_path) == [10]
    source.answers["Metadata"] = cluster


def test_the_error_of_a_topic_is_the_reason(source: Source, tmp_path: Path) -> None:
    Run(source, tmp_path)()
    source.topics["t"] = SourceTopic(NO_ID, 29, {})
    run = Run(source, tmp_path)
    assert "TOPIC_AUTHORIZATION_FAILED" in run().waiting["t", 0]


def test_a_topic_that_is_listed_without_its_id_waits(source: Source, tmp_path: Path) -> None:
    """As by an old broker of a cluster that is being upgraded."""
    Run(source, tmp_path)()
    source.topics["t"].id = NO_ID
    run = Run(source, tmp_path)
    assert run().waiting == {("t", 0): "a broker has listed the topic without its id"}
    assert ends(tmp_path) == [10]


def test_a_copy_gets_the_id_that_its_topic_has_got(source: Source, tmp_path: Path) -> None:
    """A cluster without ids was upgraded. Then the id shows that the topic is created again."""
    topic_id, data = topics.id_text(ID), str(tmp_path)
    source.topics["t"].id = NO_ID
    first = Run(source, tmp_path)()
    assert first.point is not None
    point_file.keep(Files(), data, first.point[0], "kept")
    source.topics["t"].id = ID
    run = Run(source, tmp_path)
    assert (run().status.ids, run.lines) == ({"t": topic_id}, [])
    assert point_file.read(Files(), data, "kept").ids == {"t": topic_id}
    source.topics["t"] = SourceTopic(OTHER_ID, logs={0: SourceLog([batch(0)])})
    again = f"t: the topic was created again; the copy of the old one is t.{topic_id}"
    assert (run().waiting, run.lines) == ({}, [again])
    assert (ends(tmp_path), ends(tmp_path, f"t.{topic_id}")) == ([5], [10])
    with LogManager.open(data, read_only=True) as manager:
        assert manager.topics[f"t.{topic_id}"].id == topic_id


def test_a_copy_gets_no_id_of_another_topic(source: Source, log: SourceLog, tmp_path: Path) -> None:
    """The topic was created again before the cluster was upgraded."""
    source.topics["t"].id = NO_ID
    Run(source, tmp_path)()
    source.topics["t"].id, log.batches = ID, [batch(0, 10)]
    run = Run(source, tmp_path)
    assert "is it another topic?" in run().waiting["t", 0]
    assert run.facts.status.ids == {"t": "-"}
    # Records that are not here prove nothing.
    log.start, log.batches = 20, [batch(20)]
    assert run().status.ids == {"t": "-"}
    assert ends(tmp_path) == [25]


def test_a_running_mirror_takes_the_id(source: Source, tmp_path: Path) -> None:
    source.topics["t"].id = NO_ID
    run = Run(source, tmp_path)
    fetch = source.answers["Fetch"]

    def script() -> Iterator[None]:
        while not run.facts.is_complete or not run.facts.copied_offsets:
            yield
        source.topics["t"].id = ID
        # The broker is stopped for its upgrade.
        source.answers["Fetch"] = lambda *_: None
        while not run.facts.waiting:
            yield
        source.answers["Fetch"] = fetch
        while run.facts.status.ids["t"] == "-" or run.facts.waiting or not run.facts.is_complete:
            yield

    assert run(steps(script())).status.ids == {"t": topics.id_text(ID)}


def test_a_broker_with_old_metadata_lists_a_deleted_topic(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """The copy of the new topic is complete, and that of the old one is not changed. It gets none
    of the new partitions either.
    """
    run = Run(source, tmp_path)
    run()
    new = SourceTopic(OTHER_ID, logs={0: SourceLog([batch(0)])})
    for topic in (new, SourceTopic(logs={0: SourceLog()}), new):
        source.topics["t"] = topic
        run()
    new.logs[1] = SourceLog([batch(0)])
    run()
    assert "cannot get the name" in run.facts.waiting["t", 0]
    assert list(run.facts.faults) == ["point"]
    assert len(ends(tmp_path)) == 1
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        found = {name: topic.partitions[0].log_end_offset for name, topic in manager.topics.items()}
    assert sorted(found.values()) == [0, 5, 10]


def test_a_leader_that_is_asked_for_the_start_of_a_copy_delays_no_other_copy(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    run, held = Run(source, tmp_path), threading.Event()
    list_offsets = source.answers["ListOffsets"]

    def slow(version: int, data: Struct) -> Any:
        held.wait(HANG_S)
        return list_offsets(version, data)

    def script() -> Iterator[None]:
        while run.facts.left or not run.facts.copied_offsets:
            yield
        source.answers["ListOffsets"] = slow
        source.topics["t"].logs[1] = SourceLog([batch(0)])
        count = source.count("ListOffsets")
        while source.count("ListOffsets") == count:
            yield
        log.batches.append(batch(10))
        while run.facts.copied_offsets < 15:
            yield
        assert run.facts.faults == {}
        held.set()
        while run.facts.copied_offsets < 20:
            yield

    try:
        run(steps(script()))
    finally:
        held.set()
    assert ends(tmp_path) == [15, 5]


def test_a_silent_leader_is_waited_for_once(
    source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ids, each copy is compared with its leader when it begins."""
    topic = source.topics["t"]
    topic.id, topic.logs[1] = NO_ID, SourceLog([batch(0)])
    Run(source, tmp_path)()
    monkeypatch.setattr("kafka_client.connection.TIMEOUT_S", 1.0)
    source.answers["Fetch"] = lambda *_: b""
    assert len(Run(source, tmp_path)(lambda: True).waiting) == 2
    # The last request of the first run may come late.
    compared = [
        data for name, _, data in source.requests if name == "Fetch" and not data["maxWaitMs"]
    ]
    assert len(compared) == 1


def test_a_damaged_last_batch_waits_in_a_cluster_without_ids(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """The last batch tells whether it is the same topic."""
    source.topics["t"].id = NO_ID
    Run(source, tmp_path)()
    damaged = bytearray(log.batches[1])
    damaged[70] ^= 1
    log.batches[1] = bytes(damaged)
    assert list(Run(source, tmp_path)().waiting) == [("t", 0)]


def test_a_leader_that_throttles_is_not_compared(source: Source, tmp_path: Path) -> None:
    source.topics["t"].id = NO_ID
    Run(source, tmp_path)()
    source.answers["Fetch"] = lambda *_: {"throttleTimeMs": 100, "responses": []}
    assert list(Run(source, tmp_path)(lambda: True).waiting) == [("t", 0)]


def test_a_run_ends_although_the_cluster_grows_and_its_answers_lag(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """As those of a replica in the rack: each knows of one batch more."""
    fetch = source.answers["Fetch"]

    def lagging(version: int, data: Struct) -> Any:
        found: Any = fetch(version, data)
        log.batches.append(batch(log.end))
        for part in (part for topic in found["responses"] for part in topic["partitions"]):
            header = parse_header(part["records"])
            part["records"] = part["records"][: header.size]
            part["highWatermark"] = header.last_offset + 1
        return found

    source.answers["Fetch"] = lagging
    facts = Run(source, tmp_path)()
    assert (facts.waiting, facts.faults) == ({}, {})
    assert ends(tmp_path)[0] >= 10


def test_a_partition_that_never_had_a_leader_is_no_fault_once_it_is_deleted(
    source: Source, tmp_path: Path
) -> None:
    run = Run(source, tmp_path)

    def script() -> Iterator[None]:
        source.topics["u"] = SourceTopic(OTHER_ID, logs={0: SourceLog(leader=-1)})
        while "u:0" not in run.facts.faults:
            yield
        del source.topics["u"]
        while run.facts.faults:
            yield

    run(steps(script()))


def test_deleted_offsets_are_not_counted_as_copied(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    Run(source, tmp_path)()
    log.start, log.batches = 5000, [batch(5000)]
    run = Run(source, tmp_path)()
    assert (run.copied_offsets, run.left, run.gaps) == (5, 0, 1)


def test_a_topic_that_is_created_again_between_two_answers(
    source: Source, log: SourceLog, tmp_path: Path
) -> None:
    """No answer has an error. The new topic has no id, and more records than the copy. Its
    log start is none of the old topic.
    """
    source.topics["t"].id = NO_ID
    run = Run(source, tmp_path, follow_deletes=True)

    def script() -> Iterator[None]:
        while run.facts.copied_offsets < 10:
            yield
        log.start, log.batches = 5, [batch(0, 10), batch(10)]
        while not run.facts.waiting and run.facts.copied_offsets == 10:
            yield
        looks = source.count("Metadata")
        while source.count("Metadata") < looks + 3:
            yield

    assert "is it another topic?" in run(steps(script())).waiting["t", 0]
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        copy = manager.log("t", 0)
        assert (copy.log_start_offset, copy.log_end_offset) == (0, 10)
