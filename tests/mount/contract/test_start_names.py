"""Names that are not listed but can be looked up: files that start somewhere else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from storage.record.header import parse_header
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.programs import Running
from tests.waits import until

FAST = ["--sleep-interval=0.02"]
TEXTS = [".", ".kv", ".jsonl"]


class Orders:
    """A partition with records of known times, in milliseconds."""

    def __init__(self, mount: Mount, path: Path) -> None:
        self.mount = mount
        self.path = path
        self.topic = path.parent
        self.times: list[int] = []

    def append(self, *times: int) -> None:
        """A record each, all in one batch: its value is its offset."""
        lines = ""
        for timestamp in times:
            record = {"timestamp": timestamp, "key": None, "value": f"v{len(self.times)}"}
            lines += json.dumps(record) + "\n"
            self.times.append(timestamp)
        with open(self.topic / ".jsonl" / "0", "ab", buffering=0) as file:
            file.write(lines.encode())

    def offsets(self, view: str, name: str) -> list[int]:
        """Which records a name shows in a view."""
        path = self.topic / view / name
        data = path.read_bytes()
        assert path.stat().st_size == len(data)
        if view == ".batches":
            offsets: list[int] = []
            while data:
                header = parse_header(data)
                offsets += range(header.base_offset, header.last_offset + 1)
                data = data[header.size :]
            return offsets
        lines = data.splitlines()
        if view == ".jsonl":
            return [json.loads(line)["offset"] for line in lines]
        return [int(line[1:]) for line in lines]


def wait_until_open(tail: Running, path: Path) -> None:
    """Until the program has the file open."""
    until(lambda: str(path) in opened_by(tail.pid))


def opened_by(pid: int) -> list[str]:
    """The files that a process has open, which may close them meanwhile."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(fd))
    return found


MINUTE = 60_000
NOON = int(datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def noon(mount: Mount) -> Orders:
    """Four batches of three records, a minute apart, from noon on."""
    orders = Orders(mount, new_topic(mount))
    for number in range(0, 12, 3):
        orders.append(*(NOON + (number + n) * MINUTE for n in range(3)))
    return orders


# -- where it starts and ends --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [("0@5", 5, 12), ("0@4..7", 4, 7), ("0@2026-11-20T12:04:00Z..7", 4, 7), ("0@7..4", 7, 7)],
)
def test_where_a_name_starts_and_ends(noon: Orders, name: str, start: int, end: int) -> None:
    for view in TEXTS:
        assert noon.offsets(view, name) == list(range(start, end))
    # Whole batches: from the one that holds the start to the one that holds the last record.
    whole = range(start - start % 3, end + -end % 3) if start < end else range(0)
    assert noon.offsets(".batches", name) == list(whole)


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/New_York"])
def test_local_time_is_the_mounts_not_the_callers(tmp_path: Path, zone: str) -> None:
    with mounted(tmp_path) as own:
        own.stop()
        own.start(env={"TZ": zone})
        orders = Orders(own, own.topic())
        # This morning may be still to come there.
        own.run("echo message.timestamp.after.max.ms=$((86400 * 1000)) >> orders/.config")
        now = datetime.now(ZoneInfo(zone))
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        for moment in (midnight - timedelta(hours=1), midnight, midnight + timedelta(hours=8)):
            orders.append(int(moment.timestamp() * 1000))
        assert orders.offsets(".", "0@08:00") == [2]
        assert orders.offsets(".", "0@00:00..08:00") == [1]
        assert orders.offsets(".", f"0@{now.date()}") == [1, 2]
        yesterday = now.date() - timedelta(days=1)
        assert orders.offsets(".", f"0@{yesterday}..{now.date()}") == [0]
        assert orders.offsets(".", f"0@{now.date()}T08:00:00") == [2]
        caller = own.run("TZ=UTC cat orders/0@08:00; TZ=Asia/Tokyo cat orders/0@08:00")
        assert caller == b"v2\nv2\n"


# -- while it is open ----------------------------------------------------------------------------


