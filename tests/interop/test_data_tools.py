"""verify, convert and reindex on directories that brokers wrote, one of them while it is busy."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager, Record
from storage.convert import convert
from storage.reindex import reindex
from storage.verify import verify
from tests.interop import old_workload
from tests.interop.brokers import Broker, OldBroker
from tests.interop.clients import Sender, create_topic
from tests.interop.kafka_tools import V0_POM, V1_POM, complaints, dump_log_segments
from tests.interop.workload import mixed, values


@pytest.fixture(scope="module", params=[V0_POM, V1_POM], ids=["v0", "v1"])
def old(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, dict[str, list[Record]]]]:
    """What an old broker left, and what its consumers had read of it."""
    broker = OldBroker(tmp_path_factory.mktemp("old"), request.param)
    try:
        broker.start()
        old_workload.codecs(broker)
        old_workload.with_settings(broker)
        topics = [*old_workload.CODECS, "compacted"]
        if broker.magic == 1:
            topics += ["append-time", "mixed"]
        consumed = {topic: old_workload.read(broker, topic) for topic in topics}
        broker.stop()
        yield broker.data, consumed
    finally:
        broker.kill()


def held(data: Path, topics: dict[str, list[Record]]) -> dict[str, list[Record]]:
    with LogManager.open(str(data), read_only=True) as manager:
        return {topic: list(manager.log(topic, 0).records()) for topic in topics}


def test_old_formats_are_whole_and_become_v2(
    old: tuple[Path, dict[str, list[Record]]],
) -> None:
    data, consumed = old
    assert verify(str(data)).faults == []
    assert held(data, consumed) == consumed
    outcome = convert(str(data))
    assert (outcome.faults, outcome.cuts) == ([], [])
    assert len(outcome.converted) >= len(consumed)
    assert verify(str(data)).faults == []
    assert held(data, consumed) == consumed
    paths = [
        path
        for topic in consumed
        for path in sorted((data / f"{topic}-0").iterdir())
        if path.suffix in (".log", ".index", ".timeindex")
    ]
    printed, errors = dump_log_segments(paths, "--deep-iteration")
    assert "isvalid: false" not in printed
    assert " magic: 2 " in printed
    assert not re.search(" magic: [01] ", printed)
    gaps = [
        line
        for line in complaints(errors)
        if not re.fullmatch(r"  \d+ is followed by \d+", line)
        and not ("compacted-0" in line and line.startswith("Non-consecutive offsets"))
    ]
    assert gaps == []
    assert reindex([str(data)]).damaged == []
    assert held(data, consumed) == consumed


def test_a_busy_broker_has_no_faults(tmp_path: Path) -> None:
    broker = Broker(tmp_path, log_segment_delete_delay_ms=100)
    ends = threading.Event()

    def load() -> None:
        plain, packed = Sender(broker), Sender(broker, compression_type="lz4")
        producer = Sender(broker, transactional_id="busy")
        turn = 0
        while not ends.is_set():
            turn += 1
            plain.send("retained", mixed(500, seed=turn))
            keyed = [r._replace(key=b"%d" % (r.timestamp % 37)) for r in values(turn * 300, 300)]
            packed.send("compacted", keyed)
            with producer.transaction(commit=turn % 2 == 0):
                producer.send("transactions", values(turn, 20))

    try:
        broker.start()
        for topic, settings in (
            ("retained", {"retention_bytes": 2 << 20}),
            ("compacted", {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}),
        ):
            create_topic(broker, topic, 1, segment_bytes=1 << 20, **settings)
        create_topic(broker, "transactions")
        loading = threading.Thread(target=load)
        loading.start()
        try:
            while not any(broker.partition("retained").glob("*.deleted")):
                assert verify(str(broker.data)).faults == []
            for _ in range(3):
                assert verify(str(broker.data)).faults == []
        finally:
            ends.set()
            loading.join()
        broker.stop()
        found = verify(str(broker.data))
        assert (found.faults, found.records > 10_000) == ([], True)
        before = found.records
        outcome = reindex([str(broker.data)])
        assert outcome.damaged == []
        found = verify(str(broker.data))
        assert (found.faults, found.records) == ([], before)
        broker.start()
        Sender(broker).send("transactions", mixed(10))
        broker.kill()
        assert verify(str(broker.data)).faults == []
    finally:
        broker.kill()
