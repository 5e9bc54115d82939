"""`.kafkafs/metrics`: all figures of a mount as Prometheus text, version 0.0.4.

Whoever makes the text imports this module then: it loads prometheus_client, which a mount whose
metrics nobody reads does without. A worker thread makes it, and reads each number when it needs it.

Nothing serves it by HTTP: a scraper reads the file, as node_exporter's textfile collector does.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from kafkafs.printable import one_line
from kafkafs.tree.context import MountContext
from kafkafs.tree.groups.group_facts import groups, lags_of
from kafkafs.tree.handles import Handle
from kafkafs.tree.partition.partitions import Partitions
from storage import descriptors
from storage.counters import Durations
from storage.errors import StorageError
from storage.log.log import Log
from storage.plain_forms import plain_forms

NAMESPACE = "kafkafs"

_Values = float | Iterable[tuple[Sequence[str], float]]
"""One value, or (values of the labels, value) of each sample."""
PartitionValues = tuple[tuple[str, str], tuple[int, int, int, int, int]]
"""(topic, partition), and the values of `_PARTITION_GAUGES`."""


def metrics_text(partitions: Partitions, handles: Sequence[Handle]) -> str:
    """The text for a mount with these open files, and for its process."""
    mount = partitions.mount
    logs = list(mount.manager.logs())
    return exposition(
        [
            *_of_mount(mount, len(logs), len(handles)),
            *of_partitions([_partition(log) for log in logs]),
            *_of_traffic(partitions, logs, handles),
            *_of_logs(mount),
            *_of_jobs(mount),
            *_of_cleaner(mount),
            *_of_duties(mount),
            *_of_requests(mount),
            *_of_opening(mount),
            *_of_views(partitions),
            *_of_groups(mount),
        ]
    )


class _Collected(Collector):
    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(metrics: Sequence[Metric]) -> str:
    """The text for these metrics, and for the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(metrics))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    meaning: str,
    values: _Values,
    labels: Sequence[str] = (),
) -> Metric:
    if isinstance(values, int | float):
        return kind(f"{NAMESPACE}_{name}", meaning, values)
    metric = kind(f"{NAMESPACE}_{name}", meaning, labels=labels)
    for of, value in values:
        metric.add_metric([one_line(label) for label in of], value)
    return metric


_gauge = partial(_family, GaugeMetricFamily)
_counter = partial(_family, CounterMetricFamily)


def _histogram(name: str, meaning: str, durations: Durations) -> Metric:
    """Each bound with how many took no longer."""
    counts = list(durations.counts)
    bounds = [f"{bound / 1e9:g}" for bound in durations.BOUNDS_NS]
    buckets = list(zip([*bounds, "+Inf"], accumulate(counts), strict=True))
    return HistogramMetricFamily(
        f"{NAMESPACE}_{name}", meaning, buckets, sum_value=durations.total_ns / 1e9
    )


def _by_name(values: Mapping[str, float]) -> list[tuple[Sequence[str], float]]:
    return [((name,), value) for name, value in sorted(dict(values).items())]


