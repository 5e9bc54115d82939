"""Directories that brokers of formats v0 and v1 wrote are read and written on as they are."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_client.addresses import parse_brokers
from kafka_client.cluster import Cluster
from kafka_client.properties import ClientSettings
from kafkafs.mirror.mirror import Mirror, Options
from storage import LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.convert.convert import convert
from storage.files import Files
from storage.paths import (
    CLEAN_SHUTDOWN,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    RECOVERY_POINTS,
)
from storage.record.batch import decode
from storage.record.header import BatchHeader, parse_header
from storage.state.checkpoint_file import read_offsets, write_offsets
from storage.task import Task
from storage.verify.reindex import reindex
from storage.verify.verify import verify
from tests.interop import old_workload
from tests.interop.brokers import Broker, OldBroker
from tests.interop.clients import Sender, create_topics, set_topics
from tests.interop.kafka_tools import V0_POM, V1_POM, batches, complaints, dump_log_segments
from tests.interop.old_workload import CODECS
from tests.mount.mounting import Mount
from tests.storage.logs import NOW_MS, NOW_NS, write_topic_settings
from tests.view_text import TEXTS, json_lines, values
from tests.waits import until

pytestmark = pytest.mark.soak


class Old:
    """A running broker of format v0 or v1, and what its consumers got of its topics.

    It is stopped when the first test asks for `left`.
    """

    def __init__(self, broker: OldBroker) -> None:
        self.broker = broker.start()
        self.topics = old_workload.fill(broker)
        self.consumed: dict[str, list[Record]] = {
            topic: old_workload.read(broker, topic) for topic in self.topics
        }

    @functools.cached_property
    def left(self) -> Path:
        """Its directory after an orderly stop, to be copied and not changed."""
        self.broker.stop()
        return self.broker.data


@pytest.fixture(scope="module", params=[V0_POM, V1_POM], ids=["v0", "v1"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    broker = OldBroker(tmp_path_factory.mktemp("old"), request.param)
    try:
        yield Old(broker)
    finally:
        broker.kill()


@contextlib.contextmanager
def mounted(base: Path, data: Path, *options: str) -> Iterator[Mount]:
    """That directory, mounted."""
    (base / "data").symlink_to(data)
    mount = Mount(base, options)
    try:
        yield mount.start()
    finally:
        mount.end()


def held(manager: LogManager, old: Old) -> dict[str, list[Record]]:
    return {topic: list(manager.log(topic, 0).records()) for topic in old.topics}


def held_in(data: Path, old: Old) -> dict[str, list[Record]]:
    with LogManager.open(str(data), read_only=True) as manager:
        return held(manager, old)


def are(mount: Mount, topic: str, records: list[Record]) -> bool:
    """Whether all views of the topic show just these."""
    return all(
        (mount / topic / directory / "0").read_bytes() == text(records)
        for directory, text in TEXTS.items()
    )


def stored(partition: Path) -> Iterator[BatchHeader]:
    """The headers of the entries in the log."""
    for log in sorted(partition.glob("*.log")):
        data, at = log.read_bytes(), 0
        while at < len(data):
            header = parse_header(data, at)
            yield header
            at += 12 + header.batch_length


def test_it_has_written_what_it_is_here_for(old: Old) -> None:
    """Sets of every codec, in the right format; holes in those that were cleaned."""
    for topic in (*CODECS, "compacted"):
        headers = list(stored(old.broker.partition(topic)))
        assert {header.magic for header in headers} == {old.broker.magic}
        codecs = {CODECS[header.attributes & 7] for header in headers}
        # A producer leaves alone what does not shrink.
        if topic == "compacted":
            assert codecs > {"none"}
        else:
            assert topic in codecs
            assert codecs <= {topic, "none"}
    compacted = old.consumed["compacted"]
    assert compacted[0].offset > 0
    assert compacted[-1].offset > 2 * len(compacted)
    if old.broker.magic == 1:
        assert {record.timestamp_type for record in old.consumed["append-time"]} == {1}
        assert {record.timestamp < 0 for record in old.consumed["mixed"]} == {False, True}


def test_it_is_mounted_while_it_runs(old: Old, tmp_path: Path) -> None:
    more = {codec: f"followed-{codec}" for codec in CODECS}
    for codec, topic in more.items():
        old_workload.sender(old.broker, codec).send(topic, old_workload.plain(10))
    with mounted(tmp_path, old.broker.data, "ro") as mount:
        for topic, records in old.consumed.items():
            assert are(mount, topic, records), topic
        for codec, topic in more.items():
            for seed in range(3):
                sent = old_workload.plain(10, seed=seed)
                old_workload.sender(old.broker, codec).send(topic, sent)
            written = old_workload.read(old.broker, topic)
            assert len(written) == 40
            assert are(mount, topic, written)


def test_after_a_kill_nothing_is_missing(old: Old, tmp_path: Path) -> None:
    """Opened to be written to, as the broker's death would leave the directory."""
    # Checkpoints are written beside themselves and renamed.
    shutil.copytree(old.broker.data, tmp_path / "data", ignore=shutil.ignore_patterns("*.tmp"))
    with LogManager.open(str(tmp_path / "data")) as manager:
        assert (manager.clean, manager.cuts, manager.faults) == (False, [], [])
        assert held(manager, old) == old.consumed
    assert verify(str(tmp_path / "data")).faults == []


