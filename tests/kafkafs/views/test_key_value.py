"""kafkafs.views.key_value_view: keys and values to lines and back, as the plain twins do it."""

from __future__ import annotations

import contextlib
import mmap
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.views import key_value_view
from storage.errors import InvalidRecord
from storage.record.batch import Record, decode, encode
from tests import oracle
from tests.kafkafs.views import calls
from tests.kafkafs.views.calls import UNLIMITED, T
from tests.made_logs import headers, logs

VIEW = key_value_view()
text_of = partial(calls.text_of, VIEW)
length_of = partial(calls.length_of, VIEW)
parsed = partial(calls.parsed, VIEW)
Pair = tuple[bytes | None, bytes | None]

# Bytes that mean something here, their neighbours, and those that differ in the highest bit only.
telling = st.lists(st.sampled_from(b"\\\\\t\t\n\n\x08\x0b[]Ntna\0\x89\x8a\xdc\xff")).map(bytes)
# Sizes around which a word, a block, a varint, a copying step or the short copy ends.
sizes = st.sampled_from([7, 8, 9, 15, 16, 17, 63, 64, 65, 72, 127, 128, 129, 256, 257, 300, 8200])


@st.composite
def long_fields(draw: st.DrawFn) -> bytes:
    """Plain bytes with telling ones anywhere among them, at the ends above all."""
    field = bytearray(b"x" * draw(sizes))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from([0, 1, 7, 8, 62, 63, 64]) | st.integers(0, len(field)))
        for place in (at, -at):
            if -len(field) <= place < len(field) and draw(st.booleans()):
                field[place] = draw(st.sampled_from(b"\\\t\n"))
    return bytes(field)


fields = st.binary(max_size=12) | telling | long_fields()
pairs_of = st.lists(
    st.tuples(st.none() | telling | st.binary(max_size=9), st.none() | fields), max_size=40
)


@st.composite
def key_value_logs(draw: st.DrawFn) -> bytes:
    """A log of records with such fields, among other batches."""
    data = draw(logs(max_batches=2)).data
    for _ in range(draw(st.integers(0, 2))):
        rows = [
            oracle.Row(draw(st.integers(0, 99)), n, *pair, draw(headers))
            for n, pair in enumerate(draw(pairs_of.filter(len)))
        ]
        data += oracle.put_batch(b"".join(map(oracle.put_row, rows)), len(rows))
    return data + draw(logs(max_batches=1)).data


def pairs_in(batches: bytes) -> list[Pair]:
    return [(record.key, record.value) for record in calls.records_in(batches)]


# -- records to text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (b"key", b"value", b"key\tvalue\n"),
        (None, b"value", b"value\n"),
        (b"", b"value", b"\tvalue\n"),
        (b"key", b"", b"key\t\n"),
        (b"", b"", b"\t\n"),
        (None, b"", b"\n"),
        (b"key", None, b"key\t\\N\n"),
        (b"", None, b"\t\\N\n"),
        (None, None, b"\\N\n"),
        (b"\\N", b"\\N", b"\\\\N\t\\\\N\n"),
        (None, b"\\N", b"\\\\N\n"),
        (b"a\tb\nc\\d", b"\t\n\\", b"a\\tb\\nc\\\\d\t\\t\\n\\\\\n"),
        (None, b"no\tkey", b"no\\tkey\n"),
        (b"\r\0\xff", b"\x07\x0c\r\x7f\xe2\x80\xa8", b"\r\0\xff\t\x07\x0c\r\x7f\xe2\x80\xa8\n"),
    ],
)
def test_a_record_is_this_line_and_the_line_that_record(
    key: bytes | None, value: bytes | None, line: bytes
) -> None:
    batch = encode([Record(0, T, 0, key, value)])
    assert text_of(batch) == line
    assert length_of(batch) == len(line)
    assert parsed(line) == (batch, 1)
    assert oracle.key_value_line(oracle.Row(0, 0, key, value)) == line
    assert oracle.key_value_fields(line[:-1]) == (key, value)


@given(key=st.none() | fields, value=st.none() | fields, behind=st.binary(max_size=80))
def test_what_lies_behind_a_field_is_not_its(
    key: bytes | None, value: bytes | None, behind: bytes
) -> None:
    row = oracle.Row(0, 0, key, value, [(behind, behind)])
    batch = oracle.put_batch(oracle.put_row(row), 1)
    line = oracle.key_value_line(row)
    assert text_of(batch) == line
    assert length_of(batch + behind[:50]) == length_of(batch) == len(line)


# -- lines to batches ----------------------------------------------------------------------------

