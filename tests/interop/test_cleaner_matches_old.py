"""A broker's cleaner and ours make the same of logs of the formats before v2, byte by byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.files import Files
from storage.paths import CLEANER_OFFSETS
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests import oracle
from tests.interop.brokers import Broker
from tests.interop.clients import create_topics, set_topics
from tests.interop.test_cleaner_matches import headers, segments
from tests.log_check import check
from tests.mount.mounting import kafkafs
from tests.storage.logs import NOW_MS, write_settings, write_topic_settings
from tests.storage.old_logs import touch, wrapper
from tests.waits import until

pytestmark = pytest.mark.soak

NONE, GZIP = 0, 1
TOPICS = {f"v{magic}-{codec}": (magic, codec) for magic in (0, 1) for codec in (NONE, GZIP)}
NOT_YET = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 1}
NOW = {"min.cleanable.dirty.ratio": 0.0}
RETENTION_MS = 86_400_000
SEGMENTS, SETS, COUNT = 3, 4, 10


def write_log(data: Path, topic: str) -> None:
    """Segments of sets of messages, whose keys come again, some with null values."""
    magic, codec = TOPICS[topic]
    directory = data / f"{topic}-0"
    directory.mkdir()
    offset = 0
    for _ in range(SEGMENTS):
        path = directory / f"{offset:020}.log"
        log = b""
        for _ in range(SETS):
            some = [
                oracle.Message(
                    at,
                    b"key %d" % (at * 7 % 23),
                    None if at % 11 == 3 else b"value %d" % at,
                    NOW_MS + at if magic else -1,
                )
                for at in range(offset, offset + COUNT)
            ]
            if codec:
                log += wrapper(some, magic, codec)
            else:
                log += b"".join(oracle.put_message(message, magic) for message in some)
            offset += COUNT
        path.write_bytes(log)
        touch(path)


def delete_horizon(partition: Path) -> int:
    """Return the largest delete horizon in the log: tombstones may be removed after it."""
    logs = sorted(partition.glob("*.log"))
    found = (header for log in logs for header, _ in headers(log.read_bytes()))
    return max(header.delete_horizon or 0 for header in found)


class Cleaned:
    """The same logs, cleaned by a broker of today and by us."""

    def __init__(self, base: Path) -> None:
        data = base / "data"
        data.mkdir()
        for topic in TOPICS:
            write_log(data, topic)
        LogManager.open(str(data)).close()
        broker = Broker(base / "broker").start()
        try:
            create_topics(broker, dict.fromkeys(TOPICS, NOT_YET))
            broker.stop()
            done = kafkafs("handover", data, broker.data)
            assert done.returncode == 0, done.stderr
            self.ours = base / "ours"
            self.ours.mkdir()
            for topic in TOPICS:
                shutil.copytree(broker.partition(topic), self.ours / f"{topic}-0")
            broker.start()
            set_topics(broker, dict.fromkeys(TOPICS, NOW))
            end = SEGMENTS * SETS * COUNT
            checkpoint = str(broker.data / CLEANER_OFFSETS)
            until(
                lambda: (
                    {t: o for (t, _), o in read_offsets(Files(), checkpoint).items()}
                    == dict.fromkeys(TOPICS, end)
                )
            )
            broker.stop()
            self.theirs = {topic: broker.partition(topic) for topic in TOPICS}
        finally:
            broker.kill()
        self._now_ms = NOW_MS
        write_settings(self.ours, log_retention_ms=-1)
        for topic in TOPICS:
            write_topic_settings(self.ours, topic, {"cleanup.policy": "compact"})
        (self.ours / ".kafka_cleanshutdown").touch()
        with LogManager.open(str(self.ours), clock_ms=lambda: self._now_ms) as manager:
            cleaner = LogCleaner(manager)
            for topic in TOPICS:
                self._now_ms = delete_horizon(self.theirs[topic]) - RETENTION_MS
                assert cleaner.clean(manager.log(topic, 0), Task()) is not None
            assert check(manager) == []


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> Cleaned:
    return Cleaned(tmp_path_factory.mktemp("cleaned"))


@pytest.mark.parametrize("topic", TOPICS)
def test_logs_are_the_same(topic: str, cleaned: Cleaned) -> None:
    ours, theirs = cleaned.ours / f"{topic}-0", cleaned.theirs[topic]
    first = f"{0:020}.log"
    assert (theirs / first).stat().st_size > 0
    if TOPICS[topic][1] == NONE:
        assert {p.name: p.read_bytes() for p in ours.glob("*.log")} == {
            p.name: p.read_bytes() for p in theirs.glob("*.log")
        }
    assert segments(ours) == segments(theirs)
