"""A read-only mount of a running broker's directory shows what its consumers get, and when.

A file that stays open shows each record once, even if the broker deletes, compacts or truncates
meanwhile. A newly opened file shows the records that a consumer reads from the beginning.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from kafkafs.cli.common.matching import scan
from kafkafs.cli.common.mount_files import opened_tree
from kafkafs.tree.filesystem import FileSystem
from storage import Record
from storage.condition.condition import Condition, Contains
from storage.record.batch import decode_plain
from tests.interop.brokers import Broker
from tests.interop.clients import (
    Sender,
    consume,
    create_topic,
    delete_records,
    offsets,
)
from tests.mount.mounting import Mount, kafkafs
from tests.mount.programs import Running
from tests.view_text import TEXTS, Text
from tests.view_text import values as text
from tests.waits import until

T = 1_700_000_000_000
FAST = ["--sleep-interval=0.02"]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that is quick to delete, to clean and to write down where logs start."""
    broker = Broker(
        tmp_path_factory.mktemp("live"),
        log_flush_start_offset_checkpoint_interval_ms=500,
        log_flush_offset_checkpoint_interval_ms=500,
        log_segment_delete_delay_ms=1000,
        replica_high_watermark_checkpoint_interval_ms=500,
    )
    try:
        yield broker.start()
    finally:
        broker.kill()


@pytest.fixture
def mount(live: Broker, tmp_path: Path) -> Iterator[Mount]:
    """The broker's directory, mounted beside it."""
    (tmp_path / "data").symlink_to(live.data)
    mount = Mount(tmp_path, ["ro"])
    try:
        yield mount.start()
    finally:
        mount.end()


def created(mount: Mount, broker: Broker, topic: str, **config: object) -> Path:
    """A new topic's partition 0, once the broker has made it."""
    create_topic(broker, topic, **config)  # type: ignore[arg-type]
    path = mount / topic / "0"
    until(path.exists)
    return path


def lines(first: int, count: int, keys: int = 0) -> list[Record]:
    """Numbered records, at the offsets that they get where nothing else is written."""
    return [
        Record(
            n,
            T + n,
            0,
            b"key %d" % (n % keys) if keys else None,
            b"." * 50 + b" line %d" % n,
            (("number", b"%d" % n),) if n % 3 == 0 else (),
        )
        for n in range(first, first + count)
    ]


class Followed:
    """`tail -f` of a partition in every view. A context manager, which ends them."""

    def __init__(self, partition: Path) -> None:
        self.files = files(partition)
        self._written: list[Record] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Followed:
        self._tails = {
            path: self._stack.enter_context(Running(["tail", "-f", "--lines=+1", *FAST, path]))
            for path in self.files
        }
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, more: list[Record]) -> None:
        """After what they have shown so far, all of them show these too, and nothing else."""
        self._written += more
        for path, text_of in self.files.items():
            written = text_of(self._written)
            assert self._tails[path].read_until(written[-100:]) == written, path

    def errors(self) -> str:
        return "".join(tail.errors() for tail in self._tails.values())


def files(partition: Path) -> dict[Path, Text]:
    """The partition's file in each view, and what text that is of records."""
    name = partition.name
    return {partition.parent / directory / name: text_of for directory, text_of in TEXTS.items()}


def are(partition: Path, records: list[Record]) -> bool:
    """Whether all views of the partition show just these."""
    return all(path.read_bytes() == text_of(records) for path, text_of in files(partition).items())


def log_start(partition: Path) -> int:
    return int(os.getxattr(partition, "user.kafkafs.log_start"))


def segments(partition: Path) -> int:
    return int(os.getxattr(partition, "user.kafkafs.segments"))


def test_appends_are_seen_at_once(live: Broker, mount: Mount) -> None:
    path = created(mount, live, "appended")
    assert path.read_bytes() == b""
    sender = Sender(live)
    written: list[Record] = []
    with Followed(path) as tails:
        for number in range(50):
            sent = lines(number * 10, 10, keys=7 * (number % 2))
            sender.send("appended", sent)
            written += sent
            for file, text_of in tails.files.items():
                assert file.stat().st_size == len(text_of(written))
                assert file.read_bytes() == text_of(written)
            tails.show(sent)
    assert consume(live, "appended") == written


