"""jq, awk, sqlite3 and DuckDB read `.kv` and `.jsonl` from the mount; counts and sums are right.

The tests compute the expected results in Python, from the records that they have written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pytest

from storage import LogManager, Record, encode
from tests.mount.mounting import Mount, mounted
from tests.mount.programs import program
from tests.view_text import json_object

T = 1_763_712_000_000  # 2025-11-21T08:00:00Z
COUNT = 3000
CITIES = ("Kraków", "東京", 'the "Hague"', "a\tb\\c\nd", "😀")
PARTITIONS = 2

# A field of .kv as it was, in SQL. A backslash of its own is another character (U+E000) meanwhile.
UNESCAPED = (
    r"replace(replace(replace(replace({0}, '\\', {1}(57344)), '\t', {1}(9)), '\n', {1}(10)),"
    r" {1}(57344), '\')"
)


def amount(partition: int, number: int) -> Record:
    """A number for a customer."""
    key = f"Zoë {number % 17}".encode()
    return Record(number, T + 1000 * number, 0, key, b"%d" % (number * 7 + partition))


def order(partition: int, number: int) -> Record:
    """A document for a customer, some with headers."""
    document = {"amount": number * 7 + partition, "city": CITIES[number % len(CITIES)]}
    headers = ((("trace"), f"é{number}".encode()), ("none", None)) if number % 3 == 0 else ()
    value = json.dumps(document, ensure_ascii=number % 2 == 0).encode()
    return amount(partition, number)._replace(value=value, headers=headers)


ODD = [
    Record(number, T + number, 0, key.encode(), None if value is None else value.encode())
    for number, (key, value) in enumerate(
        [
            ("plain", "value"),
            ("tombstone", None),
            ("empty", ""),
            ("a\tkey", "a\tvalue\twith\ttabs"),
            ("a\nkey", "two\nlines\n"),
            ("back\\slash", "c:\\new\\table"),
            ("looks escaped", "\\N"),
            ("\\N", "\\t\\n\\\\"),
            ('"quoted"', '"q", \'s\' "'),
            ("control", "\x01\x1f\x7f\b\f"),
            ("größe", "žluťoučký 東京 😀 \u2028\u2029"),
            ("trailing", "backslash\\"),
        ]
    )
]
# Bytes that are no UTF-8, and what readers of fields trip over: a CR (DuckDB's CSV), and a row that
# begins with an empty field (sqlite3).
BYTES = [
    Record(number, T, 0, key, value)
    for number, (key, value) in enumerate(
        [
            (b"\xff", b"\x80\x81"),
            (b"k", b"\xed\xa0\x80"),
            (b"k", bytes(range(256))),
            (b"\r", b"\r\n"),
            (b"", b"empty key"),
        ]
    )
]
KEYLESS = [Record(n, T, 0, None, v) for n, v in enumerate([b"1", b"2 2", None, b"", b"5\t5"])]

AMOUNTS = [[amount(partition, n) for n in range(COUNT)] for partition in range(PARTITIONS)]
ORDERS = [[order(partition, n) for n in range(COUNT)] for partition in range(PARTITIONS)]


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount of topics that the library has written."""
    base = tmp_path_factory.mktemp("views")
    (base / "data").mkdir()
    topics = {"amounts": AMOUNTS, "orders": ORDERS}
    topics |= {"odd": [ODD], "bytes": [BYTES], "keyless": [KEYLESS]}
    with LogManager.open(str(base / "data")) as manager:
        for topic, partitions in topics.items():
            logs = manager.create_topic(topic, len(partitions)).partitions
            for number, records in enumerate(partitions):
                for first in range(0, len(records), 100):
                    batch = bytearray(encode(records[first : first + 100]))
                    logs[number].append(batch, now_ns=T * 1_000_000)
    with mounted(base, "ro") as mount:
        yield mount


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


def sums(records: list[Record]) -> dict[str, int]:
    """The amounts by key."""
    found: Counter[str] = Counter()
    for record in records:
        assert record.key is not None
        assert record.value is not None
        value = json.loads(record.value)
        found[record.key.decode()] += value if isinstance(value, int) else value["amount"]
    return dict(found)


