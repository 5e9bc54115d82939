"""A broker recovers topics from states that a crash of our cleaner leaves, and serves them.

Every second crash state of one topic replaces the files of another topic of the broker. So one
start of the broker recovers all of these states.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import pytest

from storage import LogManager, Record
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.paths import CLEAN_SHUTDOWN, CLEANER_OFFSETS, LOG, RECOVERY_POINTS
from storage.settings.setting_files import TOPIC_FILE
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from storage.verify.verify import verify
from tests.interop.brokers import Broker
from tests.interop.cleaner_workload import (
    TOPIC_SETTINGS,
    Scenario,
    Writers,
    at,
    drawn,
)
from tests.interop.clients import consume_all, create_topics, delete_topic, set_topics
from tests.storage.logs import write_topic_settings
from tests.waits import until

pytestmark = pytest.mark.soak

Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")
Consumed = dict[Isolation, dict[str, list[Record]]]

STATES = 30  # at most
SOURCE = Scenario("source", drawn(7), {"internal.segment.bytes": 8000, "delete.retention.ms": 0})
BETWEEN = {"cleanup.policy": "delete"}


class CopyingFiles(Files):
    """Copies a directory before each of its files is renamed, and before each log is removed."""

    def __init__(self, directory: Path, to: Path) -> None:
        self.copying = False
        self._directory = directory
        self._to = to

    def states(self) -> list[Path]:
        return sorted(self._to.iterdir())

    def copy(self) -> None:
        number = len(list(self._to.iterdir()))
        shutil.copytree(self._directory, self._to / f"{number:03}")

    def rename(self, old: str, new: str) -> None:
        if self.copying and Path(old).parent == self._directory:
            self.copy()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        if self.copying and Path(path).parent == self._directory and LOG in path:
            self.copy()
        super().unlink(path)


def write_settings(data: Path) -> None:
    """Have our library clean the topic by the settings that the broker has for it."""
    write_topic_settings(data, SOURCE.topic, SOURCE.settings)


def crash_states(data: Path, base: Path) -> list[Path]:
    """The source's directory before each of the steps in which our cleaning of it ends."""
    copy, to = base / "source", base / "states"
    to.mkdir()
    copy.mkdir()
    shutil.copytree(data / "source-0", copy / "source-0")
    write_settings(copy)
    files = CopyingFiles(copy / "source-0", to)
    with LogManager.open(str(copy), files=files) as manager:
        manager.change_topic_settings("source", {"file.delete.delay.ms": "0"})
        # So that two old segments become one new one.
        manager.change_topic_settings("source", {"internal.segment.bytes": "14000"})
        files.copying = True
        cleaner = LogCleaner(manager)
        assert cleaner.clean(manager.log("source", 0), Task()) is not None
        assert cleaner.uncleanable == {}
        remove = manager.sweep(time.time_ns() // 1_000_000 + 1000)
        assert remove is not None
        remove()
        files.copy()
        files.copying = False
    return files.states()


def read_by_us(data: Path, topics: Sequence[str], *, writable: bool = False) -> Consumed:
    """Return the records that the library reads. The directory must be undamaged."""
    with LogManager.open(str(data), read_only=not writable) as manager:
        assert (manager.faults, manager.cuts) == ([], [])
        found: Consumed = {
            isolation: {
                topic: list(manager.log(topic, 0).records(isolation=isolation)) for topic in topics
            }
            for isolation in ISOLATIONS
        }
    assert verify(str(data)).faults == []
    return found


def latest(records: Sequence[Record]) -> dict[bytes | None, bytes]:
    """The last value of each key that was not deleted."""
    values = {record.key: record.value for record in records if record.key is not None}
    return {key: value for key, value in values.items() if value is not None}


def active(partition: Path) -> int:
    return max(int(log.stem) for log in partition.glob("*.log"))


class Handed:
    """A broker that was given what crashes have left of our cleaning, and what was read at each
    step.
    """

    def __init__(self, broker: Broker, base: Path) -> None:
        self.base = base
        self.broker = broker.start()
        crashed = [f"crashed-{number}" for number in range(STATES)]
        create_topics(
            broker,
            {SOURCE.topic: {**SOURCE.settings, **BETWEEN}}
            | {topic: {**TOPIC_SETTINGS, **BETWEEN} for topic in crashed},
        )
        writers = Writers(broker)
        for turn in range(2):
            SOURCE.write(writers, SOURCE.topic, turn)
        self.written = self.consume([SOURCE.topic])
        broker.stop()

        states = crash_states(broker.data, base)[::2]
        self.crashed = crashed[: len(states)]
        write_settings(broker.data)
        self.recovered: dict[str, Consumed] = {}
        for topic, state in zip(self.crashed, states, strict=True):
            self.put(state, topic)
        (broker.data / CLEAN_SHUTDOWN).unlink()
        (broker.data / RECOVERY_POINTS).unlink()
        broker.start()
        self.second = self.consume(self.crashed)
        self.clean_again(self.crashed)
        self.third = self.consume(self.crashed)
        # Our file of a topic's settings is no obstacle.
        assert (broker.partition(SOURCE.topic) / TOPIC_FILE).exists()
        delete_topic(broker, SOURCE.topic)
        until(lambda: not list(broker.data.glob(f"{SOURCE.topic}-*")))
        self.stop()
        self.last = read_by_us(broker.data, self.crashed)

    def consume(self, topics: Sequence[str]) -> Consumed:
        return {
            isolation: consume_all(self.broker, topics, committed=isolation == "read_committed")
            for isolation in ISOLATIONS
        }

    def stop(self) -> None:
        """Stop the broker, which has recovered our topics, and must not have complained of them.

        Only one warning is expected. A broker does not delete old segments for a new
        one without batches, so it may find an index whose log was already renamed to `.deleted`.
        A crash of its own cleaner leaves the same.
        """
        server = self.broker.server
        self.broker.stop()
        names = re.compile(r"\b(" + "|".join(self.crashed) + r")-0\b")
        said = [line for line in server.lines if names.search(line)]
        faults = re.compile(r"(?i)corrupt|truncat|invalid|stray|unreasonabl|exception|warn")
        expected = re.compile(r"Found an orphaned index file .* with no corresponding log file")
        found = [line for line in said if faults.search(line)]
        assert [line for line in found if not expected.search(line)] == []
        assert any("Recovering unflushed segment" in line for line in said)

    def put(self, state: Path, topic: str) -> None:
        """Let the topic be in that state of ours, and read it as we recover it from there."""
        place = self.broker.partition(topic)
        for file in place.iterdir():
            if file.name != "partition.metadata":
                file.unlink()
        for file in state.iterdir():
            if file.name != "partition.metadata":
                shutil.copy2(file, place)
        copy = self.base / "recovered" / topic
        shutil.copytree(state, copy / "source-0")
        write_settings(copy)
        self.recovered[topic] = read_by_us(copy, ["source"], writable=True)

    def clean_again(self, topics: Sequence[str]) -> None:
        """Have the broker's own cleaner go over all that we have cleaned, and a little more."""
        writers = Writers(self.broker)
        for topic in topics:
            for segment in range(2):
                record = Record(0, at(5, segment), 0, b"again", b"%d" % segment)
                writers.plain().send(topic, [record])
        compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0}
        set_topics(self.broker, dict.fromkeys(topics, compact))
        ends = {(topic, 0): active(self.broker.partition(topic)) for topic in topics}
        path = str(self.broker.data / CLEANER_OFFSETS)
        until(lambda: ends.items() <= read_offsets(Files(), path).items())


