"""Listings and lookups: "The tree" of the contract."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, fails, mounted


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount that lists its dot names, with a topic of two partitions."""
    with mounted(tmp_path_factory.mktemp("shown"), "show_dot") as mount:
        mount.topic("orders", 2)
        yield mount


# -- listed, and not -----------------------------------------------------------------------------


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


@pytest.mark.soak
def test_a_listing_while_partitions_are_created(mount: Mount) -> None:
    """A listing has all that was there when it began, each once, whatever comes meanwhile."""
    topic = mount.path / "late"
    topic.mkdir()
    made = 1
    for number in range(made, 200):
        (topic / str(number)).touch()
    made = 200
    with os.scandir(topic) as entries:
        first = next(entries).name
        (topic / str(made)).touch()
        rest = [entry.name for entry in entries]
    assert [first, *rest][:made] == [str(number) for number in range(made)]
    made += 1
    done = threading.Event()
    errors: list[BaseException] = []

    def create() -> None:
        try:
            for number in range(made, made + 100):
                (topic / str(number)).touch()
        except BaseException as error:
            errors.append(error)
        finally:
            done.set()

    creator = threading.Thread(target=create)
    creator.start()
    seen = made
    try:
        while not done.is_set():
            names = os.listdir(topic)
            assert names == [str(number) for number in range(len(names))]
            assert len(names) >= seen
            seen = len(names)
    finally:
        creator.join()
    assert not errors
    assert len(os.listdir(topic)) == made + 100
    settings = (mount.data / "late-0" / "kafkafs-topic.properties").read_text().splitlines()
    assert [line.partition("=")[0] for line in settings[1:]] == ["owner"], "made as its topic says"
