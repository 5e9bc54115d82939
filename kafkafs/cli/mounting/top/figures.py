"""Reads a mount's own figures: `.kafkafs/metrics`, and the end of `.kafkafs/log`.

`docs/reference/metrics.md` says what they mean. For each reading, a worker thread of the daemon
makes one text. The caller decides how often to read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

#: The number of events to read, the newest ones.
EVENTS = 200
_PREFIX = "kafkafs_"
_PER_PARTITION = "partition_"

Labels = tuple[str, ...]
Place = tuple[str, int]
"""A topic, and the number of a partition."""


class PartitionFigures(NamedTuple):
    """The metrics of one partition. Counters start at 0 when the directory is mounted.

    Figures for each view have the view's name as key.
    """

    log_start: int
    log_end: int
    bytes: int
    segments: int
    appended_bytes: int
    read_bytes: Mapping[str, int]
    record_bytes: Mapping[str, float]
    open_handles: int


class Sample(NamedTuple):
    """The figures of one reading of a mount."""

    at_s: float
    """The time of the reading, by the monotonic clock."""
    took_s: float
    values: Mapping[str, Mapping[Labels, float]]
    """Metric without the prefix -> values of its labels, in the order of their names -> value."""
    partitions: Mapping[Place, PartitionFigures]
    events: Sequence[str]

    def value(self, name: str, *labels: str) -> float:
        """Return one value; 0 if there is none."""
        return self.values.get(name, {}).get(labels, 0.0)

    def total(self, name: str) -> float:
        """Return the sum of all values of a metric."""
        return sum(self.values.get(name, {}).values())


def look(mount: str) -> Sample:
    """Read the figures of the mount at a path. This may wait for the daemon. Errors: OSError."""
    began_s = time.monotonic()
    about = os.path.join(mount, ".kafkafs")
    with open(os.path.join(about, "metrics"), encoding="utf-8") as file:
        text = file.read()
    at_s = time.monotonic()
    with open(os.path.join(about, "log"), encoding="utf-8", errors="replace") as file:
        events = file.read().splitlines()[-EVENTS:]
    took_s = time.monotonic() - began_s
    values: dict[str, dict[Labels, float]] = {}
    per_partition: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(text):
        for full_name, labels, value, *_ in family.samples:
            name = full_name.removeprefix(_PREFIX)
            into = per_partition if name.startswith(_PER_PARTITION) else values
            of = tuple(labels[label] for label in sorted(labels))
            into.setdefault(name.removeprefix(_PER_PARTITION), {})[of] = value
    return Sample(at_s, took_s, values, _partitions(per_partition), events)


def _partitions(by_name: Mapping[str, Mapping[Labels, float]]) -> dict[Place, PartitionFigures]:
    by_view: dict[str, dict[Labels, dict[str, float]]] = {}
    for name in ("read_bytes_total", "record_bytes", "open_handles"):
        into = by_view[name] = {}
        for (partition, topic, view), value in by_name.get(name, {}).items():
            into.setdefault((partition, topic), {})[view] = value
    starts, sizes = by_name.get("log_start_offset", {}), by_name.get("size_bytes", {})
    segments = by_name.get("segments", {})
    appended = by_name.get("appended_bytes_total", {})
    found = {}
    for of, end in by_name.get("log_end_offset", {}).items():
        partition, topic = of
        found[topic, int(partition)] = PartitionFigures(
            int(starts.get(of, 0)),
            int(end),
            int(sizes.get(of, 0)),
            int(segments.get(of, 0)),
            int(appended.get(of, 0)),
            {view: int(count) for view, count in by_view["read_bytes_total"].get(of, {}).items()},
            by_view["record_bytes"].get(of, {}),
            int(sum(by_view["open_handles"].get(of, {}).values())),
        )
    return found
