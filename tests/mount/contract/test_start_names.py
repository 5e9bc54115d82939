"""Names that are not listed but can be looked up: files that start somewhere else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from storage.record.header import parse_header
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, mounted
from tests.mount.programs import Running
from tests.mount.steering import SteeredMount
from tests.waits import until

FAST = ["--sleep-interval=0.02"]
TEXTS = [".", ".kv", ".jsonl"]
VIEWS = [*TEXTS, ".batches"]


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


# -- each row of the table, in every view --------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "start", "end"),
    [
        ("0@0", 0, 12),
        ("0@5", 5, 12),
        ("0@11", 11, 12),
        ("0@-10", 2, 12),
        ("0@-1", 11, 12),
        ("0@start", 0, 12),
        ("0@end", 12, 12),
        ("0@2026-11-20T12:04:00Z", 4, 12),
        ("0@2026-11-20T12:03:59.9999Z", 4, 12),
        ("0@2026-11-20T12:04:00.001Z", 5, 12),
        ("0@2026-11-20T14:04:00+02:00", 4, 12),
        ("0@20261120T120400Z", 4, 12),
        ("0@4..7", 4, 7),
        ("0@4..4", 4, 4),
        ("0@7..4", 7, 7),
        ("0@-8..-5", 4, 7),
        ("0@start..-5", 0, 7),
        ("0@4..end", 4, 12),
        ("0@2026-11-20T12:04:00Z..2026-11-20T12:07:00Z", 4, 7),
        ("0@2026-11-19T00:00Z..2026-11-21T00:00Z", 0, 12),
        ("0@2026-11-20T12:04:00Z..7", 4, 7),
    ],
)
def test_where_a_name_starts_and_ends(noon: Orders, name: str, start: int, end: int) -> None:
    for view in TEXTS:
        assert noon.offsets(view, name) == list(range(start, end))
    # Whole batches: from the one that holds the start to the one that holds the last record.
    whole = range(start - start % 3, end + -end % 3) if start < end else range(0)
    assert noon.offsets(".batches", name) == list(whole)


@pytest.mark.parametrize("view", VIEWS)
def test_the_last_minutes_hours_and_days(mount: Mount, view: str) -> None:
    orders = Orders(mount, new_topic(mount))
    now = time.time_ns() // 1_000_000
    for minutes in (3000, 119, 14, 0):
        orders.append(now - minutes * MINUTE)
    assert orders.offsets(view, "0@-15m") == [2, 3]
    assert orders.offsets(view, "0@-600s") == [3]
    assert orders.offsets(view, "0@-2h") == [1, 2, 3]
    assert orders.offsets(view, "0@-3d") == [0, 1, 2, 3]
    assert orders.offsets(view, "0@-2h..-15m") == [1]
    assert orders.offsets(view, "0@-1d..-10m") == [1, 2]


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


def test_timestamps_out_of_order_equal_and_missing(mount: Mount) -> None:
    """As Kafka's ListOffsets answers: the first in the log, whatever comes behind it."""
    orders = Orders(mount, new_topic(mount))
    orders.append(NOON + 10, -1, NOON + 5, NOON + 5)
    orders.append(NOON + 5, NOON + 30)
    orders.append(-1, NOON + 20)

    def found(milliseconds: int) -> int:
        moment = datetime.fromtimestamp((NOON + milliseconds) / 1000, UTC)
        shown = orders.offsets(".", f"0@{moment.isoformat(timespec='milliseconds')}")
        assert shown == list(range(8 - len(shown), 8))
        return 8 - len(shown)

    assert [found(n) for n in (0, 5, 6, 10, 11, 20, 30, 31)] == [0, 0, 0, 0, 5, 5, 5, 8]


def test_the_time_of_the_append_where_the_topic_has_that(mount: Mount) -> None:
    path = new_topic(mount)
    mount.run('echo message.timestamp.type=LogAppendTime >> "$T/.config"', T=path.parent)
    orders = Orders(mount, path)
    orders.append(NOON, NOON)
    assert orders.offsets(".", "0@-1h") == [0, 1]
    assert orders.offsets(".", "0@2026-11-20T00:00Z..2026-11-20T13:00Z") == []


