"""Beginning and end of a mount, its options, and read-only mounts: "Mounting" of the contract."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, fails, let_others_in, mounted, needs_root
from tests.mount.steering import steered
from tests.storage.logs import append as append_records


def append(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(data)


def kafkafs(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAFKAFS, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def marker(data: Path) -> bool:
    return (data / ".kafka_cleanshutdown").exists()


# -- beginning -----------------------------------------------------------------------------------


def test_mount_and_umount(tmp_path: Path) -> None:
    """`kafkafs mount DATA MOUNT [-o options]` returns when the mount answers …, and the daemon
    stays in the background … `kafkafs umount MOUNT`.
    """
    data, path = tmp_path / "data", tmp_path / "mnt"
    data.mkdir()
    path.mkdir()
    done = kafkafs("mount", data, path, "-o", "show_dot")
    said = f"mounted {data} on {path}, 0 topics, read-write\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    try:
        (path / "orders").mkdir()
        append(path / "orders" / "0", b"line\n")
        assert ".kafkafs" in os.listdir(path)
    finally:
        done = kafkafs("umount", path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(path) == []
    assert marker(data)


def test_ready_is_said_when_the_mount_answers(own: Mount) -> None:
    """`-f` keeps it in the foreground (with sd_notify when it is ready)."""
    # The fixture has waited for it, and for nothing else.
    assert os.path.ismount(own.path)
    assert own.pid == int(os.getxattr(own.path, "user.kafkafs.pid"))


@pytest.mark.parametrize("foreground", [[], ["-f"]], ids=["background", "foreground"])
def test_what_goes_wrong_at_start_is_one_line(own: Mount, foreground: list[str]) -> None:
    """What goes wrong at start, also in the background, is one line on standard error and a
    non-zero exit.
    """
    other = own.data.parent / "other"
    other.mkdir()
    for arguments, reason in (
        ((own.data.parent / "none", other), "none"),
        ((own.data, other / "none"), "none"),
        ((own.data, own.path), "already"),
        ((own.data, other), str(own.pid)),
    ):
        done = kafkafs("mount", *arguments, *foreground)
        assert done.returncode != 0
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
        assert done.stderr.startswith("kafkafs: ")
        assert reason in done.stderr
    assert os.listdir(other) == []
    assert own.run("ls") == b""


def test_a_stale_mount_point_is_cleaned(own: Mount) -> None:
    """A stale mount point left by a killed daemon is cleaned at the next mount."""
    orders = own.topic()
    append(orders, b"line\n")
    for _ in range(2):
        own.kill()
        fails(errno.ENOTCONN, os.statvfs, own.path)
        own.start()
        assert orders.read_bytes() == b"line\n"
    # Not one mount above another.
    own.stop()
    assert not os.path.ismount(own.path)
    own.start()


# -- the lock ------------------------------------------------------------------------------------


def test_one_writer_per_data_directory(own: Mount) -> None:
    """One writer per data directory: Kafka's `.lock`, by fcntl record lock, taken after
    daemonizing … a second one fails with one line that names the holder's pid.
    """
    other = own.data.parent / "other"
    other.mkdir()
    # A broker asks with the same kind of lock.
    with open(own.data / ".lock", "r+b") as file, pytest.raises(BlockingIOError):
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Nor after the daemon has read everything there (closing any other descriptor drops it).
    own.run("mkdir orders; cat orders/.raw/0/* > /dev/null; ls -R > /dev/null")
    done = kafkafs("mount", own.data, other)
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert str(own.pid) in done.stderr
    own.kill()
    done = kafkafs("mount", own.data, other)
    assert done.returncode == 0, "the lock is the process's"
    kafkafs("umount", other)
    own.start()


def test_a_directory_that_a_broker_has_locked(tmp_path: Path) -> None:
    """… a second one fails with one line that names the holder's pid: a broker's."""
    (tmp_path / "data").mkdir()
    (tmp_path / "mnt").mkdir()
    with open(tmp_path / "data" / ".lock", "w+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = kafkafs("mount", tmp_path / "data", tmp_path / "mnt")
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1
        assert str(os.getpid()) in done.stderr
    done = kafkafs("mount", tmp_path / "data", tmp_path / "mnt")
    assert done.returncode == 0
    assert kafkafs("umount", tmp_path / "mnt").returncode == 0


# -- the end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals(own: Mount, number: signal.Signals) -> None:
    """SIGTERM and SIGINT: no new work, flush, checkpoints, clean-shutdown marker, unmount, exit
    0.
    """
    orders = own.topic()
    append(orders, b"one\ntwo\n")
    assert not marker(own.data)
    os.kill(own.pid, number)
    own.wait()
    assert marker(own.data)
    checkpoint = (own.data / "recovery-point-offset-checkpoint").read_text()
    assert checkpoint.splitlines()[2:] == ["orders 0 2"]
    with LogManager.open(str(own.data), read_only=True) as manager:
        assert manager.clean
        assert manager.log("orders", 0).log_end_offset == 2
    own.start()
    assert orders.read_bytes() == b"one\ntwo\n"


def files_of(topic: Path) -> list[Path]:
    """The files of a topic with one partition, of all kinds."""
    names = ("0", ".snapshot/0", "0@1", "0@0..2", "0@0..9")
    views = [topic / view for view in ("", ".kv", ".jsonl", ".batches")]
    directories = [topic / name for name in (".raw/0", ".meta/0", ".control")]
    return [
        *(view / name for view in views for name in names),
        *(topic / name for name in (".follow/0", ".config")),
        *(path for directory in directories for path in directory.iterdir()),
    ]


def close(fd: int) -> None:
    """Close what may be of a mount that has ended."""
    with contextlib.suppress(OSError):
        os.close(fd)


@pytest.mark.parametrize("options", [[], ["ro"]])
def test_whatever_is_open_at_the_end(own: Mount, options: list[str]) -> None:
    """… all of it is closed in order, and the next mount has nothing to recover."""
    topics = [own / name for name in ("a", "b", "c")]
    for topic in topics:
        append(own.topic(topic.name), b"one\ntwo\n")
        own.run('echo run > "$T/.control/roll"', T=topic)
        append(topic / "0", b"three\n")
    own.run("mkdir .groups/G; for t in a b c; do echo 1 > .groups/G/$t/0; done")
    own.restart(*options)
    paths = [path for topic in topics for path in files_of(topic)]
    paths += [own / ".groups/G" / topic.name / "0" for topic in topics]
    paths += (own / ".kafkafs").iterdir()
    flags = os.O_WRONLY | os.O_APPEND
    with contextlib.ExitStack() as stack:

        def keep(path: Path, flags: int) -> int:
            fd = os.open(path, flags)
            stack.callback(close, fd)
            return fd

        for path in paths:
            if path.stat().st_mode & 0o444:
                os.read(keep(path, os.O_RDONLY), 10)
        if not options:
            os.write(keep(own / "b/0", flags), b"unfinished")
            os.write(keep(own / "b/.config", flags), b"retention.ms=4711")
            os.write(keep(own / "b/.control/verify", flags), b"ru")
            os.write(keep(own / ".groups/G/b/0", flags), b"2")
            os.write(keep(own / ".groups/G/.claims", os.O_RDWR), b"claim a\n")
        own.stop()
    assert marker(own.data)
    lines = (own.data / "recovery-point-offset-checkpoint").read_text().splitlines()
    ends = ["a 0 3", "b 0 3" if options else "b 0 4", "c 0 3"]
    assert [line for line in lines if line[1:3] == " 0"] == ends
    own.start()
    assert "kafkafs_recovery_clean 1.0\n" in (own / ".kafkafs/metrics").read_text()
    if not options:
        assert (own / "b/0").read_bytes().endswith(b"\nunfinished\n")
        assert "retention.ms=4711\n" in (own / "b/.config").read_text()


def test_a_killed_daemon_leaves_no_marker(own: Mount) -> None:
    """… clean-shutdown marker …: there is one after a clean end only."""
    own.topic()
    own.restart()
    assert not marker(own.data)
    own.kill()
    assert not marker(own.data)
    own.start()


def test_after_a_kill_the_mount_answers_when_recovery_is_done(own: Mount) -> None:
    """After a kill the mount answers when recovery is done, in
    `num.recovery.threads.per.data.dir` threads …
    """
    (own.data / "kafkafs.properties").write_text("num.recovery.threads.per.data.dir=2\n")
    partitions = [own.topic(f"topic{number}") for number in range(6)]
    content = b"".join(b"line %d\n" % number for number in range(5000))
    for partition in partitions:
        append(partition, content)
    own.kill()
    for partition in partitions[:3]:
        log = own.data / f"{partition.parent.name}-0" / "00000000000000000000.log"
        with open(log, "ab") as file:
            file.write(b"\1" * 5000)
    own.start()
    for partition in partitions:
        assert partition.stat().st_size == len(content)
        assert partition.read_bytes() == content
    for partition in partitions[:3]:
        assert f"{partition.parent.name}-0" in own.events(), "what was cut is said"


# -- options -------------------------------------------------------------------------------------


def test_an_option_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """What goes wrong at start … is … a non-zero exit."""
    (tmp_path / "data").mkdir()
    (tmp_path / "mnt").mkdir()
    for option in ("nothing", "umask=9", "uid=me", "ro=1", "uid"):
        done = kafkafs("mount", tmp_path / "data", tmp_path / "mnt", "-o", option)
        assert done.returncode != 0
        assert option.partition("=")[0] in done.stderr
    assert not os.path.ismount(tmp_path / "mnt")


@needs_root
def test_uid_gid_and_umask(tmp_path: Path) -> None:
    """`-o … uid, gid, umask`: everything's owner, and bits that nothing shows."""
    with mounted(tmp_path, "uid=1234,gid=2345", "umask=027,allow_other") as mount:
        orders = mount.topic()
        os.chmod(orders, 0o666)
        os.chown(orders, 1, 1)
        paths = [mount.path, orders.parent, orders, orders.parent / ".config"]
        paths += [orders.parent / ".raw/0/partition.metadata", mount / ".kafkafs" / "log"]
        for path in paths:
            found = path.stat()
            assert (found.st_uid, found.st_gid) == (1234, 2345), path
            assert stat.S_IMODE(found.st_mode) & 0o027 == 0, path
        mount.restart("uid=77")
        assert orders.stat().st_uid == 77
        assert orders.stat().st_gid == 2345


