"""The source's options: every one, every refusal."""

from __future__ import annotations

import dataclasses

import pytest

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source.offsets import EARLIEST, LATEST, TopicPartition
from kafkafs.spark.source.options import Limit, SourceOptions, Subscription, parse

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
LEAST = {"path": "/data", "subscribe": "a"}


def test_little_has_to_be_said() -> None:
    batch = SourceOptions(
        path="/data",
        subscription=Subscription(topics=frozenset({"a"})),
        starting=Limit(offset=EARLIEST),
        ending=Limit(offset=LATEST, error_without_match=True),
    )
    assert parse(LEAST, "batch") == batch
    stream = dataclasses.replace(batch, starting=Limit(offset=LATEST))
    assert parse(LEAST, "stream") == stream


def test_everything_can_be_said() -> None:
    options = parse(
        {
            "PATH": "s3://bucket/data",
            "subscribe": " a, b ,,",
            "startingOffsets": "EARLIEST",
            "failOnDataLoss": "False",
            "minPartitions": "8",
            "maxRecordsPerPartition": "1000",
            "maxOffsetsPerTrigger": "200",
            "minOffsetsPerTrigger": "100",
            "maxTriggerDelay": "2min",
            "includeHeaders": "TRUE",
            "isolationLevel": "READ_UNCOMMITTED",
            "maxPartitionBytes": "4096",
            "untilHighWatermark": "true",
        },
        "stream",
    )
    assert options == SourceOptions(
        path="s3://bucket/data",
        subscription=Subscription(topics=frozenset({"a", "b"})),
        starting=Limit(offset=EARLIEST),
        ending=Limit(offset=LATEST),
        isolation="read_uncommitted",
        fail_on_data_loss=False,
        include_headers=True,
        min_partitions=8,
        max_records=1000,
        max_offsets=200,
        min_offsets=100,
        max_delay_ms=120_000,
        partition_bytes=4096,
        until_high_watermark=True,
    )


# -- which partitions ------------------------------------------------------------------------------


def test_a_pattern_matches_whole_names_and_no_internal_topics() -> None:
    wants = parse({"path": "/d", "subscribePattern": " .*rs "}, "batch").subscription.wants
    assert [name for name in ("orders", "users.x", "rs", "__consumer_offsets") if wants(name)] == [
        "orders",
        "rs",
    ]
    every = parse({"path": "/d", "subscribePattern": ".*"}, "batch").subscription.wants
    assert every("orders")
    assert not every("__consumer_offsets")
    named = parse({"path": "/d", "subscribe": "__consumer_offsets"}, "batch").subscription.wants
    assert named("__consumer_offsets")


def test_partitions_can_be_assigned() -> None:
    subscription = parse({"path": "/d", "assign": '{"a": [0, 1], "b": [0]}'}, "batch").subscription
    assert subscription.partitions == frozenset({A0, A1, B0})
    assert subscription.wants("b")
    assert not subscription.wants("c")
    assert subscription.wants_partition(A1)
    assert not subscription.wants_partition(TopicPartition("b", 1))


# -- from where to where ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "starting"),
    [
        ({"startingOffsets": " latest "}, Limit(offset=LATEST)),
        ({"startingOffsets": '{"a":{"0":23,"1":-2}}'}, Limit(offsets={A0: 23, A1: EARLIEST})),
        (
            {"startingOffsetsByTimestamp": '{"a":{"0":5}}', "startingOffsets": "earliest"},
            Limit(timestamps={A0: 5}),
        ),
        (
            {"startingTimestamp": " 7", "startingOffsetsByTimestamp": '{"a":{"0":5}}'},
            Limit(timestamp=7),
        ),
        (
            {"startingTimestamp": "7", "startingOffsetsByTimestampStrategy": "Latest"},
            Limit(timestamp=7, error_without_match=False),
        ),
    ],
)
def test_times_come_before_offsets(options: dict[str, str], starting: Limit) -> None:
    found = parse({**LEAST, **options}, "stream").starting
    if starting.offset is not None or starting.offsets is not None:
        starting = dataclasses.replace(starting, error_without_match=found.error_without_match)
    assert found == starting


def test_the_end_never_asks_for_a_match() -> None:
    assert parse({**LEAST, "endingTimestamp": "7"}, "batch").ending == Limit(
        timestamp=7, error_without_match=False
    )


