"""The file of a sealed segment is missing: reads fail with EIO there, all else works."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import kafkafs, mounted
from tests.mount.steering import steered

PER_SEGMENT = 5
LINES = [b"%02d" % number + b"x" * 600 + b"\n" for number in range(4 * PER_SEGMENT)]


FIRST = PER_SEGMENT
WHOLE = b"".join(LINES)


def fill(orders: Path) -> None:
    for at, line in enumerate(LINES):
        if at and at % PER_SEGMENT == 0:
            do(orders, "roll", "run")
        append(orders, line)


def lose(path: Path, how: str) -> int:
    """Delete the file of a segment, or its second half. Return how many records are left of it."""
    if how == "rm":
        path.unlink()
        return 0
    os.truncate(path, path.stat().st_size // 2)
    return PER_SEGMENT // 2


@pytest.mark.parametrize(
    ("how", "looked", "first"), [("rm", False, 0), ("rm", False, FIRST), ("cut", True, FIRST)]
)
def test_the_rest_is_read_and_appended_to(
    tmp_path: Path, how: str, looked: bool, first: int
) -> None:
    """Under its own writer without a restart, with one, and after a kill."""
    behind = first + PER_SEGMENT
    with steered(tmp_path) as mount:
        orders = mount.topic()
        fill(orders)
        mount.restart()
        if looked:
            assert orders.read_bytes() == WHOLE
            mount.daemon.close_files()
        path = mount.data / "orders-0" / f"{first:020d}.log"
        whole = path.read_bytes()
        lost = first + lose(path, how)
        for end in (mount.stop, mount.kill, mount.stop):
            assert int(mount.run("stat -c %s $orders", orders=orders)) == len(WHOLE)
            mount.run("ls -l orders")
            shown = mount.sh("cat $orders", orders=orders)
            assert shown.returncode == 1
            assert shown.stdout == b"".join(LINES[:lost])
            assert os.strerror(errno.EIO).encode() in shown.stderr
            rest = b"".join(LINES[behind:])
            assert mount.run("cat $orders@$behind", orders=orders, behind=behind) == rest
            assert mount.run("tail -c $count $orders", orders=orders, count=len(rest)) == rest
            assert mount.run("tail -n 3 $orders", orders=orders) == b"".join(LINES[-3:])
            assert mount.sh("cat $orders@$lost", orders=orders, lost=lost).returncode == 1
            for name in ("log", "topics"):
                said = (mount.path / ".kafkafs" / name).read_text()
                assert f"offsets {lost} to {behind - 1} are damaged" in said
                assert str(path) in said
            assert kafkafs("verify", mount.data).returncode == 1
            end()
            mount.start()
        mount.run("echo more >> $orders", orders=orders)
        assert mount.run("tail -n 1 $orders", orders=orders) == b"more\n"
        mount.stop()
        left = WHOLE
        if first:
            assert kafkafs("repair", "--apply", mount.data, "--accept-loss").returncode == 0
            left = b"".join([*LINES[:lost], *LINES[behind:]])
        else:
            # The user restores the file.
            path.write_bytes(whole)
        mount.start()
        assert mount.run("cat $orders", orders=orders) == left + b"more\n"
        assert "#" not in (mount.path / ".kafkafs/topics").read_text()


def test_its_writer_goes_on(tmp_path: Path) -> None:
    """Appends, flushes, rolls, and what saves indexes and positions: without a further line."""
    with steered(tmp_path) as mount:
        orders, others = mount.topic(), mount.topic("others")
        fill(orders)
        mount.restart()
        (mount.data / "orders-0" / f"{FIRST:020d}.log").unlink()
        assert mount.sh("cat $orders", orders=orders).returncode == 1
        said = mount.events()
        for number in range(3):
            mount.run(
                "echo $number | tee -a $orders >> $others",
                number=number,
                orders=orders,
                others=others,
            )
            mount.run("sync $orders $others", orders=orders, others=others)
            mount.daemon.roll("orders")
            mount.daemon.rest()
            mount.daemon.close_files()
            assert mount.run("tail -n 1 $orders", orders=orders) == b"%d\n" % number
        assert mount.run("cat $others", others=others) == b"0\n1\n2\n"
        assert mount.events() == said
        # Deleting what is before and with it ends it.
        mount.daemon.remove_head("orders", 2)
        assert mount.run("cat $orders | wc -l", orders=orders) == b"%d\n" % (2 * PER_SEGMENT + 3)
        assert "#" not in (mount.path / ".kafkafs" / "topics").read_text()


def test_while_it_is_open(tmp_path: Path) -> None:
    """The daemon writes the records that were never flushed to a new file."""
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        fill(orders)
        (mount.data / "orders-0" / f"{FIRST:020d}.log").unlink()
        assert orders.read_bytes() == WHOLE
        mount.restart()
        assert orders.read_bytes() == WHOLE
