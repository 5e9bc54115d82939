"""Topics, partitions, owners: "Directories" of the contract."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.contract.conftest import new_topic
from tests.mount.mounting import Mount, fails, let_others_in, mounted, needs_root
from tests.mount.steering import SteeredMount

NOBODY = 65534


def directories(mount: Mount) -> list[str]:
    """What stands in the data directory."""
    return sorted(path.name for path in mount.data.iterdir() if path.is_dir())


def settings(data: Path, **lines: object) -> None:
    """`kafkafs.properties`, with `_` for `.`"""
    text = "".join(f"{name.replace('_', '.')}={value}\n" for name, value in lines.items())
    (data / "kafkafs.properties").write_text(text)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount that other users may look into."""
    base = tmp_path_factory.mktemp("shared")
    let_others_in(base)
    with mounted(base, "allow_other") as mount:
        yield mount


def as_nobody(script: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=False)


# -- mkdir ---------------------------------------------------------------------------------------


def test_mkdir_creates_a_topic(mount: Mount) -> None:
    """`mkdir T` creates a topic with `num.partitions` partitions …"""
    topic = mount / "created"
    topic.mkdir()
    assert os.listdir(topic) == ["0"]
    assert "created-0" in directories(mount)
    assert (topic / "0").read_bytes() == b""


def test_mkdir_creates_num_partitions(tmp_path: Path) -> None:
    """… with `num.partitions` partitions …"""
    (tmp_path / "data").mkdir()
    settings(tmp_path / "data", num_partitions=3)
    with mounted(tmp_path) as mount:
        (mount / "orders").mkdir()
        assert sorted(os.listdir(mount / "orders")) == ["0", "1", "2"]
        assert directories(mount) == ["orders-0", "orders-1", "orders-2"]


@needs_root
def test_mkdir_takes_the_callers_uid_gid_and_mode(shared: Mount) -> None:
    """… and the caller's uid, gid and mode …"""
    done = subprocess.run(
        ["bash", "-c", "umask 027; mkdir mine; umask 0; mkdir -m 1755 theirs"], cwd=shared.path
    )
    assert done.returncode == 0
    mine = (shared / "mine").stat()
    assert (mine.st_uid, mine.st_gid) == (os.getuid(), os.getgid())
    assert stat.S_IMODE(mine.st_mode) == 0o750
    assert stat.S_IMODE((shared / "theirs").stat().st_mode) == 0o1755
    partition = (shared / "mine" / "0").stat()
    assert (partition.st_uid, partition.st_gid) == (os.getuid(), os.getgid())
    assert stat.S_IMODE(partition.st_mode) == 0o640