# -- what is without effect ------------------------------------------------------------------------


def test_what_configures_connections_is_said_to_be_without_effect() -> None:
    options = parse(
        {
            **LEAST,
            "kafka.bootstrap.servers": "localhost:9092",
            "kafka.group.id": "x",
            "groupIdPrefix": "y",
            "kafkaConsumer.pollTimeoutMs": "1",
            "fetchOffset.numRetries": "1",
            "fetchOffset.retryIntervalMs": "1",
        },
        "stream",
    )
    (remark,) = options.remarks
    assert "kafka.bootstrap.servers" in remark
    assert "fetchoffset.numretries" in remark


def test_rates_are_without_effect_in_batch_queries() -> None:
    options = parse({**LEAST, "maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1s"}, "batch")
    assert options.remarks == (
        "Option 'maxOffsetsPerTrigger' has no effect in batch queries",
        "Option 'maxTriggerDelay' has no effect in batch queries",
    )


@pytest.mark.parametrize("value", ["read_committed", "read_uncommitted"])
def test_kafkas_isolation_level_counts(value: str) -> None:
    options = parse({**LEAST, "kafka.isolation.level": value}, "batch")
    assert options.isolation == value
    assert not options.remarks


# -- refusals --------------------------------------------------------------------------------------

ASSIGN = {"path": "/d"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": "a"}, "Option 'path' must be specified"),
        ({"path": "/d"}, "One of the following options must be specified"),
        ({**LEAST, "assign": '{"a":[0]}'}, "Only one of the following options can be specified"),
        ({**ASSIGN, "subscribe": " , "}, "No topics to subscribe to"),
        ({**ASSIGN, "subscribePattern": " "}, "Pattern to subscribe is empty"),
        ({**ASSIGN, "subscribePattern": "("}, "is not a regular expression"),
        ({**ASSIGN, "subscribePattern": "a{99999999999}"}, "is not a regular expression"),
        ({**ASSIGN, "subscribePattern": "(" * 2000 + ")" * 2000}, "is not a regular expression"),
        ({**ASSIGN, "assign": "a"}, 'Expected e.g. {"topicA":[0,1]'),
        ({**ASSIGN, "assign": '{"a":[true]}'}, "Expected e.g."),
        ({**ASSIGN, "assign": '{"a":0}'}, "Expected e.g."),
        ({**ASSIGN, "assign": "{}"}, "No topicpartitions to assign"),
        ({**LEAST, "subscribeTo": "b"}, "Unknown option 'subscribeto': did you mean 'subscribe'?"),
        (
            {**LEAST, "startingoffset": "x"},
            "option 'startingoffset': did you mean 'startingOffsets'",
        ),
        ({**LEAST, "xyz": "b"}, "Unknown option 'xyz'. There are: assign, endingOffsets, "),
        ({**LEAST, "tuneWorkers": "1"}, "must be 'true' or 'false'"),
        ({**LEAST, "startingOffsets": "first"}, 'Expected e.g. {"topicA":{"0":23'),
        ({**LEAST, "startingOffsets": '{"a":{"0":-3}}'}, "has -3 for a-0"),
        ({**LEAST, "startingOffsets": '{"a":{"x":3}}'}, "Expected e.g."),
        ({**LEAST, "startingOffsets": '{"a":{"0":1.5}}'}, "Expected e.g."),
        ({**LEAST, "startingOffsets": '{"a":{"0":1},"a":{"1":1}}'}, "occurs twice"),
        ({**LEAST, "startingTimestamp": "now"}, "Expected a single long value"),
        ({**LEAST, "startingTimestamp": "-1"}, "must not be negative"),
        ({**LEAST, "startingOffsetsByTimestamp": "12"}, "Expected e.g."),
        ({**LEAST, "startingOffsetsByTimestamp": '{"a":{"0":-1}}'}, "has -1 for a-0"),
        ({**LEAST, "startingOffsetsByTimestampStrategy": "x"}, "must be 'error' or 'latest'"),
        ({**LEAST, "minPartitions": "0"}, "minPartitions must be positive"),
        ({**LEAST, "minPartitions": "many"}, "must be a whole number"),
        ({**LEAST, "maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition must be positive"),
        ({**LEAST, "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be positive"),
        ({**LEAST, "maxOffsetsPerTrigger": "9" * 19}, "must be a whole number"),
        (
            {**LEAST, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger(5) is higher than the maxOffsetsPerTrigger(4)",
        ),
        ({**LEAST, "maxTriggerDelay": "soon"}, "must be a time with a unit"),
        ({**LEAST, "maxTriggerDelay": "5y"}, "must be a time with a unit"),
        ({**LEAST, "maxTriggerDelay": f"{'9' * 400}us"}, "must be a time with a unit"),
        ({**LEAST, "failOnDataLoss": "yes"}, "must be 'true' or 'false'"),
        ({**LEAST, "includeHeaders": "1"}, "must be 'true' or 'false'"),
        ({**LEAST, "isolationLevel": "none"}, "must be 'read_committed' or 'read_uncommitted'"),
        (
            {**LEAST, "isolationLevel": "read_committed"}
            | {"kafka.isolation.level": "read_uncommitted"},
            "contradict",
        ),
        ({**LEAST, "kafka.auto.offset.reset": "earliest"}, "Instead set the source option"),
        ({**LEAST, "kafka.key.deserializer": "x"}, "'kafka.key.deserializer' is not supported"),
        ({**LEAST, "kafka.value.deserializer": "x"}, "is not supported"),
        ({**LEAST, "kafka.enable.auto.commit": "true"}, "is not supported"),
        ({**LEAST, "kafka.interceptor.classes": "x"}, "is not supported"),
    ],
)
def test_is_refused(options: dict[str, str], message: str) -> None:
    for mode in ("batch", "stream"):
        with pytest.raises(InvalidOption) as refusal:
            parse(options, mode)
        assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": "g"}, "Option 'group' is not valid in batch queries"),
        ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "startingOffsets for a-0 can't be latest"),
        ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "ending offset for a-0 can't be earliest"),
        (
            {"startingOffsets": '{"a":{"0":1}}', "endingOffsets": '{"a":{"0":1,"1":2}}'},
            "Topic-partitions for start offset: [a-0], topic-partitions for end offset: [a-0, a-1]",
        ),
        (
            {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":4}}'},
            "start offset 5 is greater than the end offset 4 for topic a partition 0",
        ),
        (
            {
                "startingOffsetsByTimestamp": '{"a":{"0":5}}',
                "endingOffsetsByTimestamp": '{"a":{"0":4}}',
            },
            "start timestamp 5 is greater than the end timestamp 4",
        ),
    ],
)
def test_is_refused_of_a_batch_query(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption) as refusal:
        parse({**LEAST, **options}, "batch")
    assert message in str(refusal.value)


