"""kafkafs.views.json_lines_view: whole records to JSON and back, as the plain twins do it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.views import json_lines_view
from kafkafs.views._measure import Cursor
from storage.errors import InvalidRecord
from storage.record.batch import Record, encode
from storage.record.header import parse_header
from tests import oracle
from tests.guard_page import before_guard_page
from tests.kafkafs.views import calls
from tests.kafkafs.views.calls import UNLIMITED, T, records_in
from tests.made_logs import logs

VIEW = json_lines_view()
text_of = partial(calls.text_of, VIEW)
length_of = partial(calls.length_of, VIEW)
parsed = partial(calls.parsed, VIEW)
text_by_twin = partial(oracle.render, line=oracle.json_line)

# Characters that are escaped, characters at the ends of the ranges of UTF-8, and bytes that are
# not UTF-8. They are listed because the first draw from all of Unicode takes seconds.
CHARACTERS = [
    *(char.encode() for char in 'ab "\\/\n\r\t\b\f\0\x01\x1f\x7f\x80\u07ff\u0800\u2028'),
    *(char.encode() for char in "\ud7ff\ue000\ufeff\ufffd\uffff\U00010000\U0010ffff"),
]  # fmt: skip
NOT_UTF8 = [
    b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x41", b"\xe0\x9f\xbf", b"\xe0\xa0",
    b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x8f\xbf\xbf", b"\xf0\x90\x80", b"\xf4\x90\x80\x80",
    b"\xf5\x80\x80\x80", b"\xf8\x88\x80\x80\x80", b"\xff",
]  # fmt: skip

telling = st.lists(st.sampled_from(CHARACTERS), max_size=12).map(b"".join)
# Sizes around which a block, two of them, or a varint ends.
sizes = st.sampled_from([14, 15, 16, 17, 30, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 130, 8200])


@st.composite
def long_fields(draw: st.DrawFn) -> bytes:
    """Plain bytes with telling ones anywhere among them, at the ends above all."""
    size = draw(sizes)
    field = bytearray(b"x" * size)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.sampled_from([0, 15, 16, 17, 31, 32, size - 1, size]) | st.integers(0, size))
        field[at:at] = draw(st.sampled_from([*CHARACTERS, *CHARACTERS, *NOT_UTF8[:2]]))
    return bytes(field)


fields = st.binary(max_size=9) | telling | long_fields() | st.sampled_from(NOT_UTF8)
nullable = st.none() | fields
headers_of = st.lists(st.tuples(fields, nullable), max_size=3)
times = st.sampled_from([-1, 0, T, 99_999_999, 100_000_000, 10**16, 2**63 - 1]) | st.integers(
    -1, 2**63 - 1
)
records_of = st.lists(
    st.builds(oracle.JsonFields, st.none() | times, nullable, nullable, headers_of), max_size=20
)
offsets = st.sampled_from([0, 9, 10, 9999, 10**8 - 1, 10**8, 10**16 - 1, 10**16, 2**62])


@st.composite
def json_logs(draw: st.DrawFn) -> bytes:
    """A log of records with such fields, among other batches; times and offsets of any kind."""
    data = draw(logs(max_batches=2)).data
    for _ in range(draw(st.integers(1, 2))):
        rows = [
            oracle.Row(draw(st.integers(-99, 99)), n, each.key, each.value, each.headers)
            for n, each in enumerate(draw(records_of.filter(len)))
        ]
        data += oracle.put_batch(
            b"".join(map(oracle.put_row, rows)),
            len(rows),
            base_offset=draw(offsets),
            attributes=draw(st.sampled_from([0, 8])),
            base_timestamp=draw(times | st.just(-(2**63))),
            max_timestamp=draw(times | st.just(-(2**63))),
        )
    return data


def line_of(fields: oracle.JsonFields) -> bytes:
    """A line as the view writes it."""
    base = T if fields.timestamp is None else fields.timestamp
    batch = oracle.Batch(0, 0, 0, 0, 0, 0, base, base, 1)
    return oracle.json_line(batch, oracle.Row(0, 0, fields.key, fields.value, fields.headers))


# -- records to text -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "line"),
    [
        (
            Record(5, T, 0, b"key", b"value"),
            b'{"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime",'
            b'"key":"key","value":"value","headers":[]}\n',
        ),
        (
            Record(0, -1, 0, None, None, (("name", b"x"), ("", None))),
            b'{"offset":0,"timestamp":-1,"timestampType":"CreateTime",'
            b'"key":null,"value":null,"headers":[["name","x"],["",null]]}\n',
        ),
        (
            Record(2**63 - 1, 0, 0, b"", b"\xff\xfe\xfd\xfc", (("\u2028", b"\x80"),)),
            b'{"offset":9223372036854775807,"timestamp":0,"timestampType":"CreateTime","key":"",'
            b'"value":{"base64":"//79/A=="},"headers":[["\xe2\x80\xa8",{"base64":"gA=="}]]}\n',
        ),
        (
            Record(1, 2**63 - 1, 0, b'"\\/', bytes(range(34)) + b"\x7f"),
            b'{"offset":1,"timestamp":9223372036854775807,"timestampType":"CreateTime",'
            b'"key":"\\"\\\\/","value":"\\u0000\\u0001\\u0002\\u0003\\u0004\\u0005\\u0006\\u0007'
            b"\\b\\t\\n\\u000b\\f\\r\\u000e\\u000f\\u0010\\u0011\\u0012\\u0013\\u0014\\u0015"
            b"\\u0016\\u0017\\u0018\\u0019\\u001a\\u001b\\u001c\\u001d\\u001e\\u001f !"
            b'\x7f","headers":[]}\n',
        ),
    ],
)
def test_a_record_is_this_line_and_the_line_that_record(record: Record, line: bytes) -> None:
    """Fixed order, no spaces; what must be escaped is, and nothing else."""
    batch = encode([record])
    assert text_of(batch) == line == text_by_twin(batch)
    assert length_of(batch) == len(line)
    back = records_in(parsed(line)[0])
    assert back == [Record(0, record.timestamp, 0, record.key, record.value, record.headers)]


def test_log_append_time_is_the_batchs() -> None:
    rows = [oracle.Row(delta, delta, None, b"v") for delta in (0, 5)]
    log = oracle.put_batch(
        b"".join(map(oracle.put_row, rows)), 2, attributes=8, base_timestamp=1, max_timestamp=T
    )
    shown = [json.loads(line) for line in text_of(log).splitlines()]
    assert [(each["offset"], each["timestamp"], each["timestampType"]) for each in shown] == [
        (0, T, "LogAppendTime"),
        (5, T, "LogAppendTime"),
    ]


@given(
    pieces=st.lists(
        st.tuples(
            st.sampled_from([b"\0", b"x", b'"', "é".encode()]), st.sampled_from([0, 1, 99, 999])
        ),
        max_size=5,
    ),
    ends=st.sampled_from([b"", b"\xff"]),
    more=st.integers(100, 200),
)
@example([(b"\0", 999)], b"\xff", 128)
@example([(b"\0", 99), (b"x", 999)], b"\xff", 128)
def test_what_turns_out_to_be_no_text_late_has_filled_no_more_than_it_takes(
    pieces: list[tuple[bytes, int]], ends: bytes, more: int
) -> None:
    """A string of many escapes is longer than the Base64 that takes its place at its last byte."""
    value = b"".join(part * count for part, count in pieces) + ends
    log = encode([Record(0, T, 0, None, value)])
    text = text_by_twin(log)
    room = len(text) + more
    out = bytearray(b"\xee" * (room + 8 * len(value)))
    end, _ = VIEW.render(log, 0, len(log), Cursor(0), out, 0, room, 0)
    assert out[:end] == text
    assert out[room:] == b"\xee" * (8 * len(value))


@pytest.mark.parametrize("part", [b"\0x", b"x", b"\xff"])
def test_a_record_of_many_reads(part: bytes) -> None:
    """The GIL is released, also while its text is written beside the buffer."""
    log = encode([Record(0, T, 0, b"k", part * 300_000), Record(1, T, 0, b"next", None)])
    cursor, out, given_text = Cursor(0), bytearray(1 << 17), b""
    while (end := VIEW.render(log, 0, len(log), cursor, out, 0, len(out), 0)[0]) > 0:
        given_text += out[:end]
    assert given_text == text_by_twin(log)


@given(key=nullable, value=nullable, behind=st.sampled_from(CHARACTERS + NOT_UTF8))
def test_what_lies_behind_a_field_is_not_its(
    key: bytes | None, value: bytes | None, behind: bytes
) -> None:
    row = oracle.Row(0, 0, key, value, [(behind * 40, behind * 40)])
    log = oracle.put_batch(oracle.put_row(row), 1)
    assert text_of(log) == text_by_twin(log)
    assert length_of(log + b"\xff\x22\x00" * 16) == length_of(log) == len(text_by_twin(log))


def test_what_is_utf8_is_so_to_the_last_bit() -> None:
    """All pairs of bytes, and longer sequences about the ends of ranges, anywhere in a block."""
    seconds = [0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0]
    thirds = [0x7F, 0x80, 0xBF, 0xC0]
    sequences = [
        *map(bytes, itertools.product(range(0x80, 0x100), range(0x100))),
        *map(bytes, itertools.product(range(0xDF, 0x100), seconds, thirds)),
        *map(bytes, itertools.product(range(0xE0, 0x100), seconds, thirds, thirds)),
    ]
    records = [
        Record(number, T, 0, sequence, b"x" * (number % 37) + sequence + b"y" * (number % 19))
        for number, sequence in enumerate(sequences)
    ]
    log = encode(records)
    lines = text_of(log).splitlines(keepends=True)
    assert len(lines) == len(records)
    for record, line in zip(records, lines, strict=True):
        shown = json.loads(line)
        assert shown["key"] == oracle.json_bytes(record.key)
        assert shown["value"] == oracle.json_bytes(record.value)
    assert length_of(log) == sum(map(len, lines))


# -- text to batches -----------------------------------------------------------------------------


@given(records=records_of, space=st.sampled_from([b"{ ", b"{\t"]))
def test_a_line_is_the_same_whoever_reads_it(
    records: list[oracle.JsonFields], space: bytes
) -> None:
    """A line in the view's own form does not reach the parser; with a space in it, it does."""
    lines = [line_of(each) for each in records]
    spaced = [line.replace(b"{", space, 1) for line in lines]
    expected = oracle.encode_json(
        [replace(each, timestamp=T) if each.timestamp is None else each for each in records],
        T,
        UNLIMITED,
    )
    for text in (lines, spaced, [*lines[:3], *spaced[3:]]):
        with before_guard_page(b"".join(text)) as view:
            assert parsed(view)[0] == expected