def test_retention(live: Broker, mount: Mount) -> None:
    path = created(
        mount,
        live,
        "retained",
        internal_segment_bytes=4000,
        retention_bytes=6000,
        file_delete_delay_ms=1000,
        cleanup_policy="delete",
    )
    sender, starts, inodes = Sender(live), [0], set()
    with Followed(path) as tails:
        for number in range(40):
            sent = lines(number * 20, 20)
            sender.send("retained", sent)
            tails.show(sent)
            if number % 10 == 9:
                until(lambda: log_start(path) > starts[-1])
                starts.append(log_start(path))
                inodes |= {file.stat().st_ino for file in tails.files}
        assert tails.errors() == ""
    assert len(inodes) == 4 * len(TEXTS)
    # Until it has deleted as much as it will.
    until(lambda: are(path, consume(live, "retained")))
    assert log_start(path) == offsets(live, "retained")[0]


def test_compaction(live: Broker, mount: Mount) -> None:
    path = created(
        mount,
        live,
        "compacted",
        internal_segment_bytes=4000,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
        file_delete_delay_ms=1000,
        delete_retention_ms=0,
    )
    sender = Sender(live)
    with Followed(path) as tails:
        for number in range(20):
            sent = lines(number * 20, 20, keys=7)
            sender.send("compacted", sent)
            tails.show(sent)
            if number % 5 == 4:
                # Seven lines and an active segment are left.
                written = len(text(lines(0, number * 20 + 20)))
                until(lambda: path.stat().st_size < min(written - 1000, 7000))  # noqa: B023
        assert tails.errors() == ""
    # Until it has cleaned as much as it will.
    until(lambda: are(path, consume(live, "compacted")))
    assert path.read_bytes().endswith(text(lines(393, 7, keys=7)))


def test_delete_records(live: Broker, mount: Mount) -> None:
    path = created(mount, live, "deleted-records")
    Sender(live).send("deleted-records", lines(0, 100))
    assert are(path, lines(0, 100))
    delete_records(live, "deleted-records", 37)
    until(lambda: log_start(path) == 37)
    assert are(path, lines(37, 63))
    assert consume(live, "deleted-records") == lines(37, 63)


def test_transactions(live: Broker, mount: Mount) -> None:
    path = created(mount, live, "transactions", internal_segment_bytes=4000)
    first, second = Sender(live, transactional_id="a"), Sender(live, transactional_id="b")
    plain = Sender(live)
    shown: list[Record] = []
    with Followed(path) as tails:
        for number in range(10):
            at = number * 100
            with first.transaction(commit=number % 3 != 0):
                first.send("transactions", lines(at, 10))
                plain.send("transactions", lines(at + 20, 10))
                for file, text_of in tails.files.items():
                    assert file.stat().st_size == len(text_of(shown)), "it is held back"
                with second.transaction(commit=number % 2 == 0):
                    second.send("transactions", lines(at + 40, 10))
                first.send("transactions", lines(at + 60, 10))
            expected = consume(live, "transactions", committed=True)
            until(lambda: are(path, expected))  # noqa: B023
            tails.show(expected[len(shown) :])
            shown = expected
    assert segments(path) > 1


def test_until_the_high_watermark(live: Broker, mount: Mount) -> None:
    mount.restart("until=high-watermark")
    create_topic(live, "watermark")
    Sender(live).send("watermark", lines(0, 10))
    path = mount / "watermark" / "0"
    until(lambda: path.exists() and path.read_bytes() == text(lines(0, 10)))


def whole_word(number: int) -> Condition:
    """Return the condition of `kafkafs grep -w NUMBER`."""
    return Condition(Contains("value", (b"%d" % number,), whole=True), "")


def search(tree: FileSystem, topic: str, number: int) -> Iterator[list[bytes | None]]:
    """The values of the records with this number, batch by batch of the log."""
    for _, batch in scan(tree, topic, 0, "values", "start..end", whole_word(number)).batches:
        yield [record.value for record in decode_plain(batch)] if batch is not None else []


