"""Retention and compaction by the clock, in a daemon whose clock goes fast."""

from __future__ import annotations

from pathlib import Path

from tests.mount.contract.writing import append
from tests.mount.control import do, facts, keyed, segments
from tests.mount.mounting import Mount, mounted
from tests.storage.logs import write_settings
from tests.waits import until

FAST = {
    "log_initial_task_delay_ms": 0,
    "log_retention_check_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
}


def fast(base: Path, **settings: object) -> Path:
    (base / "data").mkdir()
    write_settings(base / "data", **{**FAST, **settings})
    return base


def compacted(mount: Mount, name: str, policy: str) -> Path:
    """Partition 0 of a topic that nobody cleans yet: half of its records may go."""
    first = mount.topic(name)
    ratio = f"min.cleanable.dirty.ratio=1\ncleanup.policy={policy}\n"
    append(first.parent / ".config", ratio.encode())
    for value in (b"old", b"new"):
        keyed(first.parent / ".kv/0", 100, value)
    do(first, "roll", "run")
    return first


def test_retention_is_applied_by_the_clock(tmp_path: Path) -> None:
    with mounted(fast(tmp_path)) as mount:
        first = mount.topic("orders")
        for number in range(3):
            append(first, b"%d\n" % number)
            do(first, "roll", "run")
        assert segments(first) == 4
        assert first.read_bytes() == b"0\n1\n2\n"
        mount.run("echo retention.bytes=0 >> orders/.config")
        until(lambda: first.read_bytes() == b"")
        until(lambda: facts(first, "retention")["state"] == "idle")
        found = facts(first, "retention")
        assert found["last_begun_by"] == "schedule"
        assert "orders/.control/retention: the clock: done: partitions 1, " in mount.events()
        # A turn in which nothing goes is not told of.
        append(first, b"later\n")
        said = mount.events().count("the clock")
        mount.run("echo retention.bytes=-1 >> orders/.config")
        do(first, "retention", "run")
        assert facts(first, "retention")["last_begun_by"] == "command"
        assert mount.events().count("the clock") <= said + 1


def test_what_is_cancelled_is_not_begun_again_at_once(tmp_path: Path) -> None:
    base = fast(tmp_path, log_cleaner_backoff_ms=100, log_cleaner_io_max_bytes_per_second=1000)
    with mounted(base) as mount:
        first = compacted(mount, "orders", "compact")
        append(first.parent / ".config", b"min.cleanable.dirty.ratio=0.1\n")
        until(lambda: facts(first, "compaction")["state"] == "running")
        do(first, "compaction", "cancel")
        found = facts(first, "compaction")
        assert (found["state"], found["last_outcome"]) == ("idle", "cancelled")
        assert found["last_begun_by"] == "schedule"
        until(lambda: facts(first, "compaction")["state"] == "running")
        append(first.parent / ".config", b"min.cleanable.dirty.ratio=1\n")
        do(first, "compaction", "cancel")
        assert first.read_bytes() == b"old\n" * 100 + b"new\n" * 100
