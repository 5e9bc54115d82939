"""Beginning and end of a mount, its options, and read-only mounts: "Mounting" of the contract."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from tests.mount.contract.conftest import flush_only_when_asked
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails, kafkafs, let_others_in, needs_root
from tests.mount.steering import steered
from tests.storage.logs import append as append_records
from tests.waits import HANG_S


def marker(data: Path) -> bool:
    return (data / ".kafka_cleanshutdown").exists()


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


# -- the end -------------------------------------------------------------------------------------


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


def test_while_the_end_is_flushing_reads_go_on_and_writes_are_refused(tmp_path: Path) -> None:
    with steered(tmp_path) as mount:
        slow, quick = mount.topic("slow"), mount.topic("quick")
        for partition in (slow, quick):
            flush_only_when_asked(mount, partition)
        append(slow, b"one\n")
        unfinished = os.open(slow, os.O_WRONLY | os.O_APPEND)
        os.write(unfinished, b"two")
        with mount.held("fdatasync", "slow-0/00000000000000000000.log") as hold:
            mount.daemon.terminate()
            hold.wait()
            fails(errno.ESHUTDOWN, append, quick, b"line\n")
            assert slow.read_bytes() == b"one\ntwo\n"
            fails(errno.ESHUTDOWN, os.write, unfinished, b"three\n")
            hold.release_for_the_end()
        mount.wait()
        fails(errno.ENOTCONN, os.close, unfinished)
        assert marker(mount.data)
        mount.start()
        assert slow.read_bytes() == b"one\ntwo\n"


def test_a_line_that_cannot_be_appended_at_the_end_is_a_failure_of_the_daemon(
    tmp_path: Path,
) -> None:
    with steered(tmp_path) as mount:
        orders = mount.topic("orders")
        unfinished = os.open(orders, os.O_WRONLY | os.O_APPEND)
        os.write(unfinished, b"lost")
        mount.daemon.fail("pwrite", "orders-0/00000000000000000000.log", "EIO")
        mount.daemon.begin("terminate")
        assert mount.process is not None
        assert mount.process.wait(HANG_S) == 3
        close(unfinished)
        assert marker(mount.data), "all records are written"


# -- options -------------------------------------------------------------------------------------


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


# -- what is not foreseen ------------------------------------------------------------------------


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
