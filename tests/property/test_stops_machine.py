"""Stops of every kind, one after another: each start finds the records that must be there.

There is no model: the test reads the logs before a stop and compares them after it. Unflushed
records of a killed process stay unflushed in the next processes, until one of these flushes them or
a power cut removes them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    rule,
)

from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.retain import delete_records, retain
from storage.state.producer_state import Producer
from storage.task import Task
from tests.crash.disk import SimulatedDisk
from tests.in_memory import PLACE
from tests.log_check import check
from tests.storage.logs import NOW_MS, NOW_NS, sweep, write_settings
from tests.storage.transactions import Client

#: Of these the second is compacted.
TOPICS = ("t", "c")

topics = st.sampled_from(TOPICS)


class Facts(NamedTuple):
    """The bounds, records and producers of a log; of producers, only what a snapshot has."""

    start: int
    end: int
    stored: list[Record]
    read: list[Record]
    producers: dict[int, Producer]


def facts(log: Log) -> Facts:
    return Facts(
        log.log_start_offset,
        log.log_end_offset,
        list(log.records(isolation="read_uncommitted")),
        list(log.records()),
        {
            number: producer._replace(batches=producer.batches[-1:])
            for number, producer in log.producers.by_id.items()
        },
    )


class StopsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.data = Path(tempfile.mkdtemp(prefix="kafkafs-stops-", dir=PLACE))
        self.number = 0

    @initialize(
        segment_bytes=st.sampled_from([300, 600, 2000]),
        interval=st.sampled_from([1, 100, 4096]),
        is_brokers=st.booleans(),
    )
    def begin(self, segment_bytes: int, interval: int, is_brokers: bool) -> None:
        """``is_brokers``: no file of ours says what belongs to a log."""
        write_settings(self.data, log_index_size_max_bytes=240)
        with LogManager.open(str(self.data), clock_ms=lambda: NOW_MS) as manager:
            for topic in TOPICS:
                manager.create_topic(topic, 1)
                policy = {"cleanup.policy": "compact"} if topic == "c" else {}
                numbers = {
                    "internal.segment.bytes": str(segment_bytes),
                    "index.interval.bytes": str(interval),
                    "file.delete.delay.ms": "0",
                }
                manager.change_topic_settings(topic, {**numbers, **policy})
        if is_brokers:
            (self.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
            for path in self.data.glob("*/kafkafs.segments"):
                path.unlink()
        self.open(SimulatedDisk(str(self.data)))

    def open(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.manager = LogManager.open(str(self.data), files=disk, clock_ms=lambda: NOW_MS)

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            self.manager.abandon()
        shutil.rmtree(self.data)

    def log(self, topic: str) -> Log:
        return self.manager.log(topic, 0)

    def value(self) -> bytes:
        self.number += 1
        return b"%d " % self.number * 10

    # -- what is written -----------------------------------------------------------------------

    @rule(topic=topics, keys=st.lists(st.sampled_from([b"a", b"b"]), min_size=1, max_size=3))
    def append(self, topic: str, keys: list[bytes]) -> None:
        records = [Record(n, NOW_MS, 0, key, self.value()) for n, key in enumerate(keys)]
        self.log(topic).append(bytearray(encode(records)), now_ns=NOW_NS)

    @rule(topic=topics, then=st.sampled_from(["commit", "abort", None]))
    def send(self, topic: str, then: str | None) -> None:
        """A batch of a transaction, and perhaps its end."""
        client = Client(self.log(topic), 7)
        known = self.log(topic).producers.by_id.get(7)
        if known is not None and known.batches:
            client.sequence = known.last_sequence + 1
        client.send(self.value())
        if then is not None:
            getattr(client, then)()

    @rule(topic=topics)
    def roll(self, topic: str) -> None:
        self.log(topic).roll(NOW_MS)

    # -- what is done for them -----------------------------------------------------------------

    @rule(deed=st.sampled_from(["flush", "checkpoint", "delete", "retain", "clean", "sweep"]))
    def tend(self, deed: str) -> None:
        """One rule, so that stops are not rare among all of them."""
        log = self.log("t")
        if deed == "flush":
            log.flush()
        elif deed == "checkpoint":
            self.manager.checkpoint()
        elif deed == "delete":
            offset = (log.log_start_offset + log.high_watermark + 1) // 2
            delete_records(self.manager, log, offset, Task())
        elif deed == "retain":
            assert retain(self.manager, [log], Task()).notes == []
        elif deed == "clean":
            LogCleaner(self.manager).clean(self.log("c"), Task())
        else:
            sweep(self.manager, NOW_MS + 1)

    # -- stops ---------------------------------------------------------------------------------

    @rule(seed=st.none() | st.integers(0, 20))
    def close(self, seed: int | None) -> None:
        """``seed``: then the machine stops, too."""
        before = self.said()
        self.manager.close()
        self.start(before, seed)

    @rule()
    def kill(self) -> None:
        self.start(self.said(), None)

    @rule(seed=st.integers(0, 20), is_written_down=st.booleans())
    def lose_power(self, seed: int, is_written_down: bool) -> None:
        """``is_written_down``: up to where all was flushed, so that the start reads less."""
        for topic in TOPICS:
            self.log(topic).flush()
        if is_written_down:
            self.manager.checkpoint()
        self.start(self.said(), seed)

    def said(self) -> list[Facts]:
        return [facts(self.log(topic)) for topic in TOPICS]

    def start(self, before: list[Facts], seed: int | None) -> None:
        self.open(self.disk.after_stop(seed))
        assert self.said() == before
        assert check(self.manager) == []


TestStopsMachine = StopsMachine.TestCase
