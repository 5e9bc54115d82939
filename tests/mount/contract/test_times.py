"""Modification times: a backup that compares them finds changes where there are some, no others.

A partition's time is that of its last append, a directory's that of the last change of its names;
both are the same, to the nanosecond, before and after a remount.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.contract.writing import append, opened, view
from tests.mount.control import do, facts, keyed
from tests.mount.mounting import Mount, mounted
from tests.waits import until

VIEWS = ("", ".kv/", ".jsonl/", ".batches/")
# They have no snapshots.
FOLLOWED = (".follow/", ".ship/")


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[Mount]:
    """An empty data directory, mounted for one test, whose dot names are listed."""
    with mounted(tmp_path, "show_dot") as started:
        yield started


def listed(mount: Mount) -> set[bytes]:
    """Return what a backup compares: the times, type, inode and size of each file.

    Leaves out files that are generated when they are read, and files that every start and stop
    writes again.
    """
    made = [".kafkafs/*", "*/.control/*", "*/.config", "*/.meta/*/*", "*/.raw/*/*[!g]"]
    without = [word for name in made for word in ("-not", "-path", f"{mount.path}/{name}")]
    command = ["find", str(mount.path), *without, "-printf", r"%p %T@ %C@ %y %i %s\n"]
    return set(subprocess.run(command, check=True, capture_output=True).stdout.splitlines())


def bursts(path: Path, count: int = 30) -> None:
    """Appends within one tick of the disk's clock, each shown before the next one."""
    times = [path.stat().st_mtime_ns]
    with opened(view(path, ".kv")) as fd:
        for number in range(count):
            os.write(fd, b"%d\ta value\n" % number)
            times.append(path.stat().st_mtime_ns)
    assert times == sorted(set(times))
    assert view(path, ".jsonl").stat().st_mtime_ns == times[-1]


def fill(mount: Mount) -> Path:
    """Topics of all sorts: shortened, cleaned, empty, with a segment that holds nothing yet."""
    orders = mount.topic(partitions=3)
    settings = b"cleanup.policy=compact,delete\nmin.cleanable.dirty.ratio=1\n"
    append(orders.parent / ".config", settings)
    for number in range(2):
        path = orders.with_name(str(number))
        bursts(path)
        keyed(view(path, ".kv"), 20, b"a value")
        do(path, "roll", f"run {number}")
        bursts(path)
    keyed(view(orders, ".kv"), 20, b"its next value")
    do(orders, "roll", "run 0")
    do(orders, "compaction", "run")
    until(lambda: facts(orders, "compaction")["state"] == "idle")
    do(orders, "delete-records", "1 35")
    other = mount.topic("payments", partitions=2)
    bursts(other)
    do(other, "roll", "run")
    append(other.parent / ".config", b"retention.bytes=0\n")
    do(other, "retention", "run")
    append(other.parent / ".config", b"retention.bytes=\n")
    mount.topic("gone")
    (mount / "gone").rmdir()
    return orders


@pytest.mark.parametrize("end", [Mount.stop, Mount.kill], ids=["stop", "kill"])
def test_times_are_the_same_after_a_remount(shown: Mount, end: Callable[[Mount], None]) -> None:
    orders = fill(shown)
    before = listed(shown)
    names = {line.split()[0].decode().removeprefix(f"{shown.path}/") for line in before}
    assert {"orders/0", "orders/.follow/1", f"orders/.raw/2/{0:020}.log", "payments/.kv"} <= names
    assert {"orders", "orders/.raw/2", ".kafkafs", str(shown.path)} <= names
    end(shown)
    shown.start()
    assert listed(shown) ^ before == set()
    # After an append, only the files of that partition are newer.
    append(view(orders, ".kv"), b"a key\tone more\n")
    changed = {line.split()[0].decode() for line in listed(shown) - before}
    assert {name for name in changed if "/.raw/" not in name} == {
        *(f"{shown.path}/orders/{view}0" for view in VIEWS + FOLLOWED),
        *(f"{shown.path}/orders/{view}.snapshot/0" for view in VIEWS),
    }


def test_what_compares_times_finds_no_change_after_a_remount(own: Mount, tmp_path: Path) -> None:
    fill(own)
    copy, snapshot = tmp_path / "copy", tmp_path / "snapshot"
    tar = "tar --create --file=/dev/null --verbose --no-check-device --listed-incremental"
    rsync = "rsync --archive --itemize-changes ./ $COPY"
    assert b"orders/0" in own.run(rsync, COPY=copy)
    assert own.sh(f"{tar} $SNAPSHOT .", SNAPSHOT=snapshot).returncode == 0
    for end in (own.stop, own.kill):
        end()
        own.start()
        assert own.run(rsync, COPY=copy) == b""
        said = own.run(f"{tar} $SNAPSHOT .", SNAPSHOT=snapshot).decode().split()
        # Of directories it always has the names.
        assert said == ["./", "./orders/", "./payments/"]


def test_a_directory_has_the_time_of_its_newest_name(own: Mount) -> None:
    def changes(act: Callable[[], object], *, root: bool, topic: bool) -> None:
        before = own.path.stat().st_mtime_ns, (own / "orders").stat().st_mtime_ns
        act()
        now = own.path.stat().st_mtime_ns, (own / "orders").stat().st_mtime_ns
        assert (now[0] > before[0], now[1] > before[1]) == (root, topic)
        assert now[0] >= before[0]
        assert now[1] >= before[1]

    orders = own.topic()
    first = own.path.stat().st_mtime_ns
    assert first >= (own / "orders").stat().st_mtime_ns
    changes(lambda: append(orders, b"a\n"), root=False, topic=False)
    changes(lambda: do(orders, "roll", "run"), root=False, topic=False)
    changes((own / "orders/1").touch, root=False, topic=True)
    changes((own / "payments").mkdir, root=True, topic=False)
    changes((own / "payments").rmdir, root=True, topic=False)
    changes(own.restart, root=False, topic=False)