@pytest.mark.parametrize("view", [".", ".batches"])
@pytest.mark.parametrize("name", ["0@-2", "0@end", "0@-2..-1"])
def test_its_name_leads_to_the_same_inode(mount: Mount, view: str, name: str) -> None:
    orders = Orders(mount, new_topic(mount))
    orders.append(*[NOON] * 5)
    path = orders.topic / view / name

    def inode() -> int:
        return int(mount.run('stat -c %i "$P"', P=path))

    with open(path, "rb") as file:
        number = os.fstat(file.fileno()).st_ino
        assert inode() == number
        # By now it would mean another record.
        orders.append(time.time_ns() // 1_000_000)
        orders.append(NOON, NOON)
        assert inode() == number
        with open(path, "rb") as second:
            assert os.fstat(second.fileno()).st_ino == number
            assert second.read() == file.read()
    # The kernel does not wait for the release.
    until(lambda: inode() != number)


def test_tail_follows_from_the_end_on(mount: Mount) -> None:
    orders = Orders(mount, new_topic(mount))
    orders.append(NOON, NOON)
    for follow in (["-f"], ["-F", "--max-unchanged-stats=1"]):
        with Running(["tail", *follow, *FAST, "-c", "+1", orders.topic / "0@end"]) as tail:
            # It reads from its byte 0 on, which was the end when it was opened.
            number = len(orders.times)
            expected = b""
            wait_until_open(tail, orders.topic / "0@end")
            for _ in range(5):
                orders.append(NOON)
                expected += b"v%d\n" % number
                number += 1
                assert tail.read_until(b"v%d\n" % (number - 1)) == expected


@pytest.mark.parametrize("view", [".", ".batches"])
def test_tail_sees_a_range_end(mount: Mount, view: str) -> None:
    orders = Orders(mount, new_topic(mount))
    orders.append(NOON)
    until = datetime.fromtimestamp((NOON + 10) / 1000, UTC).isoformat(timespec="milliseconds")
    by_offset, by_time = orders.topic / view / "0@0..3", orders.topic / view / f"0@0..{until}"
    with (
        Running(["tail", "-f", *FAST, "-c", "+1", by_offset]) as first,
        Running(["tail", "-f", *FAST, "-c", "+1", by_time]) as second,
    ):
        for n in (1, 2, 10, 11, 5):
            orders.append(NOON + n)
        whole = mount.run('cat "$P"', P=orders.topic / view / "0")
        expected = mount.run('head -c "$N" "$P"', N=by_offset.stat().st_size, P=by_offset)
        assert whole.startswith(expected)
        assert len(expected) < len(whole)
        assert first.read_until(expected) == expected
        assert second.read_until(expected) == expected
        orders.append(NOON)
        for path in (by_offset, by_time):
            assert mount.run('cat "$P"', P=path) == expected
    assert orders.offsets(view, "0@0..3") == [0, 1, 2]


def test_an_open_range_grows_up_to_its_end(noon: Orders) -> None:
    """Also in one large write that goes past it."""
    path = noon.topic / "0@10..15"
    with open(path, "rb", buffering=0) as file:
        assert file.read(100) == b"v10\nv11\n"
        noon.append(*[NOON] * 10)
        assert file.read(100) == b"v12\nv13\nv14\n"
        assert file.read(100) == b""
        assert os.fstat(file.fileno()).st_size == 20
        assert os.lseek(file.fileno(), 0, os.SEEK_END) == 20


# -- what else it is -----------------------------------------------------------------------------


def test_they_are_for_reading(noon: Orders) -> None:
    path = noon.topic / "0@end"
    before = noon.path.read_bytes()
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        fails(errno.EROFS, os.open, path, flags)
    assert noon.mount.sh('echo x >> "$P"', P=path).returncode != 0
    said = f"open of {path.relative_to(noon.mount.path)} refused: this name is read-only"
    assert said.replace("0@end", "0@…") in noon.mount.events()
    fails(errno.EROFS, os.truncate, path, 0)
    fails(errno.EPERM, os.unlink, path)
    fails(errno.EPERM, os.rename, path, noon.topic / "1")
    fails(errno.EPERM, os.chmod, path, 0o600)
    assert noon.path.read_bytes() == before


def test_coreutils_read_them(noon: Orders) -> None:
    run = noon.mount.run
    assert run('cd "$T"; head -n1 0@5', T=noon.topic) == b"v5\n"
    assert run('cd "$T"; tail -n2 0@5..9; tail -c 4 0@5', T=noon.topic) == b"v7\nv8\nv11\n"
    assert run('cd "$T"; cat 0@2..4 0@9', T=noon.topic) == b"v2\nv3\nv9\nv10\nv11\n"
    assert run('cd "$T"; cp 0@2..4 "$D"; cat "$D"', T=noon.topic, D=noon.mount.cache) == b"v2\nv3\n"
    assert run('cd "$T"; dd if=0@2 bs=3 skip=1 count=1 status=none', T=noon.topic) == b"v3\n"
    assert run('cd "$T"; grep -c . 0@-4', T=noon.topic) == b"4\n"


def test_ever_new_names_cost_no_memory(own: Mount) -> None:
    """The daemon keeps few of those that are not open, and forgets none that is."""
    own.run("mkdir t; seq 100 >> t/0")
    topic = own / "t"
    with open(topic / "0@7", "rb", buffering=0) as file, open(topic / "0@8..12", "rb") as other:
        inode = os.fstat(file.fileno()).st_ino
        for number in range(1200):
            os.stat(topic / f"0@0..{number}")
            assert not (topic / f"0@no{number}").exists()
        assert own.run("cat t/0@98 t/0@0..1") == b"99\n100\n1\n"
        assert os.fstat(file.fileno()).st_ino == os.stat(topic / "0@7").st_ino == inode
        assert file.read(4) == b"8\n9\n"
        assert other.read() == b"9\n10\n11\n12\n"
        metrics = (own / ".kafkafs/metrics").read_text().splitlines()
        known = next(line for line in metrics if line.startswith("kafkafs_known_inodes "))
        assert float(known.split()[1]) < 1100
        for number in range(20):
            os.stat(topic / f"0@0..{number}")
    # The kernel forgets them all, those that the daemon has dropped, too.
    own.run("rmdir t; mkdir t; touch t/1")
    assert "forget of inode" not in own.events()
