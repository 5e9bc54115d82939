"""Offsets of many partitions: the JSON of Spark's Kafka source, and arithmetic.

    {"orders": {"0": 23, "1": -1}, "events": {"0": -2}}

An offset is that of the next record to read; -1 is the end (`LATEST`), -2 the start (`EARLIEST`).
`nested` sorts topics and partitions, since Spark compares the texts.

The checkpoint of a streaming query (`Reached`) also has the ids of topics, because a later topic
may have the same name: `{"orders": {"0": 23, "id": "Tm2GcYvLQbCNc3w1lYSuIg"}}`. Options may have
these ids, which have no effect there.

Limits and tasks are divided among partitions as in Spark's Kafka source
(`KafkaMicroBatchStream.rateLimit`, `KafkaOffsetRangeCalculator`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

LATEST = -1
EARLIEST = -2

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_OFFSET = (1 << 63) - 1


class TopicPartition(NamedTuple):
    """A partition; as text `TOPIC-N`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


Offsets: TypeAlias = dict[TopicPartition, int]
Nested: TypeAlias = dict[str, dict[str, int | str]]

_ID = "id"


class Reached(NamedTuple):
    """The progress of a streaming query. `ids`: the ids of the topics that have one."""

    offsets: Offsets
    ids: Mapping[str, str] = {}


def names(partitions: Iterable[TopicPartition]) -> str:
    """Return partitions as text for messages: `[events-0, orders-0, orders-1]`."""
    return f"[{', '.join(map(str, sorted(partitions)))}]"


# -- their JSON --------------------------------------------------------------------------------


def nested(offsets: Mapping[TopicPartition, int], ids: Mapping[str, str] | None = None) -> Nested:
    """Return the offsets as objects for JSON, in order, with the ids of their topics."""
    result: Nested = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    for topic, fields in result.items():
        if ids is not None and topic in ids:
            fields[_ID] = ids[topic]
    return result


def from_nested(value: object) -> Reached:
    """Parse a result of `nested`. ValueError."""
    result = Reached({}, ids := {})
    if not isinstance(value, dict):
        raise ValueError(f"not an object of topics: {value!r}")
    for topic, partitions in value.items():
        if not isinstance(partitions, dict):
            raise ValueError(f"not an object of partitions: {partitions!r}")
        for partition, number in partitions.items():
            if partition == _ID:
                if not isinstance(number, str):
                    raise ValueError(f"not a topic's id: {number!r}")
                ids[topic] = number
                continue
            if _NUMBER.fullmatch(partition) is None:
                raise ValueError(f"not a partition: {partition!r}")
            if type(number) is not int or not -_MAX_OFFSET <= number <= _MAX_OFFSET:
                raise ValueError(f"not a number: {number!r}")
            result.offsets[TopicPartition(topic, int(partition))] = number
    return result


def parse(text: str) -> Offsets:
    """Parse offsets or times by partition. ValueError."""
    return from_nested(_object(text)).offsets


def parse_partitions(text: str) -> set[TopicPartition]:
    """Parse `{"orders": [0, 1]}`. ValueError."""
    result: set[TopicPartition] = set()
    for topic, partitions in _object(text).items():
        if not isinstance(partitions, list):
            raise ValueError(f"not a list of partitions: {partitions!r}")
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition < 1 << 31:
                raise ValueError(f"not a partition: {partition!r}")
            result.add(TopicPartition(topic, partition))
    return result


def _object(text: str) -> dict[str, Any]:
    value = json.loads(text, object_pairs_hook=_distinct)
    if not isinstance(value, dict):
        raise ValueError(f"not an object: {value!r}")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


# -- ranges ------------------------------------------------------------------------------------


class OffsetRange(NamedTuple):
    """Offsets from `start` to before `end`; some of their records may be deleted."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def limited(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], most: int
) -> Offsets:
    """Return ends with about `most` offsets from `start` to them, divided among partitions.

    Each partition that has offsets gets at least one, so the sum may be a few more.
    """
    sizes = {name: end[name] - start[name] for name in end if end[name] > start[name]}
    total = sum(sizes.values())
    result = dict(end)
    for name, size in sizes.items():
        result[name] = min(end[name], start[name] + max(most * size // total, 1))
    return result


def divided(
    ranges: Iterable[OffsetRange], *, at_least: int | None = None, most_records: int | None = None
) -> list[OffsetRange]:
    """Divide ranges into about `at_least` ranges with at most `most_records` offsets.

    Larger ranges are divided into more ranges. Empty ranges are dropped.
    """
    wanted = [each for each in ranges if each.size > 0]
    if most_records is not None:
        wanted = [part for each in wanted for part in _parts(each, -(-each.size // most_records))]
    if at_least is None or len(wanted) >= at_least:
        return wanted
    total = sum(each.size for each in wanted)
    whole = {each for each in wanted if _count(each.size, total, at_least) == 1}
    # Ranges that stay whole do not count for the shares of the others.
    rest = total - sum(each.size for each in whole)
    more = max(at_least - len(whole), 1)
    return [
        part
        for each in wanted
        for part in ([each] if each in whole else _parts(each, _count(each.size, rest, more)))
    ]


def _count(size: int, total: int, wanted: int) -> int:
    return max((2 * size * wanted + total) // (2 * total), 1)


def _parts(whole: OffsetRange, count: int) -> list[OffsetRange]:
    result = []
    start = whole.start
    for left in range(min(count, whole.size), 0, -1):
        end = start + (whole.end - start) // left
        result.append(OffsetRange(whole.partition, start, end))
        start = end
    return result
