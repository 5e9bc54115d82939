"""A writable mount of a directory that a broker has written."""

from __future__ import annotations

import errno
from pathlib import Path

from storage import LogManager
from tests import metadata_log as made
from tests.kafkafs.cli.conftest import kafkafs
from tests.metadata_log import MetadataLog
from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import SETTINGS, Mount, fails, mounted


def brokers(base: Path, *records: bytes) -> Path:
    """A directory with the topic ``orders``, of a broker that has set this on it."""
    data = base / "data"
    data.mkdir()
    (data / "kafkafs.properties").write_text(SETTINGS)
    with LogManager.open(str(data)) as manager:
        topic_id = manager.create_topic("orders", 1).id
    (data / "meta.properties").write_text("version=1\nnode.id=1\n")
    MetadataLog(data).append(made.topic("orders", topic_id), *records)
    return data


def test_nothing_is_made_before_it_is_detached(tmp_path: Path) -> None:
    data = brokers(tmp_path)
    command = f"kafkafs detach {data}"
    with mounted(tmp_path) as mount:
        fails(errno.EPERM, (mount / "new").mkdir)
        assert command in mount.events().splitlines()[-1]
        fails(errno.EPERM, (mount / "orders/1").touch)
        assert command in mount.events().splitlines()[-1]
        fails(errno.EEXIST, (mount / "orders").mkdir)
        (mount / "orders/0").touch()
        append(mount / "orders/0", b"line\n")
        assert mount.run("ls; ls orders").split() == [b"orders", b"0"]
        assert "in use" in kafkafs("detach", data).stderr
    assert not list(data.glob("*/kafkafs-topic.properties"))
    assert kafkafs("detach", data).returncode == 0
    with mounted(tmp_path) as mount:
        (mount / "new").mkdir()
        (mount / "orders/1").touch()
        assert (mount / "orders/0").read_bytes() == b"line\n"
    done = kafkafs("detach", data, "--undo")
    assert done.returncode == 3
    assert "new-0, orders-1" in done.stderr
    with mounted(tmp_path) as mount:
        mount.run("rmdir new")


def test_undone(tmp_path: Path) -> None:
    data = brokers(tmp_path)
    assert kafkafs("detach", data).returncode == 0
    done = kafkafs("detach", data, "--undo")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "__cluster_metadata-0.detached renamed to __cluster_metadata-0",
        "meta.properties.detached renamed to meta.properties",
    ]
    with mounted(tmp_path) as mount:
        fails(errno.EPERM, (mount / "new").mkdir)


def test_what_is_kept_is_said_and_what_ends_it_does(tmp_path: Path) -> None:
    data = brokers(tmp_path, made.config(made.TOPIC, "orders", "retention.ms", "1"))
    base = tmp_path
    command = f"kafkafs config {data} --broker-config FILE"
    mount = Mount(base)
    try:
        mount.start()
        orders = mount / "orders/0"
        for number in range(3):
            append(mount / "orders/.jsonl/0", b'{"value":"%d","timestamp":1}\n' % number)
            do(orders, "roll", "run")
        assert command in mount.events()
        assert command in (mount / ".kafkafs/topics").read_text().splitlines()[-1]
        lines = (mount / "orders/.config").read_text().splitlines()
        assert "retention.ms=1" in lines
        assert "# cleanup.policy=unknown (the broker's)" in lines
        do(orders, "retention", "run")
        assert command in (mount / "orders/.control/retention").read_text()
        assert orders.read_bytes() == b"0\n1\n2\n"
        with open(mount / "orders/.control/compaction", "wb", buffering=0) as file:
            fails(errno.EPERM, file.write, b"run\n")
        # Settings that the user writes take effect at once.
        mount.run("echo cleanup.policy=delete >> orders/.config")
        mount.run("echo retention.bytes=-1 >> orders/.config")
        assert "the next retention run will delete 3 segments" in mount.events().splitlines()[-1]
        assert "#" not in (mount / ".kafkafs/topics").read_text()
        do(orders, "retention", "run")
        assert orders.read_bytes() == b""
    finally:
        mount.end()


def test_the_brokers_file(tmp_path: Path) -> None:
    data = brokers(tmp_path)
    (tmp_path / "mnt").mkdir()
    done = kafkafs("mount", data, tmp_path / "mnt")
    assert done.returncode == 0
    assert "--broker-config FILE" in done.stderr
    assert kafkafs("umount", tmp_path / "mnt").returncode == 0
    server = tmp_path / "server.properties"
    for arguments, said in (
        ([server], "No such file"),
        ([tmp_path], "found a directory instead of a regular file"),
    ):
        done = kafkafs("config", data, "--broker-config", *arguments)
        assert done.returncode == 3
        assert said in done.stderr
    server.write_text("log.retention.hours=2\n")
    (tmp_path / "link").symlink_to(server)
    done = kafkafs("config", data, "--broker-config", tmp_path / "link")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (data / "kafkafs.properties").read_text() == (
        f"{SETTINGS}kafkafs.broker.config={server}\n"
    )
    shown = kafkafs("config", data, "orders").stdout
    assert f"# retention.ms=7200000 (log.retention.hours, {server})" in shown
    assert "# cleanup.policy=delete (default)" in shown
    done = kafkafs("mount", data, tmp_path / "mnt")
    assert (done.returncode, done.stderr) == (0, "")
    assert kafkafs("umount", tmp_path / "mnt").returncode == 0
