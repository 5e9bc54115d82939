"""`.kafkafs/topics` takes commands: `undelete` takes rmdir back, `create` makes a topic whole."""

from __future__ import annotations

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, fails, let_others_in, mounted, needs_root
from tests.mount.steering import SteeredMount


def command(mount: Mount, line: str) -> None:
    with (mount / ".kafkafs/topics").open("a") as topics:
        topics.write(line + "\n")


def filled(mount: Mount, name: str) -> None:
    mount.topic(name, 3)
    mount.run(f"for n in 0 1 2; do seq ${{n}}000 ${{n}}099 >> {name}/$n; done")
    mount.run(f"echo retention.ms=7d >> {name}/.config; chmod 640 {name}/1; chmod 750 {name}")


def state(mount: Mount, name: str) -> bytes:
    """The attributes and contents of a topic."""
    return mount.run(
        f"stat -c '%n %a %u %g %y' {name};"
        f"stat -c '%n %i %s %a %u %g %y' {name}/* {name}/.follow/0 {name}/.kv/*;"
        f"cat {name}/*; grep -v '^#' {name}/.config"
    )


def test_rmdir_is_taken_back(mount: Mount) -> None:
    filled(mount, "back")
    before = state(mount, "back")
    (mount / "back").rmdir()
    assert "back" not in os.listdir(mount.path)
    topics = (mount / ".kafkafs/topics").read_text()
    assert re.search(r"# back was deleted, 3 partitions. To restore it .*: undelete back ", topics)
    assert (
        "back: deleted. To restore it within 60 s: echo undelete back >> .kafkafs/topics"
        in mount.events()
    )
    mount.run("echo undelete back >> .kafkafs/topics")
    assert state(mount, "back") == before
    assert "back was deleted" not in (mount / ".kafkafs/topics").read_text()
    mount.run("echo more >> back/1; sync back/1")
    assert mount.run("tail -n 2 back/1") == b"1099\nmore\n"


def test_files_that_are_open_from_before_get_estale(mount: Mount) -> None:
    filled(mount, "open")
    mount.run("mkdir .groups/g; echo 7 > .groups/g/open/0")
    views = ("0", ".follow/0", ".jsonl/0", "0@50", ".kv/0@50", ".raw/0/00000000000000000000.log")
    texts = (".meta/0/offsets", ".control/flush", ".config")
    inodes = [(mount / f"open/{name}").stat().st_ino for name in views]
    readers = [(mount / f"open/{name}").open("rb", buffering=0) for name in views]
    begun = [reader.read(64) for reader in readers]
    # The kernel knows these inodes when the topic returns, too.
    held = [(mount / f"open/{name}").open("rb") for name in texts]
    held.append((mount / ".groups/g/open/0").open("rb"))
    directories = [
        os.open(mount / f"open/{name}", os.O_RDONLY | os.O_DIRECTORY)
        for name in ("", ".kv", ".raw/0", ".meta/0", ".control")
    ]
    appender = (mount / "open/0").open("ab", buffering=0)
    (mount / "open").rmdir()
    fails(errno.ESHUTDOWN, lambda: appender.write(b"refused\n"))
    for reader, before in zip(readers, begun, strict=True):
        assert os.pread(reader.fileno(), 64, 0) == before
    command(mount, "undelete open")
    for reader in readers:
        fails(errno.ESTALE, os.pread, reader.fileno(), 64, 0)
    fails(errno.ESTALE, os.pread, readers[0].fileno(), 64, 1 << 20)
    fails(errno.ESHUTDOWN, lambda: appender.write(b"refused\n"))
    assert [(mount / f"open/{name}").stat().st_ino for name in views] == inodes
    mount.run("echo more >> open/0")
    for name, before in zip(views, begun, strict=True):
        with (mount / f"open/{name}").open("rb", buffering=0) as file:
            assert file.read(64) == before
            assert b"more" in file.readall()
    assert "log_end 101\n" in (mount / "open/.meta/0/offsets").read_text()
    assert "high_watermark 101\n" in (mount / ".groups/g/open/0").read_text()
    assert os.listdir(mount / "open") == ["0", "1", "2"]
    assert os.listdir(mount / "open/.kv") == ["0", "1", "2"]
    mount.run("echo run >> open/.control/flush; echo retention.ms=8d >> open/.config")
    # A descriptor of a removed directory stays there, as everywhere.
    assert os.listdir(directories[0]) == []
    for fd in directories:
        os.close(fd)
    for each in (*readers, *held, appender):
        each.close()