@needs_root
def test_without_allow_other_nobody_else_may_look(own: Mount) -> None:
    """`-o … allow_other`: without it only who has mounted."""
    own.topic()
    let_others_in(own.path.parent)
    look = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ls", str(own.path)]
    assert subprocess.run(look, capture_output=True, check=False).returncode != 0
    own.restart("allow_other")
    assert subprocess.run(look, capture_output=True, check=False).returncode == 0


# -- read-only -----------------------------------------------------------------------------------


def snapshot(data: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(data)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def test_a_read_only_mount_writes_nothing(own: Mount) -> None:
    """`-o ro` …: it takes no lock, writes nothing into it …"""
    orders = own.topic()
    own.run("seq 1000 >> orders/0")
    own.kill()
    (own.data / ".lock").unlink()
    before = snapshot(own.data)
    own.start("ro")
    assert orders.read_bytes() == b"".join(b"%d\n" % n for n in range(1, 1001))
    own.run("ls -lR > /dev/null; cat orders/.meta/0/* orders/.raw/0/* orders/.config > /dev/null")
    for path in (orders, orders.parent / ".config"):
        fails(errno.EROFS, os.open, path, os.O_WRONLY | os.O_APPEND)
    assert not (own.data / ".lock").exists()
    own.stop()
    assert snapshot(own.data) == before


class Broker:
    """Another process's writing, byte by byte."""

    def __init__(self, data: Path) -> None:
        data.mkdir()
        with LogManager.open(str(data)) as manager:
            append_records(manager.create_topic("orders", 1).partitions[0], b"zero")
        self.log = data / "orders-0" / "00000000000000000000.log"
        self.lock = open(data / ".lock", "r+b")  # noqa: SIM115 - held to the end
        fcntl.lockf(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.next_offset = 1

    def batch(self, *values: bytes) -> bytes:
        now_ms = 1_800_000_000_000
        records = [
            Record(self.next_offset + n, now_ms, 0, None, value) for n, value in enumerate(values)
        ]
        data = encode(records, base_offset=self.next_offset)
        self.next_offset += len(values)
        return bytes(data)

    def write(self, data: bytes | bytearray) -> None:
        with open(self.log, "ab") as file:
            file.write(data)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "data")
    with contextlib.closing(broker.lock):
        yield broker


@contextlib.contextmanager
def beside(base: Path) -> Iterator[Mount]:
    """A read-only mount. This broker writes no indexes, so there is nothing to be checked after."""
    mount = Mount(base, ["ro"])
    try:
        yield mount.start()
    finally:
        mount.end()


def test_a_read_only_mount_follows_new_appends(broker: Broker, tmp_path: Path) -> None:
    """… and follows new appends: a batch appears when it is whole and its CRC right …"""
    with beside(tmp_path) as mount:
        orders = mount / "orders" / "0"
        assert orders.read_bytes() == b"zero\n"
        inode = orders.stat().st_ino
        with open(orders, "rb", buffering=0) as reader:
            assert reader.read() == b"zero\n"
            batch = broker.batch(b"one", b"two")
            for start in range(0, len(batch) - 1, 20):
                assert orders.stat().st_size == 5
                assert reader.read() == b""
                broker.write(batch[start : min(start + 20, len(batch) - 1)])
            assert orders.stat().st_size == 5
            assert orders.read_bytes() == b"zero\n"
            broker.write(batch[-1:])
            assert orders.stat().st_size == 13
            assert reader.read() == b"one\ntwo\n"
            assert orders.read_bytes() == b"zero\none\ntwo\n"
            offsets = orders.parent / ".meta" / "0" / "offsets"
            assert "log_end 3\n" in offsets.read_text()
            raw = orders.parent / ".raw" / "0" / broker.log.name
            assert raw.stat().st_size == broker.log.stat().st_size
            assert raw.read_bytes() == broker.log.read_bytes()
        assert orders.stat().st_ino == inode


def test_a_batch_whose_crc_is_wrong_does_not_appear(broker: Broker, tmp_path: Path) -> None:
    """… a batch appears when it is whole and its CRC right …"""
    with beside(tmp_path) as mount:
        orders = mount / "orders" / "0"
        batch = bytearray(broker.batch(b"damaged"))
        at = broker.log.stat().st_size + len(batch) - 3
        right = batch[-3]
        batch[-3] ^= 0xFF
        broker.write(bytes(batch))
        assert orders.stat().st_size == 5
        with open(broker.log, "r+b") as file:
            file.seek(at)
            file.write(bytes([right]))
        assert orders.read_bytes() == b"zero\ndamaged\n"


def test_a_read_only_mount_follows_rolls(broker: Broker, tmp_path: Path) -> None:
    """… follows new appends …, over any number of segments."""
    with beside(tmp_path) as mount:
        orders = mount / "orders" / "0"
        expected = b"zero\n"
        with open(orders, "rb", buffering=0) as reader:
            assert reader.read() == expected
            for number in range(4):
                broker.log = broker.log.with_name(f"{broker.next_offset:020d}.log")
                broker.write(broker.batch(b"%d" % number, b"more"))
                expected += b"%d\nmore\n" % number
                assert reader.read() == b"%d\nmore\n" % number
                assert orders.stat().st_size == len(expected)
        assert orders.read_bytes() == expected


def test_a_running_brokers_directory_is_mounted_beside_it(own: Mount, tmp_path: Path) -> None:
    """`-o ro` mounts any Kafka broker's log directory, also while its broker runs …"""
    orders = own.topic()
    append(orders, b"one\n")
    other = tmp_path / "other"
    other.mkdir()
    (other / "data").symlink_to(own.data)
    with mounted(other, "ro") as beside:
        seen = beside / "orders" / "0"
        assert seen.read_bytes() == b"one\n"
        append(orders, b"two\n")
        assert seen.read_bytes() == b"one\ntwo\n"
        fails(errno.EROFS, os.open, seen, os.O_WRONLY | os.O_APPEND)
        assert own.process is not None
        assert own.process.poll() is None


# -- what is not foreseen ------------------------------------------------------------------------


def test_whatever_nobody_foresaw_is_eio(tmp_path: Path) -> None:
    """Whatever a handler raises that nobody foresaw is EIO and a line with the traceback in the
    log; the daemon lives on.
    """
    with steered(tmp_path) as mount:
        orders = mount.topic()
        append(orders, b"line\n")
        mount.daemon.break_version()
        fails(errno.EIO, os.stat, mount / ".kafkafs" / "version")
        fails(errno.EIO, os.listdir, mount / ".kafkafs")
        assert "Traceback (most recent call last)" in mount.events()
        assert "ZeroDivisionError: a bug that a test planted" in mount.events()
        append(orders, b"another\n")
        assert orders.read_bytes() == b"line\nanother\n"


def test_a_damaged_batch_is_eio_there_only(own: Mount) -> None:
    """EIO …, with the reason in the log: what is not damaged can be read."""
    orders = own.topic()
    for number in range(4):
        append(orders, b"%d" % number * 8999 + b"\n")
    log = own.data / "orders-0" / "00000000000000000000.log"
    # The length of the second batch's record.
    at = log.stat().st_size // 4 + 61
    with open(log, "r+b") as file, open(orders, "rb", buffering=0) as reader:
        file.seek(at)
        length = file.read(3)
        os.pwrite(file.fileno(), b"\xff\xff\xff", at)
        try:
            for number in (0, 2, 3):
                shown = os.pread(reader.fileno(), 9000, 9000 * number)
                assert shown == b"%d" % number * 8999 + b"\n"
            fails(errno.EIO, os.pread, reader.fileno(), 9000, 9000)
            assert f"{log}, position " in own.events()
        finally:
            os.pwrite(file.fileno(), length, at)
        assert os.pread(reader.fileno(), 9000, 9000) == b"1" * 8999 + b"\n"


def test_a_partition_that_cannot_be_measured(tmp_path: Path) -> None:
    """EIO … with the reason in the log; nothing else suffers, and it lasts as long as its cause."""
    lines = [b"%d" % number * 8999 + b"\n" for number in range(4)]
    with steered(tmp_path) as own:
        damaged, other = own.topic("damaged"), own.topic("other")
        for line in lines:
            append(damaged, line)
        append(other, b"line\n")
        own.stop()
        for path in (own.data / "damaged-0").glob("*.lines"):
            path.unlink()
        own.start()
        log = "damaged-0/00000000000000000000.log"
        for operation in ("preadv", "pread"):
            own.daemon.fail(operation, log, "EIO", 1 << 30)
        assert sorted(os.listdir(own.path)) == ["damaged", "other"]
        fails(errno.EIO, os.stat, damaged)
        assert log in own.events()
        assert other.read_bytes() == b"line\n"
        own.restart()
        assert damaged.read_bytes() == b"".join(lines)
