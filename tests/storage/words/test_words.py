"""A `.words` file never hides a record: whatever is looked for, and whatever the file holds."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.condition import condition
from storage.condition.condition import Among, Contains, Like
from storage.errors import CorruptRecord, TaskCancelled
from storage.files import Files
from storage.kafka07.segment import Segment07
from storage.record.batch import Record, decode_plain, encode
from storage.record.control import ABORT, encode_marker
from storage.record.crc import crc32c
from storage.record.header import LAST_OFFSET_DELTA_POSITION
from storage.record.plain import recompress
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.task import Task
from storage.words import build as build_module
from storage.words.build import build
from storage.words.layout import HEADER, HEADER_SIZE, PART, Header, Part
from storage.words.query import (
    EVERYTHING,
    NOTHING,
    AllOf,
    Entry,
    OneOf,
    Query,
    query_of_bytes,
    query_of_key,
)
from storage.words.words import Words, check
from tests import oracle
from tests.storage import old_logs
from tests.storage.words.made_words import (
    lie_in,
    random_record,
    random_text,
    segment_of,
    taken,
    texts,
)
from tests.storage.words.words_twin import LETTERS, entries

WHOLE = {"starts": True, "ends": True}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few KiB have many blocks and parts; the false blocks are the same each time."""
    monkeypatch.setattr(build_module, "urandom", random.Random(1).randbytes)
    monkeypatch.setattr(build_module, "BLOCK_BYTES", 400)
    monkeypatch.setattr(build_module, "MOST_BLOCKS", 20)


def random_log(seed: int, batches: int = 60) -> bytes:
    """Batches of all codecs, of transactions, and markers."""
    draw = random.Random(seed)
    data, offset = b"", 0
    for _ in range(batches):
        offset += draw.randrange(3)
        kind = draw.randrange(8)
        if kind == 0:
            marker = encode_marker(ABORT, 7, 1, 3, offset, 0, 0)
            data, offset = data + marker, offset + 1
            continue
        some = [random_record(draw, offset + each) for each in range(draw.randint(1, 5))]
        transaction = {
            "attributes": 0x10,
            "producer_id": 7,
            "producer_epoch": 1,
            "base_sequence": 0,
        }
        batch = encode(some, **transaction if kind == 1 else {})
        data, offset = data + recompress(batch, draw.randrange(5)), offset + len(some)
    return data


def built(segment: Segment) -> Words:
    path = segment.file_path(".words")
    size = build(segment, path, Task())
    assert size == Path(path).stat().st_size
    words = Words.open(segment, path)
    assert words is not None
    assert check(segment, path) is None
    return words


def conditions(draw: random.Random, text: bytes) -> Iterator[tuple[condition.Part, Query]]:
    """Conditions that search for a text, and their queries."""
    words = (text, random_text(draw, 3))
    for whole in (False, True):
        bounded = {"starts": whole, "ends": whole}
        for fold in (False, True):
            yield (
                Contains("value", words, fold=fold, whole=whole),
                OneOf(tuple(query_of_bytes(word, **bounded) for word in words)),
            )
        yield (
            Contains("header", (text,), whole=whole, header=b"h"),
            query_of_bytes(text, **bounded),
        )
    yield Like("value", (text, "%")), query_of_bytes(text, starts=True, ends=False)
    yield Like("key", ("%", text)), query_of_bytes(text, starts=False, ends=True)
    yield Like("value", ("_", text, "%")), query_of_bytes(text, starts=False, ends=False)
    yield Among("value", (text,)), query_of_bytes(text, **WHOLE)
    yield Among("key", tuple(sorted(words))), OneOf(tuple(map(query_of_key, words)))


def needles(draw: random.Random, values: list[bytes], count: int) -> Iterator[bytes]:
    """Parts of values, also cut inside of words and characters, and others."""
    for _ in range(count):
        value = draw.choice(values)
        start = draw.randrange(len(value) + 1)
        end = min(start + draw.choice((1, 2, 5, 20, 200)), len(value))
        yield value[start:end]
        yield random_text(draw, 4)


def assert_finds_all(segment: Segment, words: Words, seed: int, count: int = 20) -> int:
    """Each record that a condition takes lies in the query's ranges; how many were excluded."""
    draw = random.Random(seed)
    values = values_of(segment)
    found = 0
    end = segment.next_offset - segment.base_offset
    for text in needles(draw, values, count):
        for part, query in conditions(draw, text):
            ranges = words.offsets(query)
            assert all(first < last for first, last in ranges)
            assert ranges == sorted(ranges)
            assert lie_in(taken(segment, part), ranges), (text, part, query)
            found += sum(last - first for first, last in ranges) < end
    return found


