"""A source and a broker's directory for tests of a handover: what each of them holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import Log, LogManager, paths
from storage.errors import HandoverRefused
from storage.files import Files
from storage.handover.handover import HandoverOutcome, hand_over
from storage.state import checkpoint_file
from storage.state.gaps_file import Gap
from tests.storage.logs import NOW_MS, append, write_settings
from tests.storage.old_logs import content, write_legacy
from tests.storage.transactions import Client

TOPICS = {"plain": 2, "started-late": 1, "old": 1, "emptied": 1, "sent": 1}
OTHER = {("other", 0): 7}
Places = tuple[Path, Path]
"""The source and the broker's directory."""


def clock_ms() -> int:
    return NOW_MS


def write_source(data: Path) -> None:
    """Closed cleanly; every topic of ``TOPICS`` is there for something."""
    data.mkdir()
    write_settings(data, log_index_size_max_bytes=240, log_index_interval_bytes=100)
    write_legacy(data, "old", 1, segments=2)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        for topic, partitions in TOPICS.items():
            if topic not in manager.topics:
                manager.create_topic(topic, partitions)
            manager.change_topic_settings(topic, {"internal.segment.bytes": "400"})
        for n in range(12):
            append(manager.log("plain", n % 2), b"plain %d" % n * 10, timestamp_ms=NOW_MS + n)
        late = manager.log("started-late", 0)
        for n in range(8):
            append(late, *(b"late %d.%d" % (n, m) * 4 for m in range(3)))
        late.raise_log_start(5)
        late.note_gaps(Gap("deleted", 0, 4, NOW_MS))
        emptied = manager.log("emptied", 0)
        append(emptied, b"gone", b"gone")
        emptied.raise_log_start(2)
        sent = manager.log("sent", 0)
        for n in range(4):
            client = Client(sent, 7 + n)
            client.send(b"some %d" % n * 8, b"more")
            client.end(n % 2)


def leave_open(data: Path) -> None:
    """A transaction in ``sent`` that nobody has ended."""
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        Client(manager.log("sent", 0), 99).send(b"open")


def write_broker(broker: Path, partitions: dict[str, int] = TOPICS) -> None:
    """Write the directory of a broker that has stopped cleanly, with empty topics.

    Its checkpoints also list a partition of its own (`OTHER`).
    """
    broker.mkdir()
    (broker / paths.META_PROPERTIES).write_text("version=1\n")
    files = Files()
    items = dict.fromkeys(
        ((topic, number) for topic, count in partitions.items() for number in range(count)), 0
    )
    for name in (paths.RECOVERY_POINTS, paths.HIGH_WATERMARKS):
        checkpoint_file.write_offsets(files, str(broker / name), {**OTHER, **items})
    (broker / paths.LOG_STARTS).write_bytes(b"")
    ids = {topic: checkpoint_file.new_topic_id() for topic in partitions}
    for topic, number in items:
        directory = broker / paths.partition_directory(topic, number)
        directory.mkdir()
        metadata = str(directory / paths.PARTITION_METADATA)
        checkpoint_file.write_partition_metadata(files, metadata, ids[topic])
        for kind in (".log", ".index"):
            (directory / paths.file_name(0, kind)).write_bytes(b"")
        (directory / paths.file_name(0, ".timeindex")).write_bytes(bytes(12))
        checkpoint_file.write_epochs(
            files, str(directory / paths.LEADER_EPOCH_CHECKPOINT), [(0, 0)]
        )
    checkpoint_file.write_marker(files, str(broker))


def facts(log: Log) -> tuple[object, ...]:
    """Return what a consumer can read of a log: its bounds, its records, its offsets by time."""
    records = {
        isolation: list(log.records(isolation=isolation))
        for isolation in ("read_committed", "read_uncommitted")
    }
    times = {record.timestamp for record in records["read_uncommitted"]}
    found = {time: log.reader.offset_for_timestamp(time) for time in times}
    return log.log_start_offset, log.log_end_offset, records, found


def shown(data: Path) -> dict[tuple[str, int], tuple[object, ...]]:
    """``facts`` of every partition, without a change."""
    with LogManager.open(str(data), read_only=True, clock_ms=clock_ms) as manager:
        # A full disk may not take back a recovery point of the broker's, which caps it itself.
        faults = [each for each in manager.faults if "had been flushed but are missing" not in each]
        assert faults == []
        return {(log.topic, log.partition): facts(log) for log in manager.logs()}


def go_on(broker: Path) -> None:
    """Append with the producer ids of the source, as others would, from their first sequence."""
    with LogManager.open(str(broker), clock_ms=clock_ms) as manager:
        log = manager.log("sent", 0)
        for n in range(4):
            client = Client(log, 7 + n)
            client.send(b"of another cluster")
            client.commit()
        assert log.last_stable_offset == log.log_end_offset
        append(manager.log("plain", 0), b"and so on")


def hand(places: Places, *topics: str, **options: object) -> HandoverOutcome:
    return hand_over(str(places[0]), str(places[1]), topics, **options)  # type: ignore[arg-type]


def refused(places: Places, reason: str, *topics: str, **options: object) -> None:
    """Nothing has changed on either side, and a dry run says why, too."""
    before = content(places[0]), content(places[1])
    with pytest.raises(HandoverRefused) as caught:
        hand(places, *topics, **options)
    assert reason in str(caught.value)
    assert (content(places[0]), content(places[1])) == before
    assert any(reason in each for each in hand(places, *topics, dry_run=True, **options).refusals)
