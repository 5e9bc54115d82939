"""verify, convert and reindex on directories that brokers wrote, one of them while it is busy."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from storage.verify.reindex import reindex
from storage.verify.verify import verify
from tests.interop.brokers import Broker
from tests.interop.clients import Sender, create_topic
from tests.interop.workload import mixed, values

SEGMENT_BYTES = 50_000


@pytest.mark.soak
def test_a_busy_broker_has_no_faults(tmp_path: Path) -> None:
    broker = Broker(tmp_path, log_segment_delete_delay_ms=100)
    ends = threading.Event()

    def load() -> None:
        plain, packed = Sender(broker), Sender(broker, compression_type="lz4")
        producer = Sender(broker, transactional_id="busy")
        turn = 0
        while not ends.is_set():
            turn += 1
            plain.send("retained", mixed(50, seed=turn))
            keyed = [r._replace(key=b"%d" % (r.timestamp % 37)) for r in values(turn * 30, 30)]
            packed.send("compacted", keyed)
            with producer.transaction(commit=turn % 2 == 0):
                producer.send("transactions", values(turn, 5))

    try:
        broker.start()
        for topic, settings in (
            ("retained", {"retention_bytes": 2 * SEGMENT_BYTES}),
            ("compacted", {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01}),
        ):
            create_topic(broker, topic, internal_segment_bytes=SEGMENT_BYTES, **settings)
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
        assert (found.faults, found.records > 500) == ([], True)
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
