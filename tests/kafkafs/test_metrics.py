"""The metrics' text, read by prometheus_client's own parser."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families

from kafkafs.metrics import MountCounters, Numbers, PartitionNumbers, ViewNumbers, exposition
from storage.counters import CleanerCounters, LogCounters


def numbers(
    partitions: list[PartitionNumbers],
    mount: MountCounters | None = None,
    version: str = "1",
    cleaner: CleanerCounters | None = None,
) -> Numbers:
    return Numbers(
        version=version,
        python="3",
        read_only=False,
        logs=LogCounters(),
        mount=mount or MountCounters(),
        cleaner=cleaner or CleanerCounters(),
        uncleanable=2,
        duty_failures={"flush": 3, "checkpoint": 1},
        failing_duties={"flush": 2, "checkpoint": 0},
        dirty_ratios={"t": 0.25},
        checked=77,
        topics=1,
        partitions=partitions,
        views=[ViewNumbers("values", 10, 20)],
        mapped_bytes=0,
        open_handles=0,
        known_inodes=0,
        events=0,
        started_clean=True,
        opening_s=0.0,
        opening_bytes=0,
        cuts=0,
        cut_bytes=0,
        faults=0,
    )


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = (value for _, value in sorted(sample.labels.items()))
            found[sample.name, *labels] = sample.value
    return found


def test_label_values_are_escaped() -> None:
    odd = 'a "quoted" \\ topic\nof two lines, {é}'
    mount = MountCounters()
    mount.refused_appends[odd] += 3
    text = exposition(numbers([PartitionNumbers(odd, 7, 1, 2, 2, 99, 1)], mount, version=odd))
    found = samples(text)
    assert found["kafkafs_partition_size_bytes", "7", odd] == 99
    assert found["kafkafs_partition_log_end_offset", "7", odd] == 2
    assert found["kafkafs_refused_appends_total", odd] == 3
    assert found["kafkafs_build_info", "3", odd] == 1


def test_numbers_are_what_they_are() -> None:
    """Offsets up to 2^53 exactly; every operation is there from the start."""
    largest = 2**53
    found = samples(exposition(numbers([PartitionNumbers("t", 0, 0, largest, 0, 0, 1)])))
    assert found["kafkafs_partition_log_end_offset", "0", "t"] == largest
    assert found["kafkafs_requests_total", "write"] == 0
    assert found["kafkafs_view_index_unmeasured_bytes", "values"] == 20
    assert found["kafkafs_flush_seconds_count",] == 0


def test_cleaners_and_checker() -> None:
    cleaner = CleanerCounters()
    cleaner.rounds, cleaner.map_fill, cleaner.elapsed_ms = 3, 0.5, 1500
    cleaner.records_read, cleaner.records_kept = 100, 7
    given = numbers([], cleaner=cleaner)
    given.logs.segments_deleted, given.logs.damages = 4, 1
    found = samples(exposition(given))
    assert found["kafkafs_compactions_total",] == 3
    assert found["kafkafs_compaction_seconds_total",] == 1.5
    assert found["kafkafs_compaction_map_fill",] == 0.5
    assert found["kafkafs_compaction_read_records_total",] == 100
    assert found["kafkafs_compaction_kept_records_total",] == 7
    assert found["kafkafs_uncleanable_partitions",] == 2
    assert found["kafkafs_duty_failures_total", "flush"] == 3
    assert found["kafkafs_failing_duties", "flush"] == 2
    assert found["kafkafs_failing_duties", "checkpoint"] == 0
    assert found["kafkafs_topic_dirty_ratio", "t"] == 0.25
    assert found["kafkafs_deleted_segments_total",] == 4
    assert found["kafkafs_checked_bytes_total",] == 77
    assert found["kafkafs_damages_total",] == 1


def test_many_partitions() -> None:
    """Each has its five samples, once."""
    rows = [PartitionNumbers("t", number, 0, number, number, 1, 1) for number in range(3000)]
    found = samples(exposition(numbers(rows)))
    assert len([name for name in found if name[0].startswith("kafkafs_partition_")]) == 5 * 3000
    assert found["kafkafs_partition_log_end_offset", "2999", "t"] == 2999


def test_the_library_is_not_loaded_before_it_is_needed() -> None:
    """What a mount imports at its start has no prometheus_client in it."""
    program = "import sys, kafkafs.fuse.daemon; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"False\n"
