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
        Metric("read_only", "gauge", "1 if the mount is read-only, else 0."),
        Metric("topics", "gauge", "Number of topics."),
        Metric("partitions", "gauge", "Number of partitions."),
        Metric("open_handles", "gauge", "Number of open files."),
        Metric(
            "known_inodes",
            "gauge",
            "Inodes in the memory of the daemon: those that the kernel knows. For names like "
            "N@START, these are only the open files and the last 1,024 other files.",
        ),
        Metric("events", "counter", "Lines written to .kafkafs/log."),
        Metric("segment_descriptors", "gauge", "Number of open descriptors of segment files."),
        Metric("segment_descriptors_limit", "gauge", "Limit for the open segment descriptors."),
        Metric(
            "reserved_descriptors",
            "gauge",
            "Descriptors that are reserved for files other than segments. They are a part of "
            "process_max_fds.",
        ),
        Metric(
            "descriptor_evictions",
            "counter",
            "How often a segment closed its files because another segment needed descriptors.",
        ),
    ),
    "partitions": (
        Metric("partition_log_start_offset", "gauge", "First offset of the log.", _PARTITION),
        Metric("partition_log_end_offset", "gauge", "Offset of the next record.", _PARTITION),
        Metric(
            "partition_last_stable_offset",
            "gauge",
            "First offset of the oldest open transaction. Without open transactions, the log end.",
            _PARTITION,
        ),
        Metric("partition_size_bytes", "gauge", "Bytes of the partition's log files.", _PARTITION),
        Metric("partition_segments", "gauge", "Number of segments.", _PARTITION),
        Metric(
            "partition_gaps",
            "gauge",
            "Number of gaps that a mirror has found, by kind. Only for partitions with gaps.",
            (*_PARTITION, "kind"),
        ),
        Metric(
            "partition_appended_bytes",
            "counter",
            "Bytes that were appended to the log. Only for partitions with appends.",
            _PARTITION,
        ),
        Metric(
            "partition_read_bytes",
            "counter",
            "Bytes that reads of the partition's files returned. Only for partitions with reads. "
            "Reads from the kernel's page cache do not count.",
            _BY_VIEW,
        ),
        Metric(
            "partition_record_bytes",
            "gauge",
            "Mean number of bytes per offset in the view. To estimate the number of records read, "
            "divide the bytes read by this value. Only for partitions with reads.",
            _BY_VIEW,
        ),
        Metric(
            "partition_open_handles",
            "gauge",
            "Number of open files. Only for partitions with open files.",
            _BY_VIEW,
        ),
    ),
    "groups": (
        Metric(
            "group_lag",
            "gauge",
            "Number of offsets from the committed offset of a group to the high watermark. Only "
            "for partitions with a committed offset.",
            ("group", "topic", "partition"),
        ),
    ),
    "mirror": (
        Metric(
            "mirror_lag",
            "gauge",
            "Number of offsets that the source has and the mirror has not copied yet.",
            _PARTITION,
        ),
        Metric(
            "mirror_complete_timestamp_seconds",
            "gauge",
            "Time when the mirror last had all records of the source, in seconds since 1970.",
            _PARTITION,
        ),
        Metric(
            "mirror_waiting",
            "gauge",
            "1 if the mirror cannot copy the partition at present, else 0.",
            _PARTITION,
        ),
        Metric(
            "mirror_copied_records",
            "counter",
            "Records that the process has copied. Each offset counts as one. Only in the file of "
            "kafkafs mirror --metrics.",
        ),
        Metric(
            "mirror_copied_bytes",
            "counter",
            "Bytes of log that the process has copied. Only in the file of kafkafs mirror "
            "--metrics.",
        ),
        Metric(
            "mirror_found_gaps",
            "counter",
            "Gaps that the process has found. Only in the file of kafkafs mirror --metrics.",
        ),
    ),
    "appends": (
        Metric("appended_records", "counter", "Appended records. Each offset counts as one."),
        Metric("appended_batches", "counter", "Appended record batches."),
        Metric("appended_bytes", "counter", "Appended bytes of log."),
        Metric(
            "refused_appends",
            "counter",
            "Appends that failed. The reason is an error of kafkafs or of the system.",
            ("reason",),
        ),
        Metric(
            "flush_seconds", "histogram", "Time that each successful flush of a partition took."
        ),
        Metric(
            "fsync_seconds",
            "histogram",
            "Time that requests waited until data was on the disk: fsync, writes with O_SYNC, and "
            "writes that flush.messages flushed.",
        ),
        Metric("flush_failures", "counter", "Flushes that failed."),
        Metric("segment_rolls", "counter", "How often a log began a new segment."),
        Metric("truncations", "counter", "How often the writer of a log truncated the log."),
    ),
    "retention": (
        Metric("retention_passes", "counter", "Scheduled runs of retention over all topics."),
        Metric(
            "retentions",
            "counter",
            "How often retention or delete-records removed segments from a log.",
        ),
        Metric("deleted_segments", "counter", "Segments that retention or delete-records removed."),
        Metric("deleted_bytes", "counter", "Bytes of log in the removed segments."),
        Metric("compactions", "counter", "Finished rounds of compaction, each of one log."),
        Metric("compaction_seconds", "counter", "Time of all finished rounds of compaction."),
        Metric("compaction_read_bytes", "counter", "Bytes of log that compaction read."),
        Metric("compaction_kept_bytes", "counter", "Bytes of log that compaction kept."),
        Metric("compaction_read_records", "counter", "Records that compaction read."),
        Metric("compaction_kept_records", "counter", "Records that compaction kept."),
        Metric(
            "compaction_map_fill",
            "gauge",
            "How full the map of keys was in the last round of compaction, from 0 to 1.",
        ),
        Metric(
            "uncleanable_partitions",
            "gauge",
            "Partitions whose last compaction failed. The daemon tries again.",
        ),
        Metric(
            "topic_dirty_ratio",
            "gauge",
            "Share of bytes that are not compacted yet, in that partition of the topic where this "
            "share is largest. Only for compacted topics.",
            ("topic",),
        ),
        Metric("repacked_segments", "counter", "Closed segments that were repacked."),
        Metric("repack_read_bytes", "counter", "Bytes of the repacked segments before."),
        Metric("repack_kept_bytes", "counter", "Bytes of the repacked segments afterwards."),
        Metric("words_bytes", "gauge", "Bytes of the .words files of topics with kafkafs.words."),
        Metric(
            "words_missing_segments",
            "gauge",
            "Closed segments without a .words file, of topics with kafkafs.words; also damaged "
            "segments, which get none.",
        ),
        Metric("words_seconds", "counter", "Time that the building of .words files took."),
    ),
    "duties": (
        Metric(
            "jobs", "gauge", "1 for each job that is queued or running.", (*_JOB, "state", "phase")
        ),
        Metric(
            "job_done_bytes", "gauge", "Bytes that the job has done in its present phase.", _JOB
        ),
        Metric(
            "job_total_bytes",
            "gauge",
            "Bytes that the job has to do in its present phase. 0 if not known yet.",
            _JOB,
        ),
        Metric("duty_failures", "counter", "How often the duty failed.", ("duty",)),
        Metric(
            "failing_duties",
            "gauge",
            "Number of partitions, topics or other objects for which the duty fails now.",
            ("duty",),
        ),
        Metric("checked_bytes", "counter", "Bytes of log that were read back to check them."),
        Metric("damages", "counter", "Damaged places found in logs."),
    ),
    "requests": (
        Metric("requests", "counter", "Requests of the kernel to the daemon.", ("operation",)),
        Metric(
            "request_errors",
            "counter",
            "Requests of the kernel that were answered with an error.",
            ("operation", "errno"),
        ),
        Metric("read_bytes", "counter", "Bytes that read requests returned."),
        Metric("written_bytes", "counter", "Bytes that write requests accepted."),
    ),
    "owner": (
        Metric(
            "owner_requests",
            "counter",
            "Requests to the owner of the directory.",
            ("kind", "outcome"),
        ),
        Metric("adopted_records", "counter", "Records in the adopted batches."),
        Metric("adopted_bytes", "counter", "Bytes of log in the adopted batches."),
    ),
    "recovery": (
        Metric(
            "recovery_clean",
            "gauge",
            "1 if the directory was closed cleanly before this start, else 0.",
        ),
        Metric("recovery_seconds", "gauge", "Time that the loading of the logs took."),
        Metric("recovery_read_bytes", "gauge", "Bytes of log that recovery read."),
        Metric("recovery_cuts", "gauge", "Files from which recovery cut damaged bytes."),
        Metric("recovery_cut_bytes", "gauge", "Bytes that recovery cut from files."),
        Metric("recovery_faults", "gauge", "Damage, losses and bad files that recovery found."),
    ),
    "views": (
        Metric(
            "view_index_measured_bytes",
            "gauge",
            "Bytes of log that are measured in the view.",
            ("view",),
        ),
        Metric(
            "view_index_unmeasured_bytes",
            "gauge",
            "Bytes of log that are not measured yet, in the partitions that were used in the view.",
            ("view",),
        ),
        Metric("view_index_held_bytes", "gauge", "Bytes of view indexes in memory."),
        Metric(
            "plain_cache_bytes",
            "gauge",
            "Bytes of decompressed batches in memory, also of batches that are decompressed now.",
        ),
        Metric(
            "plain_cache_limit_bytes",
            "gauge",
            "Limit for the decompressed batches: the mount option memory. A single batch can be "
            "larger than the limit, but only one such batch at a time is in memory.",
        ),
        Metric(
            "read_ahead_bytes",
            "gauge",
            "Bytes of text that is ready for the next reads of open files, if they are read in "
            "order.",
        ),
        Metric(
            "unfinished_bytes",
            "gauge",
            "Bytes of unfinished input of open files: lines without a newline, and incomplete "
            "batches.",
        ),
        Metric(
            "unfinished_limit_bytes",
            "gauge",
            "Limit for the unfinished bytes of one user: the mount option memory. The limit for "
            "all users together is four times as large.",
        ),
        Metric(
            "open_text_bytes",
            "gauge",
            "Bytes of text in open files that show facts, such as .kafkafs/log. They have the "
            "limits of unfinished bytes.",
        ),
        Metric(
            "plain_cache_lookups",
            "counter",
            "Reads that found a decompressed batch (hit), or had to decompress the batch (miss).",
            ("outcome",),
        ),
    ),
}
BY_NAME = {metric.name: metric for chapter in METRICS.values() for metric in chapter}