@needs_root
def test_another_users_topic(tmp_path: Path) -> None:
    """… and the caller's uid, gid and mode …: of any user who may."""
    let_others_in(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with mounted(tmp_path, "allow_other") as mount:
        script = "umask 022; mkdir nobodys && echo line >> nobodys/0 && touch nobodys/1"
        assert as_nobody(script, mount.path).returncode == 0
        for path in (mount / "nobodys", mount / "nobodys" / "0", mount / "nobodys" / "1"):
            assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
        assert stat.S_IMODE((mount / "nobodys").stat().st_mode) == 0o755
        assert stat.S_IMODE((mount / "nobodys" / "1").stat().st_mode) == 0o644


@pytest.mark.parametrize(
    "name",
    ["no topic", "\u00e4", "x" * 250, "a:b", "a@b", "#", "-n=1", "new\nline", "\udcff"],
)
def test_a_bad_name_is_einval(mount: Mount, name: str) -> None:
    """… a bad name is EINVAL …"""
    before = directories(mount)
    fails(errno.EINVAL, os.mkdir, mount / name)
    assert directories(mount) == before


@pytest.mark.parametrize(
    "name",
    [
        *("__cluster_metadata", "__consumer_offsets", "__transaction_state", "__share_group_state"),
        *("x-delete", "x-stray", "x-future"),
    ],
)
def test_mkdir_of_a_name_that_is_kept(mount: Mount, name: str) -> None:
    """… a name that Kafka or we keep for ourselves (…) EPERM."""
    before = directories(mount)
    fails(errno.EPERM, os.mkdir, mount / name)
    assert directories(mount) == before
    line = next(line for line in reversed(mount.events().splitlines()) if repr(name) in line)
    assert "Choose another name" in line


def test_what_a_broker_has_made_is_shown(own: Mount) -> None:
    """Its own topics, and those whose names are reserved here, are read and written as any
    other, except the committed offsets of groups. Only a cluster adds partitions to its own topics.
    """
    own.run("mkdir one two; echo x >> one/0; echo y >> two/0")
    own.stop()
    (own.data / "one-0").rename(own.data / "__consumer_offsets-0")
    (own.data / "two-0").rename(own.data / "two-delete-0")
    own.start()
    assert own.run("cat __consumer_offsets/0 two-delete/0; ls") == b"x\ny\ntwo-delete\n"
    own.run("echo z >> two-delete/0; touch two-delete/1 __consumer_offsets/0")
    before = directories(own)
    fails(errno.EPERM, (own / "__consumer_offsets/1").touch)
    assert directories(own) == before
    assert "only a cluster adds partitions" in own.events()


def test_good_names(mount: Mount) -> None:
    """Kafka's rule: 249 of letters, digits, `.`, `_` and `-`."""
    for name in ("x" * 249, "A.b-C_9", "-", "...", ".hidden", "0", "a-0", "-1"):
        (mount / name).mkdir()
        assert (mount / name / "0").exists()


def test_an_existing_one_is_eexist(mount: Mount, orders: Path) -> None:
    """… an existing one EEXIST."""
    fails(errno.EEXIST, os.mkdir, orders.parent)
    (mount / "with.dot").mkdir()
    # '.' and '_' are one in the names of Kafka's metrics.
    fails(errno.EEXIST, os.mkdir, mount / "with_dot")
    assert "with_dot" in mount.events()


def test_a_copied_topic_is_another_one(own: Mount) -> None:
    """Who copies a topic's directory under another name copies the topic's id, and no more."""
    orders = own.topic()
    own.run("seq 2 >> orders/0")
    own.stop()
    shutil.copytree(own.data / "orders-0", own.data / "copied-0")
    own.start()
    copied = own / "copied/0"
    assert orders.stat().st_ino != copied.stat().st_ino
    with open(orders, "rb") as first, open(copied, "rb") as second:
        own.run("echo three >> orders/0; echo 3 >> copied/0; echo 4 >> copied/0")
        assert first.read() == orders.read_bytes() == b"1\n2\nthree\n"
        assert second.read() == copied.read_bytes() == b"1\n2\n3\n4\n"
    own.run("echo retention.ms=1000 >> copied/.config")
    assert b"retention.ms=1000" not in own.run("cat orders/.config")
    own.run("rmdir copied; echo four >> orders/0")
    assert orders.read_bytes() == b"1\n2\nthree\nfour\n"


# -- touch ---------------------------------------------------------------------------------------


def test_touch_creates_the_next_partition(mount: Mount, orders: Path) -> None:
    """`touch T/N` creates partition N where N is the next number …"""
    topic = orders.parent
    for number in range(1, 12):
        (topic / str(number)).touch()
    assert sorted(os.listdir(topic), key=int) == [str(number) for number in range(12)]
    assert f"{topic.name}-11" in directories(mount)
    (topic / "11").touch()
    with open(topic / "11", "ab") as file:
        file.write(b"line\n")
    assert (topic / "11").read_bytes() == b"line\n"


@pytest.mark.parametrize("name", ["2", "01", "x", "-1", "1.0", " 1", "99999999999", "\u0661", ".x"])
def test_another_number_is_einval(mount: Mount, orders: Path, name: str) -> None:
    """… else EINVAL."""
    before = mount.events()
    fails(errno.EINVAL, (orders.parent / name).touch)
    assert os.listdir(orders.parent) == ["0"]
    assert orders.parent.name in mount.events().removeprefix(before)


def test_a_partition_has_its_creators_owner_and_mode(mount: Mount, orders: Path) -> None:
    """A created partition has the caller's uid and gid, and the mode that open(2) asks for."""
    mount.run('umask 077; touch "$T/1"; umask 002; touch "$T/2"', T=orders.parent)
    assert stat.S_IMODE((orders.parent / "1").stat().st_mode) == 0o600
    assert stat.S_IMODE((orders.parent / "2").stat().st_mode) == 0o664


def test_two_who_create_the_same_partition(mount: Mount, orders: Path) -> None:
    """Both `touch` it, one creates it."""
    topic = orders.parent
    touching = [subprocess.Popen(["touch", str(topic / "1")]) for _ in range(6)]
    assert [process.wait() for process in touching] == [0] * 6
    assert sorted(os.listdir(topic)) == ["0", "1"]


# -- rmdir ---------------------------------------------------------------------------------------


def test_rmdir_deletes_a_topic_with_everything_in_it(steered_mount: SteeredMount) -> None:
    """`rmdir T` deletes a topic with everything in it … (its directories are renamed to Kafka's
    `-delete` form and removed after `file.delete.delay.ms`) …
    """
    orders = new_topic(steered_mount)
    topic = orders.parent
    (topic / "1").touch()
    steered_mount.run(
        'echo line >> "$T/0"; echo retention.ms=1 >> "$T/.config"; rmdir "$T"', T=topic
    )
    assert not topic.exists()
    assert topic.name not in os.listdir(steered_mount.path)
    renamed = [name for name in directories(steered_mount) if name.startswith(f"{topic.name}-")]
    assert [name.rpartition("-")[2] for name in renamed] == ["delete"] * 2, renamed
    assert {name[: len(topic.name) + 2] for name in renamed} == {f"{topic.name}-{n}" for n in "01"}
    steered_mount.daemon.delete_retired()
    assert not [n for n in directories(steered_mount) if n.startswith(f"{topic.name}-")]
    topic.mkdir()
    assert (topic / "0").read_bytes() == b""
    assert os.listdir(topic) == ["0"]
    assert "# retention.ms=-1" in (topic / ".config").read_text(), "its settings are gone"


def test_what_was_deleted_stays_deleted(own: Mount) -> None:
    """… removed after `file.delete.delay.ms`: at the latest by the next mount."""
    orders = own.topic()
    own.run("echo line >> orders/0; rmdir orders")
    own.restart()
    assert os.listdir(own.path) == []
    with LogManager.open(str(own.data), read_only=True) as manager:
        assert manager.topics == {}
    assert not orders.exists()


def test_rmdir_of_a_topic_whose_directories_have_vanished(own: Mount) -> None:
    """It deletes what is left: here the name and the settings."""
    kept = own.topic("kept")
    (own.topic("gone").parent / "1").touch()
    own.run("echo line >> gone/0; echo line >> gone/1; echo line >> kept/0")
    for number in range(2):
        shutil.rmtree(own.data / f"gone-{number}")
    (own / "gone").rmdir()
    assert os.listdir(own.path) == ["kept"]
    for number in range(2):
        named = f"{own.data}/gone-{number}: another process has removed this directory"
        assert own.events().count(named) == 1
    (own / "gone").mkdir()
    assert (own / "gone/0").read_bytes() == b""
    own.restart()
    assert sorted(os.listdir(own.path)) == ["gone", "kept"]
    assert kept.read_bytes() == b"line\n"


def test_a_deleted_topic_takes_no_appends(mount: Mount, orders: Path) -> None:
    """Who has it open for appending is told that it is gone."""
    fd = os.open(orders, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"one\n")
    orders.parent.rmdir()
    fails(errno.ESHUTDOWN, os.write, fd, b"two\n")
    os.close(fd)


def test_rmdir_of_what_is_none(mount: Mount, orders: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    fails(errno.ENOENT, os.rmdir, mount / "nothing")
    fails(errno.ENOTDIR, os.rmdir, orders)
    for name in (".raw", ".meta", ".raw/0", ".meta/0"):
        fails(errno.EPERM, os.rmdir, orders.parent / name)
    assert orders.exists()


def test_delete_topic_enable_false(tmp_path: Path) -> None:
    """… `delete.topic.enable=false` makes it EPERM."""
    (tmp_path / "data").mkdir()
    settings(tmp_path / "data", delete_topic_enable="false")
    with mounted(tmp_path) as mount:
        mount.topic("orders")
        fails(errno.EPERM, os.rmdir, mount / "orders")
        assert "delete.topic.enable" in mount.events()
        assert os.listdir(mount / "orders") == ["0"]


def test_rm_r_fails_on_the_partitions(mount: Mount, orders: Path) -> None:
    """(`rm -r T` fails on the partitions, by design: …; the refused unlink's line in
    `.kafkafs/log` names rmdir.)
    """
    topic = orders.parent
    mount.run('echo line >> "$F"', F=orders)
    before = mount.events()
    removed = mount.sh('rm -rf "$T"', T=topic)
    assert removed.returncode != 0
    assert orders.read_bytes() == b"line\n"
    line = mount.events().removeprefix(before)
    assert f"{topic.name}/0" in line
    assert "rmdir" in line


# -- owners --------------------------------------------------------------------------------------


@needs_root
def test_chmod_and_chown_work_and_last(own: Mount) -> None:
    """chmod and chown work on topics and partitions and last."""
    orders = own.topic()
    topic = orders.parent
    (topic / "1").touch()
    topic.chmod(0o2750)
    os.chown(topic, 1234, 2345)
    orders.chmod(0o604)
    os.chown(orders, 3456, -1)
    os.chown(orders, -1, 4567)

    def owners() -> list[tuple[int, int, int]]:
        return [
            (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
            for found in (topic.stat(), orders.stat())
        ]

    expected = [(1234, 2345, 0o2750), (3456, 4567, 0o604)]
    assert owners() == expected
    own.restart()
    assert owners() == expected
    own.kill()
    own.start()
    assert owners() == expected


@needs_root
def test_chmod_of_a_topic_changes_no_partition(mount: Mount, orders: Path) -> None:
    """chmod and chown change what they name, as they do of any directory."""
    before = orders.stat()
    for mode in (0o700, 0o755, 0o1777):
        orders.parent.chmod(mode)
        assert orders.stat().st_mode == before.st_mode
        raw = orders.parent / ".raw" / "0" / "partition.metadata"
        assert stat.S_IMODE(raw.stat().st_mode) == 0o444
    os.chown(orders.parent, 1234, 2345)
    assert (orders.stat().st_uid, orders.stat().st_gid) == (before.st_uid, before.st_gid)


@needs_root
def test_modes_are_obeyed(shared: Mount) -> None:
    """Permissions are what the modes say, also for `.raw` and `.meta`."""
    orders = new_topic(shared)
    topic = orders.parent.name
    shared.run('echo line >> "$F"', F=orders)
    orders.chmod(0o600)
    for name in ("0", ".raw/0/00000000000000000000.log", ".meta/0/offsets"):
        assert as_nobody(f"cat {topic}/{name}", shared.path).returncode != 0, name
    assert as_nobody(f"echo x >> {topic}/0", shared.path).returncode != 0
    orders.chmod(0o644)
    for name in ("0", ".raw/0/00000000000000000000.log", ".meta/0/offsets"):
        assert as_nobody(f"cat {topic}/{name}", shared.path).returncode == 0, name
    assert as_nobody(f"echo x >> {topic}/0", shared.path).returncode != 0
    orders.chmod(0o666)
    assert as_nobody(f"echo x >> {topic}/0", shared.path).returncode == 0
    assert as_nobody(f"touch {topic}/1", shared.path).returncode != 0
    assert as_nobody(f"rmdir {topic}", shared.path).returncode != 0
    assert as_nobody(f"chmod 777 {topic}", shared.path).returncode != 0
    assert as_nobody(f"echo retention.ms=1 >> {topic}/.config", shared.path).returncode != 0
    orders.parent.chmod(0o700)
    assert as_nobody(f"ls {topic}", shared.path).returncode != 0


@needs_root
def test_no_mode_locks_the_daemon_out(mount: Mount, orders: Path) -> None:
    """The owner and mode are settings, not those of the data directory's files."""
    orders.chmod(0)
    orders.parent.chmod(0)
    os.chown(orders.parent, NOBODY, NOBODY)
    mount.run('echo line >> "$F"; cat "$F"', F=orders)  # root may
    found = (mount.data / f"{orders.parent.name}-0").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o700) == (os.getuid(), 0o700)


def test_modes_elsewhere_are_not_to_be_set(mount: Mount, orders: Path) -> None:
    """chmod and chown work on topics and partitions …"""
    for name in (".raw", ".raw/0", ".raw/0/partition.metadata", ".meta/0/offsets", ".config"):
        fails(errno.EPERM, os.chmod, orders.parent / name, 0o777)
        fails(errno.EPERM, os.chown, orders.parent / name, 1, 1)
    fails(errno.EPERM, os.chmod, mount / ".kafkafs", 0o777)


@needs_root
def test_the_root_has_an_owner_and_a_mode_of_its_own(own: Mount) -> None:
    """chmod and chown work on … the mount's root (…) and last."""

    def owned(name: str) -> tuple[int, int, int]:
        found = (own / name).stat()
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    own.topic()
    others = ("orders", "orders/0", ".kafkafs")
    before, on_disk = [owned(name) for name in others], own.data.stat()
    own.path.chmod(0o1777)
    os.chown(own.path, 1234, 2345)
    for _ in range(2):
        assert owned(".") == (1234, 2345, 0o1777)
        assert owned(".groups") == (1234, 2345, 0o1777)
        assert [owned(name) for name in others] == before
        found = own.data.stat()
        assert (found.st_uid, found.st_mode) == (on_disk.st_uid, on_disk.st_mode)
        own.restart()
    own.path.chmod(0o700)
    assert (owned("."), owned(".groups")) == ((1234, 2345, 0o700), (1234, 2345, 0o1700))
    own.restart("ro")
    assert (owned("."), owned(".groups")) == ((1234, 2345, 0o700), (1234, 2345, 0o500))
    fails(errno.EROFS, own.path.chmod, 0o755)
    # An unreadable file gives nobody but the owner of the data directory a right.
    own.stop()
    (own.data / "kafkafs.root").write_text("0:0:0999\n")
    own.start()
    assert owned(".") == (on_disk.st_uid, on_disk.st_gid, 0o700)
    assert "kafkafs.root" in own.events()
    own.path.chmod(0o755)
    own.restart()
    assert owned(".") == (on_disk.st_uid, on_disk.st_gid, 0o755)
    assert "kafkafs.root" not in own.events()


@needs_root
def test_everybody_makes_topics_where_the_root_lets_them(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    with mounted(tmp_path, "allow_other") as mount:
        assert as_nobody("mkdir nobodys", mount.path).returncode != 0
        mount.path.chmod(0o1777)
        mount.topic("roots")
        script = "mkdir nobodys .groups/g; echo line >> nobodys/0; ls .groups/g"
        assert as_nobody(f"set -eu; {script}", mount.path).returncode == 0
        (mount / "roots").chmod(0o777)
        assert as_nobody("rmdir roots", mount.path).returncode != 0  # sticky
        assert as_nobody("rmdir nobodys", mount.path).returncode == 0
        mount.path.chmod(0o755)
        assert as_nobody("mkdir nobodys", mount.path).returncode != 0


# -- everything else -----------------------------------------------------------------------------


def test_everything_else_is_eperm(mount: Mount, orders: Path) -> None:
    """Everything else (link, symlink, mknod, rename) is EPERM."""
    topic = orders.parent
    for directory in (mount.path, topic, topic / ".raw" / "0", mount / ".kafkafs"):
        fails(errno.EPERM, os.symlink, "target", directory / "1")
        fails(errno.EPERM, os.link, orders, directory / "1")
        fails(errno.EPERM, os.mkfifo, directory / "1")
        fails(errno.EPERM, os.mknod, directory / "1", stat.S_IFREG | 0o644)
        fails(errno.EPERM, os.rename, orders, directory / "1")
    fails(errno.EPERM, os.mkdir, topic / "1")
    fails(errno.EPERM, os.mkdir, topic / ".raw" / "1")
    fails(errno.EPERM, os.unlink, topic / ".config")
    fails(errno.EPERM, os.unlink, topic / ".raw" / "0" / "partition.metadata")
    fails(errno.EPERM, os.open, topic / ".raw" / "0" / "new", os.O_CREAT | os.O_WRONLY)
    fails(errno.EPERM, os.open, mount / "file", os.O_CREAT | os.O_WRONLY)
    assert os.listdir(topic) == ["0"]


def test_a_damaged_partition_hides_no_other(own: Mount) -> None:
    """Only topics are listed in the root and only partitions in a topic."""
    orders = own.topic("orders", 20).parent
    own.run("for n in orders/?; do echo $n >> $n; done")
    own.stop()
    log = own.data / "orders-3" / "00000000000000000000.log"
    kept = log.rename(own.data.parent / "kept")
    log.symlink_to(kept)
    own.start()
    names = [str(number) for number in range(20)]
    for view in (".", ".kv"):
        assert os.listdir(orders / view) == names
    assert own.run("cat orders/[2-4] 2> /dev/null || true") == b"orders/2\norders/4\n"
    fails(errno.EIO, os.stat, orders / "3")
    assert f"orders-3/{log.name}" in (own.path / ".kafkafs" / "log").read_text()
    own.stop()
    kept.rename(log)
    own.start()
    assert own.run("cat orders/[2-4]") == b"orders/2\norders/3\norders/4\n"
    assert os.listdir(orders) == names


# -- statfs --------------------------------------------------------------------------------------


def test_statfs_is_the_disks(mount: Mount) -> None:
    """`df` shows the figures of the disk that the data directory is on."""
    shown, disk = os.statvfs(mount.path), os.statvfs(mount.data)
    assert (shown.f_frsize, shown.f_blocks) == (disk.f_frsize, disk.f_blocks)
    assert abs(shown.f_bavail - disk.f_bavail) * disk.f_frsize < 1 << 30
    assert shown.f_namemax == 255
    assert mount.run('df --output=target "$M" | tail -n1', M=mount.path).strip() == (
        os.fsencode(mount.path)
    )