# -- outside of the log --------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_outside_of_the_log_is_where_tail_would_be(noon: Orders, view: str) -> None:
    assert noon.offsets(view, "0@-1000") == list(range(12))
    assert noon.offsets(view, "0@2001-01-01") == list(range(12))
    after = ["0@12", "0@13", "0@" + "9" * 100, "0@2099-01-01", "0@20261120"]
    for name in after:
        assert noon.offsets(view, name) == []
    path = noon.topic / view / after[1]
    with Running(["tail", "-f", *FAST, "-c", "+1", path]) as tail:
        wait_until_open(tail, path)
        noon.append(NOON)
        tail.read_until(noon.mount.run('cat "$P"', P=noon.topic / view / "0@12"))


def test_below_the_log_start_is_the_log_start(steered_mount: SteeredMount) -> None:
    orders = Orders(steered_mount, new_topic(steered_mount))
    orders.append(NOON, NOON + 1)
    steered_mount.daemon.roll(orders.topic.name)
    orders.append(NOON + 2)
    steered_mount.daemon.remove_head(orders.topic.name, 1)
    for view in VIEWS:
        for name in ("0@0", "0@1", "0@2", "0@start", "0@-9", "0@2026-11-20T12:00Z"):
            assert orders.offsets(view, name) == [2]


def test_or_erange_as_kafkas_offset_out_of_range(tmp_path: Path) -> None:
    with mounted(tmp_path, "out_of_range=error") as own:
        orders = Orders(own, own.topic())
        orders.append(*range(NOON, NOON + 5))
        for view in VIEWS:
            for name in ("0@6", "0@" + "9" * 50, "0@6..7"):
                fails(errno.ERANGE, os.stat, orders.topic / view / name)
            assert orders.offsets(view, "0@5") == []
            assert orders.offsets(view, "0@2099-01-01") == []
        assert own.sh("cat orders/0@6").stderr.endswith(b"Numerical result out of range\n")
        assert "lookup of orders/0@6 refused" in own.events()


@pytest.mark.parametrize("name", ["0@", "0@x", "0@1.", "0@.1", "0@1.5", "0@-1w", "1@0", "0@25:00"])
def test_what_does_not_parse_is_not_there(noon: Orders, name: str) -> None:
    for view in VIEWS:
        fails(errno.ENOENT, os.stat, noon.topic / view / name)
    fails(errno.ENOENT, os.stat, noon.topic / ".raw" / "0@1")


# -- while it is open ----------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
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


@pytest.mark.parametrize("view", VIEWS)
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


def test_retention_and_compaction_under_an_open_file(
    steered_mount: SteeredMount, tmp_path: Path
) -> None:
    daemon = steered_mount.daemon
    orders = Orders(steered_mount, new_topic(steered_mount))
    topic = orders.topic.name
    for _ in range(4):
        orders.append(*[NOON] * 10)
        daemon.roll(topic)
    expected = b"".join(b"v%d\n" % number for number in range(15, 40))
    with (
        open(orders.topic / "0@15", "rb", buffering=0) as file,
        open(orders.topic / "0@35..42", "rb", buffering=0) as tail,
    ):
        numbers = [os.fstat(opened.fileno()).st_ino for opened in (file, tail)]
        daemon.remove_head(topic, 1)
        assert [(orders.topic / name).stat().st_ino for name in ("0@15", "0@35..42")] == numbers
        daemon.remove_head(topic, 1)
        # What it shows of the beginning is not in the log any more.
        assert (orders.topic / "0@15").stat().st_ino != numbers[0]
        assert (orders.topic / "0@35..42").stat().st_ino == numbers[1]
        assert file.read(1000) == expected
        orders.append(*[NOON] * 5)
        assert file.read(1000) == b"v40\nv41\nv42\nv43\nv44\n"
        assert tail.read(1000) == b"v35\nv36\nv37\nv38\nv39\nv40\nv41\n"
        assert os.fstat(tail.fileno()).st_size == 28
    assert orders.offsets(".", "0@15") == list(range(20, 45))


