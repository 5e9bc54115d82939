"""Computes rates, latencies and jobs from two readings of a mount.

It uses no file and no terminal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from kafkafs.cli.mounting.top.figures import Figures, Place, Sample, total

#: The share of flushes or fsyncs that take at most `Latency.most_s`.
MOST = 0.99


class Row(NamedTuple):
    """A topic, or one of its partitions.

    Rates are per second; None before the second reading. Records are counted by their offsets. The
    number of records that were read is estimated from the mean length of a record. `lag` is that of
    the group that is furthest behind; None if no group has a committed offset.
    """

    topic: str
    partition: int | None
    records_in: float | None
    bytes_in: float | None
    records_out: float | None
    bytes_out: float | None
    bytes: int
    records: int
    segments: int
    open_handles: int
    lag: int | None
    mirror_lag: float | None = None
    """Records of the source that the mirror has not copied yet; None if this is no mirror."""

    @property
    def name(self) -> str:
        """Return the name that the table shows."""
        return self.topic if self.partition is None else f"{self.topic}/{self.partition}"

    @property
    def is_active(self) -> bool:
        """Return whether anything is appended or read."""
        return bool(self.bytes_in or self.bytes_out or self.records_in)


class Latency(NamedTuple):
    """The latency of flushes or fsyncs between two readings, in seconds; None: there were none."""

    per_second: float
    mean_s: float | None
    most_s: float | None
    """The upper bound for a share of `MOST` of them; infinite if longer than the last bucket."""


class JobProgress(NamedTuple):
    """A job that waits or runs. `total` is 0 until it is known."""

    job: str
    topic: str
    state: str
    phase: str
    done: int
    total: int


class GroupLag(NamedTuple):
    """The number of records by which a group is behind in a topic."""

    group: str
    topic: str
    lag: int


class Rates:
    """Compares the reading `now` with the reading `before`."""

    def __init__(self, before: Sample | None, now: Sample) -> None:
        # A new daemon counts from 0 again.
        started = "process_start_time_seconds"
        if before is not None and before.value(started) != now.value(started):
            before = None
        self.before = before
        self.now = now
        self.seconds = 0.0 if before is None else max(now.at_s - before.at_s, 1e-9)
        self.is_read_only = bool(now.value("read_only"))
        self.lags: dict[Place, dict[str, int]] = {}
        """The records of a partition that a group has not committed, for groups that have a
        committed offset there."""
        for (group, number, topic), lag in now.values.get("group_lag", {}).items():
            self.lags.setdefault((topic, int(number)), {})[group] = int(lag)

    def rate(self, name: str) -> float | None:
        """Return the rate of a counter, summed over its labels; None before the second reading."""
        if self.before is None:
            return None
        return max(self.now.total(name) - self.before.total(name), 0) / self.seconds

    @cached_property
    def whole(self) -> Row:
        """Return the sums over all partitions.

        Reads of files in `.kafkafs` do not count, such as those of this command.
        """
        return _together("", self.partitions(), None)

    def partitions(self) -> list[Row]:
        """Return a row for each partition."""
        return [
            self._row(topic, number, figures)
            for (topic, number), figures in self.now.partitions.items()
        ]

    def topics(self) -> list[Row]:
        """Return a row for each topic that has a partition."""
        rows: dict[str, list[Row]] = {}
        for row in self.partitions():
            rows.setdefault(row.topic, []).append(row)
        most: dict[str, int] = {}
        for each in self.groups():
            most[each.topic] = max(most.get(each.topic, 0), each.lag)
        return [_together(topic, of_topic, most.get(topic)) for topic, of_topic in rows.items()]

    def groups(self) -> list[GroupLag]:
        """Return the lag of each group in each topic in which it has a committed offset."""
        found: dict[tuple[str, str], int] = {}
        for (topic, _), lags in self.lags.items():
            for group, lag in lags.items():
                found[group, topic] = found.get((group, topic), 0) + lag
        return [GroupLag(*of, lag) for of, lag in sorted(found.items())]

    def _row(self, topic: str, number: int, now: Figures) -> Row:
        rates: tuple[float | None, float | None, float | None, float | None] = (None,) * 4
        if self.before is not None:
            before = self.before.partitions.get((topic, number))
            if before is None:  # its counters were 0
                before = {**now, "appended_bytes_total": {}, "read_bytes_total": {}}
            # The daemon of a read-only mount counts no appends.
            appended = "size_bytes" if self.is_read_only else "appended_bytes_total"
            earlier, lengths = before.get("read_bytes_total", {}), now.get("record_bytes", {})
            out = {
                view: count - earlier.get(view, 0)
                for view, count in now.get("read_bytes_total", {}).items()
            }
            read = sum(count / lengths[view] for view, count in out.items() if lengths.get(view))
            rates = (
                self._per_second(total(now, "log_end_offset") - total(before, "log_end_offset")),
                self._per_second(total(now, appended) - total(before, appended)),
                self._per_second(read),
                self._per_second(sum(out.values())),
            )
        lags = self.lags.get((topic, number), {})
        behind = self.now.values.get("mirror_lag", {}).get((str(number), topic))
        return Row(
            *(topic, number, *rates),
            total(now, "size_bytes"),
            total(now, "log_end_offset") - total(now, "log_start_offset"),
            total(now, "segments"),
            total(now, "open_handles"),
            max(lags.values(), default=None),
            None if behind is None else int(behind),
        )

    def _per_second(self, amount: float) -> float:
        return max(amount, 0) / self.seconds

    def latency(self, name: str) -> Latency:
        """Return the latency of `flush` or `fsync`."""
        before = self.before
        if before is None:
            return Latency(0.0, None, None)
        count = self.now.value(f"{name}_seconds_count") - before.value(f"{name}_seconds_count")
        if count <= 0:
            return Latency(0.0, None, None)
        took = self.now.value(f"{name}_seconds_sum") - before.value(f"{name}_seconds_sum")
        bucket = f"{name}_seconds_bucket"
        most = math.inf
        for (bound,), value in self.now.values.get(bucket, {}).items():
            if value - before.value(bucket, bound) >= count * MOST:
                most = min(most, float(bound))
        return Latency(count / self.seconds, took / count, most)

    def jobs(self) -> list[JobProgress]:
        """Return the jobs that wait or run, the running ones first."""
        found = [
            JobProgress(
                *(job, topic, state, phase),
                int(self.now.value("job_done_bytes", job, topic)),
                int(self.now.value("job_total_bytes", job, topic)),
            )
            for job, phase, state, topic in self.now.values.get("jobs", {})
        ]
        return sorted(found, key=lambda job: (job.state != "running", job.job, job.topic))

    def faults(self) -> list[tuple[str, int]]:
        """Return the kinds of faults that the daemon counts now, with their counts."""
        now = self.now
        counts = [
            *(
                (f"failing {name}", n)
                for (name,), n in now.values.get("failing_duties", {}).items()
            ),
            ("damaged places", now.value("damages_total")),
            ("uncleanable partitions", now.value("uncleanable_partitions")),
            ("faults found at start-up", now.value("recovery_faults")),
        ]
        return [(words, int(count)) for words, count in counts if count]


def _sum(values: Sequence[float | None]) -> float | None:
    """Return the sum of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _together(topic: str, rows: Sequence[Row], lag: int | None) -> Row:
    """Return the row of a topic with these partitions."""
    return Row(
        topic,
        None,
        _sum([row.records_in for row in rows]),
        _sum([row.bytes_in for row in rows]),
        _sum([row.records_out for row in rows]),
        _sum([row.bytes_out for row in rows]),
        sum(row.bytes for row in rows),
        sum(row.records for row in rows),
        sum(row.segments for row in rows),
        sum(row.open_handles for row in rows),
        lag,
        _sum([row.mirror_lag for row in rows]),
    )
