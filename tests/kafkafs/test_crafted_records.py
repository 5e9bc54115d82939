"""Records that nobody writes by accident, at the end of readable memory and through the tree."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafs.dump._dump import Walk
from kafkafs.views import TextView, json_lines_view, key_value_view, values_view
from kafkafs.views._measure import Cursor, Measure
from storage import Record, encode
from storage.compaction._keep import Keeper, map_batch, map_batches
from storage.compaction._offset_map import OffsetMap
from storage.errors import CorruptRecord, StorageError
from storage.record._route import route
from storage.record._seek import find_record
from storage.record.batch import decode
from storage.record.columns._columns import decode_columns
from storage.record.compression import decompress
from storage.record.header import BatchHeader, pack
from tests.guard_page import before_guard_page
from tests.kafkafs.trees import Tree
from tests.oracle import crc32c

T = 1_700_000_000_000
EARLIEST = -(2**63)

# The length of a null value takes one byte more than necessary, and no header count follows.
# The record has attributes, two deltas, a null key and this value.
CUT_OFF = b"\x0c" + b"\0\0\0" + b"\x01" + b"\x81\x00"


def batch_of(records: bytes, count: int) -> bytes:
    batch = bytearray(
        pack(BatchHeader(0, 0, 0, 2, 0, 0, count - 1, T, T, -1, -1, -1, count), records)
    )
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


def show(view: TextView) -> Callable[[memoryview], object]:
    def shown(batch: memoryview) -> bytes:
        out = bytearray(1000)
        end, _ = view.render(batch, 0, len(batch), Cursor(0), out, 0, len(out), 0)
        return bytes(out[:end])

    return shown


def measure(view: TextView) -> Callable[[memoryview], object]:
    return lambda batch: view.measure(batch, 0, len(batch), Measure())


def dump(batch: memoryview) -> None:
    Walk(decompress).step(batch, 0, len(batch), len(batch), len(batch))


def mapped(batch: memoryview) -> int:
    """Raises where `map_batches` stops before the batch, as its caller then does."""
    taken, _ = map_batches(OffsetMap(1 << 16), batch, 0, len(batch), 0)
    if taken < len(batch):
        raise CorruptRecord("not taken")
    return taken


READERS: dict[str, Callable[[memoryview], object]] = {
    "decode": decode,
    "columns": lambda batch: decode_columns(batch, 0, len(batch)),
    "columns with headers": lambda batch: decode_columns(batch, 0, len(batch), headers=True),
    "dump": dump,
    "map": lambda batch: map_batch(OffsetMap(1 << 16), batch, 0),
    "map simple": mapped,
    "keep": lambda batch: Keeper(OffsetMap(1 << 16), now_ms=T, horizon_ms=T).keep_one(batch),
    **{
        f"{how} {name}": function(view())
        for name, view in (
            ("values", values_view), ("kv", key_value_view), ("jsonl", json_lines_view)
        )
        for how, function in (("show", show), ("measure", measure))
    },
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_a_record_that_ends_with_its_value_length_is_malformed(
    reader: Callable[[memoryview], object],
) -> None:
    with before_guard_page(batch_of(CUT_OFF, 1)) as batch, pytest.raises(StorageError):
        reader(batch)


def test_what_reads_heads_only_stops_at_the_records_end() -> None:
    with before_guard_page(batch_of(CUT_OFF, 1)) as batch:
        assert find_record(batch) == (0, 0, T)
        with contextlib.suppress(CorruptRecord):
            route(batch, 1, 0, 1 << 20, lambda before: before, 1 << 20, 1 << 20)


@pytest.mark.parametrize("base", [2**63 - 1, -(2**63)])
def test_offsets_and_timestamps_wrap_as_in_java(base: int) -> None:
    """Every reader adds a delta to a header's field in the same way, and none fails on it."""
    made = bytearray(encode([Record(n, T + n, 0, b"k", b"v") for n in range(2)]))
    struct.pack_into(">q", made, 0, base)
    struct.pack_into(">q", made, 27, base)
    struct.pack_into(">I", made, 17, crc32c(made[21:]))
    second = (base + 1 + 2**63) % 2**64 - 2**63
    with before_guard_page(made) as batch:
        number, *found = find_record(batch, number=1) or (-1,)
        assert (number, found) == (1, [second, second])
        assert b'{"offset":%d,"timestamp":%d,' % (second, second) in show(json_lines_view())(batch)  # type: ignore[operator]
        lines = bytearray()
        walk = Walk(decompress)
        walk.step(batch, 0, len(batch), len(batch), len(batch))
        walk.take(lines.extend)
        assert b"| offset: %d CreateTime: %d " % (second, second) in lines


def test_the_earliest_timestamp_is_found(tmp_path: Path) -> None:
    """Nobody who asks for a record by its number or offset asks for a timestamp."""
    batch = encode([Record(n, EARLIEST, 0, None, b"%d" % n) for n in range(3)])
    assert find_record(batch) == (0, 0, EARLIEST)
    assert find_record(batch, number=1) == (1, 1, EARLIEST)
    assert find_record(batch, offset=2) == (2, 2, EARLIEST)
    tree = Tree(tmp_path)
    try:
        tree.mkdir("t")
        tree.append("t/.batches/0", batch)
        assert tree.read("t/0@-2") == b"1\n2\n"
        assert tree.read("t/0@1") == b"1\n2\n"
    finally:
        tree.manager.abandon()
