"""A product's log, decoded into what the models of the cleaners work on."""

from __future__ import annotations

from collections.abc import Iterator

from storage import Log
from storage.record.batch import decode_plain
from storage.record.control import parse_marker
from storage.record.header import parse_header
from storage.record.plain import plain
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from tests.compaction_model import (
    Aborted,
    ModelBatch,
    ModelLog,
    ModelRecord,
    ModelSegment,
    Rules,
)


def decoded(data: bytes) -> Iterator[ModelBatch]:
    """Every batch of whole log bytes; of v0 and v1 each message or wrapper is one."""
    at = 0
    while at < len(data):
        header = parse_header(data, at)
        batch = data[at : at + header.size]
        at += header.size
        made, _ = plain(batch, 0, len(batch))
        records = tuple(
            ModelRecord(each.offset, each.timestamp, each.key, each.value, each.headers)
            for each in decode_plain(made)
        )
        marker = None
        if header.is_control and records:
            found = parse_marker(batch)
            marker = None if found is None else found.type
        yield ModelBatch(
            records[0].offset if header.magic < 2 else header.base_offset,
            header.last_offset,
            records,
            header.max_timestamp,
            magic=header.magic,
            codec=header.codec,
            leader_epoch=header.leader_epoch,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            transactional=header.is_transactional,
            control=header.is_control,
            marker=marker,
            append_time=bool(header.timestamp_type),
            horizon=header.delete_horizon,
        )


def batches_of(segment: Segment) -> tuple[ModelBatch, ...]:
    return tuple(decoded(SegmentReader(segment).read(0, segment.size)))


def aborted_of(segment: Segment) -> tuple[Aborted, ...]:
    return tuple(Aborted(*entry[:3]) for entry in segment.aborted)


def observe(log: Log) -> ModelLog:
    """Everything that a cleaning of this log would go by."""
    return ModelLog(
        tuple(
            ModelSegment(
                segment.base_offset,
                batches_of(segment),
                segment.size,
                len(segment.offset_index.data()),
                len(segment.time_index.data()),
                segment.largest_timestamp,
                segment.mtime_ns // 1_000_000,
                aborted_of(segment),
            )
            for segment in log.segments
        ),
        log.log_start_offset,
        log.log_end_offset,
        log.decided_end,
        {p.producer_id: (p.last_offset, p.epoch) for p in log.producers},
    )


def rules_of(config: LogConfig) -> Rules:
    return Rules(
        config.segment_bytes,
        config.segment_index_bytes,
        config.delete_retention_ms,
        config.min_compaction_lag_ms,
        config.max_compaction_lag_ms,
        config.min_cleanable_dirty_ratio,
    )
