"""Transactions: what views show of them, `.meta/N/{producers,txnindex}`, `abort-transaction`."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, mounted
from tests.mount.programs import Running
from tests.storage.producers import Producer

FAST = "--sleep-interval=0.02"


def batches(orders: Path) -> Path:
    return orders.parent / ".batches" / orders.name


# -- what is shown -------------------------------------------------------------------------------


def test_isolation_read_uncommitted(tmp_path: Path) -> None:
    """… the mount option `isolation=read_uncommitted` shows aborted ones."""
    with mounted(tmp_path, "isolation=read_uncommitted") as mount:
        orders = mount.topic()
        one, two = Producer(1, transactional=True), Producer(2, transactional=True)
        append(batches(orders), one.batch(b"a") + two.batch(b"b"))
        assert orders.read_bytes() == b"a\nb\n", "open ones at once"
        append(batches(orders), one.abort() + two.commit() + one.batch(b"c"))
        append(orders, b"line\n")
        assert orders.read_bytes() == b"a\nb\nc\nline\n"
        assert orders.stat().st_size == 11
        follow = orders.parent / ".follow/0"
        inodes = orders.stat().st_ino, follow.stat().st_ino
        mount.options = []
        mount.restart()
        assert orders.read_bytes() == b"b\n"
        assert orders.stat().st_ino != inodes[0]
        assert follow.stat().st_ino != inodes[1]
        mount.restart("isolation=read_uncommitted")
        assert orders.read_bytes() == b"a\nb\nc\nline\n"
        assert (orders.stat().st_ino, follow.stat().st_ino) == inodes


@pytest.mark.parametrize("options", [["-f", FAST], ["-F", "--max-unchanged-stats=1", FAST]])
def test_tail_shows_what_was_held_back(orders: Path, options: list[str]) -> None:
    """Nothing of it before, all of it in order when the marker comes."""
    one = Producer(1, transactional=True)
    append(orders, b"before\n")
    with Running(["tail", *options, "--lines=+1", orders]) as tail:
        tail.read_until(b"before\n")
        for number in range(5):
            append(batches(orders), one.batch(b"in %d" % number))
            append(orders, b"out %d\n" % number)
        assert orders.read_bytes() == b"before\n"
        assert tail.size == 7
        append(batches(orders), one.commit())
        shown = tail.read_until(b"out 4\n")
        assert tail.errors() == ""
    expected = b"".join(b"in %d\nout %d\n" % (number, number) for number in range(5))
    assert shown == b"before\n" + expected == orders.read_bytes()


def meta(orders: Path, name: str) -> Path:
    return orders.parent / ".meta" / orders.name / name


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_is_open_outlives_the_daemon(own: Mount, end: str) -> None:
    """The state of producers and transactions is the log's: after a restart, after a kill."""
    orders = own.topic()
    now_ms = time.time_ns() // 1_000_000
    one = Producer(1, epoch=3, transactional=True, now_ms=now_ms)
    two = Producer(2, transactional=True, now_ms=now_ms)
    append(batches(orders), two.batch(b"x") + two.abort() + one.batch(b"a"))
    append(orders, b"line\n")
    names = ("producers", "txnindex", "offsets")
    before = [meta(orders, name).read_text().split("recovery_point")[0] for name in names]
    getattr(own, end)()
    own.start()
    after = [meta(orders, name).read_text().split("recovery_point")[0] for name in names]
    assert after == before
    assert orders.read_bytes() == b""
    append(batches(orders), one.batch(b"b") + one.commit())
    assert orders.read_bytes() == b"a\nline\nb\n"
