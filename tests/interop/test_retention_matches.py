"""A broker's retention and ours delete the same segments of the same log, and move its start alike.

The test copies the broker's topics before any segment may be deleted. The copy is a broker's
directory, too. Then the broker and we get the same settings. When both have deleted all that the
settings allow, the test compares them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from storage import LogManager, Record
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.paths import LOG_STARTS, META_PROPERTIES
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from storage.verify.verify import verify
from tests.interop import clients
from tests.interop.brokers import Broker
from tests.interop.clients import (
    Sender,
    create_topics,
    offset_for_time,
    offsets,
    set_topic,
    set_topics,
)
from tests.storage.logs import write_topic_settings
from tests.waits import until

pytestmark = pytest.mark.soak

HOUR_MS = 3_600_000
SEGMENTS = 6
PER_SEGMENT = 10
NOW_MS = time.time_ns() // 1_000_000
KEEP = {
    "retention.ms": -1,
    "retention.bytes": -1,
    "segment.ms": 1000,
    "cleanup.policy": "delete",
    # All that decides is known.
    "min.compaction.lag.ms": 0,
    "delete.retention.ms": 24 * HOUR_MS,
}


class Case(NamedTuple):
    """A topic: the age of each segment, and the settings by which some of them are deleted.

    `spare` (N, M): retention.bytes is the size of the log from segment N on, plus M bytes.
    `records`: the offset in a DeleteRecords request.
    """

    topic: str
    hours: tuple[float, ...] = (12, 10, 8, 6, 4, 2)
    settings: Mapping[str, object] = MappingProxyType({})
    spare: tuple[int, int] | None = None
    records: int | None = None


CASES = (
    Case("time", settings={"retention.ms": 7 * HOUR_MS}),
    Case("time-none", settings={"retention.ms": 13 * HOUR_MS}),
    Case("time-all", settings={"retention.ms": HOUR_MS}),
    Case("time-zero", settings={"retention.ms": 0}),
    Case("time-behind-a-young-one", (12, 1, 10, 9, 8, 0), {"retention.ms": 5 * HOUR_MS}),
    Case("time-behind-a-future-one", (12, -0.5, 10, 9, 8, 7), {"retention.ms": 5 * HOUR_MS}),
    Case("size-exact", spare=(2, 0)),
    Case("size-one-less", spare=(2, -1)),
    Case("size-one-more", spare=(2, 1)),
    Case("size-of-all", spare=(0, 0)),
    Case("size-of-the-last", spare=(5, 0)),
    Case("size-zero", settings={"retention.bytes": 0}),
    Case("size-and-time", settings={"retention.ms": 9 * HOUR_MS}, spare=(3, 0)),
    Case("time-and-size", settings={"retention.ms": 5 * HOUR_MS}, spare=(1, 0)),
    Case("records-within", records=25),
    Case("records-at-a-segment", records=30),
    Case("records-of-none", records=0),
    Case("records-all", records=-1),
    Case("records-and-time", settings={"retention.ms": 9 * HOUR_MS}, records=5),
    Case("compacted", settings={"cleanup.policy": "compact", "retention.ms": HOUR_MS}, records=25),
    Case("both", settings={"cleanup.policy": "compact,delete", "retention.ms": 7 * HOUR_MS}),
    Case("neither", settings={"cleanup.policy": "", "retention.ms": HOUR_MS}, records=25),
)
TOPICS = [case.topic for case in CASES]
topics = pytest.mark.parametrize("topic", TOPICS)


class Left(NamedTuple):
    """The state of a partition after retention: its segments, the log's start and end."""

    bases: list[int]
    log_start: int
    log_end: int


def bases(partition: Path) -> list[int]:
    return sorted(int(log.stem) for log in partition.glob("*.log"))