lines_of = st.lists(
    telling.map(lambda line: line.replace(b"\n", b"\\n"))
    | st.builds(oracle.key_value_line, st.builds(oracle.Row, st.just(0), st.just(0), fields, fields)
    ).map(lambda line: line[:-1]),
    max_size=40,
)  # fmt: skip


@given(
    lines=lines_of,
    before=st.binary(max_size=9),
    after=st.binary(max_size=9),
    limit=st.integers(68, 400) | st.sampled_from([9000, 30000, UNLIMITED, 2**40]),
)
@example(lines=[b""] * 70, before=b"", after=b"", limit=UNLIMITED)
@example(lines=[b"k\\\\\t" + b"\\t" * 50] * 70, before=b"\\", after=b"", limit=200)
def test_lines_become_what_the_twin_makes_of_them(
    lines: list[bytes], before: bytes, after: bytes, limit: int
) -> None:
    calls.check_lines(
        *(VIEW, lines, before, after, T, limit),
        *(oracle.key_value_fields, oracle.encode_pairs, r"byte \d+: "),
    )


@given(pairs=pairs_of)
def test_key_and_value_come_back(pairs: list[Pair]) -> None:
    text = b"".join(oracle.key_value_line(oracle.Row(0, 0, *pair)) for pair in pairs)
    assert text.count(b"\n") == len(pairs)
    batches, lines = parsed(text)
    assert (pairs_in(batches), lines) == (pairs, len(pairs))
    assert text_of(batches) == text
    for number, record in enumerate(decode(batches, 0) if pairs else []):
        assert (record.offset, record.timestamp, record.headers) == (number, T, ())


@pytest.mark.parametrize(
    ("line", "pair"),
    [
        (b"a\tb\tc\t", (b"a", b"b\tc\t")),
        (b"\\N\tvalue", (None, b"value")),
        (b"\\N\t\\N", (None, None)),
        (b"\\N\t", (None, b"")),
        (b"\\\\N\t\\N", (b"\\N", None)),
        (b"\\\\\\\\\tx", (b"\\\\", b"x")),
        (b"\\\\t\\t", (None, b"\\t\t")),
        (b"\tN", (b"", b"N")),
        (b"key\tvalue\r", (b"key", b"value\r")),
    ],
)
def test_lines_that_are_written_in_another_way(line: bytes, pair: Pair) -> None:
    """More than one line stands for some records; the view shows one of them."""
    assert oracle.key_value_fields(line) == pair
    assert pairs_in(parsed(line + b"\n")[0]) == [pair]


@pytest.mark.parametrize(
    ("line", "byte"),
    [
        (b"\\", 1),
        (b"key\tvalue\\", 10),
        (b"key\\\tvalue", 4),
        (b"\\x41", 1),
        (b"a\\r", 2),
        (b"\\n\\0", 3),
        (b"\\Nx", 1),
        (b"x\\N", 2),
        (b"\\N\\N", 1),
        (b"\\n\\N", 3),
        (b"key\t\\N ", 5),
        (b"key\tab\\N", 7),
        (b"\\N \tvalue", 1),
        (b"\\T", 1),
        (b"\\\\\\", 3),
        (b"x" * 100 + b"\t" + b"y" * 100 + b"\\ ", 202),
        (b"key\t\\\r", 5),
    ],
)
def test_wrong_escapes(line: bytes, byte: int) -> None:
    with pytest.raises(ValueError, match=r"\\"):
        oracle.key_value_fields(line)
    for before in (0, 1, 700):
        text = b"good\t\\N\n" * before + line + b"\nmore\n"
        with pytest.raises(InvalidRecord, match=rf"^line {before + 1}: byte {byte}: a backslash"):
            parsed(text)
        # The batches before that have been finished are not given either.
        with pytest.raises(InvalidRecord, match=rf"^line {before + 1}: byte {byte}: a backslash"):
            parsed(text, 500)


def test_input_that_changes_meanwhile() -> None:
    # The content of the output is undefined. But the output is valid batches, or the input is
    # refused, and no byte outside of the input is read or outside of the output is written.
    size = 1 << 20
    with mmap.mmap(-1, size) as shared:
        line = b"key\t" + b"\\\\" * 20 + b"x" * 55 + b"\n"
        shared[:] = line * (size // 100) + b"\n" * (size % 100)

        def scribble(at: int) -> None:
            # Newlines come and go, and pairs of backslashes do.
            shared[at] ^= 1
            shared[at - 80 : at - 78] = b"aa"
            shared[at - 80 : at - 78] = b"\\\\"

        with calls.meanwhile(scribble, range(99, size, 100)):
            for _ in range(4):
                with contextlib.suppress(InvalidRecord):
                    batches, count = VIEW.parse(shared, 0, size, T, UNLIMITED)
                    assert len(pairs_in(bytes(batches))) == count
