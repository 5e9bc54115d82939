"""A fuzz target for the loops of compaction: a record stays unchanged, or is removed by the rules.

`targets.py` calls it with bytes whose CRCs are right. It checks the result with the project's
decoder and a dict, one record at a time.
"""

from __future__ import annotations

from collections.abc import Iterator

from storage.compaction._keep import Keeper, map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.errors import StorageError
from storage.record.batch import Record, decode_plain
from storage.record.header import CODEC_BITS, BatchHeader, parse_header
from storage.record.plain import plain
from tests.guard_page import before_guard_page

NOW = 1_700_000_000_000
LAST_OFFSET = 2**63 - 1
MAP_BYTES = 1 << 16


def cleaned(data: bytes) -> None:
    """Clean a log by itself: what lies in it as the loops take it, and each batch alone."""
    with before_guard_page(data) as view:
        made = OffsetMap(MAP_BYTES)
        stop, full = map_batches(made, view, 0, len(view), 0)
        keeper = Keeper(made, now_ms=NOW, horizon_ms=NOW + 1000)
        assert full or keeper.keep_batches(view, 0, len(view)) == stop
        out, entries = keeper.take()
        if not full:
            taken = [
                record
                for at, header in _simple(view, stop)
                for record in _left(made, header, decode_plain(view, at))
            ]
            assert [r for at, *_ in entries for r in decode_plain(out, at)] == taken
    _each_alone(memoryview(data))


def _simple(view: memoryview, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """The batches before `end`, with their positions: all of the kind that the loops take."""
    at = 0
    while at < end:
        header = parse_header(view, at)
        assert not header.codec | header.is_control | header.is_transactional | (header.magic < 2)
        yield at, header
        at += header.size
    assert at == end


def _left(made: OffsetMap, header: BatchHeader, records: list[Record]) -> list[Record]:
    """Which records of a batch stay by the map."""
    horizon = header.delete_horizon
    return [
        record
        for record in records
        if record.offset > made.latest_offset
        or (
            record.key is not None
            and record.offset >= made.get(record.key)
            and (record.value is not None or horizon is None or horizon > NOW)
        )
    ]


def _each_alone(view: memoryview) -> None:
    """Each batch in plain form: taken where the decoder takes it and its offsets can be."""
    at = 0
    while at < len(view):
        try:
            batch, size = plain(view, at, len(view))
        except StorageError:
            return
        if not batch:
            return
        legacy = view[at + 16] < 2
        at += size
        if not parse_header(batch).is_control:
            _alone(batch, legacy)


def _alone(stored: bytearray, legacy: bool) -> None:
    header = parse_header(stored)
    made = OffsetMap(MAP_BYTES)
    keeper = Keeper(made, now_ms=NOW, horizon_ms=NOW + 1000)
    with before_guard_page(stored) as batch:
        try:
            records = decode_plain(batch)
            offsets = {header.base_offset, header.last_offset, *(r.offset for r in records)}
            sound = all(
                0 <= header.base_offset <= offset <= header.last_offset < LAST_OFFSET
                for offset in offsets
            )
        except StorageError:
            sound = False
        try:
            full = map_batch(made, batch, 0)
            count, kept, rewritten = keeper.keep_one(batch, legacy=legacy)
        except StorageError:
            assert not sound
            return
        assert sound
        if full:
            return
        left = _left(made, header, records)
        assert (count, kept) == (len(records), len(left))
        if rewritten is not None:
            assert not parse_header(rewritten).attributes & CODEC_BITS
            assert decode_plain(rewritten) == left
            expected = left[-1].offset if legacy else header.last_offset
            assert parse_header(rewritten).last_offset >= expected
