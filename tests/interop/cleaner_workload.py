"""Topics for Kafka's cleaner and for ours: several rounds of appends, with a cleaning after each.

Each function appends one round to one topic. The last records of a round are in the active segment,
which no cleaner touches. During the appends a topic has the policy `delete`. So the broker accepts
records without keys, and cleans nothing before the round has ended.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from storage import Record
from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, Sender, delete_records, offsets
from tests.interop.workload import CODECS, OPEN_MS, T, mixed, values
from tests.waits import until

ROUNDS = 3
ROUND_MS = 100_000  # from one round's timestamps to the next one's
DAY_MS = 86_400_000
SMALL = 8000
# Where the logs of these topics start after each round.
LOG_STARTS: Mapping[str, Sequence[int]] = {
    "log-start": (5, 10, 15),
    "log-start-aborted": (6, 7, 8),
}
# The least that a broker takes. Its map has room for 39321 keys, nine tenths of its slots.
DEDUPE_BYTES = (1 << 20) + 1
MANY_KEYS = 50_000
# A batch that does not fit into half of log.cleaner.io.buffer.size.
LARGE_BYTES = 400_000

Settings = dict[str, object]

# Of every topic, unless a scenario has its own.
TOPIC_SETTINGS: Settings = {
    "segment.ms": 1000,
    "segment.index.bytes": 1 << 16,
    "index.interval.bytes": 1000,
    "min.cleanable.dirty.ratio": 0.0001,
    "delete.retention.ms": DAY_MS,
}
NOT_CLEANED_AT: Settings = {"cleanup.policy": "delete"}
CLEANED_AT: Settings = {"cleanup.policy": "compact"}


class Writers:
    """Producers that live through all rounds, each with its own producer id."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._senders: dict[str, Sender] = {}

    def plain(self, codec: str = "none") -> Sender:
        return self._sender(f"plain-{codec}", compression_type=codec)

    def idempotent(self, name: str, codec: str = "none") -> Sender:
        return self._sender(name, enable_idempotence=True, compression_type=codec)

    def transactional(self, name: str, codec: str = "none") -> Sender:
        settings: Settings = {"transactional_id": name, "transaction_timeout_ms": OPEN_MS}
        return self._sender(name, compression_type=codec, **settings)

    def settle(self, topic: str) -> None:
        """Wait until the markers of all that was ended are written, which is after it returns."""
        until(lambda: offsets(self.broker, topic, committed=True) == offsets(self.broker, topic))

    def fence(self, name: str) -> None:
        """Let another producer take a transactional one's place: what it has open is aborted."""
        del self._senders[name]
        self.transactional(name)

    def _sender(self, name: str, **config: object) -> Sender:
        if name not in self._senders:
            self._senders[name] = Sender(self.broker, **config)
        return self._senders[name]


Write = Callable[[Writers, str, int], None]


class Scenario(NamedTuple):
    """A topic: what each round appends, and the settings that are its own.

    ``ends``: where each round's cleaning must end, if not at the active segment.
    """

    topic: str
    write: Write
    own: Mapping[str, object] = MappingProxyType({})
    ends: tuple[int, ...] = ()

    @property
    def settings(self) -> Settings:
        """Those by which it is cleaned."""
        return {**TOPIC_SETTINGS, **CLEANED_AT, **self.own}

    @property
    def settings_between(self) -> Settings:
        """Those by which it is written to."""
        return {**self.settings, **NOT_CLEANED_AT}


def at(turn: int, segment: int = 0) -> int:
    """The timestamp from which on a segment of a round is written; a later one rolls."""
    return T + ROUND_MS * turn + 2000 * segment


def end_round(writers: Writers, topic: str, turn: int) -> None:
    """A last record, which rolls away from all before it."""
    writers.plain().send(topic, [Record(0, at(turn, 20), 0, b"end of the round", b"%d" % turn)])


