"""The active segment's file is truncated: reads of the lost records fail with EIO, no others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.mounting import mounted

LINES = [b"%02d" % number + b"x" * 600 + b"\n" for number in range(10)]
KEPT = 5


@pytest.mark.parametrize(
    ("how", "flushed"),
    [("append", False), ("sync", False), ("sync", True), ("roll", True), ("read", False)],
)
def test_what_is_left_is_read_and_the_log_goes_on(tmp_path: Path, how: str, flushed: bool) -> None:
    """Any operation may be the first to meet the damage. All this also holds after a kill."""
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        for line in LINES:
            append(orders, line)
        if flushed:
            mount.run("sync $orders", orders=orders)
        path = mount.data / "orders-0" / f"{0:020d}.log"
        os.truncate(path, path.stat().st_size // 2 + 7)
        if how == "read":
            shown = mount.sh("cat $orders", orders=orders)
            assert (shown.returncode, shown.stdout) == (1, b"".join(LINES[:KEPT]))
        elif how == "sync":
            assert mount.sh("sync $orders", orders=orders).returncode == (0 if flushed else 1)
        elif how == "roll":
            control = mount.path / "orders/.control/roll"
            assert mount.sh("echo run >> $control", control=control).returncode == 1
        # Refused until what is left is on the disk: not a byte of it goes to where the end was.
        mount.run("until echo more >> $orders; do sleep 0.1; done 2>/dev/null", orders=orders)
        mount.run("sync $orders", orders=orders)
        size = len(b"".join(LINES)) + len(b"more\n")
        assert int(mount.run("stat -c %s $orders", orders=orders)) == size

        def check() -> None:
            shown = mount.sh("cat $orders", orders=orders)
            assert (shown.returncode, shown.stdout) == (1, b"".join(LINES[:KEPT]))
            assert os.strerror(errno.EIO).encode() in shown.stderr
            assert mount.run("cat $orders@$end", orders=orders, end=len(LINES)) == b"more\n"
            assert mount.sh("cat $orders@$lost", orders=orders, lost=KEPT).returncode == 1
            said = (mount.path / ".kafkafs/log").read_text()
            assert f"offsets {KEPT} to {len(LINES) - 1} are" in said

        check()
        mount.kill()
        mount.start()
        check()
        mount.run("echo again >> $orders", orders=orders)
        rest = mount.run("cat $orders@$end", orders=orders, end=len(LINES))
        assert rest == b"more\nagain\n"
        # `mounted` checks all partitions in the end. This one is damaged, so it is deleted.
        orders.parent.rmdir()


def test_what_was_cut_away_and_is_appended_to_no_more(tmp_path: Path) -> None:
    """A stop writes down what is lost, and invents nothing in its place."""
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        for line in LINES:
            append(orders, line)
        path = mount.data / "orders-0" / f"{0:020d}.log"
        os.truncate(path, path.stat().st_size // 2 + 7)
        mount.restart()
        shown = mount.sh("cat $orders", orders=orders)
        assert (shown.returncode, shown.stdout) == (1, b"".join(LINES[:KEPT]))
        mount.run("echo more >> $orders", orders=orders)
        assert mount.run("cat $orders@$end", orders=orders, end=len(LINES)) == b"more\n"
        orders.parent.rmdir()
