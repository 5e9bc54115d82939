"""Topics, partitions, owners: "Directories" of the contract."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

from tests.mount.mounting import Mount, fails, let_others_in, mounted, needs_root

NOBODY = 65534


def directories(mount: Mount) -> list[str]:
    """The directories in the data directory."""
    return sorted(path.name for path in mount.data.iterdir() if path.is_dir())


def as_nobody(script: str, cwd: Path) -> subprocess.CompletedProcess[bytes]:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]
    return subprocess.run(command, cwd=cwd, capture_output=True, check=False)


# -- mkdir ---------------------------------------------------------------------------------------


@needs_root
def test_another_users_topic(tmp_path: Path) -> None:
    """… and the caller's uid, gid and mode …: of any user who may."""
    let_others_in(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data").chmod(0o777)
    with mounted(tmp_path, "allow_other") as mount:
        script = "umask 027; mkdir nobodys && echo line >> nobodys/0 && touch nobodys/1"
        assert as_nobody(script, mount.path).returncode == 0
        for path in (mount / "nobodys", mount / "nobodys" / "0", mount / "nobodys" / "1"):
            assert (path.stat().st_uid, path.stat().st_gid) == (NOBODY, NOBODY)
        assert stat.S_IMODE((mount / "nobodys").stat().st_mode) == 0o750
        for number in ("0", "1"):
            assert stat.S_IMODE((mount / "nobodys" / number).stat().st_mode) == 0o640


def test_a_bad_name_is_einval(mount: Mount) -> None:
    """… a bad name is EINVAL …: one that is no UTF-8."""
    before = directories(mount)
    fails(errno.EINVAL, os.mkdir, mount / "\udcff")
    assert directories(mount) == before


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


# -- touch ---------------------------------------------------------------------------------------


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


def test_a_process_that_cannot_remove_a_partition_does_not_remove_its_topic(own: Mount) -> None:
    """rmdir deletes a topic with all its records. Elsewhere it keeps a directory that has files, on
    which `find -delete` and others count.
    """
    topic = own.topic().parent
    own.run("echo line >> orders/0")
    for removes in ("find orders -delete", f"{sys.executable} -c '{REMOVE_TREE}' orders"):
        own.sh(removes)
        assert (topic / "0").read_bytes() == b"line\n", removes
    own.sh("rm -f orders/0")
    own.run("rmdir orders")
    assert not topic.exists()


REMOVE_TREE = "import shutil, sys; shutil.rmtree(sys.argv[1], ignore_errors=True)"


# -- owners --------------------------------------------------------------------------------------


@needs_root
def test_no_mode_locks_the_daemon_out(mount: Mount, orders: Path) -> None:
    """The owner and mode are settings, not those of the data directory's files."""
    orders.chmod(0)
    orders.parent.chmod(0)
    os.chown(orders.parent, NOBODY, NOBODY)
    mount.run('echo line >> "$F"; cat "$F"', F=orders)  # root may
    found = (mount.data / f"{orders.parent.name}-0").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode) & 0o700) == (os.getuid(), 0o700)


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