def values_of(segment: Segment) -> list[bytes]:
    data = Path(segment.log_path).read_bytes()
    at, found = 0, list[bytes]()
    while at < len(data):
        plain, size = segment.expand(data, at, len(data), at)
        found += [record.value for record in decode_plain(plain) if record.value]
        at += size
    return found


@pytest.mark.parametrize("seed", range(3))
def test_no_record_is_missed(tmp_path: Path, seed: int) -> None:
    segment = segment_of(tmp_path, random_log(seed))
    words = built(segment)
    assert assert_finds_all(segment, words, seed) > 100
    words.close()


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages(tmp_path: Path, magic: int) -> None:
    data, _ = old_logs.legacy_segment(5, magic)
    segment = segment_of(tmp_path, data, 5)
    assert assert_finds_all(segment, built(segment), magic) > 100


def test_entries_of_kafka_0_7(tmp_path: Path) -> None:
    draw = random.Random(7)
    data = b"".join(old_logs.old_file(*(random_text(draw) for _ in range(9))) for _ in range(9))
    name = f"{1000:020}.kafka"
    (tmp_path / name).write_bytes(data)
    segment = Segment07(Files(), str(tmp_path), name, LogConfig())
    segment.set_size(len(data))
    words = built(segment)
    assert assert_finds_all(segment, words, 7) > 50
    assert words.offsets(Entry(b"absent")) == []


def test_a_batch_larger_than_a_window(tmp_path: Path) -> None:
    value = random.Random(1).randbytes(3 << 20).hex().encode()
    data = encode([Record(0, 0, 0, None, b"a"), Record(1, 0, 0, None, value)])
    segment = segment_of(tmp_path, data + encode([Record(2, 0, 0, None, b"b c")]))
    words = built(segment)
    assert words.offsets(Entry(b"c")) == [(2, 3)]
    assert words.offsets(query_of_bytes(value, **WHOLE)) == [(0, 2)]
    assert words.offsets(query_of_bytes(value[:-1], **WHOLE)) == []


def test_neighbours_are_joined(tmp_path: Path) -> None:
    data = b"".join(
        encode([Record(n, 0, 0, None, b"all n%d" % n + b" x" * 200)]) for n in range(50)
    )
    words = built(segment_of(tmp_path, data))
    assert words.offsets(Entry(b"all")) == words.offsets(EVERYTHING) == [(0, 50)]
    assert words.offsets(NOTHING) == words.offsets(AllOf((Entry(b"n1"), Entry(b"n9")))) == []
    some = tuple(Entry(b"n%d" % each) for each in (48, 19, 20, 21, 7))
    assert words.offsets(OneOf(some)) == [(7, 8), (19, 22), (48, 49)]


def test_an_empty_segment_and_one_of_markers(tmp_path: Path) -> None:
    assert built(segment_of(tmp_path, b"")).offsets(EVERYTHING) == []
    marker = bytes(encode_marker(ABORT, 7, 1, 3, 9, 0, 0))
    assert built(segment_of(tmp_path, marker, 9)).offsets(Entry(b"x")) == []


@given(texts, st.integers(0, 40), st.integers(0, 40), st.booleans(), st.booleans())
def test_a_text_around_a_needle_has_its_entries(
    text: bytes, before: int, behind: int, starts: bool, ends: bool
) -> None:
    start, end = min(before, len(text)), max(len(text) - behind, min(before, len(text)))
    needle = text[start:end]
    cuts = start > 0 and is_of_word(text[start - 1 : start]), is_of_word(text[end : end + 1])
    if (starts and cuts[0]) or (ends and cuts[1]):
        return
    query = query_of_bytes(needle, starts=starts, ends=ends)
    assert isinstance(query, AllOf)
    assert len(query.parts) <= 16
    assert {each.data for each in query.parts if isinstance(each, Entry)} <= entries(text)


def is_of_word(byte: bytes) -> bool:
    return byte != b"" and byte in LETTERS