def test_after_it_has_stopped_it_is_written_on(old: Old, tmp_path: Path) -> None:
    """We append v2 batches."""
    data = tmp_path / "left"
    shutil.copytree(old.left, data)
    expected: dict[str, list[Record]] = {}
    with LogManager.open(str(data)) as manager:
        assert (manager.clean, manager.cuts, manager.faults) == (True, [], [])
        assert held(manager, old) == old.consumed
        for topic in old.topics:
            log = manager.log(topic, 0)
            before = old.consumed[topic]
            key = b"key" if topic == "compacted" else None
            ours = [Record(n, NOW_MS, 0, key, b"ours") for n in range(3)]
            first = log.append(bytearray(encode(ours)), now_ns=NOW_NS)
            assert first > before[-1].offset
            numbered = [record._replace(offset=first + record.offset) for record in ours]
            expected[topic] = [*before, *numbered]
    with LogManager.open(str(data), read_only=True) as manager:
        assert held(manager, old) == expected
    with mounted(tmp_path, data) as mount:
        mount.run("for topic in none gzip snappy lz4; do echo mounted >> $topic/0; done")
        for topic in CODECS:
            shown = (mount / topic / ".jsonl" / "0").read_bytes()
            assert shown.startswith(json_lines(expected[topic]))
            assert b'"key":null,"value":"mounted","headers":[]}' in shown.splitlines()[-1]


def test_old_segments_are_appended_as_batches_of_today(old: Old, tmp_path: Path) -> None:
    """`cat SEGMENT >> T/.batches/0` makes v2 of them and keeps the codec."""
    data = tmp_path / "ours"
    data.mkdir()
    with mounted(tmp_path, data) as mount:
        for topic in old.topics:
            path = mount.topic(topic)
            source = old.left / f"{topic}-0"
            mount.run(f"cat $SOURCE/*.log >> {topic}/.batches/0", SOURCE=source)
            assert path.read_bytes() == values(old.consumed[topic])
        mount.stop()
    with LogManager.open(str(data), read_only=True) as manager:
        for topic, records in old.consumed.items():
            found = list(manager.log(topic, 0).records())
            assert [record[1:] for record in found] == [record[1:] for record in records]
    # A compacted log has gaps, which DumpLogSegments reports.
    logs = sorted(log for log in data.glob("*-0/*.log") if log.parent.name != "compacted-0")
    printed, errors = dump_log_segments(logs, "--deep-iteration")
    assert complaints(errors) == []
    assert all(batches(printed))
    for codec in CODECS:
        assert f"magic: 2 compresscodec: {codec} " in printed


def test_old_formats_are_whole_and_become_v2(old: Old, tmp_path: Path) -> None:
    data, consumed = tmp_path / "data", old.consumed
    shutil.copytree(old.left, data)
    assert verify(str(data)).faults == []
    assert held_in(data, old) == consumed
    outcome = convert(str(data))
    assert (outcome.faults, outcome.cuts) == ([], [])
    assert len(outcome.converted) >= len(consumed)
    assert verify(str(data)).faults == []
    assert held_in(data, old) == consumed
    paths = [
        path
        for topic in consumed
        for path in sorted((data / f"{topic}-0").iterdir())
        if path.suffix in (".log", ".index", ".timeindex")
    ]
    printed, errors = dump_log_segments(paths, "--deep-iteration")
    assert "isvalid: false" not in printed
    assert " magic: 2 " in printed
    assert not re.search(" magic: [01] ", printed)
    gaps = [
        line
        for line in complaints(errors)
        if not re.fullmatch(r"  \d+ is followed by \d+", line)
        and not ("compacted-0" in line and line.startswith("Non-consecutive offsets"))
    ]
    assert gaps == []
    assert reindex([str(data)]).damaged == []
    assert held_in(data, old) == consumed


# Of `compacted` tombstones go at once from what is clean, by when their segment was written to.
CLEANED: dict[str, object] = {
    "cleanup.policy": "compact",
    "segment.ms": 1,
    "segment.index.bytes": 1 << 16,
    "delete.retention.ms": 0,
    "min.cleanable.dirty.ratio": 0,
}


