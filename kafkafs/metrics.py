"""Metrics: plain counters of a mount, and everything there is to tell as Prometheus text.

Counting is adding to a number. `exposition` makes the text from `Numbers`, which whoever knows the
tree has taken; it may run in any thread, and imports prometheus_client when it is first called, so
that a mount whose metrics nobody reads never loads it.

Not here: where the numbers come from (`tree.directories.about`), and serving them by HTTP: a
scraper reads the file, as node_exporter's textfile collector does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from storage.counters import CleanerCounters, LogCounters

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

NAMESPACE = "kafkafs"

OPERATIONS = (
    *("lookup", "forget", "getattr", "setattr", "statfs", "getxattr", "listxattr"),
    *("opendir", "readdir", "releasedir", "fsyncdir", "mkdir", "rmdir", "create", "unlink"),
    *("open", "read", "write", "flush", "fsync", "release"),
    *("mknod", "symlink", "link", "rename", "readlink", "setxattr", "removexattr"),
)
"""The requests that are counted: all that the kernel sends."""


class MountCounters:
    """What a mount was asked for and what became of it. Changed on the owner's thread only."""

    __slots__ = (
        *("adopted_bytes", "adopted_records", "bytes_read", "bytes_written", "errors"),
        *("owner_requests", "refused_appends", "requests", "retention_passes"),
    )

    def __init__(self) -> None:
        self.requests = dict.fromkeys(OPERATIONS, 0)
        """By operation."""
        self.errors: Counter[tuple[str, str]] = Counter()
        """By operation and name of the errno."""
        self.refused_appends: Counter[str] = Counter()
        """By the storage's error or, where the system refused, the name of the errno."""
        self.owner_requests: Counter[tuple[str, str]] = Counter()
        """By what the owner of the directory was asked for, and what has become of it."""
        self.retention_passes = 0
        """Times that retention has gone over all topics by the clock."""
        self.adopted_records = 0
        self.adopted_bytes = 0
        self.bytes_read = 0
        self.bytes_written = 0


class PartitionNumbers(NamedTuple):
    """One partition: offsets, bytes of its log files, and how many those are."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    last_stable: int
    size: int
    segments: int


class ViewNumbers(NamedTuple):
    """Bytes of log whose text lengths are known in a view, and of those that are not."""

    view: str
    measured: int
    unmeasured: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """What `exposition` shows, besides the process's own."""

    version: str
    python: str
    read_only: bool
    logs: LogCounters
    mount: MountCounters
    cleaner: CleanerCounters
    uncleanable: int
    """Partitions whose last cleaning has failed."""
    duty_failures: Mapping[str, int]
    """By what goes on by itself: how often it has failed."""
    failing_duties: Mapping[str, int]
    """By the same: of how many partitions, topics, … it fails now."""
    dirty_ratios: Mapping[str, float]
    """By compacted topic the largest of its partitions', from 0 to 1."""
    checked: int
    """Bytes of log that the checker has read back."""
    topics: int
    partitions: Sequence[PartitionNumbers]
    views: Sequence[ViewNumbers]
    mapped_bytes: int
    open_handles: int
    known_inodes: int
    events: int
    started_clean: bool
    opening_s: float
    opening_bytes: int
    cuts: int
    cut_bytes: int
    faults: int


