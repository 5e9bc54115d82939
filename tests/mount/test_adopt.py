"""Adoptions through a mount: by shell, while others write and read, and when the daemon is killed.

`kafkafs.owner` says where the mount is, for as long as it is there.
"""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kafkafs.spark.location.owner_client import ask_owner
from storage.adopt.adopt import Adopted
from storage.adopt.staged import AdoptRequest
from storage.files import Files
from storage.owner.request_kinds import ADOPT, encode
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.programs import Running
from tests.mount.steering import steered
from tests.storage.staging import left, staged
from tests.waits import HANG_S, until

files = Files()
Rows = dict[tuple[str, int], list[list[bytes]]]


def request(mount: Mount, batch: int, rows: Rows, query: str = "q") -> AdoptRequest:
    return staged(files, str(mount.data), query, batch, rows)


def line(asked: AdoptRequest, name: str) -> str:
    return encode(ADOPT, asked, name) + "\n"


def told(mount: Mount) -> dict[str, dict[str, Any]]:
    """By id."""
    lines = (mount / ".kafkafs/adopt").read_text().splitlines()
    return {facts["id"]: facts for facts in map(json.loads, lines)}


def ended(mount: Mount, name: str) -> dict[str, Any]:
    """The final state of a request."""
    until(lambda: told(mount)[name]["state"] not in ("queued", "running"))
    return told(mount)[name]


# -- who has it ----------------------------------------------------------------------------------


def test_the_owner_is_named_while_it_is_mounted(mount: Mount) -> None:
    data = str(mount.data)
    killed = OwnerProcess(mount.pid, str(mount.path))
    mount.kill()
    # It counts only while the process has the lock.
    assert owner_file.read(files, data) == killed
    assert files.locked_by(str(mount.data / ".lock")) is None
    mount.start()
    assert owner_file.read(files, data) == OwnerProcess(mount.pid, str(mount.path))
    mount.stop()
    assert owner_file.read(files, data) is None


def test_an_unmount_from_outside_takes_it_away_too(mount: Mount) -> None:
    mount.run('cd /; fusermount3 -u "$MNT"', MNT=mount.path)
    mount.wait()
    assert not (mount.data / "kafkafs.owner").exists()


def test_a_read_only_mount_owns_nothing(mount: Mount, tmp_path: Path) -> None:
    mount.topic()
    other = tmp_path / "other"
    other.mkdir()
    reader = Mount(tmp_path, ["ro"])
    reader.path = other
    try:
        reader.start()
        assert owner_file.read(files, str(mount.data)) == OwnerProcess(mount.pid, str(mount.path))
        fails(errno.ENOENT, os.stat, other / ".kafkafs" / "adopt")
        reader.stop()
    finally:
        reader.end()
    assert owner_file.read(files, str(mount.data)) == OwnerProcess(mount.pid, str(mount.path))


def test_mount_points_of_any_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b'blank \xff\xc3\xbc"\\\n')
    base = tmp_path / name
    base.mkdir()
    with mounted(base) as mount:
        mount.topic()
        assert owner_file.read(files, str(mount.data)) == OwnerProcess(mount.pid, str(mount.path))
        asked = request(mount, 0, {("orders", 0): [[b"a"]]})
        assert ask_owner(str(mount.data), ADOPT, asked).records == 1
        assert (mount / "orders/0").read_bytes() == b"a\n"


def test_where_it_cannot_be_written_the_log_says_so(mount: Mount) -> None:
    mount.stop()
    (mount.data / "kafkafs.owner").mkdir()  # an odd thing to meet there
    mount.start()
    assert "cannot write kafkafs.owner; Spark jobs cannot find this mount" in mount.events()
    mount.stop()
    (mount.data / "kafkafs.owner").rmdir()
    mount.start()


# -- asking by shell -----------------------------------------------------------------------------


def test_by_shell(mount: Mount) -> None:
    mount.topic("orders", 2)
    asked = request(mount, 0, {("orders", 0): [[b"a", b"b"], [b"c"]], ("orders", 1): [[b"x"]]})
    mount.run('printf %s "$LINE" > .kafkafs/adopt', LINE=line(asked, "one"))
    facts = ended(mount, "one")
    assert facts["state"] == "adopted"
    assert facts["offsets"] == [["orders", 0, 0, 2], ["orders", 1, 0, 0]]
    assert mount.run("cat orders/0 orders/1") == b"a\nb\nc\nx\n"
    assert left(str(mount.data)) == []
    mount.run('printf %s "$LINE" >> .kafkafs/adopt', LINE=line(asked, "two"))
    assert ended(mount, "two")["state"] == "duplicate"
    newer = asked._replace(batch=1, run="newer", files=())
    mount.run('printf %s "$LINE" >> .kafkafs/adopt', LINE=line(newer, "three"))
    assert ended(mount, "three")["state"] == "adopted"
    fenced = asked._replace(batch=2, files=())
    mount.run('printf %s "$LINE" >> .kafkafs/adopt', LINE=line(fenced, "four"))
    assert ended(mount, "four")["state"] == "refused"
    assert mount.run("wc -l < .kafkafs/adopt") == b"4\n"
    assert "adoption of batch 0 of q: adopted: records 4" in mount.events()
    metrics = (mount / ".kafkafs/metrics").read_text()
    for metric in (
        'kafkafs_owner_requests_total{kind="adopt",outcome="adopted"} 2.0',
        'kafkafs_owner_requests_total{kind="adopt",outcome="duplicate"} 1.0',
        'kafkafs_owner_requests_total{kind="adopt",outcome="refused"} 1.0',
        "kafkafs_adopted_records_total 4.0",
    ):
        assert metric in metrics
    mount.restart()
    assert (mount / ".kafkafs/adopt").read_bytes() == b""
    assert mount.run("cat orders/0 orders/1") == b"a\nb\nc\nx\n"