class Retentions:
    """The state of each topic after a broker's retention and after ours."""

    def __init__(self, broker: Broker, base: Path) -> None:
        self.base = base
        self._broker = broker.start()
        # With this ratio, the cleaner does not clean the logs meanwhile.
        keep = {**KEEP, "min.cleanable.dirty.ratio": 1}
        create_topics(broker, dict.fromkeys([*TOPICS, "canary"], keep))
        sender = Sender(broker, enable_idempotence=True)
        for case in CASES:
            for number, hours in enumerate(case.hours):
                sender.send(case.topic, segment(number, int(NOW_MS - hours * HOUR_MS)))
        self.before = base / "ours"
        self.before.mkdir()
        (self.before / META_PROPERTIES).touch()
        self.written: dict[str, list[int]] = {}
        for topic in TOPICS:
            shutil.copytree(broker.partition(topic), self.before / f"{topic}-0")
            self.written[topic] = bases(broker.partition(topic))
        self.settings = {case.topic: {**keep, **self._own(case)} for case in CASES}
        self.ours = self._ours()
        self.theirs = self._theirs(sender)

    def _own(self, case: Case) -> dict[str, object]:
        if case.spare is None:
            return dict(case.settings)
        first, more = case.spare
        logs = sorted((self.before / f"{case.topic}-0").glob("*.log"))
        size = sum(log.stat().st_size for log in logs[first:])
        return {**case.settings, "retention.bytes": size + more}

    def _ours(self) -> dict[str, Left]:
        for topic in TOPICS:
            write_topic_settings(self.before, topic, KEEP)
        with LogManager.open(str(self.before)) as manager:
            for case in CASES:
                if case.records is not None:
                    delete_records(manager, manager.log(case.topic, 0), case.records, Task())
            for topic, settings in self.settings.items():
                texts = {name: str(value) for name, value in settings.items()}
                manager.change_topic_settings(topic, texts)
            outcome = retain(manager, manager.logs(), Task())
            assert outcome.notes == []
            assert retain(manager, manager.logs(), Task()).segments == 0
            found = {
                topic: Left(
                    [segment.base_offset for segment in log.segments],
                    log.log_start_offset,
                    log.log_end_offset,
                )
                for topic in TOPICS
                for log in [manager.log(topic, 0)]
            }
        assert verify(str(self.before)).faults == []
        return found

    def _theirs(self, sender: Sender) -> dict[str, Left]:
        broker = self._broker
        for case in CASES:
            if case.records is not None:
                clients.delete_records(broker, case.topic, case.records)
        # Set the policy first: a round of retention may read the old policy, then the new times.
        set_topics(broker, {case.topic: _policy(case) for case in CASES if _policy(case)})
        set_topics(broker, self.settings)
        wanted = {topic: left.bases for topic, left in self.ours.items()}
        until(lambda: {topic: bases(broker.partition(topic)) for topic in TOPICS} == wanted)
        # The next round deletes from `canary`. It begins only after the last round has ended.
        for turn in range(2):
            sender.send("canary", segment(turn, NOW_MS + 2000 * turn))
        mark = len(broker.server.lines)
        set_topic(broker, "canary", retention_bytes=1)
        broker.server.wait_for("canary-0.*Incremented log start offset to", mark)
        return {
            topic: Left(bases(broker.partition(topic)), *offsets(broker, topic)) for topic in TOPICS
        }


def _policy(case: Case) -> dict[str, object]:
    return {name: value for name, value in case.settings.items() if name == "cleanup.policy"}


def segment(number: int, timestamp: int) -> list[Record]:
    """A batch that a segment of its own is rolled for."""
    return [
        Record(0, timestamp, 0, b"key %d" % n, b"%d" % n * (1 + number)) for n in range(PER_SEGMENT)
    ]


@pytest.fixture(scope="module")
def retentions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retentions]:
    base = tmp_path_factory.mktemp("retained")
    broker = Broker(base / "broker")
    try:
        yield Retentions(broker, base)
    finally:
        broker.kill()


@topics
def test_what_is_left(topic: str, retentions: Retentions) -> None:
    assert retentions.ours[topic] == retentions.theirs[topic]


def test_checkpoint(retentions: Retentions) -> None:
    """It has where logs start that do not start with a segment; ours has more of them."""
    theirs, ours = (
        read_offsets(Files(), str(data / LOG_STARTS))
        for data in (retentions.base / "broker" / "data", retentions.base / "ours")
    )
    assert ("records-within", 0) in theirs
    assert theirs.items() <= ours.items()
    assert all(retentions.ours[topic].log_start == start for (topic, _), start in ours.items())


def test_there_is_something_to_see(retentions: Retentions) -> None:
    """Each of the policies has let some segments go, and kept some."""
    gone = {
        topic: len(set(retentions.written[topic]) - set(left.bases))
        for topic, left in retentions.theirs.items()
    }
    assert gone["time"] == 3
    assert gone["time-none"] == gone["size-one-more"] - 1 == gone["size-of-all"] == 0
    assert gone["time-all"] == SEGMENTS
    assert gone["time-behind-a-young-one"] == gone["time-behind-a-future-one"] == 1
    assert gone["size-exact"] == gone["size-one-less"] == 2
    assert gone["records-within"] == gone["compacted"] == gone["neither"] == 2
    assert gone["records-at-a-segment"] == 3
    assert gone["both"] == 3


def test_times_before_old_segments_are_deleted(tmp_path: Path) -> None:
    """A broker looks in the first segment with a later timestamp, even below the log start, and
    then finds nothing. We find the record at the log start. All other answers are the same.
    """
    times = [NOW_MS - hours * HOUR_MS for hours in (6, 4, 2)]
    broker = Broker(tmp_path / "broker", log_retention_check_interval_ms=HOUR_MS)
    try:
        create_topics(broker.start(), {"times": KEEP})
        sender = Sender(broker, enable_idempotence=True)
        for number, time_ms in enumerate(times):
            sender.send("times", segment(number, time_ms))
        clients.delete_records(broker, "times", 25)
        starts = str(broker.data / LOG_STARTS)
        until(lambda: ("times", 0) in read_offsets(Files(), starts))
        wanted = [time_ms + more for time_ms in times for more in (0, 1)]
        theirs = [offset_for_time(broker, "times", time_ms) for time_ms in wanted]
        assert bases(broker.partition("times")) == [0, 10, 20]
        shutil.copytree(broker.partition("times"), tmp_path / "ours" / "times-0")
        shutil.copy(starts, tmp_path / "ours")
    finally:
        broker.kill()
    with LogManager.open(str(tmp_path / "ours")) as manager:
        log = manager.log("times", 0)
        found = [log.reader.offset_for_timestamp(time_ms) for time_ms in wanted]
    assert theirs == [None, None, None, 25, 25, None]
    assert found == [*[(times[2], 25)] * 5, None]
