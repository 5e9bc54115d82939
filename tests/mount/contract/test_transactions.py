"""Transactions: what views show of them, `.meta/N/{producers,txnindex}`, `abort-transaction`."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.programs import Running
from tests.storage.logs import NOW_MS
from tests.storage.producers import Producer

FAST = "--sleep-interval=0.02"


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        assert file.write(data) == len(data)


def batches(orders: Path) -> Path:
    return orders.parent / ".batches" / orders.name


def control(orders: Path) -> Path:
    return orders.parent / ".control" / "abort-transaction"


def meta(orders: Path, name: str) -> Path:
    return orders.parent / ".meta" / orders.name / name


def table(text: str) -> list[list[str]]:
    """Rows, without the header line."""
    return [line.split() for line in text.splitlines()[1:]]


def last_stable(orders: Path) -> int:
    lines = meta(orders, "offsets").read_text().splitlines()
    return int(dict(line.split() for line in lines)["last_stable"])


# -- what is shown -------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [0, 3])
def test_a_view_ends_at_the_last_stable_offset(orders: Path, codec: int) -> None:
    """Rendered views end at the last stable offset …; (behind an open transaction: once the last
    stable offset passes them).
    """
    one = Producer(1, transactional=True, codec=codec)
    append(orders, b"before\n")
    append(batches(orders), one.batch(b"a", b"b"))
    with open(orders, "ab", buffering=0) as file:
        file.write(b"behind it\n")
    before = orders.stat()
    assert orders.read_bytes() == b"before\n"
    assert (before.st_size, last_stable(orders)) == (7, 1)
    append(batches(orders), one.batch(b"c") + one.commit())
    assert orders.read_bytes() == b"before\na\nb\nbehind it\nc\n"
    assert orders.stat().st_size == 23
    assert orders.stat().st_ino == before.st_ino, "what is shown has only grown"
    append(orders, b"after\n")
    assert orders.read_bytes().endswith(b"c\nafter\n")


def test_control_records_and_aborted_transactions_are_not_shown(orders: Path) -> None:
    """Control records and aborted transactions are not shown (read_committed is the default …)"""
    one, two = Producer(1, transactional=True), Producer(2, transactional=True, codec=4)
    append(batches(orders), one.batch(b"a") + two.batch(b"b") + one.batch(b"c") + one.abort())
    append(orders, b"line\n")
    assert orders.read_bytes() == b""
    append(batches(orders), one.batch(b"d") + two.commit())
    assert orders.read_bytes() == b"b\nline\n"
    append(batches(orders), one.abort())
    append(orders, b"more\n")
    assert orders.read_bytes() == b"b\nline\nmore\n"
    assert os.getxattr(orders, "user.kafkafs.records") == b"3"
    assert os.getxattr(orders, "user.kafkafs.log_end") == b"9"


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


# -- .meta ---------------------------------------------------------------------------------------


def test_producers_and_txnindex(mount: Mount, orders: Path) -> None:
    """txnindex: every aborted transaction; producers: producer ids, epochs, sequences, open
    transactions. Stable enough for awk, sized exactly at open.
    """
    one, two = Producer(70, epoch=1, transactional=True), Producer(8)
    append(batches(orders), one.batch(b"a") + two.batch(b"b", b"c") + one.abort())
    append(batches(orders), one.batch(b"d"))
    assert table(meta(orders, "producers").read_text()) == [
        ["8", "0", "1", "2", str(NOW_MS), "-1", "-1"],
        ["70", "1", "1", "4", str(NOW_MS), "0", "4"],
    ]
    assert table(meta(orders, "txnindex").read_text()) == [["70", "0", "3", "4"]]
    awk = "awk 'NR > 1 && $7 >= 0 { print $1 }' \"$F\""
    assert mount.run(awk, F=meta(orders, "producers")) == b"70\n"
    for name in ("producers", "txnindex"):
        assert meta(orders, name).stat().st_size == len(meta(orders, name).read_bytes())
        fails(errno.EACCES, os.open, meta(orders, name), os.O_WRONLY)


# -- .control/abort-transaction ------------------------------------------------------------------


@pytest.fixture
def held(mount: Mount) -> Path:
    """A partition where producer 7 has left a transaction open."""
    orders = new_topic(mount)
    one = Producer(7, epoch=5, transactional=True)
    append(orders, b"before\n")
    append(batches(orders), one.batch(b"a") + one.batch(b"b"))
    append(orders, b"held back\n")
    assert orders.read_bytes() == b"before\n"
    return orders


def test_it_ends_a_transaction_that_nobody_will_end(mount: Mount, held: Path) -> None:
    """`abort-transaction`: accepts `PARTITION PRODUCER_ID`, ends a transaction …. `>` and `>>`
    both do. Reading tells the state … the last outcome and its figures.
    """
    text = control(held).read_text()
    assert text.startswith("last_outcome none\n")
    assert table(text)[1:] == [["0", "7", "5", "1", "2", str(NOW_MS)]]
    assert len(text) == control(held).stat().st_size
    before = time.time_ns() // 1_000_000
    mount.run('echo 0 7 > "$C"', C=control(held))
    assert held.read_bytes() == b"before\nheld back\n"
    outcome, _ = control(held).read_text().splitlines()
    name, at, *rest = outcome.split()
    assert (name, rest) == (
        "last_outcome",
        ["aborted", "partition", "0", "producer", "7", "marker", "4"],
    )
    assert before <= int(at) <= time.time_ns() // 1_000_000
    assert table(meta(held, "txnindex").read_text()) == [["7", "1", "4", "5"]]
    again = Producer(9, transactional=True)
    append(batches(held), again.batch(b"c"))
    mount.run('echo "0 9" >> "$C"', C=control(held))
    append(held, b"more\n")
    assert held.read_bytes() == b"before\nheld back\nmore\n"


def test_tail_goes_on_when_it_is_ended(mount: Mount, held: Path) -> None:
    """What an open transaction held back appears after the marker."""
    with Running(["tail", "-f", FAST, "--lines=+1", held]) as tail:
        tail.read_until(b"before\n")
        mount.run('echo 0 7 >> "$C"', C=control(held))
        assert tail.read_until(b"back\n") == b"before\nheld back\n"
        append(held, b"and on\n")
        assert tail.read_until(b"on\n") == b"before\nheld back\nand on\n"


@pytest.mark.parametrize("line", ["0", "0 8", "1 7", "run", "0 7 7", "7 0", "0 -7", "0 7x"])
def test_a_wrong_command_is_einval_and_changes_nothing(mount: Mount, held: Path, line: str) -> None:
    """A wrong command is EINVAL and changes nothing, inside the `write()` with its newline."""
    events = mount.events()
    fd = os.open(control(held), os.O_WRONLY | os.O_APPEND)
    try:
        fails(errno.EINVAL, os.write, fd, f"0 7\n{line}\n".encode())
        assert f"{held.parent.name}/.control/abort-transaction: " in (
            mount.events().removeprefix(events)
        )
        assert control(held).read_text().startswith("last_outcome none\n")
        assert held.read_bytes() == b"before\n"
        os.write(fd, b"0 7\n")
        fails(errno.EINVAL, os.write, fd, b"0 7\n")
        assert "no open transaction" in mount.events().removeprefix(events)
    finally:
        os.close(fd)
    assert held.read_bytes() == b"before\nheld back\n"


def test_control_is_for_who_may_write_the_topic(mount: Mount, held: Path) -> None:
    """Its mode follows the topic's; nothing else can be done with it."""
    assert control(held).stat().st_mode & 0o777 == 0o644
    held.parent.chmod(0o700)
    assert control(held).stat().st_mode & 0o777 == 0o600
    fails(errno.EPERM, os.unlink, control(held))
    fails(errno.ENOENT, os.stat, control(held).parent / "nothing")
    fails(errno.EPERM, os.open, control(held).parent / "new", os.O_WRONLY | os.O_CREAT)
