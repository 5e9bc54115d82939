"""From a broker's directory our source reads the same rows as Spark's Kafka source from the broker.

The broker is running. Both sources get the same options. The tests compare all columns, including
headers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.interop import workload
from tests.interop.brokers import Broker
from tests.interop.clients import SECONDS, Sender, create_topic, create_topics
from tests.interop.kafka_tools import SPARK_POM, jars

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.soak

T = workload.T
Row = tuple[Any, ...]
Options = Mapping[str, str | int]
# All but the broker's own.
EVERYTHING = "(?!__).*"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A running broker, written to by every kind of producer."""
    broker = Broker(tmp_path_factory.mktemp("like") / "broker")
    broker.start()
    try:
        codecs(broker)
        workload.append_time(broker)
        workload.compacted(broker)
        workload.retained(broker)
        spread(broker)
        with_open_transaction = workload.transactions(broker)
        yield broker
        del with_open_transaction
    finally:
        broker.kill()


def codecs(broker: Broker) -> None:
    """Topics that are called by what compresses them."""
    create_topics(broker, {codec: {} for codec in workload.CODECS})
    for codec in workload.CODECS:
        sender = Sender(broker, compression_type=codec)
        for turn in range(3):
            sender.send(codec, workload.mixed(60, T + 1000 * turn, seed=turn))


def spread(broker: Broker, topic: str = "spread") -> None:
    """Three partitions, a record a second in turn, some of one time."""
    create_topic(broker, topic, 3)
    sender = Sender(broker)
    for number in range(300):
        sender.producer.produce(
            topic,
            partition=number % 3,
            key=b"%d" % (number % 7),
            value=b"v%d" % number,
            timestamp=T + number // 2 * 1000,
            on_delivery=sender.delivered,
        )
        if number % 30 == 29:
            sender.flush()


@dataclass
class Both:
    """Spark's Kafka source and ours, over one broker."""

    session: SparkSession
    broker: Broker

    def frames(
        self, options: Options, isolation: str = "read_committed", *, stream: bool = False
    ) -> tuple[DataFrame, DataFrame]:
        """One of each, with the same options."""
        made = []
        places = {"kafka.bootstrap.servers": self.broker.address, "path": str(self.broker.data)}
        for kind, (name, value) in zip(("kafka", "kafkafs"), places.items(), strict=True):
            given = {**options, name: value, "kafka.isolation.level": isolation}
            reader = self.session.readStream if stream else self.session.read
            made.append(reader.format(kind).options(**given).load())
        theirs, ours = made
        assert ours.schema == theirs.schema
        return theirs, ours

    def check(self, isolation: str = "read_committed", **options: str | int) -> list[Row]:
        """Both read the same rows, which are returned."""
        theirs, ours = self.frames(options, isolation)
        expected, got = rows(theirs), rows(ours)
        assert got == expected
        return got


def rows(frame: DataFrame) -> list[Row]:
    """All rows by topic, partition and offset, in values that compare."""
    found = []
    for row in frame.collect():
        fields: list[Any] = list(row)
        fields[:2] = (None if field is None else bytes(field) for field in fields[:2])
        if len(fields) == 8 and fields[7] is not None:
            fields[7] = tuple(
                (key, None if value is None else bytes(value)) for key, value in fields[7]
            )
        found.append(tuple(fields))
    return sorted(found, key=lambda fields: fields[2:5])


@pytest.fixture(scope="module")
def both(spark: SparkSession, broker: Broker) -> Both:
    for jar in jars(SPARK_POM).iterdir():
        spark.sql(f"ADD JAR '{jar}'")
    return Both(spark, broker)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_everything_there_is(both: Both, isolation: str) -> None:
    got = both.check(subscribePattern=EVERYTHING, includeHeaders="true", isolation=isolation)
    values = {row[1] for row in got if row[2] == "transactions"}
    assert (b"value 10" in values) == (isolation == "read_uncommitted")
    assert {row[2] for row in got} >= {"zstd", "compacted", "append-time", "retained", "spread"}


def test_offsets_in_json(both: Both) -> None:
    starts = {"spread": {"0": 10, "1": -2, "2": 90}, "lz4": {"0": 77}}
    ends = {"spread": {"0": 50, "1": -1, "2": 91}, "lz4": {"0": 131}}
    got = both.check(
        assign=json.dumps({"spread": [0, 1, 2], "lz4": [0]}),
        startingOffsets=json.dumps(starts),
        endingOffsets=json.dumps(ends),
        minPartitions=9,
    )
    assert len(got) == 40 + 100 + 1 + 54


def test_a_partition_that_is_assigned_and_not_there(both: Both) -> None:
    got = both.check(assign=json.dumps({"spread": [0, 2, 9], "lz4": [3]}))
    assert {row[2:4] for row in got} == {("spread", 0), ("spread", 2)}
    for frame in both.frames({"assign": json.dumps({"spread": [0], "nowhere": [0]})}):
        with pytest.raises(Exception, match=r"UnknownTopicOrPartition|there is no topic 'nowhere'"):
            frame.collect()


def test_times(both: Both) -> None:
    by_partition = {"spread": {"0": T + 20_500, "1": T + 21_000, "2": T}}
    until = {"spread": {"0": T + 90_000, "1": T + 90_001, "2": T + 10_000_000}}
    got = both.check(
        subscribe="spread",
        startingOffsetsByTimestamp=json.dumps(by_partition),
        endingOffsetsByTimestamp=json.dumps(until),
    )
    assert got
    assert both.check(
        subscribe="spread,gzip,transactions",
        startingTimestamp=T + 50,
        endingTimestamp=T + 2060,
        isolation="read_uncommitted",
    )
    late = both.check(
        subscribe="spread,gzip",
        startingTimestamp=T + 149_000,
        startingOffsetsByTimestampStrategy="latest",
    )
    assert {row[2] for row in late} == {"spread"}


def test_streams(both: Both, tmp_path: Path) -> None:
    """A query that stops when it has everything, and goes on after more was written."""
    options: Options = {
        "subscribePattern": "spread|transactions|compacted|more",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": 700,
        "includeHeaders": "true",
    }
    found = run_both(both, tmp_path, options)
    assert found[0] == found[1]
    before = len(found[0])
    create_topics(both.broker, {"more": {}})
    Sender(both.broker).send("more", workload.mixed(40)).send("spread", workload.mixed(10))
    found = run_both(both, tmp_path, options)
    assert found[0] == found[1]
    assert len(found[0]) == before + 50


def run_both(both: Both, directory: Path, options: Options) -> list[list[Row]]:
    """Run both queries. Return the rows that each has written to Parquet so far."""
    found = []
    for name, frame in zip(("theirs", "ours"), both.frames(options, stream=True), strict=True):
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(directory / name))
            .option("checkpointLocation", str(directory / f"{name}-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(int(SECONDS))
        found.append(rows(both.session.read.schema(frame.schema).parquet(str(directory / name))))
    return found
