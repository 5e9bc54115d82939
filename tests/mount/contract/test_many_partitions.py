"""A topic of a thousand partitions: `cat orders/*` works, and readdir is in order of number."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from storage import LogManager
from tests.mount.contract.test_about import metrics, of_partition, rows
from tests.mount.mounting import Mount, mounted
from tests.storage.logs import Unsynced, append

pytestmark = pytest.mark.soak

COUNT = 1000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """`orders`, whose partition N has the one line N."""
    base = tmp_path_factory.mktemp("many")
    (base / "data").mkdir()
    with LogManager.open(str(base / "data"), files=Unsynced()) as manager:
        for number, log in manager.create_topic("orders", COUNT).partitions.items():
            append(log, b"%d" % number)
            log.active.close_descriptors()
    with mounted(base) as mount:
        yield mount


def test_readdir_is_in_order_of_number(many: Mount) -> None:
    """readdir in order of number, in pages"""
    names = [str(number) for number in range(COUNT)]
    assert os.listdir(many / "orders") == names
    assert many.run("ls -f orders").decode().split() == names
    for view in (".kv", ".jsonl", ".batches", ".raw", ".meta"):
        listed = os.listdir(many / "orders" / view)
        assert [name for name in listed if name.isdigit()] == names


def test_what_was_listed_is_exact(many: Mount) -> None:
    """Sizes, inode numbers and kinds of a listing are those of stat, also in another view."""
    size = sum(len(str(number)) + 1 for number in range(COUNT))
    awk = "awk 'NR > 1 { n += $5 } END { print NR - 1, n }'"
    assert many.run(f"ls -l orders | {awk}").split() == [b"%d" % COUNT, b"%d" % size]
    # Without a key the value stands alone.
    awk = "awk 'NR > 1 && /[0-9]$/ { n += $5; m += 1 } END { print m, n }'"
    assert many.run(f"ls -l orders/.kv | {awk}").split() == [b"%d" % COUNT, b"%d" % size]
    with os.scandir(many / "orders") as entries:
        inodes = {entry.name: entry.inode() for entry in entries if entry.is_file()}
    assert len(set(inodes.values())) == COUNT
    for number in range(0, COUNT, 97):
        found = (many / "orders" / str(number)).stat()
        assert found.st_ino == inodes[str(number)]
        assert found.st_size == len(str(number)) + 1


def test_everyday_tools(many: Mount) -> None:
    """`cat orders/*` is the way, and it works with a thousand partitions."""
    assert many.run("ls orders | wc -l") == b"%d\n" % COUNT
    assert many.run("cat orders/* | wc -l") == b"%d\n" % COUNT
    expected = "".join(f"{number}\n" for number in range(COUNT)).encode()
    assert many.run("cat orders/* | sort -n") == expected
    assert many.run("ls -1v orders | sed 's,^,orders/,' | xargs cat") == expected
    assert many.run("find orders -name '9??' | wc -l") == b"100\n"
    assert many.run("find orders -type f -size +0 | wc -l") == b"%d\n" % COUNT
    assert many.run("grep -lx 718 orders/*") == b"orders/718\n"
    assert many.run("grep -rlx 314 orders") == b"orders/314\n"
    assert many.run("wc -l orders/* | tail -n1").split() == [b"%d" % COUNT, b"total"]
    names = [b"orders/99%d" % number for number in range(10)]
    assert many.run("echo orders/99?").split() == names


def test_topics_and_metrics(many: Mount) -> None:
    """They count every partition."""
    assert rows(many)["orders"]["partitions"] == str(COUNT)
    assert int(rows(many)["orders"]["offsets"]) == COUNT
    ends = metrics(many)["kafkafs_partition_log_end_offset"]
    assert len(ends) == COUNT
    assert ends[of_partition("orders", COUNT - 1)] == 1


def test_a_listing_while_partitions_are_created(many: Mount) -> None:
    """A listing has all that was there when it began, each once, whatever comes meanwhile."""
    topic = many.path / "late"
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
    settings = (many.data / "late-0" / "kafkafs-topic.properties").read_text().splitlines()
    assert [line.partition("=")[0] for line in settings[1:]] == ["owner"], "made as its topic says"