@pytest.fixture(scope="module")
def today(old: Old, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker of today, which has the topics from the old one."""
    broker = Broker(tmp_path_factory.mktemp("today"))
    try:
        hand_over(old, broker)
        yield broker
    finally:
        broker.kill()


def test_a_mirror_has_them_as_they_are(old: Old, today: Broker, tmp_path: Path) -> None:
    data, lines = tmp_path / "mirror", list[str]()
    with Cluster(parse_brokers(today.address), ClientSettings()) as cluster:
        mirror = Mirror(cluster, str(data), Options("kafka://"), lines.append)
        mirror.run(True, lambda: False)
    assert mirror.facts.waiting == {}
    # It is not a compacted topic any more.
    assert {line.partition(":")[0] for line in lines} == {"compacted"}
    for topic in old.topics:
        assert stored_bytes(data / f"{topic}-0") == stored_bytes(today.partition(topic)), topic
        assert {header.magic for header in stored(data / f"{topic}-0")} > {2}
    assert verify(str(data)).faults == []


def test_it_is_compacted_as_by_a_broker_of_today(old: Old, today: Broker, tmp_path: Path) -> None:
    """It makes v2 of what is left, each uncompressed message a batch, where we join some."""
    data = tmp_path / "ours"
    shutil.copytree(today.data, data, ignore=shutil.ignore_patterns("*.tmp"))
    set_topics(today, dict.fromkeys(old.topics, CLEANED))
    ends = {(t, 0): bases(today.partition(t))[-1] for t in old.topics}
    checkpoint = str(today.data / CLEANER_OFFSETS)
    until(lambda: ends.items() <= read_offsets(Files(), checkpoint).items())
    cleaned = {topic: kept(today.partition(topic)) for topic in old.topics}
    clean_ours(data, {topic: horizon_of(cleaned[topic]) for topic in old.topics})
    for topic in old.topics:
        assert kept(data / f"{topic}-0") == cleaned[topic], topic
        assert {header.magic for header in stored(data / f"{topic}-0")} == {2}
    assert verify(str(data)).faults == []


def stored_bytes(partition: Path) -> bytes:
    return b"".join(log.read_bytes() for log in sorted(partition.glob("*.log")))


def hand_over(old: Old, broker: Broker) -> None:
    """Start the broker with the old one's topics, which it has to index, and let it append to each.

    Of `compacted` the first segments count as clean.
    """
    broker.start()
    settings = {**CLEANED, "cleanup.policy": "delete"}
    create_topics(broker, dict.fromkeys(old.topics, settings))
    broker.stop()
    for topic in old.topics:
        place = broker.partition(topic)
        for file in place.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        for number, log in enumerate(sorted((old.left / f"{topic}-0").glob("*.log"))):
            shutil.copy2(log, place)
            # Each file is newer than the ones before it, even if the old broker wrote both within
            # one millisecond. No file is old enough for retention to delete it before the cleaning.
            written_s = time.time() - 3600 + number
            os.utime(place / log.name, (written_s, written_s))
    for name in (LOG_STARTS, HIGH_WATERMARKS, RECOVERY_POINTS, CLEAN_SHUTDOWN):
        (broker.data / name).unlink(missing_ok=True)
    clean = {("compacted", 0): bases(broker.partition("compacted"))[2]}
    write_offsets(Files(), str(broker.data / CLEANER_OFFSETS), clean)
    broker.start()
    sender = Sender(broker)
    # The second one's segment is active.
    for number in range(2):
        for topic in old.topics:
            now_ms = time.time_ns() // 1_000_000 + 10 * number
            sender.send(topic, [Record(0, now_ms, 0, b"key 3", b"of today")])


def bases(partition: Path) -> list[int]:
    return sorted(int(log.stem) for log in partition.glob("*.log"))


def kept(partition: Path) -> dict[str, list[tuple[int, int | None, Record]]]:
    """Codec, delete horizon and record, for each record of each segment."""
    found: dict[str, list[tuple[int, int | None, Record]]] = {}
    for log in sorted(partition.glob("*.log")):
        data, at = log.read_bytes(), 0
        found[log.name] = []
        while at < len(data):
            header = parse_header(data, at)
            horizon = header.delete_horizon
            for record in decode(data, at):
                # Which records share a batch with a tombstone is the only difference.
                has = horizon if record.value is None else None
                found[log.name].append((header.codec, has, record))
            at += header.size
    return found


def horizon_of(segments: dict[str, list[tuple[int, int | None, Record]]]) -> int:
    """The time of the cleaning: the delete horizon of tombstones; any time where there are none."""
    horizons = {h for found in segments.values() for _, h, _ in found if h is not None}
    assert len(horizons) <= 1
    return max(horizons, default=time.time_ns() // 1_000_000)


def clean_ours(data: Path, times: dict[str, int]) -> None:
    """Clean each topic at its time."""
    for topic in times:
        write_topic_settings(data, topic, CLEANED)
    (data / RECOVERY_POINTS).unlink(missing_ok=True)
    now_ms = 0
    with LogManager.open(str(data), clock_ms=lambda: now_ms) as manager:
        assert (manager.cuts, manager.faults) == ([], [])
        cleaner = LogCleaner(manager)
        for topic, now_ms in times.items():  # noqa: B007
            assert cleaner.clean(manager.log(topic, 0), Task()) is not None