@pytest.mark.soak
def test_searches_while_the_broker_cleans(
    live: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record that stays is found once, with the words of segments that it replaces, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    create_topic(
        live,
        "searched",
        internal_segment_bytes=4000,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.01,
        file_delete_delay_ms=100,
        delete_retention_ms=0,
    )
    directory = live.data / "searched-0"
    until(directory.exists)

    def files() -> set[int]:
        return {each.inode() for each in os.scandir(directory) if each.name.endswith(".log")}

    sender, built = Sender(live), 0
    for first in range(0, 500, 50):
        # Each second one has the same key.
        keyed = [
            each._replace(key=b"%d" % (n % 2 and n))
            for n, each in enumerate(lines(first, 50), first)
        ]
        sender.send("searched", keyed)
        values = {n: [each.value] for n, each in enumerate(lines(0, first + 50)) if n % 2}
        done = CliRunner().invoke(main, ["words", str(live.data), "searched", "--json"])
        assert done.exit_code == 0, done.output
        built += json.loads(done.stdout)["result"]["partitions"][0]["files"]
        with opened_tree(str(live.data)) as tree:
            begun = {n: search(tree, "searched", n) for n in list(values)[::5]}
            found = {n: next(some) for n, some in begun.items()}
            old = files()
            sender.send("searched", [Record(0, T, 0, b"0", b"no number")] * 50)
            if len(old) > 5:
                until(lambda: not old <= files())  # noqa: B023
            for n, some in begun.items():
                assert [*found[n], *chain.from_iterable(some)] == values[n]
        with opened_tree(str(live.data)) as tree:
            for n, expected in values.items():
                assert [*chain.from_iterable(search(tree, "searched", n))] == expected
            whole = scan(tree, "searched", 0, "values", "start..end", whole_word(1))
            assert sum(batch is not None for _, batch in whole.batches) == 1
            needed = whole.bytes_for(whole_word(1))
            size = tree.mount.manager.log("searched", 0).size
    assert built > 10
    assert needed < size / 2


@pytest.mark.soak
def test_a_broker_that_is_killed_and_started_again(live: Broker, mount: Mount) -> None:
    path = created(mount, live, "killed", internal_segment_bytes=4000)
    written = b""
    with Running(["tail", "-f", "--lines=+1", *FAST, path]) as tail:
        for number, end in enumerate((live.kill, live.stop)):
            for part in range(5):
                sent = lines(number * 100 + part * 20, 20)
                Sender(live).send("killed", sent)
                written += text(sent)
            assert tail.read_until(written[-70:]) == written
            end()
            assert path.read_bytes() == written
            live.start()
        assert tail.errors() == ""
    assert path.read_bytes() == written == text(consume(live, "killed"))


def test_nothing_is_written_into_the_brokers_directory(live: Broker, mount: Mount) -> None:
    names = {path.name for path in live.data.rglob("*")}
    assert not {name for name in names if name.startswith("kafkafs") or name.endswith(".lines")}


def test_its_directory_is_for_reading(live: Broker, tmp_path: Path) -> None:
    """A command that writes says who runs it; one that reads does not speak of deletion."""
    create_topic(live, "for-reading")
    mount_point = tmp_path / "mnt"
    mount_point.mkdir()
    done = kafkafs("mount", live.data, mount_point)
    assert done.returncode != 0
    read = f"kafkafs mount -o ro {live.data} {mount_point}"
    assert done.stderr.endswith(
        f": used by a running broker. Stop the broker, or mount read-only: {read}\n"
    ), done.stderr
    done = kafkafs(*read.split()[1:])
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert "#" not in (mount_point / ".kafkafs" / "topics").read_text()
    finally:
        kafkafs("umount", mount_point)
    assert "for-reading" in kafkafs("ls", live.data).stdout
    assert "nothing is deleted" not in kafkafs("doctor", live.data).stdout
    assert kafkafs("prune", "--dry-run", live.data, "for-reading").stderr == ""
    assert "config" not in kafkafs("compact", "--dry-run", live.data, "for-reading").stderr