@given(records=records_of)
def test_nothing_is_lost_but_the_offset(records: list[oracle.JsonFields]) -> None:
    text = b"".join(map(line_of, records))
    batches, lines = parsed(text)
    assert lines == len(records)
    found = records_in(batches)
    assert [record.offset for record in found] == list(range(len(records)))
    shown = [(record.timestamp, record.key, record.value) for record in found]
    assert shown == [
        (T if each.timestamp is None else each.timestamp, each.key, each.value) for each in records
    ]
    assert [row.headers for _, _, row in oracle.shown(batches)] == [
        each.headers for each in records
    ]
    again = [json.loads(line) for line in text_of(batches).splitlines()]
    assert [{**each, "offset": 0} for each in again] == list(map(json.loads, text.splitlines()))


# Fields with right values, and with wrong ones.
NAMES = ["offset", "timestamp", "timestampType", "key", "value", "headers"]
json_texts = st.none() | telling.map(bytes.decode) | st.sampled_from(
    [{"base64": ""}, {"base64": "AA=="}, {"base64": "+/8="}, {"base64": "AAAA"}]
)  # fmt: skip
right_fields = {
    "offset": st.sampled_from([0, -1, 2**63, 10**30]),
    "timestamp": times,
    "timestampType": st.sampled_from(["CreateTime", "LogAppendTime"]),
    "key": json_texts,
    "value": json_texts,
    "headers": st.lists(st.tuples(st.sampled_from(["", "n", {"base64": "/w=="}]), json_texts)),
}
WRONG: list[object] = [
    None, True, 0, -2, 1.0, 1e3, 2**63, float("nan"), "", "x", [], {}, [[]], [["a"]], [["a", 1]],
    [[None, "a"]], [["a", "b", "c"]], ["a"], {"base64": "A"}, {"base64": "AA="}, {"base64": "A_=="},
    {"base64": "AA==\n"}, {"base64": None}, {"base64": "AA==", "x": 1}, {"Base64": "AA=="},
    "\ud800", "\udfff\ud800", {"base64": "=AA="}, {"base64": "AA==AA=="}, [["\udc00", None]],
    [{"a": "b"}],
]  # fmt: skip


