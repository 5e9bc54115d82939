"""`.config` through the mount: Kafka's names, ranges and defaults, where a value comes from, and
that it is in force at once. The rules of the file itself: `test_metadata.py`.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append, opened
from tests.mount.control import do, facts
from tests.mount.mounting import Mount, fails, mounted
from tests.storage.logs import write_settings
from tests.waits import until

MAX = 2**63 - 1
INT_MAX = 2**31 - 1

# Name, default, values that it may have, and values that it may not (storage-format §9).
SETTINGS = [
    ("segment.bytes", "1073741824", f"1048576 {INT_MAX}", f"1048575 {INT_MAX + 1} 1.5 1e6"),
    ("segment.ms", "604800000", f"1 {MAX}", f"0 -1 {MAX + 1}"),
    ("segment.jitter.ms", "0", "0 5", "-1"),
    ("segment.index.bytes", "10485760", "12", "3 -1"),
    ("index.interval.bytes", "4096", "0", "-1"),
    ("flush.messages", str(MAX), "1", "0"),
    ("flush.ms", "1000", "0", "-1"),
    ("retention.bytes", "-1", "0 -1 1073741824", "x 1k"),
    ("retention.ms", "-1", "-1 0", "-2 7x"),
    ("cleanup.policy", "delete", "compact compact,delete none", "police compact;delete"),
    ("max.message.bytes", "1048588", "0", "-1"),
    ("delete.retention.ms", "86400000", "0", "-1"),
    ("min.compaction.lag.ms", "0", "0 5", "-1"),
    ("max.compaction.lag.ms", str(MAX), "1", "0"),
    ("min.cleanable.dirty.ratio", "0.5", "0.0 1.0 0.25", "-0.1 1.1 nan"),
    ("file.delete.delay.ms", "60000", "0", "-1"),
    ("compression.type", "producer", "uncompressed zstd lz4 snappy gzip producer", "lzma none"),
    ("compression.gzip.level", "-1", "1 9 -1", "0 10"),
    ("compression.lz4.level", "9", "1 17", "0 18"),
    ("compression.zstd.level", "3", "22 -131072", "23"),
    ("preallocate", "false", "true false", "1 yes"),
    ("message.timestamp.type", "CreateTime", "LogAppendTime CreateTime", "createtime"),
    ("message.timestamp.before.max.ms", str(MAX), "0", "-1"),
    ("message.timestamp.after.max.ms", "3600000", "0", "-1"),
    ("min.insync.replicas", "1", "2", "0"),
    ("unclean.leader.election.enable", "false", "true", "2"),
    ("remote.storage.enable", "false", "false", "no"),
    ("local.retention.ms", "-2", "-2 -1 7", "-3"),
    ("local.retention.bytes", "-2", "-2 -1 7", "-3"),
    ("remote.copy.lag.ms", "0", "-1 0", "-2"),
    ("remote.copy.lag.bytes", "-1", "-1 0", "-2"),
    ("kafkafs.retention.policy", "kafka", "kafka", "nobodys kafka:7"),
]


def config(orders: Path) -> Path:
    return orders.parent / ".config"


def lines(orders: Path) -> list[str]:
    return config(orders).read_text().splitlines()


@pytest.mark.parametrize(("name", "default", "good", "bad"), SETTINGS)
def test_every_setting_has_kafkas_default_and_range(
    mount: Mount, orders: Path, name: str, default: str, good: str, bad: str
) -> None:
    assert f"# {name}={default} (default)" in lines(orders)
    for value in good.split():
        append(config(orders), f"{name}={value}\n".encode())
        assert f"{name}={value}" in lines(orders)
    before = lines(orders)
    with opened(config(orders)) as fd:
        for value in bad.split():
            fails(errno.EINVAL, os.write, fd, f"{name}={value}\n".encode())
            said = mount.events().splitlines()[-1]
            assert f"{orders.parent.name}/.config: " in said
            assert value in said
    assert lines(orders) == before
    append(config(orders), f"{name}=\n".encode())
    assert f"# {name}={default} (default)" in lines(orders)


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("retention.ms=7d", "604800000"),
        ("retention.ms=90 m", "5400000"),
        ("retention.bytes=10GiB", "10737418240"),
        ("segment.ms=1h", "3600000"),
        ("segment.bytes=64MiB", "67108864"),
        ("flush.ms=2s", "2000"),
        ("flush.ms=20ms", "20"),
    ],
)
def test_units(orders: Path, written: str, stored: str) -> None:
    append(config(orders), f"{written}\n".encode())
    name = written.partition("=")[0]
    assert f"{name}={stored}" in lines(orders)
    append(config(orders), f"{name}=\n".encode())


@pytest.mark.parametrize(
    ("written", "units"),
    [
        ("retention.ms=10GiB", "ms, s, m, h, d"),
        ("retention.ms=1w", "ms, s, m, h, d"),
        ("retention.bytes=10GB", "B, KiB, MiB, GiB, TiB"),
        ("retention.bytes=7d", "B, KiB, MiB, GiB, TiB"),
    ],
)
def test_units_that_it_does_not_have(mount: Mount, orders: Path, written: str, units: str) -> None:
    with opened(config(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, f"{written}\n".encode())
    said = mount.events().splitlines()[-1]
    assert f"{written} is not a number with one of the units {units}" in said


def test_what_deletes_data_says_so_and_how_much(mount: Mount) -> None:
    orders = mount.topic("said")
    for number in range(3):
        append(orders.parent / ".jsonl/0", b'{"value":"%d","timestamp":1000}\n' % number)
        do(orders, "roll", "run")
    size = sum(path.stat().st_size for path in (orders.parent / ".raw/0").glob("*.log"))
    append(config(orders), b"flush.ms=7\nretention.ms=-1\n")
    assert "retention run will delete" not in mount.events()
    append(config(orders), b"retention.ms=7d\nflush.ms=\n")
    assert (
        "said: retention.ms=7d, flush.ms=: the next retention run will delete 3 segments "
        f"({size} bytes, 3 records)"
    ) in mount.events().splitlines()[-1]
    told = mount.events()
    append(config(orders), b"retention.ms=14d\n")
    assert mount.events() == told


@pytest.mark.parametrize("line", ["no.such.setting=1", "no.such.setting=", "segment.ms", "=5", "x"])
def test_what_is_no_setting(mount: Mount, orders: Path, line: str) -> None:
    done = mount.sh('echo "$L" >> "$F"', L=line, F=config(orders))
    assert done.returncode == 1
    assert b"Invalid argument" in done.stderr
    assert "line 1: " in mount.events().splitlines()[-1]


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_settings(
        tmp_path / "data",
        log_retention_hours=1,
        log_retention_minutes=2,
        log_roll_hours=3,
        log_cleanup_policy="compact",
        log_initial_task_delay_ms=86_400_000,
    )
    with mounted(tmp_path) as mount:
        orders = mount.topic("orders")
        append(config(orders), b"flush.ms=7\n")
        found = lines(orders)
        assert found[0] == "flush.ms=7"
        where = "in kafkafs.properties)"
        assert f"# retention.ms=120000 (log.retention.minutes {where}" in found
        assert f"# segment.ms=10800000 (log.roll.hours {where}" in found
        assert f"# cleanup.policy=compact (log.cleanup.policy {where}" in found
        assert "# retention.bytes=-1 (default)" in found


def test_lines_of_one_write_count_together_or_not_at_all(mount: Mount, orders: Path) -> None:
    append(config(orders), b"min.compaction.lag.ms=5000\n")
    append(config(orders), b"max.compaction.lag.ms=1000\nmin.compaction.lag.ms=10\n")
    assert lines(orders)[:2] == ["max.compaction.lag.ms=1000", "min.compaction.lag.ms=10"]
    with opened(config(orders)) as fd:
        fails(errno.EINVAL, os.write, fd, b"segment.ms=7\nmin.compaction.lag.ms=1001\n")
    assert "min.compaction.lag.ms=1001 is above" in mount.events().splitlines()[-1]
    assert not any(line.startswith("segment.ms=") for line in lines(orders))


def test_one_topic_is_set_as_another(mount: Mount) -> None:
    a, b = mount.topic("a"), mount.topic("b")
    append(config(a), b"cleanup.policy=none\nretention.ms=77\ncompression.type=zstd\n")
    mount.run("cat a/.config >> b/.config")
    assert lines(b) == lines(a)
    mount.run("echo cleanup.policy=compact,delete >> a/.config; cat a/.config >> b/.config")
    assert lines(b)[0] == "cleanup.policy=compact,delete"


def test_settings_are_in_force_at_once_and_stay(own: Mount) -> None:
    orders = own.topic("orders")
    with opened(orders.parent / ".control/compaction") as fd:
        fails(errno.EINVAL, os.write, fd, b"run\n")
        append(config(orders), b"cleanup.policy=compact\n")
        os.write(fd, b"run\n")
    until(lambda: facts(orders, "compaction")["last_outcome"] == "done")
    with opened(orders) as fd:
        fails(errno.EINVAL, os.write, fd, b"without a key\n")
        append(config(orders), b"cleanup.policy=\n")
        os.write(fd, b"without a key\n")
    append(config(orders), b"retention.bytes=0\n")
    own.kill()
    own.start()
    assert lines(orders)[0] == "retention.bytes=0"
    do(orders, "retention", "run")
    assert orders.read_bytes() == b""
