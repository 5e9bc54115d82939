"""Metrics: plain counters of a mount, and all its figures as Prometheus text.

`tree.directories.about` fills in `Numbers`, and `exposition` makes the text of them, in any thread.
Its first call imports prometheus_client: a mount whose metrics nobody reads never loads that.

Nothing serves them by HTTP: a scraper reads the file, as node_exporter's textfile collector does.
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
"""The kernel's requests."""


class MountCounters:
    """Counts the kernel's requests, and their outcomes. Only the owner's thread changes it."""

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
        """By the storage's error, or by the name of the system's errno."""
        self.owner_requests: Counter[tuple[str, str]] = Counter()
        """By the kind of a request to the directory's owner, and its outcome."""
        self.retention_passes = 0
        """Scheduled runs of retention over all topics."""
        self.adopted_records = 0
        self.adopted_bytes = 0
        self.bytes_read = 0
        self.bytes_written = 0


class PartitionNumbers(NamedTuple):
    """One partition: offsets, the bytes of its log files, the number of segments."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    last_stable: int
    size: int
    segments: int


class ViewNumbers(NamedTuple):
    """Bytes of log that a view has measured, and has not measured."""

    view: str
    measured: int
    unmeasured: int


@dataclass(frozen=True, slots=True)
class Numbers:
    """What `exposition` shows, besides the process's own figures."""

    version: str
    python: str
    read_only: bool
    logs: LogCounters
    mount: MountCounters
    cleaner: CleanerCounters
    uncleanable: int
    """Partitions whose last cleaning failed."""
    duty_failures: Mapping[str, int]
    """How often each duty has failed."""
    failing_duties: Mapping[str, int]
    """For how many partitions, topics, … each duty fails now."""
    dirty_ratios: Mapping[str, float]
    """The largest of a compacted topic's partitions', from 0 to 1."""
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
        yield _counter("appended_records", "Offsets that appends took.", logs.records_appended)
        yield _counter("appended_batches", "Record batches appended.", logs.batches_appended)
        yield _counter("appended_bytes", "Bytes of log appended.", logs.bytes_appended)
        yield _counter_by(
            "refused_appends",
            "Refused appends, by the storage's error or the system's.",
            ("reason",),
            (((reason,), n) for reason, n in sorted(self._numbers.mount.refused_appends.items())),
        )
        flushes = SummaryMetricFamily(
            f"{NAMESPACE}_flush_seconds",
            "Successful flushes of partitions, and the time they took.",
            logs.flushes,
            logs.flush_ns / 1e9,
        )
        yield flushes
        yield _counter("flush_failures", "Flushes that failed.", logs.flush_failures)
        yield _counter("segment_rolls", "Times that a log has begun a new segment.", logs.rolls)
        yield _counter("truncations", "Times that an owner has cut its log.", logs.truncations)

    def _retention(self) -> Iterator[Metric]:
        logs = self._numbers.logs
        yield _counter(
            "retention_passes",
            "Scheduled runs of retention over all topics.",
            self._numbers.mount.retention_passes,
        )
        yield _counter(
            "deleted_segments", "Segments that retention took out of a log.", logs.segments_deleted
        )
        yield _counter("deleted_bytes", "Bytes of log in them.", logs.bytes_deleted)
        yield _counter("retentions", "Times that a log retired segments.", logs.retentions)

    def _compaction(self) -> Iterator[Metric]:
        cleaner = self._numbers.cleaner
        yield _counter("compactions", "Rounds of compaction.", cleaner.rounds)
        yield _counter("compaction_seconds", "Time that they took.", cleaner.elapsed_ms / 1000)
        yield _counter("compaction_read_bytes", "Bytes of log they read.", cleaner.bytes_read)
        yield _counter("compaction_kept_bytes", "Bytes of log they kept.", cleaner.bytes_written)
        yield _counter("compaction_read_records", "Records they read.", cleaner.records_read)
        yield _counter("compaction_kept_records", "Records they kept.", cleaner.records_kept)
        yield _gauge(
            "compaction_map_fill", "How full the last round's map was, 0 to 1.", cleaner.map_fill
        )
        yield _gauge(
            "uncleanable_partitions",
            "Partitions whose last compaction failed; the cleaner tries again.",
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
            "Failed turns of duties.",
            ("duty",),
            (((duty,), n) for duty, n in sorted(numbers.duty_failures.items())),
        )
        failing = _gauge(
            "failing_duties",
            "For how many partitions, topics or others a duty fails now.",
            labels=("duty",),
        )
        for duty, count in sorted(numbers.failing_duties.items()):
            failing.add_sample(failing.name, {"duty": duty}, count)
        yield failing

    def _checker(self) -> Iterator[Metric]:
        numbers = self._numbers
        yield _counter(
            "checked_bytes", "Bytes of log that the checker has read back.", numbers.checked
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
            "Requests that the daemon answered with an error.",
            ("operation", "errno"),
            sorted(dict(mount.errors).items()),
        )
        yield _counter("read_bytes", "Bytes that reads returned.", mount.bytes_read)
        yield _counter("written_bytes", "Bytes that writes took.", mount.bytes_written)

    def _adoptions(self) -> Iterator[Metric]:
        mount = self._numbers.mount
        yield _counter_by(
            "owner_requests",
            "Requests to the owner of the directory, by outcome.",
            ("kind", "outcome"),
            sorted(dict(mount.owner_requests).items()),
        )
        yield _counter("adopted_records", "Records of adopted batches.", mount.adopted_records)
        yield _counter("adopted_bytes", "Bytes of log in them.", mount.adopted_bytes)

    def _opening(self) -> Iterator[Metric]:
        numbers = self._numbers
        yield _gauge("recovery_clean", "1 where the last stop was orderly.", numbers.started_clean)
        yield _gauge("recovery_seconds", "Time that loading the logs took.", numbers.opening_s)
        yield _gauge("recovery_read_bytes", "Bytes of log that it read.", numbers.opening_bytes)
        yield _gauge("recovery_cuts", "Files from which it cut damage.", numbers.cuts)
        yield _gauge("recovery_cut_bytes", "Bytes that it cut, and kept aside.", numbers.cut_bytes)
        yield _gauge("recovery_faults", "Faults that it found and left.", numbers.faults)

    def _tree(self) -> Iterator[Metric]:
        numbers = self._numbers
        measured = _gauge("view_index_measured_bytes", "Bytes of log measured.", labels=("view",))
        missing = _gauge(
            "view_index_unmeasured_bytes",
            "Bytes of log not measured, in partitions that somebody read in the view.",
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