def everything(codec: str) -> Write:
    """Records with and without keys, values, headers; several batches to a segment."""

    def write(writers: Writers, topic: str, turn: int) -> None:
        for batch in range(6):
            first_ms = at(turn, batch // 2) + 200 * (batch % 2)
            writers.plain(codec).send(topic, mixed(40, first_ms, seed=7 * turn + batch))
        end_round(writers, topic, turn)

    return write


def tombstones(writers: Writers, topic: str, turn: int) -> None:
    """Keys that are deleted, and in part written again; batches that keep only some records."""
    sender = writers.plain()
    for segment in range(3):
        records = [
            Record(
                0,
                at(turn, segment) + number,
                0,
                b"key %d" % (number + 10 * segment),
                None if (number + turn + segment) % 3 == 0 else b"value %d.%d" % (turn, number),
                (("turn", b"%d" % turn),) if number % 2 else (),
            )
            for number in range(30)
        ]
        # Of every key in this batch there is a later record, and of no key in that one.
        sender.send(topic, records[:10]).send(topic, records[10:])
        lasting = b"lasting %d.%d" % (turn, segment)
        sender.send(topic, values(0, 3, at(turn, segment) + 100, key=lasting.decode()))
        sender.send(topic, [Record(0, at(turn, segment) + 110, 0, lasting + b" gone", None)])
    end_round(writers, topic, turn)


def producers(writers: Writers, topic: str, turn: int) -> None:
    """Idempotent producers all of whose records are overwritten: their last batches stay, empty."""
    for number in range(4):
        sender = writers.idempotent(f"{topic} {number}", codec=CODECS[number])
        sender.send(topic, values(0, 5, at(turn, number), key="same"))
        if number != 2:
            sender.send(topic, values(5, 3, at(turn, number) + 100, key="same"))
        else:
            sender.send(topic, values(5, 3, at(turn, number) + 100, key="its own"))
    writers.plain().send(topic, values(100, 1, at(turn, 5), key="same"))
    end_round(writers, topic, turn)


def transactions(writers: Writers, topic: str, turn: int) -> None:
    """Commits and aborts, side by side, over several segments; some lose all their records."""
    first, second = writers.transactional(f"{topic} 1"), writers.transactional(f"{topic} 2", "lz4")
    plain = writers.plain()
    with first.transaction():
        first.send(topic, values(0, 4, at(turn, 0), key="a"))
        with second.transaction(commit=False):
            second.send(topic, values(10, 4, at(turn, 0) + 10, key="a"))
            first.send(topic, values(20, 3, at(turn, 1), key="committed later"))
            second.send(topic, values(30, 3, at(turn, 2), key="only aborted"))
    with second.transaction(commit=False):
        second.send(topic, values(40, 2, at(turn, 3), key="a"))
        plain.send(topic, values(50, 2, at(turn, 4), key="b"))
    with first.transaction():
        first.send(topic, values(60, 2, at(turn, 5), key=f"lasting {turn}"))
        first.send(topic, [Record(0, at(turn, 5) + 10, 0, b"gone %d" % turn, None)])
    with first.transaction():
        first.send(topic, values(70, 3, at(turn, 6), key="b"))
    writers.settle(topic)
    end_round(writers, topic, turn)


def open_transaction(writers: Writers, topic: str, turn: int) -> None:
    """Records after the first one of an open transaction are not cleaned."""
    for segment in range(3):
        writers.plain().send(topic, values(segment, 5, at(turn, segment), key="again"))
    sender = writers.transactional(topic)
    if turn == 1:
        sender.producer.commit_transaction(SECONDS)
        writers.settle(topic)
    if turn < 2:
        sender.producer.begin_transaction()
    sender.send(topic, values(50, 2, at(turn, 3), key="open"))
    writers.plain().send(topic, values(70, 5, at(turn, 6), key="again"))
    end_round(writers, topic, turn)


def fenced(writers: Writers, topic: str, turn: int) -> None:
    """All that is known of a producer is the marker that has ended what it left open."""
    if turn == 0:
        writers.transactional(topic).producer.begin_transaction()
        writers.transactional(topic).send(topic, values(0, 4, at(turn), key="aborted"))
        writers.fence(topic)
        writers.settle(topic)
    for segment in range(3):
        writers.plain().send(topic, values(10, 4, at(turn, 1 + segment), key="plain"))
    end_round(writers, topic, turn)


def append_time(writers: Writers, topic: str, turn: int) -> None:
    """The broker's clock is what the records carry; each batch has a segment."""
    for batch in range(8):
        codec = CODECS[batch % 5]
        writers.plain(codec).send(topic, mixed(20, seed=turn + batch))


def groups(writers: Writers, topic: str, turn: int) -> None:
    """Many small segments, which the cleaner joins into fewer ones."""
    for batch in range(12):
        rng = random.Random(100 * turn + batch)
        records = [
            Record(
                0,
                at(turn) + batch,
                0,
                b"%d" % rng.randrange(200),
                rng.randbytes(rng.randrange(150)) if rng.random() < 0.8 else None,
            )
            for _ in range(60)
        ]
        writers.plain().send(topic, records)


def lag(writers: Writers, topic: str, turn: int) -> None:
    """Segments that are too young to be cleaned. In later rounds, old records follow them."""
    for segment in range(3):
        writers.plain().send(topic, values(segment, 5, at(turn, segment), key="old"))
    # Not of `T`, which may have been taken long ago.
    young = time.time_ns() // 1_000_000 - 100_000 + 2000 * turn
    writers.plain().send(topic, values(20, 5, young, key="young"))
    writers.plain().send(topic, values(30, 5, young + 1100, key="young"))


def many_keys(writers: Writers, topic: str, turn: int) -> None:
    """More keys than the map has room for, twice."""
    if turn == 0:
        for segment in range(2):
            records = (
                Record(0, at(0, segment), 0, b"%d" % number, b"%d" % segment)
                for number in range(MANY_KEYS)
            )
            writers.plain().send(topic, records)
        end_round(writers, topic, turn)


def large(writers: Writers, topic: str, turn: int) -> None:
    """Batches larger than the cleaner's buffers."""
    rng = random.Random(turn)
    for segment in range(2):
        records = [
            Record(0, at(turn, segment), 0, b"large %d" % number, rng.randbytes(LARGE_BYTES // 4))
            for number in range(4)
        ]
        writers.plain().send(topic, records)
        writers.plain().send(topic, values(turn, 3, at(turn, segment) + 10, key="small"))
    end_round(writers, topic, turn)


def log_start(writers: Writers, topic: str, turn: int) -> None:
    """The log begins in the middle of its first segment, and further on in each round."""
    for segment in range(3):
        writers.plain().send(topic, mixed(20, at(turn, segment), seed=turn))
    end_round(writers, topic, turn)
    delete_records(writers.broker, topic, LOG_STARTS[topic][turn])


def aborted_below_log_start(writers: Writers, topic: str, turn: int) -> None:
    """A transaction ends, aborted, in the first segment below the log start, which lies in it."""
    if turn == 0:
        sender = writers.transactional(topic)
        with sender.transaction(commit=False):
            sender.send(topic, values(0, 4, at(0), key="aborted"))
        writers.settle(topic)
    for segment in range(3):
        writers.plain().send(topic, values(10, 4, at(turn, segment), key=f"{turn}"))
    end_round(writers, topic, turn)
    delete_records(writers.broker, topic, LOG_STARTS[topic][turn])


def drawn(seed: int, codecs: Sequence[str] = CODECS) -> Write:
    """Anything at all, by producers of every kind."""

    def write(writers: Writers, topic: str, turn: int) -> None:
        rng = random.Random(1000 * seed + turn)
        senders = [
            *(writers.plain(codec) for codec in codecs),
            *(writers.idempotent(f"{topic} i{n}", rng.choice(codecs)) for n in range(2)),
        ]
        transactional = [writers.transactional(f"{topic} t{n}") for n in range(2)]
        for step in range(25):
            records = [_drawn(rng, at(turn) + 10 * step) for _ in range(rng.randrange(1, 12))]
            if rng.random() < 0.6:
                rng.choice(senders).send(topic, records)
                continue
            first, second = rng.sample(transactional, 2)
            with first.transaction(commit=rng.random() < 0.5):
                first.send(topic, records)
                if rng.random() < 0.5:
                    with second.transaction(commit=rng.random() < 0.5):
                        second.send(topic, [_drawn(rng, at(turn)) for _ in range(3)])
                        first.send(topic, [_drawn(rng, at(turn)) for _ in range(3)])
        writers.settle(topic)
        end_round(writers, topic, turn)

    return write


def _drawn(rng: random.Random, timestamp: int) -> Record:
    key = b"key %d" % int(rng.expovariate(0.1))
    value = None if rng.random() < 0.25 else rng.randbytes(rng.randrange(60))
    return Record(0, timestamp + rng.randrange(50), 0, key, value)


SCENARIOS = (
    *(Scenario(f"everything-{c}", everything(c), {"delete.retention.ms": 0}) for c in CODECS),
    Scenario("tombstones-expire", tombstones, {"delete.retention.ms": 0}),
    Scenario("tombstones-stay", tombstones, {"delete.retention.ms": DAY_MS}),
    Scenario("producers", producers, {"delete.retention.ms": 0}),
    # Rolled by size: markers carry the broker's time.
    Scenario(
        "transactions-expire",
        transactions,
        {"internal.segment.bytes": 500, "delete.retention.ms": 0},
    ),
    Scenario(
        "transactions-stay",
        transactions,
        {"internal.segment.bytes": 500, "delete.retention.ms": DAY_MS},
    ),
    Scenario("fenced", fenced, {"internal.segment.bytes": 300, "delete.retention.ms": 0}),
    Scenario("open", open_transaction, {"delete.retention.ms": 0}, ends=(15, 38, 38)),
    Scenario(
        "append-time",
        append_time,
        {"message.timestamp.type": "LogAppendTime", "segment.ms": 1},
    ),
    Scenario("groups", groups, {"internal.segment.bytes": SMALL, "delete.retention.ms": 0}),
    Scenario("lag", lag, {"min.compaction.lag.ms": 1_800_000}, ends=(15, 15, 15)),
    Scenario(
        "overdue",
        everything("none"),
        {"min.cleanable.dirty.ratio": 1, "max.compaction.lag.ms": 1000},
    ),
    Scenario("many-keys", many_keys),
    Scenario("large", large),
    Scenario("log-start", log_start, {"cleanup.policy": "compact,delete"}),
    Scenario(
        "log-start-aborted",
        aborted_below_log_start,
        # Rolled by size: the marker, which carries the broker's time, lies in the first segment.
        {
            "cleanup.policy": "compact,delete",
            "internal.segment.bytes": 600,
            "segment.ms": DAY_MS * 365 * 20,
            "delete.retention.ms": 0,
        },
    ),
    # Where sizes decide what is cleaned together nothing is compressed: a compressor of the other
    # side makes other sizes.
    *(
        Scenario(
            f"drawn-{n}",
            drawn(n, ["none"]),
            {"internal.segment.bytes": 2000, "delete.retention.ms": 0},
        )
        for n in range(2)
    ),
    *(Scenario(f"drawn-{n}", drawn(n), {"delete.retention.ms": 0}) for n in range(2, 4)),
)
