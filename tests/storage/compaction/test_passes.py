"""What a pass is given of a segment: all batches once, in order, and nothing that is not sound."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.compaction import passes
from storage.compaction.passes import WINDOW_BYTES, KeepRules, ProducerRecord
from storage.errors import CorruptRecord, TaskCancelled
from storage.files import Files
from storage.record.batch import decode_plain
from storage.record.header import BatchHeader, parse_header, size_at
from storage.record.plain import recompress
from storage.segment.damage import Damage
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.segment.writer import SegmentWriter
from storage.settings.config import LogConfig
from storage.task import Task
from tests.storage.logs import NOW_MS, NOW_NS

BASE = 100
ZSTD = 4


class Taken(passes.MapPass):
    """Takes ordinary batches at once, the others one by one, and no more than ``most``."""

    def __init__(self, most: int = 1 << 30) -> None:
        self.offsets: list[int] = []
        self.others: list[int] = []
        self._most = most
        self.finished = not most

    def _take(self, offset: int) -> None:
        self.offsets.append(offset)
        self.finished = len(self.offsets) == self._most

    def run(self, data: memoryview, at: int, end: int) -> int:
        while not self.finished and end - at >= 61:
            header = parse_header(data, at)
            if header.codec or size_at(data, at) > end - at:
                break
            assert len(list(decode_plain(data[at : at + header.size]))) == header.records_count
            self._take(header.base_offset)
            at += header.size
        return at

    def take_batch(self, stored: memoryview, plain: bytearray, header: BatchHeader) -> None:
        assert header.codec == ZSTD
        assert len(stored) == header.size
        assert len(decode_plain(plain)) == header.records_count
        self._take(header.base_offset)
        self.others.append(header.base_offset)


def written(path: Path, batches: list[tuple[int, int]]) -> Segment:
    """A segment of a batch for each (size of its value, codec)."""
    writer = SegmentWriter.begin(
        Segment.create(Files(), str(path), BASE, LogConfig(), now_ms=NOW_MS)
    )
    for number, (size, codec) in enumerate(batches):
        offset = BASE + number
        data = recompress(encode([Record(offset, NOW_MS, 0, b"k", b"x" * size)]), codec)
        writer.append(data, [(0, len(data), offset, NOW_MS)], NOW_NS)
    writer.seal()
    return writer.segment


@pytest.fixture
def segment(tmp_path: Path) -> Iterator[Segment]:
    made = written(tmp_path, [(50, 0)] * 6)
    yield made
    made.close_descriptors()


SIZES = st.sampled_from([0, 100, WINDOW_BYTES // 2, WINDOW_BYTES, 3 * WINDOW_BYTES])


@given(st.lists(st.tuples(SIZES, st.sampled_from([0, ZSTD])), max_size=8), st.integers(0, 8))
def test_all_batches_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, batches: list[tuple[int, int]], first: int
) -> None:
    segment = written(tmp_path_factory.mktemp("d"), batches)
    starts = [*(at for at, _ in SegmentReader(segment).batches()), segment.size]
    start = starts[min(first, len(batches))]
    taken, task = Taken(), Task()
    passes.walk(segment, start, taken, task)
    assert taken.offsets == list(range(BASE + min(first, len(batches)), BASE + len(batches)))
    assert taken.others == [offset for offset in taken.offsets if batches[offset - BASE][1]]
    assert task.done == segment.size - start
    segment.close()


@pytest.mark.parametrize("most", [0, 1, 4])
def test_who_has_enough_gets_no_more(segment: Segment, most: int) -> None:
    taken = Taken(most)
    passes.walk(segment, 0, taken, Task())
    assert taken.offsets == [BASE + number for number in range(most)]


@pytest.mark.parametrize("missing", [1, 60, 100])
def test_a_batch_that_is_cut_off_is_named(segment: Segment, missing: int) -> None:
    last = [at for at, _ in SegmentReader(segment).batches()][-1]
    with open(segment.log_path, "r+b") as file:
        file.truncate(segment.size - missing)
    taken = Taken()
    with pytest.raises(CorruptRecord) as caught:
        passes.walk(segment, 0, taken, Task())
    assert (caught.value.path, caught.value.position) == (segment.log_path, last)
    assert taken.offsets == list(range(BASE, BASE + 5))


def test_damage_that_is_known_is_told(segment: Segment) -> None:
    starts = [at for at, _ in SegmentReader(segment).batches()]
    segment.damages = (Damage(starts[2], starts[3], BASE + 2, BASE + 3, "a test"),)
    taken = Taken()
    with pytest.raises(CorruptRecord, match="a test"):
        passes.walk(segment, 0, taken, Task())
    assert taken.offsets == [BASE, BASE + 1]


def test_it_can_be_cancelled(segment: Segment) -> None:
    task = Task()
    task.cancel()
    with pytest.raises(TaskCancelled):
        passes.walk(segment, 0, Taken(), task)


# -- what stays empty ------------------------------------------------------------------------------


def header(last_offset: int, producer_id: int = -1, epoch: int = 0) -> BatchHeader:
    batch = encode([Record(last_offset, NOW_MS, 0, b"k", b"v")], producer_id=producer_id)
    return parse_header(batch)._replace(producer_epoch=epoch)


def test_a_batch_stays_empty_for_the_sequence_in_it_or_the_end_of_the_log() -> None:
    rules = KeepRules(NOW_MS, 0, 20, {7: ProducerRecord(5, 0), 8: ProducerRecord(-1, 3)}, 1000)
    assert rules.special == [5, 19]
    assert rules.stays_empty(header(19))
    assert not rules.stays_empty(header(18))
    assert rules.stays_empty(header(5, 7))
    assert not rules.stays_empty(header(6, 7))
    assert not rules.stays_empty(header(5, 9)), "nobody knows that producer any more"
    assert not rules.stays_empty(header(5, 8, epoch=3)), "of that one a marker is left"
    marker = header(6, 8, epoch=3)
    assert rules.stays_empty(marker._replace(attributes=marker.attributes | 0x20))
