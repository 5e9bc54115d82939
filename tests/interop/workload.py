"""Topics that a broker is filled with: by every kind of producer, compacted, retained, restarted.

Each function makes one topic whose name says what is in it, on a running broker.
"""

from __future__ import annotations

import random
import time

from storage import Record
from tests.interop.brokers import Broker, OldBroker
from tests.interop.clients import (
    Sender,
    console_line,
    create_topic,
    delete_records,
    produce_lines,
    set_topic,
)
from tests.waits import until

# Timestamps begin here, an hour ago: a producer that has been silent for a day is forgotten.
T = time.time_ns() // 1_000_000 - 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# A transaction that nobody ends stays open for longer than any test.
OPEN_MS = 900_000


def mixed(count: int, first_ms: int = T, *, seed: int = 0) -> list[Record]:
    """Records with and without keys, values and headers; timestamps go forth and back."""
    return [
        Record(
            0,
            first_ms + number + (number * 7919 + seed) % 50,
            0,
            None if number % 3 == 0 else f"key {number % 17}".encode(),
            None if number % 11 == 5 else f"värde {seed}.{number} ".encode() * (number % 13),
            _headers(number),
        )
        for number in range(count)
    ]


def _headers(number: int) -> tuple[tuple[str, bytes | None], ...]:
    if number % 5 == 1:
        return (("trace", f"{number}".encode()), ("none", None))
    return (("empty", b""),) if number % 5 == 2 else ()


def values(first: int, count: int, first_ms: int = T, key: str | None = None) -> list[Record]:
    """Numbered records a millisecond apart, with one key or none."""
    return [
        Record(0, first_ms + n, 0, key.encode() if key else None, f"value {n}".encode())
        for n in range(first, first + count)
    ]


def codecs_by_librdkafka(broker: Broker) -> None:
    """`rd-CODEC`, as librdkafka compresses, and `broker-CODEC`, compressed again by the broker."""
    for codec in CODECS:
        create_topic(broker, f"rd-{codec}")
        sender = Sender(broker, compression_type=codec)
        for batch in range(4):
            sender.send(f"rd-{codec}", mixed(60, T + 1000 * batch, seed=batch))
    for codec in CODECS:
        topic = f"broker-{codec}"
        create_topic(broker, topic, compression_type="uncompressed" if codec == "none" else codec)
        Sender(broker, compression_type="gzip").send(topic, mixed(200)).send(topic, mixed(1))


def codecs_by_java(broker: Broker) -> None:
    """`java-CODEC`, as Kafka's own producer compresses; it is idempotent, as it is by default."""
    for codec in CODECS:
        create_topic(broker, f"java-{codec}")
    # The console producer takes a header's empty value for none.
    lines = "".join(
        console_line(record._replace(headers=record.headers if number % 5 == 1 else ()))
        for number, record in enumerate(mixed(300))
    )
    for codec in CODECS:
        produce_lines(broker, f"java-{codec}", codec, lines, "--batch-size", "2000")


def idempotent(broker: Broker, topic: str = "idempotent") -> None:
    """Two idempotent producers and a plain one take turns."""
    create_topic(broker, topic)
    first, second = (Sender(broker, enable_idempotence=True) for _ in range(2))
    plain = Sender(broker, enable_idempotence=False, compression_type="lz4")
    for turn in range(8):
        sender = (first, second, first, plain)[turn % 4]
        sender.send(topic, mixed(10 + turn, T + 100 * turn, seed=turn))


