"""`.kafkafs/metrics`: all metrics of a mount as Prometheus text, version 0.0.4.

`metrics_table` declares them; here are their values. This module loads prometheus_client, so it is
imported when the text is first made. A worker thread makes it, and reads each number when it
needs it.

Nothing serves it by HTTP: a scraper reads the file, as node_exporter's textfile collector does.
"""

from __future__ import annotations

import contextlib
import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from kafkafs.printable import one_line
from kafkafs.tree.context import MountContext
from kafkafs.tree.directories.metrics_table import BY_NAME, NAMESPACE
from kafkafs.tree.groups.group_facts import groups, lags_of
from kafkafs.tree.handles import Handle
from kafkafs.tree.partition.partitions import Partitions
from storage import descriptors
from storage.counters import Durations
from storage.errors import StorageError
from storage.log.log import Log
from storage.plain_forms import plain_forms
from storage.state import mirror_file
from storage.state.mirror_file import UNKNOWN, MirrorFile

_Values = float | Durations | Iterable[tuple[Sequence[str], float]]
"""One value, or (values of the labels, value) of each sample."""
Values = tuple[str, _Values]
"""A metric's name in `metrics_table`, and its values."""
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
            ("partition_gaps", _gaps(logs)),
            *_of_traffic(partitions, logs, handles),
            *_of_logs(mount),
            *_of_jobs(mount),
            *_of_cleaner(mount),
            *_of_words(mount),
            *_of_duties(mount),
            *_of_requests(mount),
            *_of_opening(mount),
            *_of_views(partitions),
            *_of_groups(mount),
            *_of_mirror(mount),
        ]
    )


