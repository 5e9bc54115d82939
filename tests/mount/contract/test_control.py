"""`.control`: what its files take, do and show, with the shell's own redirections."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.contract.writing import append, opened
from tests.mount.control import control, do, facts, keyed, rows, segments
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.steering import SteeredMount, steered
from tests.storage.logs import write_settings
from tests.waits import until

# Nothing is compacted by the clock while a test looks at what it has asked for.
QUIET = {"log_cleaner_enable": "false", "log_initial_task_delay_ms": 86_400_000}


def quiet(base: Path) -> Path:
    (base / "data").mkdir()
    write_settings(base / "data", **QUIET)
    return base


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount for all tests of the module."""
    with mounted(quiet(tmp_path_factory.mktemp("mount"))) as started:
        yield started


@pytest.fixture
def steered_one(tmp_path: Path) -> Iterator[SteeredMount]:
    """A mount for one test, whose daemon takes commands."""
    with steered(quiet(tmp_path)) as started:
        yield started


@pytest.mark.parametrize("redirection", [">", ">>"])
def test_both_redirections_act_within_the_write(
    mount: Mount, orders: Path, redirection: str
) -> None:
    append(orders, b"one\n")
    topic = orders.parent.name
    mount.run(f"echo run {redirection} {topic}/.control/roll")
    assert segments(orders) == 2
    found = facts(orders, "roll")
    assert found["state"] == "idle"
    assert found["last_outcome"] == "done"
    assert found["last_command"] == "run"
    assert found["last_begun_by"] == "command"
    assert found["last_rolled"] == "1"
    assert int(found["last_started"]) <= int(found["last_ended"])


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("roll", "cancel"),
        ("roll", "dry-run"),
        ("flush", "run -1"),
        ("retention", "cancel"),
        ("retention", "0"),
        ("compaction", "run"),  # the topic is not compacted
        ("compaction", "dry-run"),
        ("verify", "dry-run"),
        ("delete-records", "0"),
        ("delete-records", "1 0"),
        ("delete-records", "0 -2"),
        ("delete-records", "0 one"),
        ("delete-records", "0 1\n0 2"),
        ("delete-records", "0 99999999999999999999"),
    ],
)
def test_a_wrong_command_is_einval_and_changes_nothing(
    mount: Mount, orders: Path, name: str, lines: str
) -> None:
    append(orders, b"one\ntwo\n")
    file = control(orders, name)
    with opened(file) as fd:
        fails(errno.EINVAL, os.write, fd, lines.encode() + b"\n")
    assert facts(orders, name)["last_outcome"] == "none"
    assert orders.read_bytes() == b"one\ntwo\n"
    assert segments(orders) == 1
    assert f"{orders.parent.name}/.control/{name}: " in mount.events().splitlines()[-1]


def test_roll_of_one_partition_of_some_and_of_all(mount: Mount) -> None:
    first = mount.topic("rolls", 3)
    partitions = [first.parent / str(number) for number in range(3)]
    for file in partitions:
        append(file, b"one\n")
    do(first, "roll", "1")
    assert [segments(file) for file in partitions] == [1, 2, 1]
    do(first, "roll", "run 2\nrun 1")
    assert facts(first, "roll")["last_command"] == "run 1 2"
    assert [segments(file) for file in partitions] == [1, 2, 2], "an empty one stays"
    do(first, "roll", "run")
    assert [segments(file) for file in partitions] == [2, 2, 2]
    assert facts(first, "roll")["last_partitions"] == "3"


def test_flush_moves_the_recovery_point(mount: Mount, orders: Path) -> None:
    mount.run(f"echo flush.ms=3600000 >> {orders.parent.name}/.config")
    append(orders, b"one\ntwo\n")
    offsets = orders.parent / ".meta/0/offsets"
    assert "recovery_point 0" in offsets.read_text()
    do(orders, "flush", "run 0")
    assert "recovery_point 2" in offsets.read_text()
    append(orders, b"three\n")
    do(orders, "flush", "0")
    assert "recovery_point 3" in offsets.read_text()
    assert facts(orders, "flush")["last_outcome"] == "done"


def test_delete_records_moves_the_log_start(mount: Mount) -> None:
    first = mount.topic("deleting", 2)
    second = first.parent / "1"
    for file in (first, second):
        append(file, b"".join(b"%d\n" % number for number in range(10)))
    do(first, "delete-records", "0 3\n1 7")
    assert first.read_bytes() == b"3\n4\n5\n6\n7\n8\n9\n"
    assert second.read_bytes() == b"7\n8\n9\n"
    assert facts(first, "delete-records")["last_records"] == "10"
    assert rows(first, "delete-records") == [
        {"partition": "0", "log_start": "3", "was": "0"},
        {"partition": "1", "log_start": "7", "was": "0"},
    ]
    do(first, "delete-records", "0 2")  # is below the log start
    assert first.read_bytes() == b"3\n4\n5\n6\n7\n8\n9\n"
    with opened(control(first, "delete-records")) as fd:
        fails(errno.ERANGE, os.write, fd, b"1 8\n0 11\n")
    assert second.read_bytes() == b"7\n8\n9\n", "no line has acted"
    do(first, "delete-records", "1 -1")
    assert second.read_bytes() == b""
    append(second, b"later\n")
    assert second.read_bytes() == b"later\n"