@pytest.mark.parametrize(
    ("needle", "starts", "ends", "expected"),
    [
        (b"", True, True, []),
        (b"one", False, False, []),
        (b"one", True, True, [b"one"]),
        (b"one two three", False, False, [b"two"]),
        (b"one TWO three", True, False, [b"one", b"two"]),
        ("aé€".encode() + b"\xe2\x82", False, False, ["€".encode(), "é".encode()]),
        (b"10.1.2.3", True, True, [b"10.1.2.3"]),
        (b"10.1.2.3", False, True, [b"1", b"2", b"3"]),
        (b"10.1.2.3", True, False, [b"10", b"1", b"2"]),
        (b"9.10.1.2.3", False, True, [b"10.1.2.3"]),
        (b"1.2.3.4.5", True, True, [b"1.2.3.4", b"2.3.4.5"]),
        (b"1234.1.1.1", True, True, [b"1234", b"1"]),
        (b"1..2.3.4", True, True, [b"1", b"2", b"3", b"4"]),
    ],
)
def test_entries_of_needles(needle: bytes, starts: bool, ends: bool, expected: list[bytes]) -> None:
    found = query_of_bytes(needle, starts=starts, ends=ends)
    assert found == AllOf(tuple(map(Entry, expected)))


# -- files -------------------------------------------------------------------------------------


def assert_never_too_few(segment: Segment, path: Path, expected: dict[Query, list[int]]) -> None:
    words = Words.open(segment, str(path))
    if words is not None:
        for query, offsets in expected.items():
            assert lie_in(offsets, words.offsets(query))
        words.close()


def some_queries(segment: Segment) -> dict[Query, list[int]]:
    found: dict[Query, list[int]] = {query_of_key(b"key"): taken(segment, Among("key", (b"key",)))}
    for text in (b"word", b"Words", "€".encode(), b"10.0.0.1", b"absent"):
        part = Contains("value", (text,), whole=True)
        found[query_of_bytes(text, **WHOLE)] = taken(segment, part)
    return found


def test_each_byte_changed(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(9, 20))
    built(segment).close()
    path, expected = Path(segment.file_path(".words")), some_queries(segment)
    good = path.read_bytes()
    for at in range(len(good)):
        changed = good[at] ^ (0x01, 0x80)[at % 2]
        path.write_bytes(good[:at] + bytes([changed]) + good[at + 1 :])
        assert_never_too_few(segment, path, expected)
        assert check(segment, str(path)) is not None, at


def test_each_length(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(9, 20))
    built(segment).close()
    path, expected = Path(segment.file_path(".words")), some_queries(segment)
    good = path.read_bytes()
    for size in range(len(good)):
        path.write_bytes(good[:size])
        assert check(segment, str(path)) is not None, size
        for rest in (b"", bytes(len(good) - size), good[: len(good) - size]):
            path.write_bytes(good[:size] + rest)
            assert_never_too_few(segment, path, expected)


def test_pages_in_the_wrong_places(tmp_path: Path) -> None:
    """A power cut may leave bytes of an older file."""
    segment = segment_of(tmp_path, random_log(9, 40))
    path, expected = Path(segment.file_path(".words")), some_queries(segment)
    both = []
    for _ in range(2):
        built(segment).close()
        both.append(path.read_bytes())
    good, other = both
    assert len(good) == len(other)
    pieces = [(at, at + 700) for at in range(HEADER_SIZE, len(good), 50)]
    for start, end in [*pieces, (HEADER_SIZE, len(good))]:
        path.write_bytes(good[:start] + other[start:end] + good[end:])
        assert_never_too_few(segment, path, expected)
        assert (check(segment, str(path)) is None) == (path.read_bytes() == good)


def test_files_of_other_segments(tmp_path: Path) -> None:
    data = [random_log(seed) for seed in (1, 2)]
    segment = segment_of(tmp_path, data[0])
    path = segment.file_path(".words")
    built(segment).close()
    (tmp_path / "other").mkdir()
    shorter = segment_of(tmp_path / "other", data[0][: len(random_log(1, 59))])
    assert shorter.size < segment.size
    changed = bytearray(data[0])
    changed[-100:] = bytes(100)
    later = segment_of(tmp_path, b"", 3)
    later.size = segment.size
    for other in (shorter, later):
        assert Words.open(other, path) is None
        assert check(other, path) == "it is not of this segment"
    Path(segment.log_path).write_bytes(changed)
    assert Words.open(segment, path) is None
    assert check(segment, path) == "the segment has changed"


def padded(magic: int, text: bytes) -> bytes:
    """A log that ends with more than 4 KiB of a batch that are the same for all texts."""
    value = text + bytes(5000)
    if magic == 2:
        return encode([Record(0, 0, 0, None, b"a")]) + encode([Record(1, 0, 0, None, value)])
    some = (oracle.Message(n, None, each, n) for n, each in enumerate((b"a", value)))
    return b"".join(oracle.put_message(each, magic) for each in some)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_log_of_the_same_size_and_end(tmp_path: Path, magic: int) -> None:
    segment = segment_of(tmp_path, padded(magic, b"one"))
    path = segment.file_path(".words")
    built(segment).close()
    Path(segment.log_path).write_bytes(padded(magic, b"two"))
    assert Words.open(segment, path) is None
    assert check(segment, path) == "the segment has changed"