def _of_mount(mount: MountContext, partitions: int, open_handles: int) -> Iterator[Metric]:
    manager = mount.manager
    build = {"version": version("kafkafs"), "python": platform.python_version()}
    yield InfoMetricFamily(f"{NAMESPACE}_build", "What is running.", build)
    yield _gauge("read_only", "1 where the mount is read-only.", manager.read_only)
    yield _gauge("topics", "Topics.", len(manager.topics))
    yield _gauge("partitions", "Partitions.", partitions)
    yield _gauge("open_handles", "Open files.", open_handles)
    yield _gauge("known_inodes", "Inodes that are kept for the kernel.", len(mount.inodes.nodes))
    yield _counter("events", "Lines written to the log of events.", mount.events.count)
    yield _gauge("segment_descriptors", "Descriptors of segments' files.", descriptors.count())
    most = descriptors.budget()
    yield _gauge("segment_descriptors_limit", "As many as there may be of them.", most)
    yield _gauge("reserved_descriptors", "Those kept for all else.", descriptors.limit() - most)
    meaning = "Times that a segment has closed its files for another one."
    yield _counter("descriptor_evictions", meaning, descriptors.evictions())
    meaning = "Bytes of view indexes in memory."
    yield _gauge("view_index_held_bytes", meaning, mount.store.held.total)
    meaning = "Bytes of decompressed batches held, and being made."
    yield _gauge("plain_cache_bytes", meaning, plain_forms.held_bytes)
    meaning = "Their limit (-o memory); one larger batch at a time may exceed it."
    yield _gauge("plain_cache_limit_bytes", meaning, plain_forms.budget)
    meaning = "How often a reader found its decompressed batch, and how often it had to make it."
    found = {"hit": plain_forms.hits, "miss": plain_forms.misses}
    yield _counter("plain_cache_lookups", meaning, _by_name(found), ["outcome"])
    meaning = "Bytes of text rendered ahead for open files that are read in order."
    yield _gauge("read_ahead_bytes", meaning, mount.read_ahead.held_bytes)
    meaning = "Bytes of unfinished lines and batches, which open files hold."
    yield _gauge("unfinished_bytes", meaning, mount.unfinished.total)
    meaning = "How many unfinished bytes one user may have; all together four times that."
    yield _gauge("unfinished_limit_bytes", meaning, mount.unfinished.limit)


_PARTITION_GAUGES = (
    ("log_start_offset", "The first offset."),
    ("log_end_offset", "The offset of the next record."),
    ("last_stable_offset", "The first offset of an open transaction, or the log end."),
    ("size_bytes", "Bytes of the partition's log files."),
    ("segments", "Segments."),
)


def _partition(log: Log) -> PartitionValues:
    offsets = log.log_start_offset, log.log_end_offset, log.last_stable_offset
    return (log.topic, str(log.partition)), (*offsets, log.size, len(log.segments))


def of_partitions(partitions: Sequence[PartitionValues]) -> Iterator[Metric]:
    """The gauges of each partition."""
    for number, (name, meaning) in enumerate(_PARTITION_GAUGES):
        values = [(labels, row[number]) for labels, row in partitions]
        yield _gauge(f"partition_{name}", meaning, values, ("topic", "partition"))


def _of_traffic(
    partitions: Partitions, logs: Sequence[Log], handles: Sequence[Handle]
) -> Iterator[Metric]:
    """Of the partitions that were appended to, read or opened: most of many thousand were not."""
    appended = [
        ((log.topic, str(log.partition)), count) for log in logs if (count := log.bytes_appended)
    ]
    labels = ("topic", "partition")
    meaning = "Bytes of log that appends to a partition have taken, where there were any."
    yield _counter("partition_appended_bytes", meaning, appended, labels)
    opened = Counter(handle.traffic for handle in handles if handle.traffic is not None)
    read, means, in_use = [], [], []
    for partition in partitions:
        log = partition.log
        mean = log.size / max(log.log_end_offset - log.log_start_offset, 1)
        ways = [(name, view.traffic, view) for name, view in list(partition.views.items())]
        for name, traffic, view in [*ways, ("raw", partition.raw_traffic, None)]:
            of = (log.topic, str(log.partition), name)
            if traffic.bytes_read:
                read.append((of, traffic.bytes_read))
                means.append((of, mean if view is None else view.record_bytes))
            if opened[traffic]:
                in_use.append((of, opened[traffic]))
    by_view = (*labels, "view")
    meaning = "Bytes that reads of a partition's files returned, where there were any."
    yield _counter("partition_read_bytes", meaning, read, by_view)
    meaning = "Bytes that an offset has on average in what was read."
    yield _gauge("partition_record_bytes", meaning, means, by_view)
    yield _gauge("partition_open_handles", "Open files of a partition.", in_use, by_view)


