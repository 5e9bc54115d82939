"""What is where under the mount point: "The tree" of the contract."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.mounting import Mount, fails, mounted
from tests.storage.logs import append


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount that lists its dot names, with a topic of two partitions."""
    with mounted(tmp_path_factory.mktemp("shown"), "show_dot") as mount:
        mount.topic("orders", 2)
        yield mount


# -- listed, and not -----------------------------------------------------------------------------


def test_each_record_is_seen_once(mount: Mount, orders: Path) -> None:
    """Only topics are listed in the root and only partitions in a topic, so that `cat orders/*`,
    `grep -r`, `du` and `cp -r` see each record once.
    """
    topic = orders.parent.name
    (orders.parent / "1").touch()
    mount.run('seq 5 >> "$T/0"; seq 6 9 >> "$T/1"', T=topic)
    assert topic in os.listdir(mount.path)
    assert not [name for name in os.listdir(mount.path) if name.startswith(".")]
    assert sorted(os.listdir(orders.parent)) == ["0", "1"]
    assert mount.run('cat "$T"/*', T=topic) == b"".join(b"%d\n" % n for n in range(1, 10))
    assert mount.run('grep -r 7 "$T"', T=topic) == f"{topic}/1:7\n".encode()
    assert mount.run('cp -r "$T" "$TMP/copy"; ls -A "$TMP/copy"', T=topic, TMP=orders_tmp(mount))
    assert (orders_tmp(mount) / "copy" / "0").read_bytes() == b"1\n2\n3\n4\n5\n"
    size = sum((orders.parent / name).stat().st_blocks for name in ("0", "1")) // 2
    assert (
        mount.run(
            'du -k --apparent-size -c "$T"/* | tail -n1 | cut -f1; du -ks "$T" | cut -f1', T=topic
        ).split()[1]
        == b"%d" % size
    )


def orders_tmp(mount: Mount) -> Path:
    """A directory outside of the mount."""
    return mount.path.parent


DIRECTORIES = {
    *(".kv", ".jsonl", ".batches", ".follow", ".ship", ".raw", ".meta", ".control", ".snapshot"),
}


def test_the_dot_named_rest_is_found_by_lookup(mount: Mount, orders: Path) -> None:
    """The dot-named rest is found by lookup, and readdir returns it only with `-o show_dot` …"""
    assert stat.S_ISDIR((mount / ".kafkafs").stat().st_mode)
    for name in DIRECTORIES:
        assert stat.S_ISDIR((orders.parent / name).stat().st_mode)
    for name in (".config", ".append", ".kv/append"):
        assert stat.S_ISREG((orders.parent / name).stat().st_mode)


def test_readdir_returns_the_dot_names_with_show_dot(shown: Mount) -> None:
    """… readdir returns it only with `-o show_dot` …"""
    assert set(os.listdir(shown.path)) == {".groups", ".kafkafs", "orders"}
    assert set(os.listdir(shown / "orders")) == {"0", "1", *DIRECTORIES, ".config", ".append"}


def test_inside_the_dot_names_everything_is_listed(mount: Mount, orders: Path) -> None:
    """… inside them everything is listed."""
    topic = orders.parent
    (topic / "1").touch()
    assert sorted(os.listdir(topic / ".raw")) == ["0", "1"]
    assert sorted(os.listdir(topic / ".meta")) == ["0", "1"]
    assert set(os.listdir(topic / ".meta" / "0")) == {
        *("offsets", "segments", "index", "timeindex", "txnindex", "producers"),
    }
    assert sorted(os.listdir(topic / ".batches")) == ["0", "1"]
    assert sorted(os.listdir(topic / ".kv")) == ["0", "1"]
    assert sorted(os.listdir(topic / ".follow")) == ["0", "1"]
    assert sorted(os.listdir(topic / ".ship")) == ["0", "1"]
    assert set(os.listdir(topic / ".control")) == {
        *("retention", "compaction", "roll", "flush", "delete-records", "verify"),
        "abort-transaction",
    }
    assert {"version", "log", "help"} <= set(os.listdir(mount / ".kafkafs"))
    assert "00000000000000000000.log" in os.listdir(topic / ".raw" / "0")


def test_what_is_listed_is_what_lookup_finds(shown: Mount) -> None:
    """Everything that readdir returns can be stat'ed, and is of the kind that readdir said."""
    seen = 0
    for directory, directories, files in os.walk(shown.path):
        for name in directories:
            assert stat.S_ISDIR(os.lstat(os.path.join(directory, name)).st_mode)
        for name in files:
            assert stat.S_ISREG(os.lstat(os.path.join(directory, name)).st_mode)
        seen += len(directories) + len(files)
    # .kafkafs and its three, orders, 2 partitions, .config, .control and its one, .batches with 2,
    # .raw and .meta with 2 each, inside 5 and 6
    assert seen >= 1 + 3 + 1 + 2 + 1 + 2 + 3 + 2 * 3 + 2 * 5 + 2 * 6