def test_not_over_a_new_one(mount: Mount) -> None:
    filled(mount, "again")
    (mount / "again").rmdir()
    mount.run("mkdir again; echo new >> again/0")
    fails(errno.EEXIST, lambda: command(mount, "undelete again"))
    assert "a topic of this name exists: delete it first" in mount.events()
    assert mount.run("cat again/*") == b"new\n"
    (mount / "again").rmdir()
    fails(errno.EEXIST, lambda: command(mount, "undelete again"))
    line = next(
        line
        for line in (mount / ".kafkafs/topics").read_text().splitlines()
        if line.startswith("# again was deleted, 3 partitions")
    )
    topic_id = line.split(" undelete again ")[1].split()[0]
    command(mount, f"undelete again {topic_id}")
    assert mount.run("cat again/2 | wc -l").strip() == b"100"


def test_create_makes_a_topic_whole(mount: Mount) -> None:
    command(
        mount,
        "create whole partitions=3 owner=4294967294:6:0750 retention.ms=7d cleanup.policy=compact",
    )
    assert os.listdir(mount / "whole") == ["0", "1", "2"]
    status = (mount / "whole").stat()
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (4294967294, 6, 0o750)
    assert (
        mount.run("grep -v '^#' whole/.config")
        == b"cleanup.policy=compact\nretention.ms=604800000\n"
    )
    command(mount, "create plain")
    assert os.listdir(mount / "plain") == ["0"]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("create whole/0", errno.EINVAL),
        ("create", errno.EINVAL),
        ("undelete", errno.EINVAL),
        ("undelete a b c", errno.EINVAL),
        ("remove x", errno.EINVAL),
        ("create bad partitions=0", errno.EINVAL),
        ("create bad partitions=x", errno.EINVAL),
        ("create bad owner=1:2", errno.EINVAL),
        ("create bad owner=4294967295:2:755", errno.EINVAL),
        ("create bad retention.ms=soon", errno.EINVAL),
        ("create bad retention.ms=1 retention.ms=2", errno.EINVAL),
        ("create bad no.such=1", errno.EINVAL),
        ("create bad min.compaction.lag.ms=9 max.compaction.lag.ms=1", errno.EINVAL),
        ("create __consumer_offsets", errno.EPERM),
        ("create one\ncreate two", errno.EINVAL),
    ],
)
def test_what_is_refused_changes_nothing(mount: Mount, line: str, number: int) -> None:
    before = sorted(os.listdir(mount.path)), sorted(os.listdir(mount.data))
    fails(number, lambda: command(mount, line))
    assert (sorted(os.listdir(mount.path)), sorted(os.listdir(mount.data))) == before
    assert ".kafkafs/topics: " in mount.events()


def test_a_topic_that_is_there_is_not_created(mount: Mount) -> None:
    mount.topic("there")
    fails(errno.EEXIST, lambda: command(mount, "create there partitions=3"))
    assert os.listdir(mount / "there") == ["0"]


@needs_root
def test_only_the_user_of_the_daemon(tmp_path: Path) -> None:
    let_others_in(tmp_path)
    with mounted(tmp_path, "allow_other") as mount:
        as_nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        done = subprocess.run(
            [*as_nobody, "sh", "-c", "echo create theirs >> .kafkafs/topics"],
            cwd=mount.path,
            capture_output=True,
            check=False,
        )
        assert b"Permission denied" in done.stderr
        assert os.listdir(mount.path) == []


def test_a_flush_beside_rmdir_is_no_failure(steered_mount: SteeredMount) -> None:
    """… and nothing is lost when the deletion is taken back."""
    orders = steered_mount.topic()
    other = steered_mount.topic("beside").open("rb", buffering=0)
    name = "leader-epoch-checkpoint.tmp"
    with steered_mount.held("pwrite", f"orders-0/{name}") as flushing:
        with orders.open("ab") as file:
            file.write(b"kept\n")
        flushing.wait()
        with steered_mount.held("fsync", "/data") as renamed:
            rmdir = subprocess.Popen(["rmdir", orders.parent])
            renamed.wait()
            with steered_mount.held("unlink", name) as failing:
                flushing.release()
                failing.wait()
            for _ in range(10):
                assert other.read() == b""
        assert rmdir.wait() == 0
    other.close()
    command(steered_mount, "undelete orders")
    assert "fails" not in steered_mount.events()
    with orders.open("ab") as file:
        file.write(b"more\n")
        file.flush()
        os.fsync(file.fileno())
    assert orders.read_bytes() == b"kept\nmore\n"