class _Collected(Collector):
    def __init__(self, values: Iterable[Values]) -> None:
        self._metrics = [_family(*each) for each in values]

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def exposition(values: Iterable[Values]) -> str:
    """The text for these metrics, and for the process."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(values))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def _family(name: str, values: _Values) -> Metric:
    """A metric of the table with its values."""
    declared = BY_NAME[name]
    full = f"{NAMESPACE}_{name}"
    if isinstance(values, Durations):
        return _histogram(full, declared.help, values)
    kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    if isinstance(values, int | float):
        return kind(full, declared.help, values)
    metric = kind(full, declared.help, labels=declared.labels)
    for of, value in values:
        metric.add_metric([one_line(label) for label in of], value)
    return metric


def _histogram(name: str, meaning: str, durations: Durations) -> Metric:
    """Each bound with how many took no longer."""
    counts = list(durations.counts)
    bounds = [f"{bound / 1e9:g}" for bound in durations.BOUNDS_NS]
    buckets = list(zip([*bounds, "+Inf"], accumulate(counts), strict=True))
    return HistogramMetricFamily(name, meaning, buckets, sum_value=durations.total_ns / 1e9)


def _by_name(values: Mapping[str, float]) -> list[tuple[Sequence[str], float]]:
    return [((name,), value) for name, value in sorted(dict(values).items())]


def _of_mount(mount: MountContext, partitions: int, open_handles: int) -> Iterator[Values]:
    manager = mount.manager
    yield "build_info", [((version("kafkafs"), platform.python_version()), 1)]
    yield "read_only", manager.read_only
    yield "topics", len(manager.topics)
    yield "partitions", partitions
    yield "open_handles", open_handles
    yield "known_inodes", len(mount.inodes.nodes)
    yield "events", mount.events.count
    yield "segment_descriptors", descriptors.count()
    most = descriptors.budget()
    yield "segment_descriptors_limit", most
    yield "reserved_descriptors", descriptors.limit() - most
    yield "descriptor_evictions", descriptors.evictions()
    yield "view_index_held_bytes", mount.store.memory.total
    yield "plain_cache_bytes", plain_forms.held_bytes
    yield "plain_cache_limit_bytes", plain_forms.budget
    found = {"hit": plain_forms.hits, "miss": plain_forms.misses}
    yield "plain_cache_lookups", _by_name(found)
    yield "read_ahead_bytes", mount.read_ahead.held_bytes
    yield "unfinished_bytes", mount.unfinished.total
    yield "unfinished_limit_bytes", mount.unfinished.limit
    yield "open_text_bytes", mount.open_texts.total


_PARTITION_GAUGES = (
    "log_start_offset",
    "log_end_offset",
    "last_stable_offset",
    "size_bytes",
    "segments",
)


def _partition(log: Log) -> PartitionValues:
    offsets = log.log_start_offset, log.log_end_offset, log.last_stable_offset
    return (log.topic, str(log.partition)), (*offsets, log.size, len(log.segments))


def of_partitions(partitions: Sequence[PartitionValues]) -> Iterator[Values]:
    """The gauges of each partition."""
    for number, name in enumerate(_PARTITION_GAUGES):
        values = [(labels, row[number]) for labels, row in partitions]
        yield f"partition_{name}", values


def _gaps(logs: Sequence[Log]) -> list[tuple[Sequence[str], float]]:
    counts: Counter[tuple[str, str, str]] = Counter()
    for log in logs:
        with contextlib.suppress(OSError):
            counts.update((log.topic, str(log.partition), gap.kind) for gap in log.gaps)
    return list(counts.items())


def _of_traffic(
    partitions: Partitions, logs: Sequence[Log], handles: Sequence[Handle]
) -> Iterator[Values]:
    """Of the partitions that were appended to, read or opened: most of many thousand were not."""
    appended = [
        ((log.topic, str(log.partition)), count) for log in logs if (count := log.bytes_appended)
    ]
    yield "partition_appended_bytes", appended
    opened = Counter(handle.traffic for handle in handles if handle.traffic is not None)
    read, means, in_use = [], [], []
    for partition in partitions:
        log = partition.log
        mean = log.size / max(log.log_end_offset - log.log_start_offset, 1)
        ways = [(name, view.traffic, view) for name, view in list(partition.texts.items())]
        for name, traffic, view in [*ways, ("raw", partition.raw_traffic, None)]:
            of = (log.topic, str(log.partition), name)
            if traffic.bytes_read:
                read.append((of, traffic.bytes_read))
                means.append((of, mean if view is None else view.record_bytes))
            if opened[traffic]:
                in_use.append((of, opened[traffic]))
    yield "partition_read_bytes", read
    yield "partition_record_bytes", means
    yield "partition_open_handles", in_use


def _of_jobs(mount: MountContext) -> Iterator[Values]:
    """Jobs on topics that a control file or the clock has started."""
    jobs = {
        (job.kind.name, job.topic.name): job for job in mount.jobs.running if job.topic is not None
    }
    yield "jobs", [((*of, job.state, job.task.phase), 1) for of, job in jobs.items()]
    yield "job_done_bytes", [(of, job.task.done) for of, job in jobs.items()]
    yield "job_total_bytes", [(of, job.task.total) for of, job in jobs.items()]


def _of_mirror(mount: MountContext) -> Iterator[Values]:
    state = None
    with contextlib.suppress(StorageError, OSError):
        state = mirror_file.read(mount.manager.files, mount.manager.path)
    yield from of_mirror(state)
    # Only the process of the mirror counts these.
    for name in ("mirror_copied_records", "mirror_copied_bytes", "mirror_found_gaps"):
        yield name, []


def of_mirror(state: MirrorFile | None) -> Iterator[Values]:
    """The gauges of the partitions of a mirror; None: no mirror."""
    copies = [] if state is None else sorted(state.partitions.items())
    of = {item: (item[0], str(item[1])) for item, _ in copies}
    yield "mirror_lag", [(of[item], copy.lag) for item, copy in copies if copy.lag is not None]
    yield (
        "mirror_complete_timestamp_seconds",
        [(of[item], copy.at_end_ms / 1000) for item, copy in copies if copy.at_end_ms != UNKNOWN],
    )
    yield "mirror_waiting", [(of[item], copy.is_waiting) for item, copy in copies]


def _of_groups(mount: MountContext) -> Iterator[Values]:
    lags: list[tuple[tuple[str, str, str], int]] = []
    # Where positions cannot be read, all else is shown.
    with contextlib.suppress(StorageError, OSError):
        for group in groups(mount.manager.groups):
            for topic, number, lag in lags_of(mount.manager, group):
                lags.append(((group.name, topic, str(number)), lag))
    yield "group_lag", lags


def _of_logs(mount: MountContext) -> Iterator[Values]:
    logs, counters = mount.manager.log_group.counters, mount.counters
    yield "appended_records", logs.records_appended
    yield "appended_batches", logs.batches_appended
    yield "appended_bytes", logs.bytes_appended
    yield "refused_appends", _by_name(counters.refused_appends)
    yield "flush_seconds", logs.flushes
    yield "fsync_seconds", counters.fsyncs
    yield "flush_failures", logs.flush_failures
    yield "segment_rolls", logs.rolls
    yield "truncations", logs.truncations
    yield "retention_passes", counters.retention_passes
    yield "deleted_segments", logs.segments_deleted
    yield "deleted_bytes", logs.bytes_deleted
    yield "retentions", logs.retentions
    yield "repacked_segments", logs.segments_repacked
    yield "repack_read_bytes", logs.repacked_bytes_before
    yield "repack_kept_bytes", logs.repacked_bytes_after


def _of_cleaner(mount: MountContext) -> Iterator[Values]:
    cleaner = mount.cleaner.counters
    yield "compactions", cleaner.rounds
    yield "compaction_seconds", cleaner.elapsed_ms / 1000
    yield "compaction_read_bytes", cleaner.bytes_read
    yield "compaction_kept_bytes", cleaner.bytes_written
    yield "compaction_read_records", cleaner.records_read
    yield "compaction_kept_records", cleaner.records_kept
    yield "compaction_map_fill", cleaner.map_fill
    uncleanable = list(mount.cleaner.uncleanable)
    yield "uncleanable_partitions", sum(not log.closed for log in uncleanable)
    yield "topic_dirty_ratio", _by_name(_dirty_ratios(mount))


def _of_words(mount: MountContext) -> Iterator[Values]:
    words = mount.word_files
    manager = mount.manager
    totals = [
        words.totals(log)
        for log in ([] if manager.read_only else manager.logs())
        if log.has_words and not manager.settings.is_brokers_topic(log.topic)
    ]
    yield "words_bytes", sum(size for size, _ in totals)
    yield "words_missing_segments", sum(missing for _, missing in totals)
    yield "words_seconds", words.elapsed_s


def _dirty_ratios(mount: MountContext) -> dict[str, float]:
    """The largest dirty ratio, 0 to 1, of each compacted topic's partitions."""
    now_ms = mount.manager.clock_ms()
    ratios: dict[str, float] = {}
    for log in mount.manager.logs():
        if log.config.is_compacted:
            ratio = mount.cleaner.plan(log, now_ms).ratio
            ratios[log.topic] = max(ratios.get(log.topic, 0.0), ratio)
    return ratios


