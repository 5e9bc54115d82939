"""`.control/delete-records`: moves log starts.

A line `PARTITION OFFSET` moves the log start to that offset, durably, before the write returns;
`-1` stands for the high watermark. The next retention deletes the segments before it. An offset at
or below the log start changes nothing; one above the high watermark is ERANGE (Kafka's
OFFSET_OUT_OF_RANGE).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import numbered, parse_partition, refused
from kafkafs.tree.control.job_file import JobCommand, JobFile
from kafkafs.tree.files.text_file import text_table
from kafkafs.tree.jobs import JobKind, JobResult
from storage.directory.retain import HIGH_WATERMARK, delete_records
from storage.errors import OffsetOutOfRange
from storage.log.log import Log
from storage.manager import LogManager, Topic
from storage.task import Task

_COLUMNS = (("partition", 10), ("log_start", 20), ("was", 20))


@dataclass(frozen=True)
class _DeleteRecords(JobFile):
    def parse(self, mount: MountContext, topic: Topic, lines: Sequence[str]) -> JobCommand | None:
        starts = _parse(lines, topic.partitions)
        if not starts:
            return None
        mount.manager.check_may_write(topic.name)
        text = ", ".join(f"{partition} {offset}" for partition, offset in starts.items())
        return JobCommand(text, partial(_move_log_starts, mount.manager, topic, starts))


def _move_log_starts(
    manager: LogManager, topic: Topic, starts: Mapping[int, int], task: Task
) -> JobResult:
    task.begin("moving log starts", 0)
    moved: list[tuple[int, int, int]] = []
    for partition, offset in starts.items():
        task.check()
        log = topic.partitions[partition]
        before = log.log_start_offset
        moved.append((partition, delete_records(manager, log, offset, task), before))
    records = sum(start - before for _, start, before in moved)
    return JobResult(
        [("partitions", len(moved)), ("records", records)], text_table(_COLUMNS, moved)
    )


def _parse(lines: Sequence[str], partitions: Mapping[int, Log]) -> dict[int, int]:
    """Offset by partition. OSError: EINVAL; OffsetOutOfRange."""
    starts: dict[int, int] = {}
    for number, line, words in numbered(lines):
        if len(words) != 2:
            raise refused(number, line, "is not PARTITION OFFSET")
        partition = parse_partition(words[0], partitions)
        if partition is None:
            raise refused(number, line, "names a partition that the topic does not have")
        if partition in starts:
            raise refused(number, line, "names a partition that an earlier line already names")
        offset = words[1]
        digits = offset.removeprefix("-") if offset == str(HIGH_WATERMARK) else offset
        if not (digits.isascii() and digits.isdecimal()) or len(digits) > 19:
            raise refused(number, line, "is not PARTITION OFFSET")
        log = partitions[partition]
        if int(offset) > log.high_watermark:
            raise OffsetOutOfRange(int(offset), log.log_start_offset, log.high_watermark)
        starts[partition] = int(offset)
    return starts


DELETE_RECORDS = _DeleteRecords(JobKind("delete-records"), awaited=True)
