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


Figures = Mapping[str, Mapping[str, float]]
"""The metrics of one partition: name without the prefix -> view, "" without one -> value. Counters
start at 0 when the directory is mounted.
"""


def total(figures: Figures, name: str) -> int:
    """Return the sum of a metric of a partition over its views; 0 if there is none."""
    return int(sum(figures.get(name, {}).values()))


class Sample(NamedTuple):
    """The figures of one reading of a mount."""

    at_s: float
    """The time of the reading, by the monotonic clock."""
    took_s: float
    values: Mapping[str, Mapping[Labels, float]]
    """Metric without the prefix -> values of its labels, in the order of their names -> value."""
    partitions: Mapping[Place, Figures]
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
    partitions: dict[Place, dict[str, dict[str, float]]] = {}
    for family in text_string_to_metric_families(text):
        for full_name, labels, value, *_ in family.samples:
            name = full_name.removeprefix(_PREFIX)
            if name.startswith(_PER_PARTITION):
                of = partitions.setdefault((labels["topic"], int(labels["partition"])), {})
                views = of.setdefault(name.removeprefix(_PER_PARTITION), {})
                views[labels.get("view", "")] = value
            else:
                values.setdefault(name, {})[tuple(labels[each] for each in sorted(labels))] = value
    return Sample(at_s, took_s, values, partitions, events)