def exposition(numbers: Numbers) -> bytes:
    """Prometheus' text format, version 0.0.4."""
    from prometheus_client.exposition import generate_latest
    from prometheus_client.process_collector import ProcessCollector
    from prometheus_client.registry import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(numbers))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Collector:
    """prometheus_client's protocol: metrics with their samples."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry has no other collector that these names could collide with."""
        return ()

    def collect(self) -> Iterator[Metric]:
        yield from self._about()
        yield from _of_partitions(self._numbers.partitions)
        yield from self._appends()
        yield from self._retention()
        yield from self._compaction()
        yield from self._duties()
        yield from self._checker()
        yield from self._requests()
        yield from self._adoptions()
        yield from self._opening()
        yield from self._tree()

    def _about(self) -> Iterator[Metric]:
        numbers = self._numbers
        from prometheus_client.metrics_core import InfoMetricFamily

        build = {"version": numbers.version, "python": numbers.python}
        yield InfoMetricFamily(f"{NAMESPACE}_build", "What is running.", build)
        yield _gauge("read_only", "1 where the mount is read-only.", numbers.read_only)
        yield _gauge("topics", "Topics.", numbers.topics)
        yield _gauge("partitions", "Partitions.", len(numbers.partitions))

    def _appends(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import SummaryMetricFamily

        logs = self._numbers.logs
        yield _counter("appended_records", "Offsets taken by appends.", logs.records_appended)
        yield _counter("appended_batches", "Record batches appended.", logs.batches_appended)
        yield _counter("appended_bytes", "Bytes of log appended.", logs.bytes_appended)
        yield _counter_by(
            "refused_appends",
            "Appends that were refused, by the storage's error or the system's.",
            ("reason",),
            (((reason,), n) for reason, n in sorted(self._numbers.mount.refused_appends.items())),
        )
        flushes = SummaryMetricFamily(
            f"{NAMESPACE}_flush_seconds",
            "Flushes of partitions that succeeded, and the time they took.",
            logs.flushes,
            logs.flush_ns / 1e9,
        )
        yield flushes
        yield _counter("flush_failures", "Flushes that failed.", logs.flush_failures)
        yield _counter("segment_rolls", "Times that a log has begun a new segment.", logs.rolls)
        yield _counter(
            "truncations", "Cuts of a log by the process whose log it is.", logs.truncations
        )

    def _retention(self) -> Iterator[Metric]:
        logs = self._numbers.logs
        yield _counter(
            "retention_passes",
            "Times that retention has gone over all topics by the clock.",
            self._numbers.mount.retention_passes,
        )
        yield _counter(
            "deleted_segments", "Segments that retention took out of a log.", logs.segments_deleted
        )
        yield _counter("deleted_bytes", "Bytes of log in them.", logs.bytes_deleted)
        yield _counter(
            "retentions", "Times that segments were taken out of a log.", logs.retentions
        )

    def _compaction(self) -> Iterator[Metric]:
        cleaner = self._numbers.cleaner
        yield _counter("compactions", "Rounds of compaction.", cleaner.rounds)
        yield _counter("compaction_seconds", "Time that they took.", cleaner.elapsed_ms / 1000)
        yield _counter(
            "compaction_read_bytes", "Bytes of log that they have read.", cleaner.bytes_read
        )
        yield _counter(
            "compaction_kept_bytes", "Bytes of log that they have left.", cleaner.bytes_written
        )
        yield _counter(
            "compaction_read_records", "Records that they have read.", cleaner.records_read
        )
        yield _counter(
            "compaction_kept_records", "Records that they have left.", cleaner.records_kept
        )
        yield _gauge(
            "compaction_map_fill", "How full the last round's map was, 0 to 1.", cleaner.map_fill
        )
        yield _gauge(
            "uncleanable_partitions",
            "Partitions whose last compaction has failed; it is tried again.",
            self._numbers.uncleanable,
        )
        ratio = _gauge(
            "topic_dirty_ratio",
            "The largest share of bytes not compacted yet in a partition, of compacted topics.",
            labels=("topic",),
        )
        for topic, value in sorted(self._numbers.dirty_ratios.items()):
            ratio.add_sample(ratio.name, {"topic": topic}, value)
        yield ratio

    def _duties(self) -> Iterator[Metric]:
        numbers = self._numbers
        yield _counter_by(
            "duty_failures",
            "Turns of what goes on by itself that have failed.",
            ("duty",),
            (((duty,), n) for duty, n in sorted(numbers.duty_failures.items())),
        )
        failing = _gauge(
            "failing_duties",
            "Of how many partitions, topics or others it fails now.",
            labels=("duty",),
        )
        for duty, count in sorted(numbers.failing_duties.items()):
            failing.add_sample(failing.name, {"duty": duty}, count)
        yield failing

    def _checker(self) -> Iterator[Metric]:
        numbers = self._numbers
        yield _counter(
            "checked_bytes", "Bytes of log read back to see if they are whole.", numbers.checked
        )
        yield _counter("damages", "Damaged places found in logs.", numbers.logs.damages)

    def _requests(self) -> Iterator[Metric]:
        mount = self._numbers.mount
        yield _counter_by(
            "requests",
            "The kernel's requests.",
            ("operation",),
            (((operation,), n) for operation, n in sorted(mount.requests.items())),
        )
        yield _counter_by(
            "request_errors",
            "Requests that were answered with an error.",
            ("operation", "errno"),
            sorted(dict(mount.errors).items()),
        )
        yield _counter("read_bytes", "Bytes that reads were answered with.", mount.bytes_read)
        yield _counter("written_bytes", "Bytes that writes have taken.", mount.bytes_written)

    def _adoptions(self) -> Iterator[Metric]:
        mount = self._numbers.mount
        yield _counter_by(
            "owner_requests",
            "What the owner of the directory was asked for, by its outcome.",
            ("kind", "outcome"),
            sorted(dict(mount.owner_requests).items()),
        )
        yield _counter("adopted_records", "Records of adopted batches.", mount.adopted_records)
        yield _counter("adopted_bytes", "Bytes of log in them.", mount.adopted_bytes)

    def _opening(self) -> Iterator[Metric]:
        numbers = self._numbers
        yield _gauge("recovery_clean", "1 where the last stop was orderly.", numbers.started_clean)
        yield _gauge("recovery_seconds", "Time that loading the logs took.", numbers.opening_s)
        yield _gauge("recovery_read_bytes", "Bytes of log read for it.", numbers.opening_bytes)
        yield _gauge("recovery_cuts", "Files from which damage was cut.", numbers.cuts)
        yield _gauge("recovery_cut_bytes", "Bytes that were set aside.", numbers.cut_bytes)
        yield _gauge("recovery_faults", "Faults found and left alone.", numbers.faults)

    def _tree(self) -> Iterator[Metric]:
        numbers = self._numbers
        measured = _gauge("view_index_measured_bytes", "Bytes of log measured.", labels=("view",))
        missing = _gauge(
            "view_index_unmeasured_bytes",
            "Bytes of log not measured, of partitions looked at in the view.",
            labels=("view",),
        )
        for view in numbers.views:
            measured.add_sample(measured.name, {"view": view.view}, view.measured)
            missing.add_sample(missing.name, {"view": view.view}, view.unmeasured)
        yield measured
        yield missing
        yield _gauge(
            "view_index_mapped_bytes", "Bytes of view indexes mapped.", numbers.mapped_bytes
        )
        yield _gauge("open_handles", "Open files.", numbers.open_handles)
        yield _gauge("known_inodes", "Inodes that the kernel knows.", numbers.known_inodes)
        yield _counter("events", "Lines written to the log of events.", numbers.events)


def _of_partitions(partitions: Sequence[PartitionNumbers]) -> list[Metric]:
    labels = ("topic", "partition")
    start = _gauge("partition_log_start_offset", "The first offset.", labels=labels)
    end = _gauge("partition_log_end_offset", "The offset of the next record.", labels=labels)
    stable = _gauge(
        "partition_last_stable_offset",
        "The first offset of an open transaction, or the log end.",
        labels=labels,
    )
    size = _gauge("partition_size_bytes", "Bytes of the partition's log files.", labels=labels)
    segments = _gauge("partition_segments", "Segments.", labels=labels)
    for each in partitions:
        # One for all of its samples.
        where = {"topic": each.topic, "partition": str(each.partition)}
        start.add_sample(start.name, where, each.log_start)
        end.add_sample(end.name, where, each.log_end)
        stable.add_sample(stable.name, where, each.last_stable)
        size.add_sample(size.name, where, each.size)
        segments.add_sample(segments.name, where, each.segments)
    return [start, end, stable, size, segments]


def _gauge(
    name: str, meaning: str, value: float | None = None, labels: Sequence[str] | None = None
) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(f"{NAMESPACE}_{name}", meaning, value, labels)


def _counter(name: str, meaning: str, value: float) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    return CounterMetricFamily(f"{NAMESPACE}_{name}", meaning, value)


def _counter_by(
    name: str,
    meaning: str,
    labels: Sequence[str],
    values: Iterable[tuple[Sequence[str], float]],
) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    metric = CounterMetricFamily(f"{NAMESPACE}_{name}", meaning, labels=labels)
    for of, value in values:
        metric.add_metric(of, value)
    return metric
