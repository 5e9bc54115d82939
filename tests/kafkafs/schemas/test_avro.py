"""kafkafs.schemas.avro: values in Avro's encoding to JSON, as fastavro reads them."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import struct
import threading
import uuid
from random import Random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.schemas.avro import LARGEST_SCHEMA, compiled
from kafkafs.schemas.errors import SchemaError
from tests.guard_page import before_guard_page
from tests.kafkafs.schemas.avro_values import (
    ORDER,
    Oracle,
    encoded,
    order,
    random_schema,
    random_value,
)

NODE: dict[str, Any] = {
    "type": "record", "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}  # fmt: skip


def decoded(schema: Any, data: bytes, **options: Any) -> str:
    """The JSON of a value that has no bytes after it."""
    text, end = compiled(json.dumps(schema), **options).decode(data)
    assert end == len(data)
    return text.decode()


def error_of(schema: Any, data: bytes = b"") -> str:
    with pytest.raises(SchemaError) as caught:
        decoded(schema, data)
    return str(caught.value)


def logical(below: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": below, "logicalType": name, **more}


def fixed(size: int, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "f", "size": size, "logicalType": name, **more}


# -- as fastavro reads ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(100))
def test_random_schemas_are_read_as_fastavro_reads_them(seed: int) -> None:
    random = Random(seed)
    schema = random_schema(random)
    avro, oracle = compiled(json.dumps(schema)), Oracle(schema)
    for _ in range(10):
        data = encoded(schema, random_value(random, schema))
        text, end = avro.decode(data)
        assert (json.loads(text), end) == oracle.read(data)


def test_nested_records_are_read_as_fastavro_reads_them() -> None:
    random = Random(1)
    avro, oracle = compiled(json.dumps(ORDER)), Oracle(ORDER)
    for _ in range(500):
        data = encoded(ORDER, order(random))
        assert json.loads(avro.decode(data)[0]) == oracle.read(data)[0]


STRICTER = (
    "a boolean is neither 0 nor 1", "a length is negative", "a number has more than 64 bits",
    "a union has no such branch", "an enum has no such symbol", "an int has more than 32 bits",
)  # fmt: skip
"""Values that fastavro reads and this decoder refuses."""


@pytest.mark.parametrize("seed", range(4))
def test_damaged_values_are_refused_or_read_as_fastavro_reads_them(seed: int) -> None:
    """Each truncation of five records, and 400 flipped bits of each."""
    random = Random(seed)
    avro, oracle = compiled(json.dumps(ORDER)), Oracle(ORDER)
    for _ in range(5):
        data = encoded(ORDER, order(random))
        for size in range(len(data)):
            with before_guard_page(data[:size]) as cut, pytest.raises(SchemaError) as caught:
                avro.decode(cut)
            assert caught.value.position is not None
            assert caught.value.position <= size
        for _ in range(400):
            changed = bytearray(data)
            changed[random.randrange(len(data))] ^= 1 << random.randrange(8)
            with before_guard_page(changed) as view:
                try:
                    text, end = avro.decode(view)
                except SchemaError as error:
                    found, reason = None, error.message
                else:
                    found, reason = (json.loads(text), end), ""
            try:
                expected = oracle.read(bytes(changed))
            except (EOFError, IndexError, ValueError, OverflowError, MemoryError, RecursionError):
                # fastavro has no bytes for a string that is not UTF-8.
                assert found is None or b"base64" in text
            else:
                assert found == expected or reason in STRICTER


# -- numbers -------------------------------------------------------------------------------------


@given(st.floats())
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1.7976931348623157e308)
@example(9007199254740993.0)
@example(1e16)
@example(1e-4)
@example(1e-5)
@example(2**-44)
def test_doubles_are_the_shortest_text_that_reads_back(number: float) -> None:
    text = decoded("double", struct.pack("<d", number))
    if math.isfinite(number):
        assert text == repr(number)
    else:
        name = "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
        assert text == f'"{name}"'


def test_doubles_at_powers_of_two_and_ten() -> None:
    avro = compiled('"double"')
    powers = [math.ldexp(1, n) for n in range(-1074, 1024)] + [float(f"1e{n}") for n in range(309)]
    for power in powers:
        for number in (math.nextafter(power, 0), power, math.nextafter(power, math.inf), -power):
            if math.isfinite(number):
                assert avro.decode(struct.pack("<d", number))[0] == repr(number).encode()


def test_a_float_is_the_double_that_it_equals() -> None:
    assert decoded("float", struct.pack("<f", 0.1)) == "0.10000000149011612"


@given(st.integers(-(2**63), 2**63 - 1))
@example(2**63 - 1)
@example(-(2**63))
def test_integers_are_exact(number: int) -> None:
    assert decoded("long", encoded("long", number)) == str(number)


@pytest.mark.parametrize("scale", [0, 1, 5, 40])
@given(unscaled=st.integers(-(2**300), 2**300) | st.integers(-(2**64), 2**64))
@example(unscaled=0)
@example(unscaled=-(2**63))
@example(unscaled=10**27)
@example(unscaled=-(10**18))
def test_decimals_are_exact_and_keep_their_scale(scale: int, unscaled: int) -> None:
    data = unscaled.to_bytes(unscaled.bit_length() // 8 + 1, signed=True)
    exact = decimal.Context(prec=1000)
    text = f'"{exact.scaleb(exact.create_decimal(unscaled), -scale):f}"'
    kind = logical("bytes", "decimal", precision=100, scale=scale)
    assert decoded(kind, encoded("bytes", data)) == text
    longer = unscaled.to_bytes(len(data) + 41, signed=True)
    assert decoded(fixed(len(longer), "decimal", precision=100, scale=scale), longer) == text


def test_a_decimal_of_many_bytes() -> None:
    largest = 2 ** (8 * 1024 - 1) - 1
    kind = logical("bytes", "decimal", precision=2465)
    with decimal.localcontext(prec=3000):
        digits = f"{decimal.Decimal(largest):f}"
    assert decoded(kind, encoded("bytes", largest.to_bytes(1024))) == f'"{digits}"'
    more = bytes(1025)
    shown = {"base64": base64.b64encode(more).decode()}
    assert json.loads(decoded(kind, encoded("bytes", more))) == shown


@pytest.mark.parametrize("more", [{}, {"precision": 0}, {"precision": 2, "scale": 3},
                                  {"precision": 2, "scale": -1}, {"precision": "9"},
                                  {"precision": 2466}])  # fmt: skip
def test_an_invalid_decimal_is_bytes(more: dict[str, Any]) -> None:
    assert decoded(logical("bytes", "decimal", **more), b"\x02\x07") == '{"base64":"Bw=="}'


# -- logical types -------------------------------------------------------------------------------

UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
LOGICAL: list[tuple[Any, bytes, str, str, str]] = [
    # schema, value, JSON, JSON with --decode-times=iso, JSON with --avro-json
    (logical("bytes", "decimal", precision=4, scale=2), b"\x04\xfb\x2e",
     '"-12.34"', '"-12.34"', '"\xfb."'),
    (fixed(2, "decimal", precision=4, scale=2), b"\x00\x05", '"0.05"', '"0.05"', r'"\u0000\u0005"'),
    (logical("bytes", "big-decimal"), b"\x08\x04\x04\xd2\x04", '"12.34"', '"12.34"',
     '"\\u0004\\u0004\xd2\\u0004"'),
    (logical("string", "uuid"), b"\x48" + str(UUID).encode(),
     f'"{UUID}"', f'"{UUID}"', f'"{UUID}"'),
    (fixed(16, "uuid"), UUID.bytes, f'"{UUID}"', f'"{UUID}"',
     '"\\u0000\\u0011\\"3DUfw\x88\x99\xaa\xbb\xcc\xdd\xee\xff"'),
    (fixed(12, "duration"), struct.pack("<III", 1, 2, 2**32 - 1),
     '{"months":1,"days":2,"millis":4294967295}', '{"months":1,"days":2,"millis":4294967295}',
     r'"\u0001\u0000\u0000\u0000\u0002\u0000\u0000\u0000' + '\xff\xff\xff\xff"'),
    (logical("int", "date"), encoded("int", 20785), "20785", '"2026-11-28"', "20785"),
    (logical("int", "time-millis"), encoded("int", 86399999), "86399999", '"23:59:59.999"',
     "86399999"),
    (logical("long", "time-micros"), encoded("long", 1), "1", '"00:00:00.000001"', "1"),
    (logical("long", "timestamp-millis"), encoded("long", -1), "-1",
     '"1969-12-31T23:59:59.999Z"', "-1"),
    (logical("long", "timestamp-micros"), encoded("long", 10**15), "1000000000000000",
     '"2001-09-09T01:46:40.000000Z"', "1000000000000000"),
    (logical("long", "timestamp-nanos"), encoded("long", 1), "1",
     '"1970-01-01T00:00:00.000000001Z"', "1"),
    (logical("long", "local-timestamp-millis"), encoded("long", 0), "0",
     '"1970-01-01T00:00:00.000"', "0"),
    (logical("long", "local-timestamp-micros"), encoded("long", 0), "0",
     '"1970-01-01T00:00:00.000000"', "0"),
    (logical("long", "local-timestamp-nanos"), encoded("long", 0), "0",
     '"1970-01-01T00:00:00.000000000"', "0"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "data", "plain", "iso", "avro"), LOGICAL)
def test_a_logical_type(schema: Any, data: bytes, plain: str, iso: str, avro: str) -> None:
    assert decoded(schema, data) == plain
    assert decoded(schema, data, iso_times=True) == iso
    assert decoded(schema, data, avro_json=True) == avro


@pytest.mark.parametrize(
    ("schema", "data", "text"),
    [
        (logical("string", "uuid"), b"\x06abc", '"abc"'),
        (logical("bytes", "big-decimal"), b"\x04\x04\x01", '{"base64":"BAE="}'),
        (logical("int", "time-millis"), encoded("int", -1), "-1"),
        (logical("long", "time-micros"), encoded("long", 86400 * 10**6), "86400000000"),
        (logical("int", "date"), encoded("int", 2932897), "2932897"),
        (logical("long", "timestamp-millis"), encoded("long", 2**63 - 1), str(2**63 - 1)),
        (logical("long", "timestamp-millis"), encoded("long", -(2**63)), str(-(2**63))),
        (fixed(1, "decimal", precision=3), b"\x07", '{"base64":"Bw=="}'),
        (fixed(0, "decimal", precision=1), b"", '{"base64":""}'),
        (fixed(15, "uuid"), bytes(15), '{"base64":"AAAAAAAAAAAAAAAAAAAA"}'),
        (logical("long", "date"), b"\x02", "1"),
        (logical("long", "no-such-type"), b"\x02", "1"),
        (logical("long", "duration-millis"), b"\x02", "1"),
    ],
)
def test_a_value_outside_of_its_logical_type_is_that_of_the_type_below(
    schema: Any, data: bytes, text: str
) -> None:
    assert decoded(schema, data, iso_times=True) == text


@given(st.dates(), st.integers(0, 86399_999_999))
def test_iso_times_are_as_datetime_has_them(date: datetime.date, micros: int) -> None:
    day = (date - datetime.date(1970, 1, 1)).days
    iso = decoded(logical("int", "date"), encoded("int", day), iso_times=True)
    assert iso == f'"{date.isoformat()}"'
    time = datetime.datetime(date.year, date.month, date.day) + datetime.timedelta(
        microseconds=micros
    )
    data = encoded("long", day * 86400_000_000 + micros)
    iso = decoded(logical("long", "local-timestamp-micros"), data, iso_times=True)
    assert iso == f'"{time.isoformat(timespec="microseconds")}"'


# -- the forms of values -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "data", "plain", "avro"),
    [
        (["null", "int", NODE], b"\x00", "null", "null"),
        (["null", "int", NODE], b"\x02\x06", "3", '{"int":3}'),
        (["null", "int", NODE], b"\x04\x02\x00", '{"next":{"next":null}}',
         '{"Node":{"next":{"Node":{"next":null}}}}'),
        ([{"type": "map", "values": "int"}, {"type": "array", "items": "int"}],
         b"\x00\x02\x02a\x02\x00", '{"a":1}', '{"map":{"a":1}}'),
        ([ORDER["fields"][3]["type"] | {"namespace": "shop"}], b"\x00\x02", '"PAID"',
         '{"shop.Status":"PAID"}'),
        ("bytes", b"\x06a\xff\"", '{"base64":"Yf8i"}', '"aÿ\\""'),
        ({"type": "array", "items": "int"}, b"\x03\x08\x02\x04\x02\x06\x00", "[1,2,3]", "[1,2,3]"),
        ({"type": "record", "name": "r", "fields": []}, b"", "{}", "{}"),
        ("string", b"\x04\xc3\x28", '{"base64":"wyg="}', '{"base64":"wyg="}'),
        ({"type": "record", "name": "r", "fields": [{"name": 'a"', "type": "int"}]}, b"\x02",
         r'{"a\"":1}', r'{"a\"":1}'),
    ],
)  # fmt: skip
def test_a_value_in_plain_and_in_avro_json(schema: Any, data: bytes, plain: str, avro: str) -> None:
    assert decoded(schema, data) == plain
    assert decoded(schema, data, avro_json=True) == avro


def test_bytes_behind_a_value_are_left() -> None:
    assert compiled('"int"').decode(b"xx\x02yy", 2) == (b"1", 3)


def test_long_strings_and_keys_fit() -> None:
    text = '"\\\u0001é' * 40_000
    assert json.loads(decoded("string", encoded("string", text))) == text
    values = {"type": "map", "values": "string"}
    assert json.loads(decoded(values, encoded(values, {text: text}))) == {text: text}


def test_threads_decode_at_the_same_time() -> None:
    avro = compiled(json.dumps(ORDER))
    random = Random(2)
    values = [encoded(ORDER, order(random)) for _ in range(50)]
    expected = [avro.decode(value) for value in values]
    found: list[bool] = []

    def run() -> None:
        found.append(all([avro.decode(value) for value in values] == expected for _ in range(20)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "data", "error"),
    [
        ("int", encoded("long", 2**31), "an int has more than 32 bits (position 5)"),
        ("long", b"\xff" * 9 + b"\x02", "a number has more than 64 bits (position 0)"),
        ("boolean", b"\x02", "a boolean is neither 0 nor 1 (position 0)"),
        ("string", b"\x01", "a length is negative (position 1)"),
        ("string", b"\x04a", "the value ends too early (position 1)"),
        ({"type": "array", "items": "int"}, encoded("long", -(2**63)),
         "the count of a block is out of range (position 10)"),
        (["null"], b"\x02", "a union has no such branch (position 1)"),
        (["null"], b"\x01", "a union has no such branch (position 1)"),
        ([], b"\x00", "a union has no such branch (position 1)"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, b"\x02",
         "an enum has no such symbol (position 1)"),
        ({"type": "map", "values": "null"}, b"\x02\x02\xff\x00",
         "the key of a map is not UTF-8 (position 2)"),
        (NODE, b"\x02" * 200 + b"\x00", "the value is nested more than 200 deep (position 200)"),
    ],
)  # fmt: skip
def test_a_malformed_value_is_refused(schema: Any, data: bytes, error: str) -> None:
    assert error_of(schema, data) == error


def test_a_value_may_be_nested_200_deep() -> None:
    assert decoded(NODE, b"\x02" * 199 + b"\x00").count("{") == 200


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "record", "name": "r", "fields": []}, {"type": "fixed", "name": "f",
                                                             "size": 0}],
)  # fmt: skip
def test_an_array_of_items_without_bytes_has_a_limit(items: Any) -> None:
    """In ten bytes there are 2^62 items."""
    data = encoded("long", 2**62) + b"\x00"
    message = "the text has more than 64 times the bytes of the value and 1 MiB"
    assert error_of({"type": "array", "items": items}, data).startswith(message)


def test_long_names_count_for_the_limit() -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "n" * 100_000, "type": "null"}]}
    assert len(decoded({"type": "array", "items": record}, b"\x14\x00")) > 10**6
    assert error_of({"type": "array", "items": record}, b"\x80\x01\x00").startswith("the text")


# -- schemas -------------------------------------------------------------------------------------


def test_names_are_found_in_their_namespace() -> None:
    schema = {
        "type": "record", "name": "a.b.R", "fields": [
            {"name": "x", "type": {"type": "enum", "name": "E", "symbols": ["IN"]}},
            {"name": "y", "type": "E"},
            {"name": "z", "type": "a.b.E"},
            {"name": "o", "type": {"type": "record", "name": "O", "namespace": "", "fields": [
                {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["OUT"]}},
                {"name": "f", "type": "E"},
            ]}},
            {"name": "p", "type": ["null", "O"]},
        ],
    }  # fmt: skip
    text = '{"x":"IN","y":"IN","z":"IN","o":{"e":"OUT","f":"OUT"},"p":null}'
    assert decoded(schema, bytes(6)) == text


def test_a_reference_is_a_type_of_its_own() -> None:
    base = json.dumps({"type": "enum", "name": "shop.Status", "symbols": ["NEW"]})
    text, _ = compiled('["null","shop.Status"]', [base]).decode(b"\x02\x00")
    assert text == b'"NEW"'


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "the schema is not JSON: Input data was truncated"),
        ("[" * 200_000, "the schema is not JSON: "),
        ("7", "7 is not a type"),
        ("{}", "{} has no type"),
        ('"shop.Order"', 'the type "shop.Order" is not defined'),
        ('{"type":"record","name":"r"}', 'the record "r" has no list of fields'),
        ('{"type":"record","name":"r","fields":[{"name":"a"}]}',
         'a field of the record "r" has no name or type'),
        ('{"type":"record","fields":[]}',
         'the record {"type":"record","fields":[]} has no name'),
        ('{"type":"enum","name":"e","symbols":[1]}', 'the enum "e" has no list of symbols'),
        ('{"type":"fixed","name":"f","size":-1}', 'the fixed "f" has no size'),
        ('{"type":"array"}', "null is not a type"),
        ('[["null"]]', "a union is directly inside of a union"),
        ('[{"type":"fixed","name":"f","size":1},{"type":"fixed","name":"f","size":1}]',
         'the type "f" is defined twice'),
        ('{"type":"fixed","name":"int","size":1}', 'the type "int" is defined twice'),
        ('{"type":"array","items":' * 300 + '"int"' + "}" * 300,
         "the schema is nested more than 200 deep"),
        (" " * LARGEST_SCHEMA + '"int"', "the schema has more than 5,000,000 bytes"),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_is_refused(text: str, error: str) -> None:
    with pytest.raises(SchemaError) as caught:
        compiled(text)
    assert str(caught.value).startswith(error)


@given(st.data())
def test_a_damaged_schema_is_refused_or_decodes(data: st.DataObject) -> None:
    text = json.dumps(ORDER)
    start = data.draw(st.integers(0, len(text)))
    piece = data.draw(st.sampled_from(["", "null", '"', "}", "[", "7", '"null"', "{", "-1"]))
    text = text[:start] + piece + text[start + data.draw(st.integers(0, 12)) :]
    try:
        avro = compiled(text)
    except SchemaError:
        return
    try:
        json.loads(avro.decode(bytes(50))[0])
    except SchemaError:
        return