@pytest.mark.parametrize(("magic", "version"), [(b"KFSWORDS", 2), (b"KFSLINES", 1)])
def test_other_formats(tmp_path: Path, magic: bytes, version: int) -> None:
    segment = segment_of(tmp_path, random_log(1, 3))
    built(segment).close()
    path = Path(segment.file_path(".words"))
    data = path.read_bytes()
    header = HEADER.pack(magic, version, *HEADER.unpack_from(data)[2:])
    path.write_bytes(header + crc32c(header).to_bytes(4, "little") + data[HEADER_SIZE:])
    assert Words.open(segment, str(path)) is None
    assert check(segment, str(path)) == "its format is unknown"


class Measured(Files):
    """The largest size that was read at once."""

    largest = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.largest = max(self.largest, size)
        return super().pread(fd, size, position)


@pytest.mark.parametrize("large", ["index", "directory"])
def test_sizes_of_a_damaged_file_take_no_memory(tmp_path: Path, large: str) -> None:
    segment = segment_of(tmp_path, random_log(1, 3))
    built(segment).close()
    path = Path(segment.file_path(".words"))
    data = path.read_bytes()
    header = Header(*HEADER.unpack_from(data))
    index = data[header.index_position :]
    if large == "index":
        header = header._replace(blocks=5 << 20)
    else:
        last = Part(*PART.unpack(index[-PART.size :]))._replace(buckets=(4 << 30) - 1)
        index = index[: -PART.size] + PART.pack(*last)
        header = header._replace(index_crc=crc32c(index))
    path.write_bytes(header.packed() + data[HEADER_SIZE : header.index_position] + index)
    os.truncate(path, 100 << 20)
    segment.disk = disk = Measured()
    words = Words.open(segment, str(path))
    if words is not None:
        assert words.offsets(Entry(b"absent")) == [(segment.base_offset, segment.next_offset)]
    assert (words is None) == (large == "index")
    assert check(segment, str(path)) is not None
    assert disk.largest <= 32 << 20


def test_a_page_is_read_once(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(1, 3))
    words = built(segment)
    counts = []
    for query in (Entry(b"absent"), OneOf((Entry(b"absent"), Entry(b"missing")))):
        before = words.read_bytes
        words.offsets(query)
        counts.append(words.read_bytes - before)
    assert counts[0] == counts[1]


def test_a_missing_file(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(1, 3))
    assert Words.open(segment, segment.file_path(".words")) is None
    with pytest.raises(FileNotFoundError):
        check(segment, segment.file_path(".words"))


def test_a_missing_log(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(1, 3))
    built(segment).close()
    segment.close_descriptors()
    Path(segment.log_path).unlink()
    reason = check(segment, segment.file_path(".words"))
    assert reason is not None
    assert "No such file" in reason


class Unreadable(Files):
    """A disk that cannot read some bytes of a file."""

    bad = range(0)

    def pread(self, fd: int, size: int, position: int) -> bytes:
        if position in self.bad and size != 4096:
            raise OSError(5, "Input/output error")
        return super().pread(fd, size, position)


def test_what_the_disk_cannot_read(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(9, 40))
    words, expected = built(segment), some_queries(segment)
    segment.disk = disk = Unreadable()
    words = Words(segment, segment.file_path(".words"))
    disk.bad = range(HEADER_SIZE, segment.size)
    for query in expected:
        assert words.offsets(query) == words.offsets(EVERYTHING)


# -- building ----------------------------------------------------------------------------------


def damaged_logs() -> Iterator[tuple[str, bytes]]:
    data = random_log(3, 6)
    yield "CRC is wrong", data[:-1] + bytes([data[-1] ^ 1])
    headers = bytearray(encode([Record(0, 0, 0, None, b"text")]))
    headers[-1] = 2
    yield "headers do not fill", with_crc(headers)


def with_crc(batch: bytearray) -> bytes:
    struct.pack_into(">I", batch, 17, crc32c(batch[21:]))
    return bytes(batch)


@pytest.mark.parametrize(("reason", "data"), list(damaged_logs()))
def test_damage_is_refused(tmp_path: Path, reason: str, data: bytes) -> None:
    segment = segment_of(tmp_path, encode([Record(0, 0, 0, None, b"text")]))
    path = segment.file_path(".words")
    Path(path).write_bytes(b"as it was")
    Path(segment.log_path).write_bytes(data)
    segment.size, segment.next_offset = len(data), 1000
    with pytest.raises(CorruptRecord, match=reason) as caught:
        build(segment, path, Task())
    assert caught.value.path == segment.log_path
    assert Path(path).read_bytes() == b"as it was"
    assert len(list(tmp_path.iterdir())) == 2