@pytest.fixture(scope="module")
def handed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Handed]:
    base = tmp_path_factory.mktemp("cleaned")
    broker = Broker(base / "broker", log_segment_delete_delay_ms=1000)
    try:
        yield Handed(broker, base)
    finally:
        broker.kill()


def test_states_are_of_every_kind(handed: Handed) -> None:
    """Nothing decided, all decided, old ones aside, new ones in their places, old ones removed."""
    kinds = set()
    for state in sorted((handed.base / "states").iterdir()):
        names = [file.name for file in state.iterdir()]
        kinds.add(
            tuple(
                sum(name.endswith(suffix) for name in names)
                for suffix in (".log.cleaned", ".log.swap", ".log.deleted", LOG)
            )
        )
    new = max(kind[0] for kind in kinds)
    old = max(kind[2] for kind in kinds)
    assert new > 1
    assert old > new
    assert (new, 0, 0, old + 1) in kinds
    assert any(0 < kind[0] < new and kind[0] + kind[1] == new for kind in kinds)
    assert (0, new, 0, old + 1) in kinds
    assert any(kind[0] == 0 and kind[1] == new and 0 < kind[2] < old for kind in kinds)
    assert any(kind[2] == old and 0 < kind[1] < new for kind in kinds)
    assert (0, 0, old, new + 1) in kinds
    assert any(0 < kind[2] < old and kind[1] == 0 for kind in kinds)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_broker_recovers_as_we_do(isolation: Isolation, handed: Handed) -> None:
    """Each state recovers to the written records or to the cleaned ones.

    Or it recovers to the cleaned records and some of the old segments that a new segment without
    batches replaces.
    """
    outcomes = set()
    for topic in handed.crashed:
        found = handed.second[isolation][topic]
        assert found == handed.recovered[topic][isolation]["source"], topic
        outcomes.add(tuple(found))
    assert len(outcomes) > 1
    before, *between, after = sorted(outcomes, key=len, reverse=True)
    assert all(set(after) <= set(each) <= set(before) for each in between)
    assert list(before) == handed.written[isolation]["source"]
    if isolation == "read_committed":
        assert latest(after) == latest(before)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_its_cleaner_goes_on(isolation: Isolation, handed: Handed) -> None:
    for topic in handed.crashed:
        before, after = handed.second[isolation][topic], handed.third[isolation][topic]
        assert handed.last[isolation][topic] == after, topic
        if isolation == "read_committed":
            assert latest(after) == {**latest(before), b"again": b"1"}, topic
