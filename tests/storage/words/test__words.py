"""storage.words._words makes the same parts as its twin, of any records."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record.batch import Record, decode_plain, encode
from storage.words._words import ANY_BLOCK, BUCKET_BYTES, PAGE_BUCKETS, PartBuilder, hash_of
from tests.guard_page import before_guard_page
from tests.storage.words import words_twin
from tests.storage.words.made_words import headers, nullable, texts

SECRET = 0x0123456789ABCDEF, 0xFEDCBA9876543210
POSITION = 72


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Batches in plain form, one after the other."""
    made, offset = [], draw(st.integers(0, 5))
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 4))
        some = [
            Record(offset + each, 0, 0, draw(nullable), draw(nullable), draw(headers))
            for each in range(count)
        ]
        made.append(encode(some))
        offset += count + draw(st.integers(0, 2))
    return made


def part_of(blocks: list[bytes]) -> tuple[bytes, bytes, int]:
    builder = PartBuilder(*SECRET, 0)
    for number, block in enumerate(blocks):
        with before_guard_page(block) as view:
            builder.read(view)
        builder.end_block(number)
    pages, directory, buckets = builder.end(POSITION)
    assert builder.count == 0
    return bytes(pages), bytes(directory), buckets


def twin_of(blocks: list[list[Record]]) -> tuple[bytes, bytes, int]:
    some = [words_twin.hashes(records, SECRET) for records in blocks]
    return words_twin.part(some, SECRET, POSITION)


@given(st.lists(batches(), min_size=1, max_size=3))
def test_a_part_is_that_of_the_twin(made: list[list[bytes]]) -> None:
    # A builder refuses lower offsets, and each block begins with low ones: each gets a part.
    for block in made:
        records = [record for batch in block for record in decode_plain(batch)]
        assert part_of([b"".join(block)]) == twin_of([records])


@given(batches())
def test_blocks_of_a_part(made: list[bytes]) -> None:
    assert part_of(made) == twin_of([decode_plain(batch) for batch in made])


@given(texts, st.booleans())
def test_hashes(data: bytes, is_key: bool) -> None:
    lower = data if is_key else data.lower()
    with before_guard_page(data) as view:
        assert hash_of(view, *SECRET, is_key) == words_twin.hash_of(lower, SECRET, is_key)


def test_words_of_all_lengths() -> None:
    values = [b"Z" * size + b" " * (size % 3) for size in range(140)]
    records = [Record(n, 0, 0, None, value) for n, value in enumerate(values)]
    assert part_of([encode(records)]) == twin_of([records])


@pytest.mark.parametrize(
    "value",
    [
        *(b"1.2.3.4", b"1.2.3.4.5.6", b"1.2.3", b"1 2 3 4", b"1.2.3 4", b"1..2.3.4", b"1.2.3.4."),
        *(
            b"1234.1.1.1.1",
            b"1.a.2.3.4",
            b"999.999.999.999",
            b"_.1.2.3.4",
            b"1.2.3.4_",
            b".1.2.3.4",
        ),
        b"-" * 59 + b"12.34.56.78" + b"-" * 50 + b"1.2.3.4.5",
    ],
)
def test_windows_of_numbers(value: bytes) -> None:
    records = [Record(0, 0, 0, None, value)]
    assert part_of([encode(records)]) == twin_of([records])


def test_common_words_become_bits() -> None:
    blocks = [
        [Record(n, 0, 0, None, b"all" + b" often" * (n % 2) + b" rare%d" % (n % 100))]
        for n in range(200)
    ]
    found = part_of([encode(block) for block in blocks])
    assert found == twin_of(blocks)
    pages, _, buckets = found
    assert buckets < PAGE_BUCKETS
    assert len(pages) - PAGE_BUCKETS - 2 * sum(pages[:PAGE_BUCKETS]) - 4 == 2 * (4 + 32)


def test_several_pages() -> None:
    records = [Record(0, 0, 0, None, b" ".join(b"w%d" % n for n in range(20_000)))]
    pages, directory, buckets = part_of([encode(records)])
    assert (pages, directory, buckets) == twin_of([records])
    assert len(directory) == 4 * -(-buckets // PAGE_BUCKETS) + 4 > 40


def flooding(blocks: int) -> list[bytes]:
    """Words that fill one bucket of a part, if each is in `blocks` blocks; they need the secret."""
    found = []
    buckets = (ANY_BLOCK + blocks) * 2 // BUCKET_BYTES + 1
    for number in itertools.count():
        word = b"%d" % number
        if hash_of(word, *SECRET, False) * buckets >> 32 == 0:
            found.append(word)
            if len(found) * blocks >= ANY_BLOCK:
                return found
    raise AssertionError


def test_a_bucket_with_too_many_slots_has_none() -> None:
    record = Record(0, 0, 0, None, b" ".join(flooding(18)))
    builder = PartBuilder(*SECRET, 0)
    for block in range(18):
        builder.read(encode([record._replace(offset=block)]))
        builder.end_block(block)
    pages, directory, buckets = builder.end(POSITION)
    blocks = [words_twin.hashes([record], SECRET)] * 18 + [set[int]()] * 238
    found = bytes(pages), bytes(directory), buckets
    assert found == words_twin.part(blocks, SECRET, POSITION)
    assert pages[:2] == bytes((ANY_BLOCK, 0))


def test_offsets_that_no_block_could_have_are_refused() -> None:
    builder = PartBuilder(*SECRET, 5)
    with pytest.raises(CorruptRecord, match="offset does not fit"):
        builder.read(encode([Record(4, 0, 0, None, b"")]))
    outside = bytearray(encode([Record(5, 0, 0, None, b""), Record(6, 0, 0, None, b"")]))
    outside[23:27] = bytes(4)
    with pytest.raises(CorruptRecord, match="offset does not fit"):
        builder.read(outside)
    assert builder.next_offset == 5


@pytest.mark.parametrize("base", [(1 << 63) - 1, (1 << 63) - 2])
def test_offsets_beyond_the_largest_one_are_refused(base: int) -> None:
    batch = bytearray(encode([Record(0, 0, 0, None, b""), Record(1, 0, 0, None, b"")]))
    batch[:8] = base.to_bytes(8, "big")
    builder = PartBuilder(*SECRET, 0)
    with pytest.raises(CorruptRecord, match="offset does not fit"):
        builder.read(batch)
    assert builder.next_offset == 0