def time(number: int) -> str:
    """The timestamp of a record of that number, as a name has it."""
    return datetime.fromtimestamp(T // 1000 + number, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


RANGES = [("0", slice(None)), (f"0@{time(150)}..{time(2750)}", slice(150, 2750))]
ranges = pytest.mark.parametrize(("name", "part"), RANGES)


# -- jq ----------------------------------------------------------------------------------------


@ranges
def test_jq_sums(views: Mount, name: str, part: slice) -> None:
    by_key = "reduce .[] as $r ({}; .[$r.key] += ($r.value | fromjson | .amount))"
    said = views.run(
        '"$JQ" -c -s "$BY" "$F"', JQ=program("jq"), BY=by_key, F=f"orders/.jsonl/{name}"
    )
    assert json.loads(said) == sums(ORDERS[0][part])


@pytest.mark.parametrize("topic", ["orders", "odd", "bytes", "keyless"])
def test_jq_reads_every_record(views: Mount, topic: str) -> None:
    written = {"orders": ORDERS[0], "odd": ODD, "bytes": BYTES, "keyless": KEYLESS}[topic]
    said = views.run('"$JQ" -c . "$F"', JQ=program("jq"), F=f"{topic}/.jsonl/0")
    assert [json.loads(line) for line in said.splitlines()] == [json_object(r) for r in written]


# -- awk ---------------------------------------------------------------------------------------

AWK_SUMS = r'{ sum[$1] += $2 } END { for (key in sum) printf "%s\t%d\n", key, sum[key] }'


@ranges
def test_awk_sums(views: Mount, name: str, part: slice) -> None:
    said = views.run(
        '"$AWK" -F "\t" "$SUMS" "$F"', AWK=program("awk"), SUMS=AWK_SUMS, F=f"amounts/.kv/{name}"
    ).decode()
    found = dict(line.split("\t") for line in said.splitlines())
    assert {key: int(amount) for key, amount in found.items()} == sums(AMOUNTS[0][part])


def test_awk_tells_tombstones_from_empty_values(views: Mount) -> None:
    kinds = r'{ kind = NF < 2 ? "no key" : $2 == "" ? "empty" : $2 == "\\N" ? "null" : "value" }'
    counts = '{ n[kind]++ } END { print n["no key"] + 0, n["empty"] + 0, n["null"] + 0, NR }'
    words = {"AWK": program("awk"), "KINDS": kinds + counts}
    said = views.run('"$AWK" -F "\t" "$KINDS" odd/.kv/0', **words)
    assert list(map(int, said.split())) == [0, 1, 1, len(ODD)]
    # The line of a record without a key has no TAB: a TAB in its value is escaped.
    said = views.run('"$AWK" -F "\t" "$KINDS" keyless/.kv/0', **words)
    assert list(map(int, said.split())) == [len(KEYLESS), 0, 0, len(KEYLESS)]


# -- sqlite3 -----------------------------------------------------------------------------------


def sqlite(mount: Mount, path: str, query: str) -> list[tuple[Any, ...]]:
    """Import a file of TAB-separated fields, and ask."""
    script = f"""\
.bail on
create table kv (key text, value text);
.mode ascii
.separator "\\t" "\\n"
.import '{path}' kv
.mode json
{query};
"""
    said = mount.run('"$SQLITE" :memory: <<< "$SCRIPT"', SQLITE=program("sqlite3"), SCRIPT=script)
    return [tuple(row.values()) for row in json.loads(said)]


@ranges
def test_sqlite_sums(views: Mount, name: str, part: slice) -> None:
    rows = sqlite(views, f"amounts/.kv/{name}", "select key, sum(value) from kv group by key")
    assert dict(rows) == sums(AMOUNTS[0][part])


def test_sqlite_reads_every_field(views: Mount) -> None:
    key, value = (UNESCAPED.format(name, "char") for name in ("key", "value"))
    value = f"case when value = '\\N' then null else {value} end"
    rows = sqlite(views, "odd/.kv/0", f"select hex({key}), value is '\\N', hex({value}) from kv")
    hexed = [
        ((r.key or b"").hex().upper(), int(r.value is None), (r.value or b"").hex().upper())
        for r in ODD
    ]
    assert rows == hexed


# -- DuckDB ------------------------------------------------------------------------------------


def duck(query: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        return database.execute(query).fetchall()


@ranges
def test_duckdb_sums_json(views: Mount, name: str, part: slice) -> None:
    """Without being told what is in it."""
    path = views / "orders" / ".jsonl" / name
    total = "sum((value->>'$.amount')::int)"
    rows = duck(f"select key, count(*), {total} from read_json('{path}') group by key")
    records = ORDERS[0][part]
    assert {key: amount for key, _, amount in rows} == sums(records)
    assert sum(count for _, count, _ in rows) == len(records)


JSON_COLUMNS = """{"offset": 'BIGINT', timestamp: 'BIGINT', timestampType: 'VARCHAR',
                   key: 'JSON', value: 'JSON', headers: 'JSON'}"""


@pytest.mark.parametrize("topic", ["orders", "odd", "bytes", "keyless"])
def test_duckdb_reads_every_record(views: Mount, topic: str) -> None:
    written = {"orders": ORDERS[0], "odd": ODD, "bytes": BYTES, "keyless": KEYLESS}[topic]
    path = views / topic / ".jsonl" / "0"
    rows = duck(f"select * from read_json('{path}', columns = {JSON_COLUMNS}) order by 1")
    names = ("offset", "timestamp", "timestampType", "key", "value", "headers")
    found = []
    for row in rows:
        texts = [None if text is None else json.loads(str(text)) for text in row[3:]]
        found.append(dict(zip(names, [*row[:3], *texts], strict=True)))
    assert found == [json_object(record) for record in written]


def test_duckdb_reads_bytes_and_times(views: Mount) -> None:
    path = views / "bytes" / ".jsonl" / "0"
    rows = duck(
        f"""select epoch_ms(timestamp),
                   coalesce(from_base64(value->>'$.base64'), encode(value->>'$'))
            from read_json('{path}', columns = {JSON_COLUMNS}) order by "offset" """
    )
    at = datetime.fromtimestamp(T / 1000, UTC).replace(tzinfo=None)
    assert rows == [(at, record.value) for record in BYTES]


def kv(path: Path | str) -> str:
    """A table function that reads `.kv`."""
    return (
        f"read_csv('{path}', delim = '\t', header = false, quote = '', escape = '',"
        " nullstr = '\\N', auto_detect = false, strict_mode = false,"
        " columns = {key: 'VARCHAR', value: 'VARCHAR'})"
    )


@ranges
def test_duckdb_sums_keys_and_values(views: Mount, name: str, part: slice) -> None:
    path = views / "amounts" / ".kv" / name
    rows = duck(f"select key, sum(value::int) from {kv(path)} group by key")
    assert dict(rows) == sums(AMOUNTS[0][part])


def test_duckdb_reads_every_key_and_value(views: Mount) -> None:
    """Tombstones are nulls, empty values are empty."""
    key, value = (UNESCAPED.format(name, "chr") for name in ("key", "value"))
    rows = duck(f"select {key}, {value} from {kv(views / 'odd' / '.kv' / '0')}")
    assert rows == [(text(record.key), text(record.value)) for record in ODD]