# -- compaction ----------------------------------------------------------------------------------


def until_idle(first: Path) -> dict[str, str]:
    until(lambda: facts(first, "compaction")["state"] == "idle")
    return facts(first, "compaction")


def compactable(mount: Mount, records: int = 100) -> Path:
    """Partition 0 of a compacted topic with a sealed segment in which half of the records go."""
    first = mount.topic("held")
    mount.run("echo cleanup.policy=compact >> held/.config")
    for value in (b"old", b"new"):
        keyed(first.parent / ".kv/0", records, value)
    do(first, "roll", "run")
    return first


LATEST = b"new\n" * 100


def test_cancel_while_it_runs_leaves_all_as_it_was(steered_one: SteeredMount) -> None:
    first = compactable(steered_one)
    before = first.read_bytes()
    files = sorted(os.listdir(first.parent / ".raw/0"))
    with steered_one.held("pwrite", ".cleaned") as hold:
        do(first, "compaction", "run")
        hold.wait()
        found = facts(first, "compaction")
        assert found["state"] == "running"
        assert found["command"] == "run"
        assert found["phase"] == "cleaning"
        assert int(found["total_bytes"]) > 0
        with opened(control(first, "compaction")) as fd:
            fails(errno.EBUSY, os.write, fd, b"run\n")
        canceller = threading.Thread(target=do, args=(first, "compaction", "cancel"))
        canceller.start()
        # A running job stops at its next step.
        steered_one.daemon.until_cancelled("held", "compaction")
        hold.release()
        canceller.join()
    found = facts(first, "compaction")
    assert (found["state"], found["last_outcome"]) == ("idle", "cancelled"), "cancel has waited"
    assert first.read_bytes() == before
    assert sorted(os.listdir(first.parent / ".raw/0")) == files
    do(first, "compaction", "run")
    until_idle(first)
    assert first.read_bytes() == LATEST


def test_an_end_while_it_runs(steered_one: SteeredMount) -> None:
    first = compactable(steered_one)
    before = first.read_bytes()
    with steered_one.held("pwrite", ".cleaned") as hold:
        do(first, "compaction", "run")
        hold.wait()
        steered_one.daemon.terminate()
        steered_one.daemon.until_cancelled("held", "compaction")
    steered_one.wait()
    assert not list(steered_one.data.glob("*/*.cleaned"))
    steered_one.start()
    assert first.read_bytes() == before
    do(first, "compaction", "run")
    until_idle(first)
    assert first.read_bytes() == LATEST


def test_an_end_while_it_is_being_published(steered_one: SteeredMount) -> None:
    first = compactable(steered_one)
    inode = first.stat().st_ino
    kept = first.parent / ".jsonl/0"
    before = kept.read_bytes()
    do(first, "flush", "run")
    daemon = steered_one.daemon
    hold = daemon.hold("fsync", "held-0")
    do(first, "compaction", "run")
    # The directory is synced several times; the names show at which of them it is decided.
    while daemon.reached(hold) and not list(steered_one.data.glob("*/*.swap")):
        following = daemon.hold("fsync", "held-0")
        daemon.release(hold)
        hold = following
    daemon.terminate()
    daemon.until_cancelled("held", "compaction")
    daemon.release(hold)
    steered_one.wait()
    assert not list(steered_one.data.glob("*/*.swap"))
    steered_one.start()
    assert first.read_bytes() == LATEST, "it was too late to stop"
    assert first.stat().st_ino != inode
    assert kept.read_bytes() == before[before.index(b'{"offset":100,') :]


def test_a_topic_is_removed_while_it_runs(steered_one: SteeredMount) -> None:
    first = compactable(steered_one)
    with steered_one.held("pwrite", ".cleaned") as hold:
        do(first, "compaction", "run")
        hold.wait()
        first.parent.rmdir()
    steered_one.topic("held")
    assert facts(first, "compaction") == {"state": "idle", "last_outcome": "none"}
    assert first.read_bytes() == b""


# -- what takes long -----------------------------------------------------------------------------


def test_a_write_waits_for_a_while_and_returns(steered_one: SteeredMount) -> None:
    orders = steered_one.topic("orders")
    steered_one.run("echo flush.ms=3600000 >> orders/.config")
    append(orders, b"one\n")
    steered_one.daemon.job_patience(0.2)
    with steered_one.held("fdatasync", ".log") as hold:
        do(orders, "flush", "run")
        hold.wait()
        assert facts(orders, "flush")["state"] == "running", "it goes on"
        with opened(control(orders, "flush")) as fd:
            fails(errno.EBUSY, os.write, fd, b"run\n")
        append(orders, b"two\n")
    until(lambda: facts(orders, "flush")["last_outcome"] == "done")