@st.composite
def json_objects(draw: st.DrawFn) -> bytes:
    """An object, in one of the many ways to write it, perhaps with something wrong about it."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, 6))]
    found: dict[str, object] = {name: draw(right_fields[name]) for name in names}
    if draw(st.integers(0, 3)) == 0:
        found[draw(st.sampled_from([*NAMES, "x", "Key", ""]))] = draw(st.sampled_from(WRONG))
    space = draw(st.sampled_from(["", " ", "\t \r"]))
    ascii_only = draw(st.booleans())
    text = json.dumps(found, ensure_ascii=ascii_only, separators=(space + "," + space, ":" + space))
    return (space + text + space).encode("utf-8", "surrogatepass")


@st.composite
def nearly_written(draw: st.DrawFn) -> bytes:
    """A line as the view writes it, or with a few bytes that are otherwise."""
    line = bytearray(line_of(draw(st.builds(
        oracle.JsonFields, times, nullable, nullable, headers_of
    ))))[:-1]  # fmt: skip
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        # Half of the changes should hit what is between the fields.
        at = draw(st.integers(0, min(90, len(line))) | st.integers(0, len(line)))
        line[at : at + draw(st.integers(0, 2))] = draw(
            st.sampled_from(
                [b"", b"0", b"-", b"00", b" ", b'"', b"\\", b"\\u00", b"null", b"[", b",", b"]"]
            )
            | st.sampled_from(CHARACTERS + NOT_UTF8).filter(lambda bytes_: bytes_ != b"\n")
        )
    return bytes(line)


lines_of = st.lists(
    nearly_written()
    | json_objects()
    | st.sampled_from([b"{}", b"", b"{} {}", b"{", b"}", b"null", b'{"key":"\xff"}']),
    max_size=8,
)


@given(
    lines=lines_of,
    before=st.binary(max_size=9),
    after=st.binary(max_size=9),
    limit=st.integers(68, 400) | st.sampled_from([9000, 30000, UNLIMITED, 2**40]),
)
@example(lines=[b"{}"] * 70, before=b"", after=b"", limit=UNLIMITED)
@example(lines=[b'{"timestamp":-1}', b"{}"] * 70, before=b"", after=b"", limit=200)
@example(lines=[b"{} {", b"}"], before=b"", after=b"", limit=UNLIMITED)
@example(lines=[b'{} {"key":', b'{"base64":""}}'], before=b"", after=b"", limit=UNLIMITED)
def test_lines_become_what_the_twin_makes_of_them(
    lines: list[bytes], before: bytes, after: bytes, limit: int
) -> None:
    calls.check_lines(VIEW, lines, before, after, T, limit, oracle.json_fields, oracle.encode_json)


REFUSED = [
    (b"", "the line is empty, not a JSON object"),
    (b" \t", "the line is empty, not a JSON object"),
    (b"value", "not JSON: invalid character at byte 1"),
    (b"{", "not JSON: it is incomplete"),
    (b'{"value":"a"', "not JSON: it is incomplete"),
    (b'{"value":"a"} {}', "not JSON: trailing characters at byte 15"),
    (b'{"value":"a"}x', "not JSON: trailing characters at byte 14"),
    (b'{"value":"a",}', "not JSON: trailing comma in object at byte 14"),
    (b'{"value":"a"/**/}', "not JSON: expected ',' or '}' at byte 13"),
    (b"{'value':1}", "not JSON: "),
    (b'{"value":NaN}', "not JSON: invalid character at byte 10"),
    (b'{"value":"\x01"}', "not JSON: invalid character at byte 11"),
    (b'{"value":"\\x"}', "not JSON: invalid escape character in string at byte 13"),
    (b'{"timestamp":01}', "not JSON: invalid number at byte 15"),
    (b'\xef\xbb\xbf{"value":"a"}', "not JSON: invalid character at byte 1"),
    (b'{"value":"\xff"}', "not UTF-8"),
    (b'{"value":"\xed\xa0\x80"}', "not UTF-8"),
    (b'{"value":"\xc0\x80"}', "not UTF-8"),
    (b'{"value":"\\ud800"}', "not JSON: half of a surrogate pair"),
    (b'{"value":"\\ud800x"}', "not JSON: half of a surrogate pair"),
    (b'{"value":"\\udc00"}', "not JSON: half of a surrogate pair"),
    (b"[]", "must be an object, not a list"),
    (b"null", "must be an object, not null"),
    (b'{"topic":"a"}', "there is no field topic"),
    (b'{"a\\nb":1}', "there is no field a?b"),
    (b'{"value":{"base64":"","x":1}}', "value: there is no field x"),
    (b'{"offset":"1"}', "offset: must be an integer, not a string"),
    (b'{"offset":true}', "offset: must be an integer, not true or false"),
    (b'{"offset":1e3}', "offset: must be an integer, not a number that is not an integer"),
    (b'{"timestamp":1.0}', "timestamp: must be an integer, not a number that is not an integer"),
    (b'{"timestamp":null}', "timestamp: must be an integer, not null"),
    (b'{"timestamp":-2}', "timestamp: must be an integer >= -1"),
    (b'{"timestamp":9223372036854775808}', "timestamp: must be an integer <= 9223372036854775807"),
    (b'{"timestampType":"x"}', "timestampType: must be CreateTime or LogAppendTime"),
    (b'{"timestampType":null}', "timestampType: must be a string, not null"),
    (b'{"key":5}', "key: must be a string, an object or null, not an integer"),
    (b'{"value":["a"]}', "value: must be a string, an object or null, not a list"),
    (b'{"value":{}}', "value: the field base64 is missing"),
    (b'{"value":{"base64":null}}', "value.base64: must be a string, not null"),
    (b'{"value":{"base64":"AA="}}', "value.base64: not Base64 with padding"),
    (b'{"value":{"base64":"A-=="}}', "value.base64: not Base64 with padding"),
    (b'{"headers":null}', "headers: must be a list, not null"),
    (b'{"headers":{"a":"b"}}', "headers: must be a list, not an object"),
    (b'{"headers":[["a","b"],["a"]]}', "headers[1]: must be a list of length 2"),
    (b'{"headers":[[null,"a"]]}', "headers[0][0]: must be a string or an object, not null"),
    (b'{"headers":[["a",5]]}', "headers[0][1]: must be a string, an object or null, not an int"),
]  # fmt: skip


def is_wrong(line: bytes) -> bool:
    try:
        oracle.json_fields(line)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize(("line", "reason"), REFUSED)
def test_refused_lines(line: bytes, reason: str) -> None:
    assert is_wrong(line)
    for before in (0, 1, 300):
        text = b'{"value":"good"}\n' * before + line + b"\n{}\n"
        # The batches before that have been finished are not given either.
        for limit in (UNLIMITED, 500):
            with pytest.raises(InvalidRecord) as caught:
                parsed(text, limit)
            assert caught.value.message.startswith(f"line {before + 1}: {reason}")


def test_the_reason_stays_short_and_on_one_line() -> None:
    with pytest.raises(InvalidRecord) as caught:
        parsed(b'{"' + b"x\\n" * 10000 + b'":1}\n')
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(
    ("line", "key"),
    [
        (b'{"key":"a","key":"b"}', b"b"),
        (b'{"\\u006bey":"\\u00e9\\/\\ud83d\\ude00"}', "é/😀".encode()),
        (b'{"key":{"base64":"YQ=="}}', b"a"),
        (b' {\t"key" : "a" } \r', b"a"),
        (b'{"offset":-1000000000000000000000000000000,"key":"\xc3\xa9"}', b"\xc3\xa9"),
    ],
)
def test_lines_that_are_written_in_another_way(line: bytes, key: bytes) -> None:
    assert records_in(parsed(line + b"\n")[0]) == [Record(0, T, 0, key, None)]


def test_batches_have_their_own_times() -> None:
    stamps = [T, T - 5, T + 7, -1, T]
    text = b"".join(b'{"timestamp":%d,"value":"%s"}\n' % (stamp, b"x" * 40) for stamp in stamps)
    batches, _ = parsed(text, 165)
    headers = []
    at = 0
    while at < len(batches):
        headers.append(parse_header(batches, at))
        at += headers[-1].size
    assert all(header.size <= 165 for header in headers)
    assert [(header.base_timestamp, header.max_timestamp) for header in headers] == [
        (T, T),
        (T + 7, T + 7),
        (T, T),
    ]
    assert [record.timestamp for record in records_in(batches)] == stamps


def test_the_parser_is_imported_when_it_is_wanted() -> None:
    """A mount answers without it."""
    script = (
        "import sys, kafkafs.cli.mounting.mount, kafkafs.fuse.daemon, kafkafs.views as views\n"
        "assert 'msgspec' not in sys.modules\n"
        "views.json_lines_view().parse(b'{}\\n', 0, 3, 0, 1000)\n"
        "assert 'msgspec' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