def transactions(broker: Broker, topic: str = "transactions") -> Sender:
    """Commits, aborts, transactions side by side, plain records; the last one is left open.

    Returns the producer of the open transaction, which lasts as long as the producer does.
    """
    create_topic(broker, topic)
    first = Sender(broker, transactional_id=f"{topic}-1", transaction_timeout_ms=OPEN_MS)
    second = Sender(
        broker,
        transactional_id=f"{topic}-2",
        compression_type="zstd",
        transaction_timeout_ms=OPEN_MS,
    )
    plain = Sender(broker, enable_idempotence=False)
    with first.transaction():
        first.send(topic, values(0, 5, key="a"))
        with second.transaction(commit=False):
            second.send(topic, values(10, 5, key="b"))
            first.send(topic, values(20, 3, key="c"))
    plain.send(topic, values(30, 4, key="d"))
    with second.transaction(commit=False):
        second.send(topic, values(40, 2, key="a"))
        plain.send(topic, values(50, 2, key="b"))
        second.send(topic, values(60, 2, key="e"))
    with first.transaction(commit=False), second.transaction():
        first.send(topic, values(70, 3, key="f"))
        second.send(topic, values(80, 3, key="g"))
    with first.transaction():
        first.send(topic, mixed(20, T + 100))
    first.producer.begin_transaction()
    first.send(topic, values(90, 5, key="open"))
    with second.transaction():
        second.send(topic, values(100, 5, key="behind the open one"))
    with second.transaction(commit=False):
        second.send(topic, values(110, 5, key="aborted behind the open one"))
    plain.send(topic, values(120, 5))
    settle(broker, f"{topic}-2")
    return first


def settle(broker: Broker, transactional_id: str) -> None:
    """Wait until the markers of what this producer ended are written, which is after it returns."""
    Sender(broker, transactional_id=transactional_id)


def append_time(broker: Broker, topic: str = "append-time") -> None:
    """The broker's clock is what the records carry."""
    create_topic(broker, topic, message_timestamp_type="LogAppendTime")
    for codec in CODECS:
        Sender(broker, compression_type=codec).send(topic, mixed(30))


def compacted(broker: Broker, topic: str = "compacted") -> None:
    """Keys again and again, tombstones, transactions; cleaned, and written to after that."""
    create_topic(
        broker,
        topic,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.001",
        internal_segment_bytes=8000,
        delete_retention_ms=0,
        compression_type="snappy",
    )
    plain = Sender(broker, enable_idempotence=True)
    transactional = Sender(broker, transactional_id=topic)
    for turn in range(12):
        keyed = [
            record._replace(key=record.key or f"turn {turn}".encode())
            for record in mixed(50, T + 2000 * turn, seed=turn)
        ]
        plain.send(topic, keyed)
        with transactional.transaction(commit=turn % 2 == 0):
            transactional.send(topic, values(turn, 4, T + 2000 * turn, key="in a transaction"))
    settle(broker, topic)
    # These large records roll the segment, so that all records before them are cleaned.
    mark = len(broker.server.lines)
    for number in range(2):
        incompressible = random.Random(number).randbytes(5000)
        plain.send(topic, [Record(0, T + 30_000, 0, b"rolls", incompressible)])
    wait_cleaned(broker, topic, mark)
    set_topic(broker, topic, min_cleanable_dirty_ratio="1.0")
    plain.send(topic, values(10, 3, T + 30_010, key="after"))


def wait_cleaned(broker: Broker | OldBroker, topic: str, mark: int) -> None:
    """Wait, from that line of the broker's log on, until all but the active segment is cleaned."""
    active = max(int(log.stem) for log in broker.partition(topic).glob("*.log"))
    begun = rf"offset map for log {topic}-0 for .* \[\d+, {active}\)"
    mark = broker.server.wait_for(begun, mark)
    broker.server.wait_for(rf"cleaned log {topic}-0 ", mark)


def retained(broker: Broker, topic: str = "retained") -> None:
    """Old segments deleted by retention, and the log start moved on into a batch."""
    create_topic(broker, topic, segment_ms=1000, file_delete_delay_ms=0)
    sender = Sender(broker, enable_idempotence=True, compression_type="lz4")
    for turn in range(6):
        sender.send(topic, mixed(40, T + 2000 * turn, seed=turn))
    mark = len(broker.server.lines)
    set_topic(broker, topic, retention_bytes=1)
    broker.server.wait_for(rf"{topic}-0.*Incremented log start offset to 200 due to segment", mark)
    set_topic(broker, topic, retention_bytes=-1)
    sender.send(topic, mixed(40, T + 20_000))
    delete_records(broker, topic, 215)
    starts = broker.data / "log-start-offset-checkpoint"
    until(lambda: f"{topic} 0 215\n" in starts.read_text())


def epochs(broker: Broker, topic: str = "epochs") -> None:
    """Written to before and after a kill of the broker."""
    create_topic(broker, topic)
    Sender(broker).send(topic, mixed(20))
    broker.kill()
    broker.start()
    Sender(broker, compression_type="zstd").send(topic, mixed(20, seed=1))