def _of_jobs(mount: MountContext) -> Iterator[Metric]:
    """What works on topics now: what a control file has begun, or the clock."""
    jobs = {(job.kind, job.topic.name): job for job in mount.jobs.running if job.topic is not None}
    states = [((*of, job.state, job.task.phase), 1) for of, job in jobs.items()]
    meaning = "Jobs that have not ended."
    yield _gauge("jobs", meaning, states, ("job", "topic", "state", "phase"))
    done = [(of, job.task.done) for of, job in jobs.items()]
    yield _gauge("job_done_bytes", "Bytes that a job's phase has done.", done, ("job", "topic"))
    total = [(of, job.task.total) for of, job in jobs.items()]
    meaning = "Bytes that a job's phase has to do, 0 while that is not known."
    yield _gauge("job_total_bytes", meaning, total, ("job", "topic"))


def _of_groups(mount: MountContext) -> Iterator[Metric]:
    lags: list[tuple[tuple[str, str, str], int]] = []
    # Where positions cannot be read, all else is shown.
    with contextlib.suppress(StorageError, OSError):
        for group in groups(mount.manager.groups):
            for topic, number, lag in lags_of(mount.manager, group):
                lags.append(((group.name, topic, str(number)), lag))
    meaning = "Records below the high watermark that a group has not committed."
    yield _gauge("group_lag", meaning, lags, ("group", "topic", "partition"))


def _of_logs(mount: MountContext) -> Iterator[Metric]:
    logs, counters = mount.manager.counters, mount.counters
    yield _counter("appended_records", "Offsets that appends took.", logs.records_appended)
    yield _counter("appended_batches", "Record batches appended.", logs.batches_appended)
    yield _counter("appended_bytes", "Bytes of log appended.", logs.bytes_appended)
    meaning = "Refused appends, by the storage's error or the system's."
    yield _counter("refused_appends", meaning, _by_name(counters.refused_appends), ("reason",))
    meaning = "Successful flushes of partitions, and the time they took."
    yield _histogram("flush_seconds", meaning, logs.flushes)
    meaning = "Requests that waited until something was on the disk, and the time they took."
    yield _histogram("fsync_seconds", meaning, counters.fsyncs)
    yield _counter("flush_failures", "Flushes that failed.", logs.flush_failures)
    yield _counter("segment_rolls", "Times that a log has begun a new segment.", logs.rolls)
    yield _counter("truncations", "Times that an owner has cut its log.", logs.truncations)
    meaning = "Scheduled runs of retention over all topics."
    yield _counter("retention_passes", meaning, counters.retention_passes)
    meaning = "Segments that retention took out of a log."
    yield _counter("deleted_segments", meaning, logs.segments_deleted)
    yield _counter("deleted_bytes", "Bytes of log in them.", logs.bytes_deleted)
    yield _counter("retentions", "Times that a log retired segments.", logs.retentions)


def _of_cleaner(mount: MountContext) -> Iterator[Metric]:
    cleaner = mount.cleaner.counters
    yield _counter("compactions", "Rounds of compaction.", cleaner.rounds)
    yield _counter("compaction_seconds", "Time that they took.", cleaner.elapsed_ms / 1000)
    yield _counter("compaction_read_bytes", "Bytes of log they read.", cleaner.bytes_read)
    yield _counter("compaction_kept_bytes", "Bytes of log they kept.", cleaner.bytes_written)
    yield _counter("compaction_read_records", "Records they read.", cleaner.records_read)
    yield _counter("compaction_kept_records", "Records they kept.", cleaner.records_kept)
    meaning = "How full the last round's map was, 0 to 1."
    yield _gauge("compaction_map_fill", meaning, cleaner.map_fill)
    meaning = "Partitions whose last compaction failed; the cleaner tries again."
    failed = sum(not log.closed for log in list(mount.cleaner.uncleanable))
    yield _gauge("uncleanable_partitions", meaning, failed)
    meaning = "The largest share of bytes not compacted yet in a partition, of compacted topics."
    yield _gauge("topic_dirty_ratio", meaning, _by_name(_dirty_ratios(mount)), ("topic",))


