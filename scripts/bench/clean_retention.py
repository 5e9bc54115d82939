"""Measures the deletion of very many segments."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from storage import LogManager, Record, encode
from storage.directory.retain import retain
from storage.task import Task

TOPIC = "many"
FLUSHED_AT_ONCE = 500


def write_segments(data: Path, count: int) -> None:
    """Create a topic of `count` sealed segments with a record each."""
    data.mkdir(parents=True)
    (data / "kafkafs.properties").write_text("log.retention.ms=-1\n")
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic(TOPIC, 1).partitions[0]
        now_ms = time.time_ns() // 1_000_000
        batch = encode([Record(0, now_ms, 0, None, b"x" * 100)])
        for number in range(count):
            log.append(bytearray(batch), now_ns=now_ms * 1_000_000)
            log.roll(now_ms)
            if not number % FLUSHED_AT_ONCE:
                # Until then each segment has three open files.
                log.flush()
                log.age_descriptors()
                log.age_descriptors()


def delete(data: Path, home: Path, count: int) -> dict[str, float]:
    """Return µs a segment until all are out of the log, and until their files are deleted."""
    shutil.copytree(data, home)
    with LogManager.open(str(home)) as manager:
        log = manager.log(TOPIC, 0)
        manager.change_topic_settings(TOPIC, {"retention.bytes": "0"})
        begun = time.monotonic()
        outcome = retain(manager, [log], Task())
        deleted = time.monotonic() - begun
        assert outcome.segments == count, outcome
        begun = time.monotonic()
        later_ms = time.time_ns() // 1_000_000 + log.config.file_delete_delay_ms
        while (remove := manager.deleted.remove(later_ms)) is not None:
            remove()
        assert not log.retired
        removed = time.monotonic() - begun
    return {"kafkafs": deleted / count * 1e6, "kafkafs, files": removed / count * 1e6}
