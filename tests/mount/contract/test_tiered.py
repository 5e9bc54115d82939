"""A tiered topic of a broker through the mount: all of it can be read and nothing written."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import tiered
from tests.kafkafs.cli.conftest import kafkafs
from tests.mount.contract.writing import append
from tests.mount.control import do, facts
from tests.mount.mounting import SETTINGS, Mount, fails, mounted

RECORD = b'{"key":"k","value":"v"}\n'
WRITES: dict[str, Callable[[Mount], object]] = {
    "append": lambda mount: append(mount / "orders/0", b"line\n"),
    "append key and value": lambda mount: append(mount / "orders/.kv/1", b"k\tv\n"),
    "append JSON": lambda mount: append(mount / "orders/.jsonl/1", RECORD),
    "append batches": lambda mount: append(mount / "orders/.batches/1", b"x"),
    "append to the topic": lambda mount: append(mount / "orders/.append", b"line\n"),
    "append to the topic by key": lambda mount: append(mount / "orders/.kv/append", b"k\tv\n"),
    "overwrite": lambda mount: (mount / "orders/0").write_bytes(b"line\n"),
    "truncate": lambda mount: os.truncate(mount / "orders/0", 0),
    "add a partition": lambda mount: (mount / "orders/2").touch(),
    "chmod of the topic": lambda mount: (mount / "orders").chmod(0o700),
    "chmod of a partition": lambda mount: (mount / "orders/0").chmod(0o600),
    "chown": lambda mount: os.chown(mount / "orders", os.geteuid(), os.getegid()),
    "rmdir": lambda mount: (mount / "orders").rmdir(),
    "set": lambda mount: append(mount / "orders/.config", b"retention.ms=1\n"),
    "set it back": lambda mount: append(mount / "orders/.config", b"remote.storage.enable=false\n"),
}
JOBS = (
    ("retention", "run"),
    ("retention", "run 0"),
    ("compaction", "run"),
    ("roll", "run"),
    ("flush", "run 1"),
    ("delete-records", "0 6"),
    ("abort-transaction", "0 1"),
)


def _job(name: str, line: str, mount: Mount) -> None:
    do(mount / "orders/0", name, line)


WRITES |= {f"{name} {line}": partial(_job, name, line) for name, line in JOBS}
REMEDY = "orders remote.storage.enable=false"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    tiered.make(tmp_path / "data")
    (tmp_path / "data/kafkafs.properties").write_text(SETTINGS)
    return tmp_path / "data"


@pytest.mark.parametrize("is_clean", [True, False])
def test_nothing_of_it_is_written(tmp_path: Path, data: Path, is_clean: bool) -> None:
    """Each attempt is EROFS, with a line that says what ends that."""
    if not is_clean:
        tiered.crash(data)
    before = tiered.state(data)
    with mounted(tmp_path) as mount:
        for name, write in WRITES.items():
            lines = len(mount.events().splitlines())
            try:
                fails(errno.EROFS, write, mount)
            except AssertionError as error:
                error.add_note(name)
                raise
            assert any(REMEDY in line for line in mount.events().splitlines()[lines:]), name
            assert tiered.state(data) == before, name
        # Reading goes on.  Its line indexes and histories are made in the cache.
        for view in ("", ".kv/", ".jsonl/", ".batches/", ".follow/", ".snapshot/"):
            assert (mount / f"orders/{view}0").read_bytes(), view
        assert (mount / "orders/0").read_bytes() == tiered.VALUES
        (mount / "orders/0").touch()
        do(mount / "orders/0", "retention", "dry-run")
        assert facts(mount / "orders/0", "retention")["last_segments"] == "0"
        do(mount / "orders/0", "verify", "run")
        mount.run("sync")
        with open(mount / "orders/0", "rb") as file:
            os.fsync(file)
        # The others are as ever.
        append(mount / "plain/0", b"line\n")
        do(mount / "plain/0", "flush", "run")
        topics = (mount / ".kafkafs/topics").read_text()
        assert (
            "# orders is a tiered topic (remote.storage.enable=true), so it is read-only" in topics
        )
    assert tiered.state(data) == before
    assert (data / ".kafka_cleanshutdown").exists() == is_clean


@pytest.mark.parametrize("options", [(), ("ro",)])
def test_it_says_where_the_log_begins(tmp_path: Path, data: Path, options: tuple[str]) -> None:
    with mounted(tmp_path, *options) as mount:
        offsets = dict(
            line.split() for line in (mount / "orders/.meta/0/offsets").read_text().splitlines()
        )
        assert (offsets["remote_log_start"], offsets["log_start"]) == ("0", "4")
        assert "remote_log_start" not in (mount / "orders/.meta/1/offsets").read_text()
        assert "remote_log_start" not in (mount / "plain/.meta/0/offsets").read_text()
        topics = (mount / ".kafkafs/topics").read_text()
        assert (
            "# orders: these offsets are only in remote storage: partition 0 from 0 to 3" in topics
        )


# Each command, and its exit status.
COMMANDS = {
    ("append", "orders:1"): 3,
    ("append", "orders:1", "--view", "batches"): 3,
    ("config", "orders", "retention.ms=1"): 3,
    ("delete", "orders"): 3,
    ("delete", "--dry-run", "orders"): 3,
    ("prune", "orders"): 3,
    ("compact", "orders"): 3,
    ("repair", "orders", "--indexes", "--apply"): 3,
    ("convert", "orders"): 3,
    ("prune",): 0,
    ("compact",): 0,
    ("repair", "--indexes", "--apply"): 0,
    ("convert",): 0,
    ("repair", "--apply"): 0,
    ("repair", "--apply", "--salvage"): 0,
    ("repair", "--apply", "--purge"): 0,
    ("repair", "--apply", "--accept-loss"): 0,
    ("detach", "--dry-run"): 0,
}


def test_no_command_writes_it(tmp_path: Path, data: Path) -> None:
    (data / "orders-0" / "00000000000000000004.index").write_bytes(b"12345678")
    before = tiered.state(data)
    for (name, *words), status in COMMANDS.items():
        done = kafkafs(name, data, *words)
        assert done.returncode == status, (name, words, done)
        assert "Traceback" not in done.stderr, done
        assert REMEDY in done.stderr, (name, words, done)
        assert tiered.state(data) == before, (name, words)
    done = kafkafs("config", data, "orders", "remote.storage.enable=false")
    assert (done.returncode, done.stderr) == (0, "")
    done = kafkafs("prune", data, "orders")
    assert done.returncode == 0
    assert REMEDY not in done.stderr


def test_commands_beside_a_mount_of_it(tmp_path: Path, data: Path) -> None:
    before = tiered.state(data)
    with mounted(tmp_path) as mount:
        for name, words, status in (
            ("config", ("orders", "remote.storage.enable=false"), 3),
            ("delete", ("orders",), 3),
            ("prune", ("orders",), 3),
            ("prune", (), 0),
            ("append", ("orders:1",), 3),
        ):
            done = kafkafs(name, mount.path, *words)
            assert done.returncode == status, (name, words, done)
            assert REMEDY in done.stderr, (name, words, done)
    assert tiered.state(data) == before
