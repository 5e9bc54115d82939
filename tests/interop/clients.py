"""Clients that write to a broker and read from it: librdkafka in-process and Kafka's own tools.

Consumed records are returned as `storage.Record`, so that tests can compare them with ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from storage import Record
from tests.interop.brokers import Broker, OldBroker
from tests.interop.kafka_tools import run_tool
from tests.waits import HANG_S

SECONDS = HANG_S


def admin(broker: Broker | OldBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.address, "log_level": 2})


def create_topic(
    broker: Broker | OldBroker, topic: str, partitions: int = 1, **config: object
) -> None:
    """Create a topic; its settings are given with `_` for `.`."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    create_topics(broker, {topic: settings}, partitions)


def create_topics(
    broker: Broker | OldBroker, topics: Mapping[str, Mapping[str, object]], partitions: int = 1
) -> None:
    """Create topics with these settings at once."""
    new = [
        NewTopic(topic, partitions, 1, config={name: str(v) for name, v in settings.items()})
        for topic, settings in topics.items()
    ]
    client = admin(broker)  # its calls end with it
    for done in client.create_topics(new).values():
        done.result(SECONDS)


def add_partitions(broker: Broker, topic: str, count: int) -> None:
    """Give a topic partitions, up to `count`."""
    client = admin(broker)
    client.create_partitions([NewPartitions(topic, count)])[topic].result(SECONDS)


def delete_topic(broker: Broker | OldBroker, topic: str) -> None:
    client = admin(broker)
    client.delete_topics([topic])[topic].result(SECONDS)


def set_topic(broker: Broker, topic: str, **config: object) -> None:
    """Change settings of a topic; their names are given with `_` for `.`."""
    set_topics(broker, {topic: {name.replace("_", "."): value for name, value in config.items()}})


def set_topics(broker: Broker, settings: Mapping[str, Mapping[str, object]]) -> None:
    """Change settings of several topics at once."""
    resources = [
        ConfigResource(
            ResourceType.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
                for name, value in config.items()
            ],
        )
        for topic, config in settings.items()
    ]
    client = admin(broker)
    for done in client.incremental_alter_configs(resources).values():
        done.result(SECONDS)


def delete_records(broker: Broker, topic: str, offset: int) -> None:
    """Move the log start of partition 0."""
    client = admin(broker)
    for done in client.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(SECONDS)


def commit(broker: Broker | OldBroker, group: str, topic: str, offset: int) -> None:
    """Commit an offset of partition 0 for a group without members."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group, "log_level": 2})
    with contextlib.closing(consumer):
        consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


class Sender:
    """A librdkafka producer that says when something was not delivered.

    One request at a time: with more of them, one that a new topic's leader refuses and that is sent
    again comes behind those sent after it.
    """

    def __init__(self, broker: Broker | OldBroker, **config: object) -> None:
        settings = {name.replace("_", "."): value for name, value in config.items()}
        self._faults: list[KafkaError] = []
        self.producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "linger.ms": 5,
                "log_level": 2,
                "max.in.flight.requests.per.connection": 1,
            }
            | settings,
        )
        if "transactional.id" in settings:
            self.producer.init_transactions(SECONDS)

    def send(self, topic: str, records: Iterable[Record]) -> Sender:
        """Write them as one or a few batches and wait for the acknowledgement."""
        for record in records:
            self.producer.produce(
                topic,
                partition=0,
                key=record.key,
                value=record.value,
                timestamp=max(record.timestamp, 0),
                headers=list(record.headers) or None,
                on_delivery=self.delivered,
            )
        self.flush()
        return self

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        left = self.producer.flush(SECONDS)
        assert left == 0, f"{left} records were not acknowledged"
        if self._faults:
            raise KafkaException(self._faults[0])

    def delivered(self, error: KafkaError | None, _message: object) -> None:
        if error is not None:
            self._faults.append(error)

    @contextlib.contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        self.producer.begin_transaction()
        yield
        if commit:
            self.producer.commit_transaction(SECONDS)
        else:
            self.producer.abort_transaction(SECONDS)


def consume(
    broker: Broker | OldBroker,
    topic: str,
    *,
    committed: bool = False,
    config: Mapping[str, object] = {},
) -> list[Record]:
    """Everything that a librdkafka consumer gets of partition 0, to its end."""
    return consume_all(broker, [topic], committed=committed, config=config)[topic]


def consume_all(
    broker: Broker | OldBroker,
    topics: Iterable[str],
    *,
    committed: bool = False,
    config: Mapping[str, object] = {},
    first: int = OFFSET_BEGINNING,
) -> dict[str, list[Record]]:
    """Everything that a librdkafka consumer gets of these topics' partitions 0, to their ends.

    ``first``: from that offset on, which must be in all of them.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "interop",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "check.crcs": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "fetch.wait.max.ms": 50,
            "log_level": 2,
            **config,
        }
    )
    found: dict[str, list[Record]] = {topic: [] for topic in topics}
    ended: set[str] = set()
    try:
        consumer.assign([TopicPartition(topic, 0, first) for topic in found])
        while len(ended) < len(found):
            message = consumer.poll(SECONDS)
            assert message is not None, f"neither a record nor the end within {SECONDS:g} s"
            topic, error = str(message.topic()), message.error()
            if error is None:
                found[topic].append(as_record(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(topic)
            else:
                raise KafkaException(error)
    finally:
        consumer.close()
    return found


def as_record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.offset(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        int(kind == TIMESTAMP_LOG_APPEND_TIME),
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def offset_for_time(broker: Broker, topic: str, time_ms: int) -> int | None:
    """The offset in partition 0 that the broker finds for a timestamp."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "t", "log_level": 2})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], SECONDS)
        assert found.error is None, found.error
        offset = int(found.offset)
    finally:
        consumer.close()
    return None if offset < 0 or offset == offsets(broker, topic)[1] else offset


def offsets(broker: Broker | OldBroker, topic: str, *, committed: bool = False) -> tuple[int, int]:
    """The first offset of partition 0 and where a consumer of that isolation level ends."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": "interop",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "log_level": 2,
        }
    )
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), SECONDS)
        return int(low), int(high)
    finally:
        consumer.close()


NULL = "<null>"


def console_line(record: Record) -> str:
    """A record as one line for `console_producer`: headers, key and value."""

    def text(data: bytes | None) -> str:
        return NULL if data is None else data.decode()

    headers = ",".join(f"{name}:{text(value)}" for name, value in record.headers)
    return f"{headers or NULL}\t{text(record.key)}\t{text(record.value)}\n"


def console_producer(broker: Broker, topic: str, codec: str, *more: str) -> list[str]:
    """The class and the arguments that write lines of `console_line` with the Java producer."""
    reader = {"parse.key": "true", "parse.headers": "true", "null.marker": NULL}
    words = [word for pair in reader.items() for word in ("--reader-property", "=".join(pair))]
    command = ["--bootstrap-server", broker.address, "--topic", topic, *words]
    tool = "org.apache.kafka.tools.ConsoleProducer"
    return [tool, *command, "--compression-codec", codec, *more]


def produce_lines(broker: Broker, topic: str, codec: str, lines: str, *more: str) -> None:
    """Write lines of `console_line` with the Java producer."""
    done = run_tool(*console_producer(broker, topic, codec, *more), given=lines)
    assert done.returncode == 0, done.stderr