def test_a_group() -> None:
    assert parse({**LEAST, "group": "a group"}, "stream").group == "a group"
    assert parse({**LEAST, "path": "file:///data", "group": "g"}, "any").group == "g"
    for options, message in (
        ({"group": ""}, "Option 'group': a group name has 1 to"),
        ({"group": "g", "path": "s3://bucket/data"}, "requires a local data directory"),
    ):
        with pytest.raises(InvalidOption, match=message):
            parse({**LEAST, **options}, "any")


def test_ends_that_are_found_later_are_compared_later() -> None:
    options = {"startingOffsets": '{"a":{"0":5}}', "endingOffsets": '{"a":{"0":-1}}'}
    assert parse({**LEAST, **options}, "batch").ending.offsets == {A0: LATEST}


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_streaming_query_has_no_end(name: str) -> None:
    with pytest.raises(InvalidOption, match="not valid in streaming queries"):
        parse({**LEAST, name: "latest"}, "stream")


@pytest.mark.parametrize(
    ("text", "delay_ms"),
    [("100", 100), ("100ms", 100), ("5s", 5000), ("2m", 120_000), ("1h", 3_600_000), ("9us", 0)],
)
def test_delays_have_units(text: str, delay_ms: int) -> None:
    assert parse({**LEAST, "maxTriggerDelay": text}, "stream").max_delay_ms == delay_ms


def test_before_it_is_known_what_kind_of_query_it_is() -> None:
    options = parse({**LEAST, "startingOffsets": "latest", "endingOffsets": "earliest"}, "any")
    assert options.starting.offset == LATEST
    with pytest.raises(InvalidOption, match="Unknown option 'topic'"):
        parse({**LEAST, "topic": "a"}, "any")
