"""Fuzz targets for the hot loops alone: fast, so that millions of inputs take minutes.

A target checks less than those in `targets`. The loop reads only its input, which ends at a guard
page. It writes only to its buffer. It ends. Loops that read the same bytes agree on them.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from kafkafs.views import TextView, json_lines_view, key_value_view, values_view
from kafkafs.views._measure import ENTRY_SIZE, Cursor, Measure, find_batch, find_entry
from storage.compaction._keep import Keeper, map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.errors import StorageError
from storage.index._search import entries_up_to
from storage.log.validator import validated
from storage.record._batch import (
    Rebuild,
    assign_offsets,
    proven_size,
    walk_batches,
)
from storage.record._route import route
from storage.record._seek import find_record
from storage.record._stamp import stamp_transaction, survey_staged
from storage.record.columns._columns import AbortedSpans, decode_columns
from storage.record.columns._rows import BytesColumn, HeadersColumn, NumbersColumn, RowEncoder
from storage.record.header import HEADER_SIZE, parse_header
from storage.record.scan import whole_batches
from storage.segment.checked_ranges import CheckedRanges
from storage.settings.config import LogConfig
from tests.fuzz.targets import Target, with_right_crcs
from tests.guard_page import ROOM, before_guard_page

LOOPS: dict[str, Target] = {}

NOW: Final = 1_700_000_000_000
LAST_OFFSET: Final = 2**63 - 1
# As much as a stream may decompress to here.
LIMIT: Final = 1 << 20
CANARY: Final = b"\xee" * 64
VALUES, KEY_VALUE, JSON_LINES = values_view(), key_value_view(), json_lines_view()
VIEWS: Final = (VALUES, KEY_VALUE, JSON_LINES)
ABORTED: Final = AbortedSpans([(7, 0, 3), (7, 10, 20), (1000, 0, LAST_OFFSET)])
CONFIGS: Final = (LogConfig(), LogConfig(cleanup_policy=("compact",)))


def loop(target: Target) -> Target:
    LOOPS[target.__name__] = target
    return target


def _choices(data: bytes) -> Iterator[int]:
    """Numbers that follow from the bytes: what is asked of a loop."""
    bits = zlib.crc32(data)
    while True:
        yield bits
        bits = zlib.crc32(b"%d" % bits)


def _part(bits: int, size: int) -> tuple[int, int]:
    """Two positions in `size` bytes, in order."""
    one, other = (bits & 0xFFFF) % (size + 1), (bits >> 16) % (size + 1)
    return min(one, other), max(one, other)


# -- views ---------------------------------------------------------------------------------------


@loop
def shown_log(data: bytes) -> None:
    """The text of each view is as long as it measures, in any windows and buffers."""
    ask = _choices(data)
    with before_guard_page(data[:ROOM]) as log:
        for view in VIEWS:
            measure = Measure(64)
            with contextlib.suppress(StorageError):
                view.measure(log, 0, len(log), measure)
            bits = next(ask)
            window, room = (64, 100, 1000, ROOM)[bits & 3], (10, 70, 500, 20_000)[bits >> 2 & 3]
            shown = _shown(view, log, window, room, bits >> 4 & 3)
            if view.whole_records:
                assert shown == measure.text_length
            else:
                # Of the last value only a part may be there.
                assert shown <= measure.text_length


def _shown(view: TextView, log: memoryview, window: int, room: int, skip: int) -> int:
    """How much text a view shows of a log up to its first fault."""
    out = bytearray(room) + CANARY
    cursor = Cursor(0)
    shown = skip
    with contextlib.suppress(StorageError):
        while not cursor.encoded:
            start = min(cursor.position, len(log))
            end = min(start + max(window, cursor.needed), len(log))
            done, skip = view.render(log[start:end], start, end - start, cursor, out, 0, room, skip)
            assert out[room:] == CANARY
            shown += done
            if not done and end == len(log):
                break
    return shown - skip


@loop
def appended_lines(data: bytes) -> None:
    """Any bytes as lines of each view: refused, or sound batches of a record for each line."""
    text = data[: ROOM - 1] + b"\n"
    limit = (70, 100, 1000, 1 << 30)[next(_choices(text)) & 3]
    for view in VIEWS:
        with contextlib.suppress(StorageError), before_guard_page(text) as lines:
            batches, count = view.parse(lines, 0, len(lines), NOW, limit)
            assert count == text.count(b"\n")
            at = records = 0
            while at < len(batches):
                header = parse_header(batches, at)
                records += header.records_count
                at += header.size
            assert (at, records) == (len(batches), count)


@loop
def appended_batches(data: bytes) -> None:
    """The log refuses batches that somebody appends, or its loops can read them."""
    stored = data[:ROOM]
    with before_guard_page(stored) as batches:
        for config in CONFIGS:
            with contextlib.suppress(StorageError):
                size, _ = whole_batches(batches, 1 << 20)
                for found in validated(batches[:size], config, NOW):
                    assert parse_header(found.data).size == len(found.data)


@loop
def found_entries(data: bytes) -> None:
    """Searches in entries of any content end, and find one that is there."""
    ask = _choices(data)
    with before_guard_page(data[:ROOM]) as entries:
        count = len(entries) // ENTRY_SIZE
        for _ in range(4):
            bits = next(ask)
            assert 0 <= find_batch(entries, count, bits) <= count
            if count:
                find_entry(entries, count, bits)
            for size, at, width in ((8, 0, 4), (12, 0, 8), (12, 8, 4)):
                count_ = len(entries) // size
                target = (bits, -bits, bits << 31, 2**64)[bits & 3]
                assert 0 <= entries_up_to(entries, size, at, width, count_, target) <= count_


# -- records -------------------------------------------------------------------------------------


@loop
def columns(data: bytes) -> None:
    """A log as columns, whichever of them are wanted."""
    bits = next(_choices(data))
    with before_guard_page(data[:ROOM]) as log:
        at, end = _part(bits, len(log)) if bits & 0x700 == 0 else (0, len(log))
        with contextlib.suppress(StorageError):
            found = decode_columns(
                log,
                at,
                end - at,
                from_offset=bits >> 3 & 3,
                to_offset=(LAST_OFFSET, 5)[bits & 1],
                keys=bits & 2 == 0,
                values=bits & 4 == 0,
                headers=bits & 8 == 0,
                offsets=bits & 16 == 0,
                timestamps=bits & 32 == 0,
                timestamp_types=bits & 64 == 0,
                timestamps_us=bits & 128 == 0,
                aborted=ABORTED if bits & 256 else None,
                stop=bits & 1024 != 0,
                plain_bytes=(1, 1 << 30)[bits >> 11 & 1],
            )
            assert 0 <= found.consumed <= end - at
            for column in (found.keys, found.values):
                if column is not None:
                    positions = memoryview(column.positions).cast("i")
                    assert len(positions) == found.rows + 1
                    assert positions[-1] == len(column.block)


@loop
def found_records(data: bytes) -> None:
    """The records of a batch in plain form, by offset, by timestamp and by number."""
    ask = _choices(data)
    if len(data) < HEADER_SIZE:
        return
    with before_guard_page(data[:ROOM]) as batch:
        for _ in range(3):
            bits = next(ask)
            offset, timestamp, number = bits & 7, NOW - 50 + (bits & 0xFF), bits >> 8 & 7
            with contextlib.suppress(StorageError):
                found = find_record(batch, offset=offset)
                assert found is None or found[1] >= offset
                found = find_record(batch, timestamp=timestamp)
                assert found is None or found[2] >= timestamp
                found = find_record(batch, number=number)
                assert found is None or found[0] == number


# -- walks ---------------------------------------------------------------------------------------


@loop
def walked(data: bytes) -> None:
    """Walks over a log by headers and CRCs agree on what is sound."""
    ask = _choices(data)
    with before_guard_page(data[:ROOM]) as log:
        bits = next(ask)
        base = (0, 0, 5, 1 << 40)[bits & 3]
        limit = (LAST_OFFSET, LAST_OFFSET, 7, LAST_OFFSET)[bits & 3]
        taken, last, before, after, reason, _ = walk_batches(log, len(log), base, base, limit)
        assert 0 <= taken <= len(log)
        assert (last < 0) == (taken == 0)
        assert base <= before <= after
        assert not reason or taken < len(log)
        rebuild = Rebuild(base, 100)
        if limit == LAST_OFFSET:
            assert rebuild.feed(log, len(log), 0) == taken
        assert proven_size(log[taken:], 0) <= len(log) - taken
        read = CheckedRanges()
        read.forget_written(len(log))
        if read.add_sound(log, (0, base, base), len(log), base, limit):
            assert read.checked_until(0) > 0


@loop
def staged(data: bytes) -> None:
    """Batches of other processes: counted, stamped, and dealt to partitions."""
    changed = bytearray(data[:ROOM])
    for work in (
        lambda: survey_staged(changed),
        lambda: stamp_transaction(changed, 7, 1, 2**31 - 2),
        lambda: assign_offsets(changed, 5, 7),
    ):
        with contextlib.suppress(StorageError):
            work()
    with before_guard_page(data[:ROOM]) as batches, contextlib.suppress(StorageError):
        dealt, _, _ = route(batches, 3, 0, 100, lambda before: (before + 1) % 3, 100, 200)
        for part in dealt.values():
            assert walk_batches(part, len(part), 0, 0, LAST_OFFSET)[0] > 0


@loop
def kept(data: bytes) -> None:
    """A batch as the cleaner takes it, mapped and kept, alone and in a log."""
    bits = next(_choices(data))
    legacy = bits & 3 == 0
    with before_guard_page(data[:ROOM]) as batch:
        for work in (
            lambda made: map_batch(made, batch, bits >> 2 & 3),
            lambda made: _keeper(made, bits).keep_one(batch, legacy=legacy),
        ):
            with contextlib.suppress(StorageError):
                work(OffsetMap(1 << 12))
        made = OffsetMap(1 << 12)
        taken, full = map_batches(made, batch, 0, len(batch), 0)
        keeper = _keeper(made, bits)
        assert full or keeper.keep_batches(batch, 0, len(batch)) <= taken
        out, entries = keeper.take()
        assert walk_batches(out, len(out), 0, 0, LAST_OFFSET)[0] <= len(out)
        assert sum(entry[1] for entry in entries) == len(out)


LOOPS["kept_of_right_crcs"] = lambda data: kept(with_right_crcs(data[:ROOM]))


def _keeper(made: OffsetMap, bits: int) -> Keeper:
    return Keeper(
        made, now_ms=NOW, horizon_ms=NOW + 1000, special=[3] if bits & 64 else [],
        legacy_tombstones=bits & 128 == 0,
    )  # fmt: skip


# -- rows ----------------------------------------------------------------------------------------


@loop
def encoded_rows(data: bytes) -> None:
    """Rows in Arrow's layout whose positions, bitmaps and numbers are any bytes."""
    if len(data) < 8:
        return
    rows, shape = data[0] % 8, data[1]
    wide = shape & 1 == 0
    width = 8 if wide else 4
    needed = (rows + 2) * 8
    rest = data[8:ROOM].ljust(needed, b"\0")
    with before_guard_page(rest) as buffer:
        positions = buffer[len(buffer) - width * (rows + 1) :]
        validity = buffer[len(buffer) - 1 :] if shape & 2 else None
        block = buffer[len(buffer) - min(data[2], len(buffer)) :]
        if shape & 4:
            # Positions that rise, so that more of them are within the block.
            raw = bytes(min(data[2], byte) for byte in sorted(data[3:8].ljust(9, b"\xff")))
            positions = memoryview(
                struct.pack(f"={rows + 1}{'q' if wide else 'i'}", *raw[: rows + 1])
            )
        column = BytesColumn(rows, positions, block, validity, wide=wide)
        numbers = NumbersColumn(rows, buffer[len(buffer) - width * rows :], validity, wide=wide)
        times = NumbersColumn(rows, buffer[len(buffer) - 8 * rows :], wide=True)
        out: list[bytes] = []
        encoder = RowEncoder(
            [0, 1, 3], lambda _, batches: out.append(bytes(batches)), lambda _: 0,
            batch_bytes=200, max_batch_bytes=1000, stay_bytes=100,
        )  # fmt: skip
        with contextlib.suppress(StorageError, ValueError):
            encoder.add(
                NOW,
                column if shape & 8 else None,
                column,
                headers=HeadersColumn(rows, positions, column, column, wide=wide)
                if shape & 16
                else None,
                timestamps=times if shape & 32 else None,
                partitions=numbers if shape & 64 else None,
                selection=buffer[len(buffer) - 8 * rows :] if shape & 128 else None,
            )
        for partition in (0, 1, 3):
            encoder.flush(partition)
        for batches in out:
            assert walk_batches(batches, len(batches), 0, 0, LAST_OFFSET)[0] > 0
