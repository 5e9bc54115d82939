"""The checker by the clock, and `.control/verify`, on a disk that is not to be trusted."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from storage.record.header import size_at
from tests.mount.contract.writing import append
from tests.mount.control import control, do, facts
from tests.mount.mounting import Mount, fails, mounted
from tests.storage.logs import write_settings
from tests.waits import until

COUNT = 50
LINES = [b"line %d\n" % number for number in range(COUNT)]


def log_file(mount: Mount, base: int) -> Path:
    return mount.data / "orders-0" / f"{base:020}.log"


def flip(path: Path, batch: int) -> None:
    """One bit in the value of a batch's record."""
    data, at = path.read_bytes(), 0
    for _ in range(batch):
        at += size_at(data, at)
    position = at + size_at(data, at) - 2
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(bytes([data[position] ^ 1]))


@contextlib.contextmanager
def orders(base: Path, **settings: object) -> Iterator[tuple[Mount, Path]]:
    """A mount and a partition of two segments of 50 batches of a line each."""
    (base / "data").mkdir()
    write_settings(base / "data", **settings)
    with mounted(base) as mount:
        first = mount.topic()
        for line in LINES:
            append(first, line)
        do(first, "roll", "run")
        for line in LINES:
            append(first, line)
        yield mount, first
        # `mounted` checks all partitions in the end. This one is damaged, so it is deleted.
        first.parent.rmdir()


def test_damage_is_found_by_the_clock(tmp_path: Path) -> None:
    """On damage appends roll to a new segment, readers get EIO at those records only, a metric and
    a line say so, and nothing is removed.
    """
    # At its start a mount reads only the records after the last index entry.
    settings = {"kafkafs_check_interval_ms": 50, "log_index_interval_bytes": 100}
    with orders(tmp_path, **settings) as (mount, first):
        until(lambda: facts(first, "verify")["checker_checked"] != "-1")
        assert facts(first, "verify")["checker_damages"] == "0"
        mount.stop()
        flip(log_file(mount, 0), 20)
        flip(log_file(mount, COUNT), 30)
        sizes = [log_file(mount, base).stat().st_size for base in (0, COUNT)]
        mount.start()
        until(lambda: facts(first, "verify")["checker_damages"] == "2")
        append(first, b"after\n")
        shown = [*LINES, *LINES, b"after\n"]
        starts = [sum(map(len, shown[:number])) for number in range(len(shown) + 1)]
        whole = b"".join(shown)
        assert first.stat().st_size == len(whole)
        fd = os.open(first, os.O_RDONLY)
        try:
            assert os.pread(fd, 10_000, 0) == whole[: starts[20]]
            fails(errno.EIO, os.pread, fd, 10, starts[20])
            assert os.pread(fd, 10_000, starts[21]) == whole[starts[21] : starts[80]]
            fails(errno.EIO, os.pread, fd, 10, starts[80])
            assert os.pread(fd, 10_000, starts[81]) == whole[starts[81] :]
        finally:
            os.close(fd)
        begun = mount.sh("cat orders/0")
        assert begun.returncode != 0
        assert begun.stdout == whole[: starts[20]]
        assert mount.run("cat orders/0@81") == whole[starts[81] :]
        # Without keys the lines of this view, which is only now asked for, are the same.
        read = 'dd if=orders/.kv/0 iflag=skip_bytes skip="$SKIP" status=none'
        assert mount.run(read, SKIP=starts[81]) == whole[starts[81] :]
        bases = [path.name for path in sorted((mount.data / "orders-0").glob("*.log"))]
        assert bases == [f"{base:020}.log" for base in (0, COUNT, 2 * COUNT)]
        assert [log_file(mount, base).stat().st_size for base in (0, COUNT)] == sizes
        metrics = (mount / ".kafkafs" / "metrics").read_text()
        assert "kafkafs_damages_total 2.0" in metrics
        states = mount.run("awk 'NR > 1 { print $NF }' orders/.meta/0/segments").split()
        assert states == [b"damaged", b"damaged", b"active"]
        events = mount.events()
        assert "orders/0: damaged: offsets 20 to 20 are damaged" in events
        assert "orders/0: damaged: offsets 80 to 80 are damaged" in events


def test_verify_names_every_fault(tmp_path: Path) -> None:
    """checks every batch's CRC and every index entry; reading lists the faults"""
    with orders(tmp_path) as (mount, first):
        do(first, "verify", "run")
        until(lambda: facts(first, "verify")["last_outcome"] == "done")
        found = facts(first, "verify")
        assert (found["state"], found["last_faults"], found["checker_checked"]) == (
            "idle",
            "0",
            "-1",
        )
        assert (found["last_segments"], found["last_records"]) == ("2", "100")
        flip(log_file(mount, 0), 10)
        flip(log_file(mount, COUNT), 0)
        flip(log_file(mount, COUNT), 20)
        do(first, "verify", "run 0")
        until(lambda: facts(first, "verify")["last_faults"] == "3")
        faults = [
            line
            for line in control(first, "verify").read_text().splitlines()
            if line.startswith("fault ")
        ]
        assert len(faults) == 3
        for base, offset in ((0, 10), (COUNT, COUNT), (COUNT, COUNT + 20)):
            assert any(
                str(log_file(mount, base)) in fault and f"offset {offset}" in fault
                for fault in faults
            )
        fails(errno.EINVAL, do, first, "verify", "run 7")
        fails(errno.EINVAL, do, first, "verify", "dry-run")
        do(first, "verify", "cancel")
