"""Owners of groups, and directories in which nobody or another process commits."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, paths
from tests.mount.contract.test_brokers_directory import brokers
from tests.mount.contract.test_groups import committed, position_in
from tests.mount.contract.writing import opened
from tests.mount.mounting import (
    SETTINGS,
    Mount,
    fails,
    few_directories,
    let_others_in,
    mounted,
    needs_root,
)
from tests.mount.test_two_users import run_as
from tests.storage.old_logs import encode_entry

OWNER, OTHER = 54321, 65432


# -- where nothing can be committed ----------------------------------------------------------------


def test_a_read_only_mount_shows_groups(own: Mount) -> None:
    own.topic()
    own.run("seq 5 >> orders/0; mkdir .groups/G; echo 3 > .groups/G/orders/0")
    own.restart("ro")
    assert own.run("cat orders/0@group=G; grep -h lag .groups/G/orders/0") == b"4\n5\nlag 2\n"
    assert own.run("tail -n 1 .groups/.lag .kafkafs/version | head -n 2 | tail -n 1") == (
        b"# lag 2, partitions 1, groups 1\n"
    )
    for script in (
        *("mkdir .groups/H", "rmdir .groups/G", "rm .groups/G/orders/0", "chmod 700 .groups/G"),
        "echo 1 > .groups/G/orders/0",
    ):
        done = own.sh(script)
        assert done.returncode == 1
        assert b"Read-only file system" in done.stderr, done.stderr


def test_groups_of_a_directory_that_another_process_writes(own: Mount, tmp_path: Path) -> None:
    own.topic()
    own.run("seq 5 >> orders/0; mkdir .groups/G; echo 3 > .groups/G/orders/0")
    (tmp_path / "beside").mkdir()
    beside = Mount(tmp_path / "beside", ["ro"])
    beside.data = own.data
    try:
        beside.start()
        assert (
            beside.run("grep ^lag .groups/G/orders/0; cat orders/0@group=G..end")
            == b"lag 2\n4\n5\n"
        )
        own.run("echo 4 > .groups/G/orders/0; echo 6 >> orders/0; mkdir .groups/H")
        assert beside.run("grep ^lag .groups/G/orders/0; cat orders/0@group=G") == b"lag 2\n5\n6\n"
        own.run("echo 1 > .groups/H/orders/0")
        assert beside.run("ls .groups; tail -n 1 .groups/.lag") == (
            b"G\nH\n# lag 7, partitions 2, groups 2\n"
        )
        own.run("rm -r .groups/H")
        assert beside.run("ls .groups") == b"G\n"
    finally:
        beside.end()


def test_a_brokers_directory_that_is_not_detached(tmp_path: Path) -> None:
    data = brokers(tmp_path)
    with mounted(tmp_path) as mount:
        fails(errno.EPERM, os.mkdir, mount / ".groups/G")
        assert f"kafkafs detach {data}" in mount.events().splitlines()[-1]
        assert mount.run("ls -A .groups") == b""
    assert not list(data.glob("__consumer_offsets*"))
    assert not list(data.glob("kafkafs.groups"))


def test_a_broker_that_was_taken_over_has_its_own_positions_topic(tmp_path: Path) -> None:
    """Commits go where it is; where a part of it is missing nobody knows where that would be."""
    data = brokers(tmp_path)
    (data / "kafkafs.properties").write_text(f"{SETTINGS}offsets.topic.num.partitions=3\n")
    (data / "meta.properties").rename(tmp_path / "meta.properties")
    (data / "__cluster_metadata-0").rename(tmp_path / "metadata")
    with LogManager.open(str(data)) as manager:
        manager.create_offsets_topic()
    (tmp_path / "meta.properties").rename(data / "meta.properties")
    (tmp_path / "metadata").rename(data / "__cluster_metadata-0")
    before = sorted(path.name for path in data.iterdir())
    with mounted(tmp_path) as mount:
        mount.run("seq 5 >> orders/0; mkdir .groups/{G,H,I}; echo 3 > .groups/G/orders/0")
        assert mount.run("grep ^lag .groups/G/orders/0; ls .groups") == b"lag 2\nG\nH\nI\n"
    assert committed(data) == {"G": {("orders", 0): 3}}
    shutil.rmtree(data / "__consumer_offsets-0")
    made = {path.name for path in data.iterdir()} - set(before)
    assert not [name for name in made if name.startswith("__consumer")]
    with mounted(tmp_path) as mount:
        assert "a part" in mount.run("tail -n 1 .groups/.lag").decode()
        mount.run("mkdir .groups/H")
        with opened(mount / ".groups/H/orders/0", os.O_WRONLY) as fd:
            fails(errno.EPERM, os.write, fd, b"1\n")
        assert "H/orders/0: " in mount.events().splitlines()[-1]
    assert not (data / "__consumer_offsets-0").exists()


def test_logs_of_kafka_0_7_have_no_groups(tmp_path: Path) -> None:
    """They were kept elsewhere."""
    old = tmp_path / "data/old-0"
    old.mkdir(parents=True)
    (old / "00000000000000000000.kafka").write_bytes(encode_entry(b"one"))
    with mounted(tmp_path, "ro") as mount:
        assert mount.run("ls -A .groups; cat old/0") == b"one\n"
        fails(errno.ENOENT, os.stat, mount / "old/0@group=G")
        fails(errno.EROFS, os.mkdir, mount / ".groups/G")


# -- rights ----------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Mount]:
    """A mount that everybody may look into, with two topics of a user; the second is private."""
    let_others_in(tmp_path)
    few_directories(tmp_path)
    (tmp_path / "data").chmod(0o777)
    with mounted(tmp_path, "allow_other") as mount:
        done = run_as(OWNER, "mkdir t p; seq 5 >> t/0; seq 5 >> p/0; chmod 600 p/0", mount)
        assert done.stderr == ""
        yield mount


@needs_root
def test_who_may_commit(shared: Mount) -> None:
    """A user commits for partitions that he may read, in groups that he may write."""
    mine, theirs = "mkdir .groups/mine; ", ".groups/theirs"
    assert run_as(OTHER, f"mkdir {theirs}; echo 3 > {theirs}/t/0", shared).stderr == ""
    assert position_in(shared / theirs / "t/0") == "3"
    for uid, script, works in (
        (OTHER, f"echo 4 > {theirs}/t/0", True),
        (OTHER, f"echo earliest > {theirs}/t/.all", True),
        (OTHER, f"echo 1 > {theirs}/p/0", False),
        (OTHER, f"echo 1 > {theirs}/p/.all", False),
        (OTHER, f"cat {theirs}/p/0", False),
        (OWNER, f"{mine} echo 1 > .groups/mine/p/0; cat .groups/mine/p/0", True),
        (OTHER, "cat .groups/mine/t/0", True),
        (OTHER, "cat .groups/mine/p/0", False),
        (OTHER, "cat .groups/mine/.lag", False),
        (OTHER, "cat .groups/.lag", False),
        (OTHER, "echo 1 > .groups/mine/t/0", False),
        (OTHER, "rm -f .groups/mine/p/0", False),
        (OTHER, "rmdir .groups/mine/p", False),
        (OTHER, "rmdir .groups/mine", False),
        (OTHER, "chmod 777 .groups/mine", False),
        (OWNER, "chmod 770 .groups/mine", True),
        (OTHER, "ls .groups/mine", False),
        (OWNER, f"cat {theirs}/.lag", True),
        (OWNER, f"echo 1 > {theirs}/t/0", False),
        (OTHER, f"chmod 777 {theirs}", True),
        (OWNER, f"echo 1 > {theirs}/t/0", True),
        (OWNER, f"rmdir {theirs}", False),
        (OTHER, f"rm -r {theirs}", True),
        # Deleting an offset requires no permission on the partition.
        (OWNER, "chmod 777 .groups/mine", True),
        (OTHER, "echo 2 > .groups/mine/p/0", False),
        (OTHER, "rm .groups/mine/p/0 < /dev/null", True),
        (OWNER, "rm -r .groups/mine", True),
    ):
        done = run_as(uid, script, shared)
        assert (done.returncode == 0) == works, (script, done.stderr)


@needs_root
def test_owners_and_modes_last(shared: Mount) -> None:
    shared.run("mkdir -m 700 .groups/{a,b}; echo 1 > .groups/a/t/0; echo 1 > .groups/b/t/0")
    shared.run(f"chown {OWNER}:{OTHER} .groups/a; chmod 2750 .groups/a")
    shown = b"2750 %d %d\n700 0 0\n" % (OWNER, OTHER)
    assert shared.run("stat -c '%a %u %g' .groups/*") == shown
    shared.restart()
    assert shared.run("stat -c '%a %u %g' .groups/*") == shown
    assert shared.run("stat -c '%a %u %g' .groups/a/t/0") == b"640 %d %d\n" % (OWNER, OTHER)
    shared.run("rm -r .groups/a; mkdir .groups/a")
    assert shared.run("stat -c '%a %u %g' .groups/a .groups") == b"755 0 0\n1777 0 0\n"


@needs_root
def test_groups_without_an_owner_are_the_data_directorys(shared: Mount) -> None:
    shared.run("mkdir .groups/a; echo 1 > .groups/a/t/0")
    shared.stop()
    (shared.data / "kafkafs.groups").unlink()
    shared.start()
    assert run_as(OTHER, "echo 2 > .groups/a/t/0", shared).returncode != 0
    shared.run("echo 2 > .groups/a/t/0; stat -c '%a %u' .groups/a")
    shared.stop()
    (shared.data / "kafkafs.groups").write_text("rubbish\n")
    shared.start()
    assert run_as(OTHER, "ls .groups/a", shared).returncode != 0
    shared.run("echo 3 > .groups/a/t/0")
    assert shared.sh("mkdir .groups/b").returncode == 1
    assert "kafkafs.groups" in shared.events()


# -- who may read Kafka's own topics ---------------------------------------------------------------


def others_may(path: Path) -> dict[str, str]:
    """The files of groups on the disk that others than their owner may use, with their modes."""
    return {
        str(each.relative_to(path)): oct(each.stat().st_mode & 0o777)
        for each in path.rglob("*")
        if each.stat().st_mode & 0o077 and ("__" in str(each) or each.name == paths.GROUP_OWNERS)
    }


@needs_root
def test_groups_are_readable_by_their_users_only(own: Mount) -> None:
    """Also in a directory that was made before that, unless chmod was used."""
    let_others_in(own.path.parent)
    own.topic()
    own.run("seq 5 >> orders/0; mkdir -m 700 .groups/secret; echo 3 > .groups/secret/orders/0")
    topic = own / "__consumer_offsets"
    assert others_may(own.data) == {}
    own.stop()
    for path in (*own.data.glob("__*"), *own.data.glob("__*/*"), own.data / paths.GROUP_OWNERS):
        path.chmod(0o755)
    own.start("allow_other")
    assert others_may(own.data) == {}
    assert stat.S_IMODE(topic.stat().st_mode) == 0o700
    assert stat.S_IMODE((topic / "0").stat().st_mode) == 0o600
    for name in ("0", ".kv/0", ".raw/0", ".meta/0/offsets", ".snapshot/0"):
        done = run_as(OTHER, f"cat __consumer_offsets/{name}", own)
        assert "Permission denied" in done.stderr, name
    assert run_as(OTHER, "cat orders/0", own).stdout == "1\n2\n3\n4\n5\n"
    topic.chmod(0o755)
    assert stat.S_IMODE((topic / "0").stat().st_mode) == 0o600
    (topic / "0").chmod(0o644)
    own.restart("allow_other")
    assert others_may(own.data / "__consumer_offsets-0")
    assert run_as(OTHER, "cat __consumer_offsets/0", own).returncode == 0


@needs_root
def test_a_brokers_files_keep_their_modes(own: Mount) -> None:
    own.topic()
    own.run("seq 5 >> orders/0; mkdir .groups/G; echo 3 > .groups/G/orders/0")
    own.stop()
    (own.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    directory = own.data / "__consumer_offsets-0"
    directory.chmod(0o755)
    for path in directory.iterdir():
        path.chmod(0o644)
    before = others_may(directory)
    own.start()
    assert stat.S_IMODE((own / "__consumer_offsets/0").stat().st_mode) == 0o600
    assert "users without access in the mount" not in own.events()
    assert own.run("cat orders/0@group=G") == b"4\n5\n"
    own.stop()
    after = others_may(directory)
    assert {name: after.get(name, mode) for name, mode in before.items()} == before