# -- what else it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_they_are_not_listed(noon: Orders, view: str) -> None:
    with open(noon.topic / view / "0@3", "rb"):
        listed = noon.mount.run('ls -a "$D"', D=noon.topic / view).decode().split()
    assert not any("@" in name for name in listed)


@pytest.mark.parametrize("view", VIEWS)
def test_they_are_for_reading(noon: Orders, view: str) -> None:
    path = noon.topic / view / "0@end"
    before = noon.mount.run('cat "$P"', P=noon.topic / view / "0")
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
        fails(errno.EROFS, os.open, path, flags)
    assert noon.mount.sh('echo x >> "$P"', P=path).returncode != 0
    said = f"open of {path.relative_to(noon.mount.path)} refused: this name is read-only"
    assert said.replace("0@end", "0@…") in noon.mount.events()
    fails(errno.EROFS, os.truncate, path, 0)
    fails(errno.EPERM, os.unlink, path)
    fails(errno.EPERM, os.rename, path, noon.topic / "1")
    fails(errno.EPERM, os.chmod, path, 0o600)
    assert noon.mount.run('cat "$P"', P=noon.topic / view / "0") == before


def test_extended_attributes(noon: Orders) -> None:
    for name in os.listxattr(noon.path):
        assert os.getxattr(noon.topic / "0@3", name) == os.getxattr(noon.path, name)
    end = "user.kafkafs.log_end"
    assert os.getxattr(noon.topic / ".snapshot/0", end) == os.getxattr(noon.path, end)
    assert os.getxattr(noon.topic / "0@3..5", end) == b"5"
    assert os.getxattr(noon.topic / "0@3..99", end) == os.getxattr(noon.path, end)


def test_coreutils_read_them(noon: Orders) -> None:
    run = noon.mount.run
    assert run('cd "$T"; head -n1 0@5', T=noon.topic) == b"v5\n"
    assert run('cd "$T"; tail -n2 0@5..9; tail -c 4 0@5', T=noon.topic) == b"v7\nv8\nv11\n"
    assert run('cd "$T"; cat 0@2..4 0@9', T=noon.topic) == b"v2\nv3\nv9\nv10\nv11\n"
    assert run('cd "$T"; cp 0@2..4 "$D"; cat "$D"', T=noon.topic, D=noon.mount.cache) == b"v2\nv3\n"
    assert run('cd "$T"; dd if=0@2 bs=3 skip=1 count=1 status=none', T=noon.topic) == b"v3\n"
    assert run('cd "$T"; grep -c . 0@-4', T=noon.topic) == b"4\n"


@pytest.fixture
def read_only(noon: Orders, tmp_path: Path) -> Iterator[Mount]:
    """The same data directory mounted once more, beside its writer."""
    mount = Mount(tmp_path, ["ro"])
    mount.data.rmdir()
    mount.data.symlink_to(noon.mount.data)
    try:
        yield mount.start()
    finally:
        mount.end()


def test_beside_the_writer(noon: Orders, read_only: Mount) -> None:
    topic = read_only.path / noon.topic.name
    assert read_only.run('cd "$T"; cat 0@-2; cat 0@3..5', T=topic) == b"v10\nv11\nv3\nv4\n"
    with open(topic / "0@11..14", "rb", buffering=0) as file:
        assert file.read(100) == b"v11\n"
        noon.append(NOON, NOON, NOON)
        assert os.fstat(file.fileno()).st_size == 12
        assert file.read(100) == b"v12\nv13\n"
    assert (topic / ".jsonl" / "0@end").read_bytes() == b""
    assert json.loads((topic / ".jsonl" / "0@-1").read_bytes())["offset"] == 14


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
