"""All metrics of `.kafkafs/metrics`: `metrics_text` gives them values, `docs/reference/metrics.md`
lists them. Nothing is imported here but what describes them.
"""

from __future__ import annotations

from typing import NamedTuple

NAMESPACE = "kafkafs"


class Metric(NamedTuple):
    """One metric, of all its labels."""

    name: str
    """Without the namespace, and without the suffix of a counter."""
    kind: str
    """`gauge`, `counter` or `histogram`."""
    help: str
    labels: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """Its name in the text."""
        return f"{NAMESPACE}_{self.name}{'_total' if self.kind == 'counter' else ''}"


_PARTITION = ("topic", "partition")
_BY_VIEW = (*_PARTITION, "view")
_JOB = ("job", "topic")

#: By the chapters of the document.
METRICS = {
    "mount": (
        Metric(
            "build_info",
            "gauge",
            "Versions of kafkafs and of Python. The value is 1.",
            ("version", "python"),
        ),
        Metric("read_only", "gauge", "1 if the mount is read-only."),
        Metric("topics", "gauge", "Topics."),
        Metric("partitions", "gauge", "Partitions."),
        Metric("open_handles", "gauge", "Open files."),
        Metric(
            "known_inodes",
            "gauge",
            "Inodes that the daemon stores: those that the kernel knows. Of names like N@START it "
            "stores only the open ones and the last 1,024.",
        ),
        Metric("events", "counter", "Lines written to .kafkafs/log."),
        Metric("segment_descriptors", "gauge", "Open descriptors of segment files."),
        Metric("segment_descriptors_limit", "gauge", "Most descriptors that segments may open."),
        Metric(
            "reserved_descriptors",
            "gauge",
            "Descriptors of process_max_fds that are reserved for everything else.",
        ),
        Metric(
            "descriptor_evictions",
            "counter",
            "Times that a segment closed its files because another one needed descriptors.",
        ),
    ),
    "partitions": (
        Metric("partition_log_start_offset", "gauge", "First offset.", _PARTITION),
        Metric("partition_log_end_offset", "gauge", "Offset of the next record.", _PARTITION),
        Metric(
            "partition_last_stable_offset",
            "gauge",
            "First offset of an open transaction, or the log end.",
            _PARTITION,
        ),
        Metric("partition_size_bytes", "gauge", "Bytes of the partition's log files.", _PARTITION),
        Metric("partition_segments", "gauge", "Segments.", _PARTITION),
        Metric(
            "partition_appended_bytes",
            "counter",
            "Bytes of log that were appended, of partitions with appends.",
            _PARTITION,
        ),
        Metric(
            "partition_read_bytes",
            "counter",
            "Bytes that reads of the partition's files returned, of partitions with reads. The "
            "view raw has the segment files. Reads from the kernel's page cache do not count.",
            _BY_VIEW,
        ),
        Metric(
            "partition_record_bytes",
            "gauge",
            "Mean bytes of an offset in the view. Bytes read, divided by it, are about the "
            "records read.",
            _BY_VIEW,
        ),
        Metric("partition_open_handles", "gauge", "Open files, of partitions with any.", _BY_VIEW),
    ),
    "groups": (
        Metric(
            "group_lag",
            "gauge",
            "Records below the high watermark that a group has not committed, of each partition "
            "with a committed offset.",
            ("group", "topic", "partition"),
        ),
    ),
    "appends": (
        Metric("appended_records", "counter", "Offsets assigned by appends."),
        Metric("appended_batches", "counter", "Record batches appended."),
        Metric("appended_bytes", "counter", "Bytes of log appended."),
        Metric(
            "refused_appends",
            "counter",
            "Appends that failed, by the error of the storage or of the system.",
            ("reason",),
        ),
        Metric("flush_seconds", "histogram", "Time of successful flushes of partitions."),
        Metric(
            "fsync_seconds",
            "histogram",
            "Time of requests that waited until data was on the disk: fsync, and writes with "
            "O_SYNC or by flush.messages.",
        ),
        Metric("flush_failures", "counter", "Flushes that failed."),
        Metric("segment_rolls", "counter", "Times that a log began a new segment."),
        Metric("truncations", "counter", "Times that the process that writes a log truncated it."),
    ),
    "retention": (
        Metric("retention_passes", "counter", "Scheduled runs of retention over all topics."),
        Metric(
            "retentions",
            "counter",
            "Times that retention or delete-records removed segments from a log.",
        ),
        Metric("deleted_segments", "counter", "Segments that they removed."),
        Metric("deleted_bytes", "counter", "Bytes of log in these segments."),
        Metric("compactions", "counter", "Rounds of compaction."),
        Metric("compaction_seconds", "counter", "Time of all rounds."),
        Metric("compaction_read_bytes", "counter", "Bytes of log that the rounds read."),
        Metric("compaction_kept_bytes", "counter", "Bytes of log that the rounds kept."),
        Metric("compaction_read_records", "counter", "Records that the rounds read."),
        Metric("compaction_kept_records", "counter", "Records that the rounds kept."),
        Metric("compaction_map_fill", "gauge", "How full the last round's map was, from 0 to 1."),
        Metric(
            "uncleanable_partitions",
            "gauge",
            "Partitions whose last compaction failed. The cleaner tries again.",
        ),
        Metric(
            "topic_dirty_ratio",
            "gauge",
            "The largest share of bytes not compacted yet in a partition, of compacted topics.",
            ("topic",),
        ),
    ),
    "duties": (
        Metric(
            "jobs", "gauge", "1 for each job that is queued or running.", (*_JOB, "state", "phase")
        ),
        Metric("job_done_bytes", "gauge", "Bytes that a job's phase has done.", _JOB),
        Metric(
            "job_total_bytes",
            "gauge",
            "Bytes that a job's phase has to do. 0 if they are not known yet.",
            _JOB,
        ),
        Metric("duty_failures", "counter", "Failed turns of a duty.", ("duty",)),
        Metric(
            "failing_duties",
            "gauge",
            "Partitions, topics or other objects for which a duty fails now.",
            ("duty",),
        ),
        Metric("checked_bytes", "counter", "Bytes of log that were read back to check them."),
        Metric("damages", "counter", "Damaged places found in logs."),
    ),
    "requests": (
        Metric("requests", "counter", "Requests of the kernel.", ("operation",)),
        Metric(
            "request_errors",
            "counter",
            "Requests of the kernel that were answered with an error.",
            ("operation", "errno"),
        ),
        Metric("read_bytes", "counter", "Bytes that reads returned."),
        Metric("written_bytes", "counter", "Bytes that writes accepted."),
    ),
    "owner": (
        Metric(
            "owner_requests",
            "counter",
            "Requests to the process that owns the directory.",
            ("kind", "outcome"),
        ),
        Metric("adopted_records", "counter", "Records of adopted batches."),
        Metric("adopted_bytes", "counter", "Bytes of log in adopted batches."),
    ),
    "recovery": (
        Metric("recovery_clean", "gauge", "1 if the last stop was clean."),
        Metric("recovery_seconds", "gauge", "Time that loading the logs took."),
        Metric("recovery_read_bytes", "gauge", "Bytes of log that recovery read."),
        Metric("recovery_cuts", "gauge", "Files from which recovery cut damage."),
        Metric("recovery_cut_bytes", "gauge", "Bytes that recovery cut and set aside."),
        Metric("recovery_faults", "gauge", "Faults that recovery found and left as they are."),
    ),
    "views": (
        Metric("view_index_measured_bytes", "gauge", "Bytes of log measured.", ("view",)),
        Metric(
            "view_index_unmeasured_bytes",
            "gauge",
            "Bytes of log not measured, of partitions that were used in the view.",
            ("view",),
        ),
        Metric("view_index_held_bytes", "gauge", "Bytes of view indexes in memory."),
        Metric(
            "plain_cache_bytes",
            "gauge",
            "Bytes of decompressed batches in memory, including those in progress.",
        ),
        Metric(
            "plain_cache_limit_bytes",
            "gauge",
            "Limit of the decompressed batches (mount option memory). One larger batch at a time "
            "may exceed it.",
        ),
        Metric(
            "read_ahead_bytes",
            "gauge",
            "Bytes of text rendered ahead for open files that are read in order.",
        ),
        Metric(
            "unfinished_bytes",
            "gauge",
            "Bytes of lines without a newline, and of incomplete batches, of open files.",
        ),
        Metric(
            "unfinished_limit_bytes",
            "gauge",
            "Limit of the unfinished bytes of one user (mount option memory). The limit of all "
            "users together is four times that.",
        ),
        Metric(
            "plain_cache_lookups",
            "counter",
            "Reads that found their decompressed batch (hit), or had to decompress it (miss).",
            ("outcome",),
        ),
    ),
}
BY_NAME = {metric.name: metric for chapter in METRICS.values() for metric in chapter}