def test_a_truncated_batch_is_refused(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(3, 6))
    segment.size -= 1
    with pytest.raises(CorruptRecord, match="truncated"):
        build(segment, segment.file_path(".words"), Task())
    assert len(list(tmp_path.iterdir())) == 1


def test_a_cancelled_task_leaves_nothing(tmp_path: Path) -> None:
    class Stopped(Task):
        """It is cancelled as soon as bytes are done."""

        def advance(self, size: int) -> None:
            self.cancel()
            super().advance(size)

    batch = encode([Record(0, 0, 0, None, b"one")])
    segment = segment_of(tmp_path, batch + encode([Record(1, 0, 0, None, b"two")]))
    task = Stopped()
    with pytest.raises(TaskCancelled):
        build(segment, segment.file_path(".words"), task)
    assert (task.phase, task.done, task.total) == ("indexing words", len(batch), segment.size)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("last_delta", [(1 << 31) - 1, -(1 << 31), -1])
def test_offsets_outside_of_the_segment_are_refused(tmp_path: Path, last_delta: int) -> None:
    batch = bytearray(encode([Record(5, 0, 0, None, b"text")]))
    segment = segment_of(tmp_path, bytes(batch), 5)
    struct.pack_into(">i", batch, LAST_OFFSET_DELTA_POSITION, last_delta)
    Path(segment.log_path).write_bytes(with_crc(batch))
    with pytest.raises(CorruptRecord, match="offset"):
        build(segment, segment.file_path(".words"), Task())


# -- limits ------------------------------------------------------------------------------------


def test_large_words_needles_and_records(tmp_path: Path) -> None:
    word = b"longword" * (1 << 18)
    many = b" ".join(b"w%d" % number for number in range(100_000)) + b"\0"
    records = [Record(0, 0, 0, None, word), Record(1, 0, 0, None, many), Record(2, 0, 0, None, b"")]
    segment = segment_of(tmp_path, b"".join(encode([record]) for record in records))
    words = built(segment)
    assert words.offsets(query_of_bytes(word, **WHOLE)) == [(0, 1)]
    assert words.offsets(query_of_bytes(many[1:], starts=False, ends=True)) == [(1, 2)]
    assert words.offsets(query_of_bytes(b"\0w7\0", **WHOLE)) == [(1, 2)]
    before = words.read_bytes
    assert words.offsets(query_of_bytes(b" ".join([b"a", b"b"] * 250_000), **WHOLE)) == []
    assert words.read_bytes - before < 20_000


def test_large_batches_are_in_memory_one_at_a_time(tmp_path: Path) -> None:
    value = b"word " * (2 << 20)
    batches = (encode([Record(n, 0, 0, None, value)]) for n in range(2))
    segment = segment_of(tmp_path, b"".join(recompress(batch, 4) for batch in batches))
    tracemalloc.start()
    try:
        build(segment, segment.file_path(".words"), Task())
        assert tracemalloc.get_traced_memory()[1] < 1.5 * len(value)
    finally:
        tracemalloc.stop()


def test_blocks_with_too_many_words_are_always_read(tmp_path: Path) -> None:
    text = b" ".join(b"%x" % number for number in range(1_100_000))
    records = [b"one" * 300, text, b"two" * 300]
    segment = segment_of(
        tmp_path,
        b"".join(encode([Record(n, 0, 0, None, value)]) for n, value in enumerate(records)),
    )
    words = built(segment)
    assert words.offsets(Entry(b"absent")) == [(1, 2)]
    assert words.offsets(Entry(b"two" * 300)) == [(1, 3)]


def test_a_part_has_a_limited_number_of_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "MOST_ENTRIES", 100)
    segment = segment_of(tmp_path, random_log(5))
    words = built(segment)
    header = Path(segment.file_path(".words")).read_bytes()
    *_, blocks, parts, _ = HEADER.unpack_from(header)
    assert blocks // 20 + 1 < parts < blocks
    assert assert_finds_all(segment, words, 5, count=10) > 10


def test_an_absent_word_reads_one_page_of_a_part(tmp_path: Path) -> None:
    segment = segment_of(tmp_path, random_log(5, 200))
    words = built(segment)
    parts = HEADER.unpack_from(Path(segment.file_path(".words")).read_bytes())[9]
    assert parts > 3
    before = words.read_bytes
    assert words.offsets(Entry(b"absent")) == []
    assert words.read_bytes - before < parts * 6000
