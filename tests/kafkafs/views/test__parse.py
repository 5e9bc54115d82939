"""kafkafs.views._parse: lines become the batches that the plain twin makes of them."""

from __future__ import annotations

import mmap

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.views import TextView, json_lines_view, key_value_view, values_view
from kafkafs.views._measure import Cursor
from kafkafs.views._parse import encode_lines
from kafkafs.views._render import LOOPS
from storage.errors import RecordTooLarge, StorageError
from storage.record.batch import Record, encode
from storage.record.crc import crc32c
from storage.record.header import HEADER_SIZE, Buffer, parse_header
from tests import oracle
from tests.kafkafs.views import calls
from tests.kafkafs.views.calls import UNLIMITED, T

# Sizes around which a varint, a copying step or the short copy ends.
sizes = st.integers(0, 140) | st.sampled_from([255, 256, 257, 300, 8180, 8191, 8192, 8193, 20000])
lines_of = st.lists(
    st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"?"))
    | sizes.map(lambda size: b"x" * size),
    max_size=80,
)


def encoded(data: Buffer, start: int, end: int, timestamp: int, limit: int) -> tuple[bytes, int]:
    batches, lines = encode_lines(data, start, end, timestamp, limit)
    return bytes(batches), lines


LINES: dict[str, tuple[TextView, list[bytes]]] = {
    "values": (values_view(), [b"", b"one", b"x" * 300]),
    "kv": (
        key_value_view(),
        [b"no key", b"k\t\\N", b"k\\t\tv\\\\", b"k\tv\\q", b"k\t" + b"x" * 300],
    ),
    "jsonl": (
        json_lines_view(),
        [
            b'{"value":"v"}',
            b'{ "key" : "k" }',
            b'{"value":1}',
            b"",
            b'{"value":"%s"}' % (b"x" * 300),
        ],
    ),
}


def outcome(view: TextView, data: bytes, start: int, limit: int, begun: bytes) -> object:
    """The batches, or the error."""
    try:
        batches, lines = view.parse(data, start, len(data), T, limit, begun)
    except StorageError as error:
        return type(error), str(error)
    return bytes(batches), lines


@given(
    name=st.sampled_from(sorted(LINES)),
    picked=st.lists(st.integers(0, 4), min_size=1, max_size=12),
    cut=st.integers(0, 320),
    before=st.binary(max_size=9),
    limit=st.sampled_from([70, 120, 400, UNLIMITED]),
)
def test_a_line_that_was_begun_before(
    name: str, picked: list[int], cut: int, before: bytes, limit: int
) -> None:
    view, lines = LINES[name]
    text = text_of([lines[number % len(lines)] for number in picked])
    begun = text[: min(cut, text.index(b"\n"))]
    whole = outcome(view, text, 0, limit, b"")
    assert outcome(view, before + text[len(begun) :], len(before), limit, begun) == whole


def text_of(lines: list[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


@given(
    lines=lines_of,
    before=st.binary(max_size=9),
    after=st.binary(max_size=9),
    timestamp=st.integers(-1, 2**63 - 1),
    limit=st.integers(68, 400) | st.sampled_from([9000, 30000, UNLIMITED, 2**40]),
)
@example(lines=[b""] * 70, before=b"", after=b"", timestamp=0, limit=UNLIMITED)
@example(lines=[b"a" * 50] * 70, before=b"", after=b"", timestamp=0, limit=200)
def test_same_bytes_as_the_twin(
    lines: list[bytes], before: bytes, after: bytes, timestamp: int, limit: int
) -> None:
    calls.check_lines(
        *(values_view(), lines, before, after, timestamp, limit),
        *(lambda line: (None, line), oracle.encode_pairs),
    )


def test_one_line() -> None:
    assert encoded(b"hello\n", 0, 6, T, 1000) == (encode([Record(0, T, 0, None, b"hello")]), 1)


def test_the_limit_is_the_whole_batchs() -> None:
    size = len(encode([Record(0, T, 0, None, b"hello")]))
    assert encoded(b"hello\n", 0, 6, T, size)[1] == 1
    with pytest.raises(RecordTooLarge) as caught:
        encode_lines(b"ok\nhello\n", 0, 9, T, size - 1)
    assert (caught.value.line, caught.value.size, caught.value.limit) == (2, size, size - 1)


@pytest.mark.parametrize("limit", [0, -1, -(2**40), HEADER_SIZE])
def test_limits_that_nothing_meets(limit: int) -> None:
    with pytest.raises(RecordTooLarge):
        encode_lines(b"\n", 0, 1, T, limit)


@pytest.mark.parametrize("line", [b"", b"ab", b"x" * 99, b"y" * 3000, b"z" * 100_000])
def test_large_blocks(line: bytes) -> None:
    # The GIL is released, and where lines are short the first guess at the output is too small.
    lines = [line] * (1 + 600_000 // (len(line) + 1))
    lines[7::50] = [b"another"] * len(lines[7::50])
    text = text_of(lines)
    for limit in (1_000_012, UNLIMITED):
        batches, count = encode_lines(text, 0, len(text), T, limit)
        assert count == len(lines)
        out = bytearray(len(text))
        assert LOOPS.render(batches, 0, len(batches), Cursor(0), out, 0, len(out), 0) == (
            len(out),
            0,
        )
        assert out == text
        at = 0
        while at < len(batches):
            header = parse_header(batches, at)
            assert header.size <= limit
            assert header.crc == crc32c(memoryview(batches)[at + 21 : at + header.size])
            count -= header.records_count
            at += header.size
        assert (at, count) == (len(batches), 0)


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 6), (0, 7), (4, 3), (0, 5), (0, 1), (2**62, 2**62 + 1)]
)
def test_wrong_calls(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="line"):
        encode_lines(b"hello\n", start, end, T, 1000)


def test_input_that_changes_meanwhile() -> None:
    # The values are undefined, but the result is batches, and no byte after the input is read.
    size = 1 << 20
    with mmap.mmap(-1, size) as shared:
        shared[:] = (b"x" * 99 + b"\n") * (size // 100) + b"\n" * (size % 100)

        def scribble(at: int) -> None:
            shared[at] ^= 1

        with calls.meanwhile(scribble, range(99, size - 1, 99)):
            for _ in range(10):
                batches, count = encode_lines(shared, 0, size, T, UNLIMITED)
                records = 0
                at = 0
                while at < len(batches):
                    records += parse_header(batches, at).records_count
                    at += parse_header(batches, at).size
                assert (at, records) == (len(batches), count)
