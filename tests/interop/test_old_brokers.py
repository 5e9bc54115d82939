"""Directories that brokers of formats v0 and v1 wrote are read and written on as they are."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from storage.record.batch import parse_header
from tests.interop import old_workload
from tests.interop.brokers import OldBroker
from tests.interop.kafka_tools import V0_POM, V1_POM, dump_log_segments
from tests.interop.old_workload import CODECS
from tests.mount.mounting import Mount
from tests.storage.logs import NOW_MS, NOW_NS

BOTH = (*CODECS, "compacted")
V1_ONLY = ("append-time", "mixed")


class Old:
    """A running broker, and what its consumers get."""

    def __init__(self, broker: OldBroker, base: Path) -> None:
        self.broker = broker
        self._base = base
        self.topics = BOTH if broker.magic == 0 else (*BOTH, *V1_ONLY)
        old_workload.codecs(broker)
        old_workload.with_settings(broker)
        self.consumed = {topic: old_workload.read(broker, topic) for topic in self.topics}

    @contextlib.contextmanager
    def mounted(self, *options: str) -> Iterator[Mount]:
        """The broker's directory, mounted."""
        mount = Mount(self._base, options)
        try:
            yield mount.start()
        finally:
            mount.end()

    def records(self, manager: LogManager) -> dict[str, list[Record]]:
        return {topic: list(manager.log(topic, 0).records()) for topic in self.topics}


@pytest.fixture(scope="module", params=[V0_POM, V1_POM], ids=["v0", "v1"])
def old(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    base = tmp_path_factory.mktemp("old")
    broker = OldBroker(base / "broker", request.param)
    try:
        broker.start()
        (base / "data").symlink_to(broker.data)
        yield Old(broker, base)
    finally:
        broker.kill()


def shown(records: list[Record]) -> bytes:
    return b"".join((record.value or b"") + b"\n" for record in records)


def test_it_is_mounted_while_it_runs(old: Old) -> None:
    with old.mounted("ro") as mount:
        for topic, records in old.consumed.items():
            assert (mount / topic / "0").read_bytes() == shown(records), topic
        # And follows it.
        for codec in CODECS:
            old_workload.sender(old.broker, codec).send(codec, old_workload.plain(10))
            old.consumed[codec] = old_workload.read(old.broker, codec)
            assert (mount / codec / "0").read_bytes() == shown(old.consumed[codec])


def test_records_while_it_runs(old: Old) -> None:
    with LogManager.open(str(old.broker.data), read_only=True) as manager:
        assert old.records(manager) == old.consumed
        for topic in old.topics:
            log = manager.log(topic, 0)
            for record in old.consumed[topic][::17]:
                assert next(log.records(record.offset)) == record


def test_it_has_written_what_it_is_here_for(old: Old) -> None:
    """Sets of every codec, in the right format; holes in those that were cleaned."""
    for codec in (*CODECS, "compacted"):
        first = min(old.broker.partition(codec).glob("*.log")).read_bytes()
        header = parse_header(first)
        assert header.magic == old.broker.magic
        assert header.attributes & 7 == CODECS.index("none" if codec == "compacted" else codec)
    compacted = old.consumed["compacted"]
    assert compacted[0].offset > 0
    assert compacted[-1].offset > 2 * len(compacted)
    printed, errors = dump_log_segments(
        sorted(old.broker.partition("compacted").glob("*.log")), "--deep-iteration"
    )
    assert printed.count("| offset: ") == len(compacted), errors
    if old.broker.magic == 1:
        assert {record.timestamp_type for record in old.consumed["append-time"]} == {1}
        mixed = old.consumed["mixed"]
        assert {record.timestamp < 0 for record in mixed} == {False, True}


def test_after_a_kill_nothing_is_missing(old: Old, tmp_path: Path) -> None:
    """Opened to be written to, as the broker's death would leave the directory."""
    shutil.copytree(old.broker.data, tmp_path / "data")
    with LogManager.open(str(tmp_path / "data")) as manager:
        assert (manager.cuts, manager.faults) == ([], [])
        assert old.records(manager) == old.consumed
        assert manager.check() == []


def test_after_it_has_stopped_it_is_written_on(old: Old) -> None:
    """The last test: the broker is stopped.  What we append is v2."""
    old.broker.stop()
    with LogManager.open(str(old.broker.data)) as manager:
        assert (manager.clean, manager.cuts, manager.faults) == (True, [], [])
        assert old.records(manager) == old.consumed
        for topic in old.topics:
            log = manager.log(topic, 0)
            before = old.consumed[topic]
            key = b"key" if topic == "compacted" else None
            ours = [Record(n, NOW_MS, 0, key, b"ours") for n in range(3)]
            first = log.append(bytearray(encode(ours)), now_ns=NOW_NS)
            assert first > before[-1].offset
            numbered = [record._replace(offset=first + record.offset) for record in ours]
            old.consumed[topic] = [*before, *numbered]
    with LogManager.open(str(old.broker.data), read_only=True) as manager:
        assert old.records(manager) == old.consumed
    with old.mounted() as mount:
        mount.run("for topic in none gzip snappy lz4; do echo mounted >> $topic/0; done")
        for topic in CODECS:
            assert (mount / topic / "0").read_bytes() == shown(old.consumed[topic]) + b"mounted\n"