def _dirty_ratios(mount: MountContext) -> dict[str, float]:
    """The largest dirty ratio, 0 to 1, of each compacted topic's partitions."""
    now_ms = mount.manager.clock_ms()
    ratios: dict[str, float] = {}
    for log in mount.manager.logs():
        if log.config.is_compacted:
            ratio = mount.cleaner.plan(log, now_ms).ratio
            ratios[log.topic] = max(ratios.get(log.topic, 0.0), ratio)
    return ratios


def _of_duties(mount: MountContext) -> Iterator[Metric]:
    manager = mount.manager
    duties = manager.duties
    yield _counter("duty_failures", "Failed turns of duties.", _by_name(duties.failures), ("duty",))
    meaning = "For how many partitions, topics or others a duty fails now."
    yield _gauge("failing_duties", meaning, _by_name(duties.failing), ("duty",))
    meaning = "Bytes of log that the checker has read back."
    yield _counter("checked_bytes", meaning, mount.checker.all_bytes_checked)
    yield _counter("damages", "Damaged places found in logs.", manager.counters.damages)


def _of_requests(mount: MountContext) -> Iterator[Metric]:
    counters = mount.counters
    requests = _by_name(counters.requests)
    yield _counter("requests", "The kernel's requests.", requests, ("operation",))
    meaning = "Requests that the daemon answered with an error."
    errors = sorted(dict(counters.errors).items())
    yield _counter("request_errors", meaning, errors, ("operation", "errno"))
    yield _counter("read_bytes", "Bytes that reads returned.", counters.bytes_read)
    yield _counter("written_bytes", "Bytes that writes took.", counters.bytes_written)
    meaning = "Requests to the owner of the directory, by outcome."
    asked = sorted(dict(counters.owner_requests).items())
    yield _counter("owner_requests", meaning, asked, ("kind", "outcome"))
    yield _counter("adopted_records", "Records of adopted batches.", counters.adopted_records)
    yield _counter("adopted_bytes", "Bytes of log in them.", counters.adopted_bytes)


def _of_opening(mount: MountContext) -> Iterator[Metric]:
    manager = mount.manager
    sizes = [cut.size for cut in list(manager.cuts)]
    yield _gauge("recovery_clean", "1 where the last stop was orderly.", manager.clean)
    yield _gauge("recovery_seconds", "Time that loading the logs took.", manager.opening_s)
    yield _gauge("recovery_read_bytes", "Bytes of log that it read.", manager.opening_bytes)
    yield _gauge("recovery_cuts", "Files from which it cut damage.", len(sizes))
    yield _gauge("recovery_cut_bytes", "Bytes that it cut, and kept aside.", sum(sizes))
    yield _gauge("recovery_faults", "Faults that it found and left.", len(manager.faults))


def _of_views(partitions: Partitions) -> Iterator[Metric]:
    """The measured and unmeasured bytes of each view, of the partitions that were read in it."""
    measured = {view.name: 0 for view in partitions.mount.views if view.is_text}
    missing = dict(measured)
    for partition in partitions:
        for name, view in partition.views.items():
            if name in measured:
                covered = sum(extent.covered for extent in view.layout.timeline.extents)
                measured[name] += covered
                missing[name] += max(partition.log.size - covered, 0)
    meaning = "Bytes of log measured."
    yield _gauge("view_index_measured_bytes", meaning, _by_name(measured), ("view",))
    meaning = "Bytes of log not measured, in partitions that somebody read in the view."
    yield _gauge("view_index_unmeasured_bytes", meaning, _by_name(missing), ("view",))