def test_readdir_gives_the_inode_numbers_of_stat(mount: Mount, orders: Path) -> None:
    """d_ino is st_ino: `find -inum`, `ls -i` and tar rely on it."""
    (orders.parent / "1").touch()
    with os.scandir(orders.parent) as entries:
        listed = {entry.name: entry.inode() for entry in entries}
    assert listed == {name: (orders.parent / name).stat().st_ino for name in ("0", "1")}
    assert len(set(listed.values())) == 2


@pytest.mark.parametrize("name", [".groups", ".kafkafs"])
def test_a_topic_whose_own_name_collides_is_not_shown(tmp_path: Path, name: str) -> None:
    """A Kafka topic whose own name collides (`.kafkafs`) is not shown, and the log says so."""
    (tmp_path / "data").mkdir()
    with LogManager.open(str(tmp_path / "data")) as manager:
        append(manager.create_topic("theirs", 1).partitions[0], b"hidden")
        manager.create_topic("orders", 1)
    (tmp_path / "data/theirs-0").rename(tmp_path / f"data/{name}-0")
    with mounted(tmp_path, "show_dot") as mount:
        assert sorted(os.listdir(mount.path)) == [".groups", ".kafkafs", "orders"]
        assert not (mount / name / "0").exists()
        assert f"topic {name!r} is not shown" in mount.events()
        fails(errno.EEXIST, os.mkdir, mount / name)


@pytest.mark.parametrize(
    "name",
    [
        "1",
        "00",
        "-1",
        "+0",
        "0 ",
        "0@",
        "x",
        "0.log",
        "999999999999999999999",
        "\u0660",
        ".nothing",
    ],
)
def test_what_does_not_parse_is_enoent(orders: Path, name: str) -> None:
    """A name that does not parse is ENOENT."""
    fails(errno.ENOENT, os.stat, orders.parent / name)
    if name != "1":
        fails(errno.ENOENT, os.stat, orders.parent / ".raw" / name)
        fails(errno.ENOENT, os.stat, orders.parent / ".meta" / name)
        fails(errno.ENOENT, os.stat, orders.parent / ".batches" / name)


def test_a_name_that_is_too_long(mount: Mount) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    fails(errno.ENAMETOOLONG, os.stat, mount / ("x" * 300))
    fails(errno.ENOENT, os.stat, mount / ("x" * 255))


def test_a_partition_is_no_directory(orders: Path) -> None:
    """Where the contract is silent, do what a user of a Unix file would expect."""
    fails(errno.ENOTDIR, os.listdir, orders)
    fails(errno.ENOTDIR, os.stat, orders / "x")
    fails(errno.EISDIR, os.open, orders.parent, os.O_WRONLY)


def test_a_partition_created_later_is_listed(orders: Path) -> None:
    """A directory that was listed before shows what has come since."""
    assert os.listdir(orders.parent) == ["0"]
    (orders.parent / "1").touch()
    assert sorted(os.listdir(orders.parent)) == ["0", "1"]
    assert sorted(os.listdir(orders.parent / ".raw")) == ["0", "1"]
    assert (orders.parent / ".meta" / "1" / "offsets").read_text().startswith("log_start 0\n")


def test_a_name_that_was_not_there_is_found_when_it_is(mount: Mount) -> None:
    """ENOENT is not remembered: a topic and a partition are there at once when created."""
    topic = mount / "late"
    fails(errno.ENOENT, os.stat, topic)
    topic.mkdir()
    assert topic.stat()
    fails(errno.ENOENT, os.stat, topic / "1")
    (topic / "1").touch()
    assert (topic / "1").stat().st_size == 0


def test_many_topics_are_all_listed(own: Mount) -> None:
    """A listing that takes many readdir requests holds every name once."""
    names = [f"{number:04d}-{'a-long-name' * 20}" for number in range(60)]
    for name in names:
        (own / name).mkdir()
    assert sorted(os.listdir(own.path)) == names
    assert own.run("ls | wc -l; ls -l | wc -l") == b"60\n61\n"


# -- the daemon's files --------------------------------------------------------------------------


def test_the_daemon_s_files(mount: Mount) -> None:
    """.kafkafs/: the daemon: version, … log (recent events), … help"""
    from importlib.metadata import version

    assert (mount / ".kafkafs" / "version").read_text() == version("kafkafs") + "\n"
    assert "mkdir" in (mount / ".kafkafs" / "help").read_text()
    fails(errno.ENOENT, os.stat, mount / "nothing")
    before = mount.events()
    fails(errno.EINVAL, os.mkdir, mount / "no topic")
    after = mount.events()
    assert after.startswith(before)
    assert "no topic" in after.removeprefix(before)


def test_the_daemon_s_files_cannot_be_written(mount: Mount) -> None:
    """They can only be read."""
    fails(errno.EACCES, os.open, mount / ".kafkafs" / "version", os.O_WRONLY)
    fails(errno.EACCES, os.open, mount / ".kafkafs" / "log", os.O_WRONLY | os.O_APPEND)
    fails(errno.EPERM, os.unlink, mount / ".kafkafs" / "log")
    fails(errno.EPERM, os.mkdir, mount / ".kafkafs" / "x")
    fails(errno.EPERM, os.rmdir, mount / ".kafkafs")
