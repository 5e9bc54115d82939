"""Parses the options of the source, which are those of Spark's Kafka source. Pure.

`docs/spark.md` describes each. A query starts by `startingTimestamp`, else by
`startingOffsetsByTimestamp`, else by `startingOffsets`. It ends by the `ending…` options in the
same order. Times are in ms since 1970, and select the first record with this or a later time.

Options for connections (`kafka.bootstrap.servers` …) have no effect, so that a pipeline can move
over by changing its format. Any other name is an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kafkafs.spark import option_values as values
from kafkafs.spark.location.location import is_uri
from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import offsets
from kafkafs.spark.source.offsets import EARLIEST, LATEST, Offsets, TopicPartition
from storage.condition.condition import Condition
from storage.errors import InvalidRecord
from storage.groups.offset_records import check_name
from storage.log.read import Isolation
from storage.paths import INTERNAL_TOPICS

SUBSCRIPTIONS = ("subscribe", "subscribePattern", "assign")
STREAMING_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
KNOWN = {
    name.lower(): name
    for name in (
        *SUBSCRIPTIONS,
        *("startingOffsets", "startingOffsetsByTimestamp", "startingTimestamp"),
        "startingOffsetsByTimestampStrategy",
        *("endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"),
        *("failOnDataLoss", "minPartitions", "maxRecordsPerPartition"),
        *STREAMING_ONLY,
        *("includeHeaders", "isolationLevel", "path", "maxPartitionBytes", "untilHighWatermark"),
        *("where", "timeZone", "group", "tuneWorkers"),
    )
}
# Only a consumer of brokers needs these.
WITHOUT_EFFECT = frozenset(
    (
        *("groupidprefix", "kafkaconsumer.polltimeoutms"),
        *("fetchoffset.numretries", "fetchoffset.retryintervalms"),
    )
)
KAFKA = "kafka."
KAFKA_ISOLATION = "kafka.isolation.level"
BATCH_ONLY = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
    "endingTimestamp": "ending timestamp not valid in streaming queries",
}
REFUSED = {
    "kafka.auto.offset.reset": "Instead set the source option 'startingOffsets' to 'earliest' or "
    "'latest' to specify where a new query starts; a resumed query continues where it stopped.",
    "kafka.key.deserializer": "Keys are byte arrays. Use DataFrame operations to deserialize them.",
    "kafka.value.deserializer": "Values are byte arrays. Use DataFrame operations to deserialize "
    "them.",
    "kafka.enable.auto.commit": "Spark's checkpoint stores the progress of a query.",
    "kafka.interceptor.classes": "Interceptors could change what is read.",
}
MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000
PARTITION_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True)
class Subscription:
    """The wanted partitions of a data directory; exactly one field is set."""

    topics: frozenset[str] | None = None
    pattern: str | None = None
    partitions: frozenset[TopicPartition] | None = None

    def wants(self, topic: str) -> bool:
        if self.topics is not None:
            return topic in self.topics
        if self.partitions is not None:
            return any(each.topic == topic for each in self.partitions)
        assert self.pattern is not None
        if topic in INTERNAL_TOPICS:
            return False
        return re.fullmatch(self.pattern, topic) is not None

    def wants_partition(self, name: TopicPartition) -> bool:
        return self.wants(name.topic) if self.partitions is None else name in self.partitions


@dataclass(frozen=True)
class Limit:
    """The start or the end of a query.

    For all partitions: `offset` (`EARLIEST`, `LATEST`) or `timestamp` (in ms). For each partition:
    `offsets` or `timestamps` (in ms).
    """

    offset: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None
    error_without_match: bool = True


@dataclass(frozen=True)
class SourceOptions:
    """The checked options; `remarks` are warnings about options without effect.

    `has_zone`: the option `timeZone` has the zone of the times in `where`. `group`: the consumer
    group for which the query commits its offsets. `tune_workers`: see `kafkafs.spark.worker`.
    """

    path: str
    subscription: Subscription
    starting: Limit
    ending: Limit
    isolation: Isolation = "read_committed"
    fail_on_data_loss: bool = True
    include_headers: bool = False
    min_partitions: int | None = None
    max_records: int | None = None
    max_offsets: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = MAX_TRIGGER_DELAY_MS
    partition_bytes: int = PARTITION_BYTES
    until_high_watermark: bool = False
    where: Condition | None = None
    has_zone: bool = False
    group: str | None = None
    tune_workers: bool = False
    remarks: tuple[str, ...] = ()


Mode = Literal["batch", "stream", "any"]


def parse(given: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Parse options. InvalidOption for an unknown one, an invalid value or a contradiction.

    In the mode "any" the kind of the query is not known yet.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name, reason in BATCH_ONLY.items() if mode == "stream" else ():
        if name.lower() in options:
            raise InvalidOption(reason)
    remarks = _check_names(options)
    path = options.get("path", "")
    if not path:
        raise InvalidOption(
            "Option 'path' must be specified: the data directory whose topics are read, or the URI "
            "of one in an object store"
        )
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidOption(
            f"Option 'startingOffsetsByTimestampStrategy' must be 'error' or 'latest', got "
            f"{strategy!r}"
        )
    default_start = EARLIEST if mode == "batch" else LATEST
    starting = _limit(options, "starting", default_start, error=strategy == "error")
    ending = _limit(options, "ending", LATEST, error=False)
    if mode == "batch":
        _check_batch(starting, ending)
        remarks += [
            f"Option {name!r} has no effect in batch queries"
            for name in STREAMING_ONLY
            if name.lower() in options
        ]
    least, most = (values.positive(options, f"{each}OffsetsPerTrigger") for each in ("min", "max"))
    if least is not None and most is not None and least > most:
        raise InvalidOption(
            f"The value of minOffsetsPerTrigger({least}) is higher than the "
            f"maxOffsetsPerTrigger({most})."
        )
    return SourceOptions(
        path=path,
        subscription=_subscription(options),
        starting=starting,
        ending=ending,
        isolation=_isolation(options),
        fail_on_data_loss=values.flag(options, "failOnDataLoss", True),
        include_headers=values.flag(options, "includeHeaders", False),
        min_partitions=values.positive(options, "minPartitions"),
        max_records=values.positive(options, "maxRecordsPerPartition"),
        max_offsets=most,
        min_offsets=least,
        max_delay_ms=values.duration_ms(options, "maxTriggerDelay", MAX_TRIGGER_DELAY_MS),
        partition_bytes=values.positive(options, "maxPartitionBytes") or PARTITION_BYTES,
        until_high_watermark=values.flag(options, "untilHighWatermark", False),
        where=_condition(options, mode),
        has_zone="timezone" in options,
        group=_group(options, path, mode),
        tune_workers=values.flag(options, "tuneWorkers", False),
        remarks=tuple(remarks),
    )


def _condition(options: Mapping[str, str], mode: Mode) -> Condition | None:
    text, name = options.get("where"), options.get("timezone")
    if text is None:
        if name is not None:
            raise InvalidOption("Option 'timeZone' requires option 'where'")
        return None
    # The parser takes a tenth of a second to import.
    from storage.condition.literals import zone_named
    from storage.condition.parse import parse as parse_condition

    try:
        found = parse_condition(text, zone=None if name is None else zone_named(name))
    except ValueError as error:
        raise InvalidOption(f"Option 'where': {error}") from None
    if found.is_relative and mode == "stream":
        raise InvalidOption(
            "Option 'where' has a time before now. A repeated batch of a streaming query would "
            f"read other records: give a time such as 2026-11-22T08:00, got {text!r}"
        )
    return found


def _group(options: Mapping[str, str], path: str, mode: Mode) -> str | None:
    name = options.get("group")
    if name is None:
        return None
    if mode == "batch":
        raise InvalidOption("Option 'group' is not valid in batch queries: they commit no offsets")
    if is_uri(path) and not path.startswith("file:"):
        raise InvalidOption("Option 'group' requires a local data directory, not an object store")
    try:
        check_name(name)
    except InvalidRecord as error:
        raise InvalidOption(f"Option 'group': {error}") from None
    return name


def _check_names(options: Mapping[str, str]) -> list[str]:
    """Refuse unknown names; return remarks about those without effect."""
    ignored = []
    for name in options:
        if name in REFUSED:
            raise InvalidOption(f"Kafka option {name!r} is not supported. {REFUSED[name]}")
        if name in WITHOUT_EFFECT or (name.startswith(KAFKA) and name != KAFKA_ISOLATION):
            ignored.append(name)
        elif name not in KNOWN and name != KAFKA_ISOLATION:
            raise values.unknown(name, sorted(KNOWN.values()))
    if not ignored:
        return []
    return [f"Options without effect, because no broker is used: {', '.join(sorted(ignored))}"]


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in SUBSCRIPTIONS if name.lower() in options]
    if len(given) != 1:
        problem = "Only one" if given else "One"
        verb = "can" if given else "must"
        raise InvalidOption(
            f"{problem} of the following options {verb} be specified for the source: "
            f"{', '.join(SUBSCRIPTIONS)}"
        )
    value = options[given[0].lower()]
    if given[0] == "subscribe":
        topics = frozenset(name for each in value.split(",") if (name := each.strip()))
        if not topics:
            raise InvalidOption(
                f"No topics to subscribe to as specified value for option 'subscribe' is {value!r}"
            )
        return Subscription(topics=topics)
    if given[0] == "subscribePattern":
        pattern = value.strip()
        if not pattern:
            raise InvalidOption(
                "Pattern to subscribe is empty as specified value for option 'subscribePattern' "
                f"is {value!r}"
            )
        try:
            re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as error:
            raise InvalidOption(
                f"Option 'subscribePattern' is not a regular expression: {error}, got {value!r}"
            ) from None
        return Subscription(pattern=pattern)
    partitions = values.parsed(
        value, offsets.parse_partitions, '{"topicA":[0,1],"topicB":[0,1]}', "assign"
    )
    if not partitions:
        raise InvalidOption(
            f"No topicpartitions to assign as specified value for option 'assign' is {value!r}"
        )
    return Subscription(partitions=frozenset(partitions))


def _limit(options: Mapping[str, str], side: str, default: int, *, error: bool) -> Limit:
    name = f"{side}Timestamp"
    if (text := options.get(name.lower())) is not None:
        number = values.long(text, f"Expected a single long value for {name!r}")
        if number < 0:
            raise InvalidOption(f"Option {name!r} must not be negative, got {text!r}")
        return Limit(timestamp=number, error_without_match=error)
    name = f"{side}OffsetsByTimestamp"
    if (text := options.get(name.lower())) is not None:
        example = '{"topicA":{"0":123456789,"1":123456789}}'
        times = _by_partition(text, example, name, least=0)
        return Limit(timestamps=times, error_without_match=error)
    name = f"{side}Offsets"
    if (text := options.get(name.lower())) is None:
        return Limit(offset=default)
    if (word := text.strip().lower()) in ("earliest", "latest"):
        return Limit(offset=EARLIEST if word == "earliest" else LATEST)
    example = '{"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    return Limit(offsets=_by_partition(text.strip(), example, name, least=EARLIEST))


def _by_partition(text: str, example: str, name: str, *, least: int) -> Offsets:
    """Return the offsets or times of an option. InvalidOption if one is below `least`."""
    found = values.parsed(text, offsets.parse, example, name)
    for each, number in found.items():
        if number < least:
            raise InvalidOption(f"Option {name!r} has {number} for {each}")
    return found


def _check_batch(starting: Limit, ending: Limit) -> None:
    if starting.offset == LATEST:
        raise InvalidOption("starting offset can't be latest for batch queries")
    if ending.offset == EARLIEST:
        raise InvalidOption("ending offset can't be earliest for batch queries")
    for each, offset in (starting.offsets or {}).items():
        if offset == LATEST:
            raise InvalidOption(f"startingOffsets for {each} can't be latest for batch queries")
    for each, offset in (ending.offsets or {}).items():
        if offset == EARLIEST:
            raise InvalidOption(f"ending offset for {each} can't be earliest for batch queries")
    for what, start, end in (
        ("offset", starting.offsets, ending.offsets),
        ("timestamp", starting.timestamps, ending.timestamps),
    ):
        if start is None or end is None:
            continue
        if start.keys() != end.keys():
            raise InvalidOption(
                f"The specified start {what} and end {what} should have the same "
                f"topic-partitions. Topic-partitions for start {what}: {offsets.names(start)}, "
                f"topic-partitions for end {what}: {offsets.names(end)}."
            )
        for each in start:
            if 0 <= end[each] < start[each]:
                raise InvalidOption(
                    f"The specified start {what} {start[each]} is greater than the end {what} "
                    f"{end[each]} for topic {each.topic} partition {each.partition}."
                )


def _isolation(options: Mapping[str, str]) -> Isolation:
    given = {
        name: options[name.lower()].lower()
        for name in (KAFKA_ISOLATION, "isolationLevel")
        if name.lower() in options
    }
    if len(set(given.values())) > 1:
        raise InvalidOption(
            f"Options {KAFKA_ISOLATION!r} and 'isolationLevel' contradict each other"
        )
    for name, value in given.items():
        if value == "read_uncommitted":
            return "read_uncommitted"
        if value != "read_committed":
            raise InvalidOption(
                f"Option {name!r} must be 'read_committed' or 'read_uncommitted', got {value!r}"
            )
    return "read_committed"