# -- beside others -------------------------------------------------------------------------------


def test_while_others_write_and_follow(mount: Mount) -> None:
    """Each adoption is seen whole, in order, between other lines; `tail -f` sees all of it."""
    orders = mount.topic()
    done = threading.Event()

    def write() -> None:
        number = 0
        with open(orders, "ab", buffering=0) as file:
            while not done.wait(0.0005):
                file.write(b"line %d\n" % number)
                number += 1

    with Running(["tail", "-f", "--sleep-interval=0.02", "--lines=+1", orders]) as tail:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for batch in range(4):
                values = [b"batch %d.%d" % (batch, n) for n in range(50)]
                found = ask_owner(
                    str(mount.data), ADOPT, request(mount, batch, {("orders", 0): [values]})
                )
                assert found.records == 50
                # Nothing is left to be waited for.
                assert b"batch %d.49\n" % batch in orders.read_bytes()
        finally:
            done.set()
            writer.join()
        append(orders, b"the end\n")
        shown = tail.read_until(b"the end\n")
    lines = orders.read_bytes().splitlines()
    assert shown == orders.read_bytes()
    adopted = [each for each in lines if each.startswith(b"batch")]
    assert adopted == [b"batch %d.%d" % (batch, n) for batch in range(4) for n in range(50)]
    written = [each for each in lines if each.startswith(b"line")]
    assert written == [b"line %d" % number for number in range(len(written))]
    assert len(lines) == len(adopted) + len(written) + 1


# -- killed --------------------------------------------------------------------------------------

SECOND_BATCH, SECOND_MARKER = ("pwrite", ".log", 1), ("pwrite", ".log", 3)
ROWS: Rows = {("orders", 0): [[b"a", b"b"]], ("orders", 1): [[b"c"]]}


def contents(mount: Mount) -> Sequence[bytes]:
    return [(mount / f"orders/{number}").read_bytes() for number in (0, 1)]


class Asking:
    """Asks in a thread."""

    def __init__(self, mount: Mount, asked: AdoptRequest) -> None:
        self._found: list[Adopted | BaseException] = []

        def run() -> None:
            try:
                self._found.append(ask_owner(str(mount.data), ADOPT, asked))
            except BaseException as error:
                self._found.append(error)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def found(self) -> Adopted:
        self._thread.join(HANG_S)
        (found,) = self._found
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.mark.parametrize(
    ("operation", "suffix", "after", "again"),
    [(*SECOND_BATCH, True), (*SECOND_BATCH, False), (*SECOND_MARKER, False)],
)
def test_who_asks_a_daemon_that_is_killed_asks_again(
    tmp_path: Path, operation: str, suffix: str, after: int, again: bool
) -> None:
    """The client adopts itself if no process has the directory, or asks the next daemon."""
    with steered(tmp_path) as mount:
        mount.topic("orders", 2)
        number = mount.daemon.hold(operation, suffix, after)
        asking = Asking(mount, request(mount, 0, ROWS))
        assert mount.daemon.reached(number)
        mount.kill()
        if not again:
            asking.found()
        until(lambda: started(mount))
        asking.found()
        assert contents(mount) == [b"a\nb\n", b"c\n"]


def started(mount: Mount) -> bool:
    """Whether it could be: a client may just have the directory."""
    try:
        mount.start()
    except AssertionError:
        return False
    return True


def test_who_asks_a_daemon_that_ends_asks_again(tmp_path: Path) -> None:
    """Its adoption is cancelled, and nothing of it is left."""
    with steered(tmp_path) as mount:
        mount.topic("orders", 2)
        with mount.held("preadv", ".staged", 1) as hold:
            asking = Asking(mount, request(mount, 0, ROWS))
            hold.wait()
            mount.daemon.terminate()
            until(lambda: "SIGTERM" in mount.events())
        mount.wait()
        assert asking.found().records == 3
        mount.start()
        assert contents(mount) == [b"a\nb\n", b"c\n"]


# -- by the clock --------------------------------------------------------------------------------


def test_orphans_go_by_the_clock(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "kafkafs.properties").write_text(
        "log.initial.task.delay.ms=0\nlog.retention.check.interval.ms=20\n"
        # The records are years old.
        "kafkafs.staged.retention.ms=60000\nlog.retention.ms=-1\n"
    )
    with steered(tmp_path) as mount:
        mount.topic("orders", 2)
        with mount.held("open", ".staged") as hold:
            asked = request(mount, 0, ROWS)
            append(mount / ".kafkafs/adopt", line(asked, "one").encode())
            hold.wait()
            lost = request(mount, 7, {("orders", 0): [[b"lost"]]})
            for file in (*asked.files, *lost.files):
                os.utime(mount.data / f"{file.topic}-{file.partition}" / file.name, (0, 0))
            until(lambda: left(str(mount.data)) == sorted(file.name for file in asked.files))
            until(lambda: "removed 1 staged file that no request named" in mount.events())
        assert ended(mount, "one")["state"] == "adopted"
        assert contents(mount) == [b"a\nb\n", b"c\n"]
