"""A slow disk under one partition: its appends wait, and nobody else does.

A partition is slow once one of its appends took longer than some milliseconds, by a clock that only
the test moves on. Then a write of its log is held, for as long as a test looks at what goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.log.append_queue import SLOW_NS
from tests.file_systems import unmount
from tests.mount.contract.conftest import flush_only_when_asked, new_topic
from tests.mount.contract.test_stalls import everything_else_goes_on, log_name
from tests.mount.contract.writing import append, opened
from tests.mount.steering import Hold, SteeredMount, steered
from tests.waits import HANG_S


class Doing:
    """A call in a thread of its own, that waits."""

    def __init__(self, call: Callable[..., object], *arguments: object) -> None:
        self._outcome: list[object] = []

        def run() -> None:
            try:
                self._outcome.append(call(*arguments))
            except OSError as error:
                self._outcome.append(error.errno)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    @property
    def waits(self) -> bool:
        return not self._outcome

    def end(self) -> object:
        """Wait for the call to end. Return its result or its errno."""
        self._thread.join(HANG_S)
        return self._outcome.pop()


def slow_partition(mount: SteeredMount, partitions: int = 2) -> Path:
    """Partition 0 of a new topic, with "one" in it, on a disk that is slow."""
    orders = new_topic(mount, partitions)
    flush_only_when_asked(mount, orders)
    mount.daemon.slow(log_name(orders), 20)
    append(orders, b"one\n")
    return orders


@pytest.fixture
def orders(steered_mount: SteeredMount) -> Path:
    return slow_partition(steered_mount)


@contextlib.contextmanager
def held(mount: SteeredMount, orders: Path, data: bytes) -> Iterator[tuple[Hold, Doing]]:
    """An append that waits for the disk until the block ends, or `release`."""
    with mount.held("pwrite", log_name(orders)) as hold:
        writing = Doing(append, orders, data)
        hold.wait()
        yield hold, writing
    assert writing.end() is None


def arrived(mount: SteeredMount, *names: str) -> None:
    """Return when a request of each of these names has come since `requests` was called last."""
    missing, until = set(names), time.monotonic() + HANG_S
    while missing:
        assert time.monotonic() < until, f"no {missing} came"
        missing -= mount.daemon.requests().keys()


# -- who does not wait ---------------------------------------------------------------------------


def test_a_slow_append_holds_nobody_else_up(
    steered_mount: SteeredMount, orders: Path, other: Path
) -> None:
    with held(steered_mount, orders, b"two\n") as (_, writing):
        everything_else_goes_on(steered_mount, other)
        # Nor another partition of the topic, nor who lists it, or looks the slow one up.
        beside = orders.parent / "1"
        append(beside, b"beside\n")
        assert beside.read_bytes() == b"beside\n"
        assert sorted(os.listdir(orders.parent)) == ["0", "1"]
        (orders.parent / "2").touch()
        os.close(os.open(orders, os.O_PATH))
        assert os.stat(beside).st_size == 7
        assert orders.parent.name in os.listdir(steered_mount.path)
        assert (orders.parent / ".meta" / "0" / "offsets").read_bytes()
        assert (steered_mount / ".kafkafs" / "metrics").read_bytes()
        assert writing.waits
    assert orders.read_bytes() == b"one\ntwo\n"


def test_a_topics_lines_wait_only_for_the_partition_that_they_go_to(
    steered_mount: SteeredMount, orders: Path
) -> None:
    """murmur2: "a" goes to partition 0 of two, "d" to partition 1."""
    file = orders.parent / ".kv" / "append"
    append(file, b"d\tfor 1\na\tfor 0\n")
    beside = orders.parent / "1"
    assert beside.read_bytes() == b"for 1\n"
    steered_mount.daemon.requests()
    with held(steered_mount, orders, b"two\n") as (_, writing):
        append(file, b"d\tagain\n")
        assert beside.read_bytes() == b"for 1\nagain\n"
        both = Doing(append, file, b"d\tthird\na\tthree\n")
        arrived(steered_mount, "write")
        append(beside, b"more\n")
        assert both.waits
        assert writing.waits
    assert both.end() is None
    assert orders.read_bytes() == b"one\nfor 0\ntwo\nthree\n"
    assert sorted(beside.read_bytes().split()) == sorted(b"for 1 again more third".split())
    # Lines for another partition are appended first, without waiting.
    with steered_mount.held("pwrite", log_name(orders)) as hold:
        both = Doing(append, file, b"a\tfour\nd\tfourth\n")
        hold.wait()
        append(beside, b"behind\n")
        assert beside.read_bytes().endswith(b"fourth\nbehind\n")
        assert both.waits
    assert both.end() is None
    assert orders.read_bytes() == b"one\nfor 0\ntwo\nthree\nfour\n"


# -- who waits -----------------------------------------------------------------------------------


def test_stat_open_and_read_wait_for_what_was_written_before(
    steered_mount: SteeredMount, orders: Path
) -> None:
    with opened(orders, os.O_RDONLY) as fd:
        steered_mount.daemon.requests()
        with held(steered_mount, orders, b"two\n"):
            waiting = [
                Doing(lambda: os.stat(orders.parent / ".kv" / "0").st_size),
                Doing(os.pread, fd, 100, 0),
                Doing(orders.read_bytes),
                Doing((orders.parent / ".kv" / "0").read_bytes),
                Doing((orders.parent / "0@-1").read_bytes),
                Doing((orders.parent / ".snapshot" / "0").read_bytes),
                Doing((orders.parent / "0@..end").read_bytes),
                Doing(os.getxattr, orders, "user.kafkafs.log_end"),
            ]
            arrived(steered_mount, "getattr", "read", "lookup")
    whole = b"one\ntwo\n"
    assert [each.end() for each in waiting] == [
        *(8, whole, whole, whole, b"two\n", whole, whole, b"2")
    ]


def test_what_follows_is_appended_behind_it(steered_mount: SteeredMount, orders: Path) -> None:
    """Through other views and handles, in the order in which it was written."""
    views = [orders, orders.parent / ".kv" / "0", orders.parent / ".jsonl" / "0"]
    lines = [b"%d\n", b"\t%d\n", b'{"value":"%d"}\n']
    with contextlib.ExitStack() as stack:
        fds = [stack.enter_context(opened(path)) for path in views]
        with steered_mount.held("pwrite", log_name(orders)) as hold:
            writing = []
            for number in range(3):
                steered_mount.daemon.requests()
                writing.append(Doing(os.write, fds[number], lines[number] % number))
                if number:
                    arrived(steered_mount, "write")
                else:
                    hold.wait()
        assert all(each.end() for each in writing)
    assert orders.read_bytes() == b"one\n0\n1\n2\n"


def test_fsync_waits_for_what_was_written_before(steered_mount: SteeredMount, orders: Path) -> None:
    with opened(orders.parent / ".kv" / "0") as fd:
        with held(steered_mount, orders, b"two\n"):
            steered_mount.daemon.requests()
            syncing = Doing(os.fsync, fd)
            arrived(steered_mount, "fsync")
        assert syncing.end() is None
    assert "recovery_point 2\n" in (orders.parent / ".meta/0/offsets").read_text()
    with opened(orders, os.O_WRONLY | os.O_APPEND | os.O_DSYNC) as fd:
        with steered_mount.held("pwrite", log_name(orders)) as hold:
            writing = Doing(os.write, fd, b"three\n")
            hold.wait()
        assert writing.end() == 6
        assert "recovery_point 3\n" in (orders.parent / ".meta/0/offsets").read_text()


def test_lookups_that_wait_do_not_wait_for_each_other(
    steered_mount: SteeredMount, orders: Path
) -> None:
    """Each of them queues behind the append, and so behind the others."""
    views = [orders.parent / view / "0@..end" for view in ("", ".kv", ".jsonl", ".batches")]
    for path in views:
        path.read_bytes()
    with held(steered_mount, orders, b"two\n") as (hold, _):
        steered_mount.daemon.requests()
        reading = [Doing(path.read_bytes) for path in views]
        asked = 0
        while asked < len(views):
            asked += steered_mount.daemon.requests().get("lookup", 0)
        hold.release()
        assert reading[0].end() == b"one\ntwo\n"
        assert all(each.end() for each in reading[1:])


@pytest.mark.parametrize("control", ["roll", "flush", "delete-records", "retention"])
def test_a_command_for_it_comes_after_what_was_written_before(
    steered_mount: SteeredMount, orders: Path, control: str
) -> None:
    line = b"0 1\n" if control == "delete-records" else b"run 0\n"
    with held(steered_mount, orders, b"two\n") as (_, writing):
        steered_mount.daemon.requests()
        command = Doing(append, orders.parent / ".control" / control, line)
        arrived(steered_mount, "write")
        append(orders.parent / ".config", b"retention.bytes=1\n")
        assert writing.waits
    assert command.end() is None
    append(orders, b"three\n")
    starts = {"delete-records": b"two\nthree\n"}
    assert orders.read_bytes() == starts.get(control, b"one\ntwo\nthree\n")
    if control == "roll":
        assert steered_mount.daemon.segments(orders.parent.name) == [0, 2]


# -- what goes wrong -----------------------------------------------------------------------------


def test_a_topic_that_is_deleted_meanwhile(steered_mount: SteeredMount, orders: Path) -> None:
    with opened(orders.parent / ".kv" / "0") as fd:
        with held(steered_mount, orders, b"two\n"):
            steered_mount.daemon.requests()
            later = Doing(os.write, fd, b"\tthree\n")
            arrived(steered_mount, "write")
            orders.parent.rmdir()
            assert not orders.parent.exists()
        assert later.end() == errno.ESHUTDOWN


# -- the end -------------------------------------------------------------------------------------


def test_the_daemon_ends_after_what_was_written(tmp_path: Path) -> None:
    with steered(tmp_path) as mount:
        orders = slow_partition(mount)
        for end in ("SIGTERM", "umount"):
            mount.daemon.slow(log_name(orders), 20)
            append(orders, b"slow\n")
            with mount.held("pwrite", log_name(orders)) as hold:
                mount.run('printf "%s" "$E" >> "$P"', P=orders, E=end)
                hold.wait()
                assert mount.process is not None
                if end == "SIGTERM":
                    mount.process.send_signal(signal.SIGTERM)
                else:
                    unmount(mount.path)
                hold.release_for_the_end()
            mount.wait()
            mount.start()
            assert orders.read_bytes().splitlines()[-1].decode() == end


def test_a_disk_that_is_slow_by_the_clock(tmp_path: Path) -> None:
    with steered(tmp_path, own_clock=True) as mount:
        orders = mount.topic(partitions=2)
        flush_only_when_asked(mount, orders)
        with mount.held("pwrite", log_name(orders)) as hold:
            writing = Doing(append, orders, b"one\n")
            hold.wait()
            time.sleep(2 * SLOW_NS / 1e9)
        assert writing.end() is None
        with held(mount, orders, b"two\n") as (_, writing):
            looking = Doing(orders.read_bytes)
            append(orders.parent / "1", b"beside\n")
            append(mount.topic("other"), b"another\n")
            assert writing.waits
            assert looking.waits
        assert looking.end() == b"one\ntwo\n"


def test_a_killed_daemon_loses_only_what_nobody_was_told(tmp_path: Path) -> None:
    with steered(tmp_path) as mount:
        orders = slow_partition(mount)
        with mount.held("pwrite", log_name(orders)) as hold:
            writing = Doing(append, orders, b"two\n")
            hold.wait()
            later = Doing(append, orders.parent / ".kv" / "0", b"\tthree\n")
            mount.kill()
            hold.abandon()
        gone = {errno.ECONNABORTED, errno.ENOTCONN}
        assert {writing.end(), later.end()} <= gone
        mount.start()
        assert orders.read_bytes() == b"one\n"