def _of_duties(mount: MountContext) -> Iterator[Values]:
    manager = mount.manager
    duties = manager.duties
    yield "duty_failures", _by_name(duties.failures)
    yield "failing_duties", _by_name(duties.failing)
    yield "checked_bytes", mount.checker.all_bytes_checked
    yield "damages", manager.log_group.counters.damages


def _of_requests(mount: MountContext) -> Iterator[Values]:
    counters = mount.counters
    yield "requests", _by_name(counters.requests)
    yield "request_errors", sorted(dict(counters.errors).items())
    yield "read_bytes", counters.bytes_read
    yield "written_bytes", counters.bytes_written
    yield "owner_requests", sorted(dict(counters.owner_requests).items())
    yield "adopted_records", counters.adopted_records
    yield "adopted_bytes", counters.adopted_bytes


def _of_opening(mount: MountContext) -> Iterator[Values]:
    manager = mount.manager
    sizes = [cut.size for cut in list(manager.cuts)]
    yield "recovery_clean", manager.clean
    yield "recovery_seconds", manager.opening_s
    yield "recovery_read_bytes", manager.opening_bytes
    yield "recovery_cuts", len(sizes)
    yield "recovery_cut_bytes", sum(sizes)
    yield "recovery_faults", len(manager.faults)


def _of_views(partitions: Partitions) -> Iterator[Values]:
    """The measured and unmeasured bytes of each view, of the partitions that were read in it."""
    measured = {view.name: 0 for view in partitions.mount.views if view.is_text}
    missing = dict(measured)
    for partition in partitions:
        for name, view in partition.texts.items():
            if name in measured:
                covered = sum(extent.covered for extent in view.timeline.extents)
                measured[name] += covered
                missing[name] += max(partition.log.size - covered, 0)
    yield "view_index_measured_bytes", _by_name(measured)
    yield "view_index_unmeasured_bytes", _by_name(missing)
