"""Files that a stranger, or a broken disk, has put into the data directory, in the mount."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, fails, kafkafs, mounted, needs_root
from tests.mount.programs import program

SNAPSHOT = "00000000000000000002.snapshot"


def as_nobody(*command: str) -> subprocess.CompletedProcess[bytes]:
    become = [program("setpriv"), "--reuid=65534", "--regid=65534", "--clear-groups"]
    return subprocess.run([*become, *command], capture_output=True, check=False)


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def cat(path: Path) -> bytes:
    return path.read_bytes()


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A directory that all users may look into; not tmp_path, which is open to root alone."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-hostile-") as directory:
        os.chmod(directory, 0o755)
        yield Path(directory)


@needs_root
def test_another_user_reads_nothing_through_a_link(open_path: Path) -> None:
    secret = open_path / "secret"
    secret.write_bytes(b"only for root\n")
    secret.chmod(0o600)
    with mounted(open_path, "allow_other") as mount:
        orders = mount.topic("orders")
        append(orders, b"1\n2\n")
        (orders.parent / ".control/roll").write_text("run\n")
        raw = orders.parent / ".raw/0" / SNAPSHOT
        assert as_nobody("cat", str(raw)).returncode == 0
        inside = mount.data / "orders-0"
        kept = (inside / SNAPSHOT).rename(open_path / "kept")
        (inside / SNAPSHOT).symlink_to(secret)
        done = as_nobody("cat", str(raw))
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"Input/output error" in done.stderr
        fails(errno.EIO, cat, raw)
        (inside / SNAPSHOT).unlink()
        shutil.move(kept, inside / SNAPSHOT)
        # The whole directory, too.
        inside.rename(open_path / "moved")
        inside.symlink_to(open_path)
        (open_path / SNAPSHOT).symlink_to(secret)
        assert as_nobody("cat", str(raw)).stdout == b""
        inside.unlink()
        (open_path / "moved").rename(inside)
        assert orders.read_bytes() == b"1\n2\n"


@needs_root
def test_strangers_names_do_not_count_where_others_may_write(open_path: Path) -> None:
    data = open_path / "data"
    with mounted(open_path, "allow_other") as mount:
        append(mount.topic("bob"), b"1\n2\n")
        mount.stop()
        (data / "kafkafs.properties").unlink()
        data.chmod(0o1777)
        script = """
            printf 'log.retention.ms=1\nlog.retention.check.interval.ms=1\n' > kafkafs.properties
            printf 'version=1\nnode.id=1\ncluster.id=x\n' > meta.properties
            mkdir bob-1 new-0 kafkafs.handover
        """
        assert as_nobody("sh", "-euc", f"cd {data}; {script}").returncode == 0
        mount.start()
        events = mount.events()
        assert f"chmod o-w {data}" in events
        names = ("kafkafs.properties", "meta.properties", "bob-1", "new-0", "kafkafs.handover")
        for name in names:
            assert f"{data}/{name}: ignored: it belongs to user 65534" in events
        (mount / "bob/.control/retention").write_text("run\n")
        assert cat(mount / "bob/0") == b"1\n2\n"
        assert sorted(os.listdir(mount.path)) == ["bob"]
        assert os.listdir(mount / "bob") == ["0"]
        for name, call in (("bob-1", (mount / "bob/1").touch), ("new-0", (mount / "new").mkdir)):
            fails(errno.EEXIST, call)
            assert f"{data}/{name}" in mount.events().splitlines()[-1]
        (mount / "more").mkdir()
        assert (data / "new-0").stat().st_uid == 65534
        mount.kill()
        for name in ("bob-1", "new-0"):
            (data / name).rmdir()
        mount.start()
        (mount / "bob/1").touch()
        (mount / "new").mkdir()


@needs_root
def test_a_stranger_cannot_keep_a_directory_from_being_mounted(open_path: Path) -> None:
    data = open_path / "data"
    (open_path / "mnt").mkdir()
    data.mkdir()
    data.chmod(0o1777)
    assert as_nobody("touch", str(data / "notes")).returncode == 0
    done = kafkafs("mount", data, open_path / "mnt")
    assert done.returncode == 0, done.stderr
    assert kafkafs("umount", open_path / "mnt").returncode == 0
    for name in ("recovery-point-offset-checkpoint", ".kafka_cleanshutdown"):
        (data / name).unlink()
        assert as_nobody("touch", str(data / name)).returncode == 0
    with mounted(open_path, "allow_other") as mount:
        orders = mount.topic()
        append(orders, b"1\n")
        mount.kill()
        mount.start()
        assert cat(orders) == b"1\n"
        assert f"{data}/recovery-point-offset-checkpoint" in mount.events()
        (data / "recovery-point-offset-checkpoint").unlink()
        (data / ".kafka_cleanshutdown").unlink()


def test_a_pipe_holds_nobody_up(mount: Mount, orders: Path) -> None:
    append(orders, b"1\n2\n")
    (orders.parent / ".control/roll").write_text("run\n")
    inside = mount.data / "orders-0" / SNAPSHOT
    kept = inside.rename(mount.data.parent / "kept")
    os.mkfifo(inside)
    fails(errno.EIO, cat, orders.parent / ".raw/0" / SNAPSHOT)
    assert orders.read_bytes() == b"1\n2\n"
    assert SNAPSHOT in mount.events()
    inside.unlink()
    kept.rename(inside)


@pytest.mark.parametrize("kind", ["pipe", "link", "loop", "directory"])
def test_one_bad_partition_is_its_own_fault(mount: Mount, kind: str) -> None:
    orders = mount.topic("orders", 3).parent
    for number in range(3):
        append(orders / str(number), b"%d\n" % number)
    mount.stop()
    log = mount.data / "orders-1" / f"{0:020}.log"
    kept = log.rename(mount.data.parent / "kept")
    if kind == "pipe":
        os.mkfifo(log)
    elif kind == "directory":
        log.mkdir()
    else:
        log.symlink_to(kept if kind == "link" else log)
    for options in (["ro"], []):
        mount.start(*options)
        assert os.listdir(orders) == ["0", "1", "2"]
        for name in ("1", ".kv/1", ".jsonl/1", ".follow/1", ".raw/1", ".meta/1", "1@0"):
            fails(errno.EIO, os.stat, orders / name)
        assert (orders / "0").read_bytes() + (orders / "2").read_bytes() == b"0\n2\n"
        for text in (mount.events(), (mount / ".kafkafs/topics").read_text()):
            assert "orders-1: cannot open" in text
            assert str(log) in text
        if not options:
            fails(errno.EIO, (orders / "1").touch)
            (orders / "3").touch()
            append(orders / "0", b"more\n")
            fails(errno.EEXIST, os.mkdir, orders)
        mount.stop()
    log.rmdir() if kind == "directory" else log.unlink()
    kept.rename(log)
    mount.start()
    assert [cat(orders / str(number)) for number in range(4)] == [b"0\nmore\n", b"1\n", b"2\n", b""]


def test_holes_and_a_pipe_in_the_reserve_stop_no_mount(mount: Mount, orders: Path) -> None:
    append(orders, b"1\n2\n")
    (orders.parent / ".control/roll").write_text("run\n")
    append(orders, b"3\n")
    mount.stop()
    inside = mount.data / "orders-0"
    for name, size in ((SNAPSHOT, 1 << 40), (f"{0:020}.log", 20 << 30), (f"{2:020}.log", 20 << 30)):
        os.truncate(inside / name, size)
    part = mount.data / "kafkafs.reserve.0"
    part.unlink(missing_ok=True)
    os.mkfifo(part)
    mount.start()
    assert orders.read_bytes() == b"1\n2\n3\n"
    append(orders, b"4\n")
    assert orders.read_bytes() == b"1\n2\n3\n4\n"
    assert sum(str(part) in line for line in mount.events().splitlines()) == 1
    assert sum(path.stat().st_size for path in inside.iterdir()) < 64 << 20


def test_keys_go_where_they_went(mount: Mount) -> None:
    """The partitioner counts a partition that cannot be opened."""
    orders = mount.topic("orders", 2).parent
    lines = [b"%d\tv\n" % number for number in range(20)]
    with open(orders / ".kv/append", "ab", buffering=0) as file:
        for line in lines:
            file.write(line)
    before = (orders / ".kv/0").read_bytes()
    mount.stop()
    bad = mount.data / "orders-1"
    moved = bad.rename(mount.data.parent / "moved")
    bad.symlink_to(moved)
    mount.start()
    with open(orders / ".kv/append", "ab", buffering=0) as file:
        for line in lines:
            if line in before.splitlines(keepends=True):
                file.write(line)
            else:
                fails(errno.EIO, file.write, line)
    assert (orders / ".kv/0").read_bytes() == before * 2
    (mount / "orders").rmdir()
    assert not bad.is_symlink()
    assert (moved / f"{0:020}.log").stat().st_size


def test_bad_settings_leave_everything_readable(mount: Mount, orders: Path) -> None:
    append(orders, b"1\n")
    config = orders.parent / ".config"
    with open(config, "a") as file:
        file.write("retention.ms=1000\n")
    (mount / "other").mkdir()
    mount.stop()
    own = f"{orders.parent.name}-0/kafkafs-topic.properties"
    for name in ("kafkafs.properties", own):
        path = mount.data / name
        kept = path.read_bytes()
        path.write_bytes(b"?\n")
        mount.start()
        assert orders.read_bytes() == b"1\n"
        fails(errno.EIO, cat, config)
        fails(errno.EIO, config.write_text, "retention.ms=1\n")
        others = mount / "other/.config"
        if name == own:
            others.write_text("retention.ms=1\n")
            assert "retention.ms=1\n" in others.read_text()
            (mount / "other").rmdir()
        else:
            fails(errno.EIO, cat, others)
            fails(errno.EIO, orders.parent.rmdir)
        for text in (mount.events(), (mount / ".kafkafs/topics").read_text()):
            assert name in text
        mount.stop()
        assert path.read_bytes() == b"?\n"
        path.write_bytes(kept)
    mount.start()
    assert "retention.ms=1000\n" in config.read_text()


def test_repair_is_told_where_a_log_begins(mount: Mount, orders: Path) -> None:
    append(orders, b"1\n2\n3\n")
    (orders.parent / ".control/delete-records").write_text("0 2\n")
    assert orders.read_bytes() == b"3\n"
    mount.stop()
    starts = mount.data / "log-start-offset-checkpoint"
    starts.write_bytes(b"?")
    # Its history says it.
    mount.start()
    assert orders.read_bytes() == b"3\n"
    mount.stop()
    starts.write_bytes(b"?")
    (mount.data / "orders-0/kafkafs.history").unlink()
    mount.start()
    fails(errno.EIO, cat, orders)
    assert "--log-start orders:0=OFFSET --apply" in mount.events()
    mount.stop()

    def repair(*options: str) -> subprocess.CompletedProcess[bytes]:
        command = [*KAFKAFS, "repair", "--apply", str(mount.data), *options]
        return subprocess.run(command, capture_output=True, check=False)

    done = repair()
    assert done.returncode == 3
    assert b"1 partition cannot be opened" in done.stderr
    assert repair("--log-start", "orders:0=x").returncode == 2
    assert repair("--log-start", "orders:0=2").returncode == 0
    mount.start()
    assert orders.read_bytes() == b"3\n"
    assert (mount.data / "log-start-offset-checkpoint.bad").exists()
    mount.stop()
    assert repair("--purge").returncode == 0
    assert not (mount.data / "log-start-offset-checkpoint.bad").exists()
    mount.start()
