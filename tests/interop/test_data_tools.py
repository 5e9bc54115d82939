"""verify, convert and reindex on directories that brokers wrote, one of them while it is busy."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

from storage import LogManager, Record
from storage.convert import convert
from storage.reindex import reindex
from storage.verify import verify
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, create_topic
from tests.interop.conftest import Old
from tests.interop.kafka_tools import complaints, dump_log_segments
from tests.interop.workload import mixed, values


def held(data: Path, topics: dict[str, list[Record]]) -> dict[str, list[Record]]:
    with LogManager.open(str(data), read_only=True) as manager:
        return {topic: list(manager.log(topic, 0).records()) for topic in topics}


def test_old_formats_are_whole_and_become_v2(old: Old, tmp_path: Path) -> None:
    data, consumed = tmp_path / "data", old.consumed
    shutil.copytree(old.left, data)
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
