"""jq, awk, sqlite3 and DuckDB read every record and field of `.kv` and `.jsonl` from the mount."""

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

# A field of .kv as it was, in SQL. A backslash of its own is another character (U+E000) meanwhile.
UNESCAPED = (
    r"replace(replace(replace(replace({0}, '\\', {1}(57344)), '\t', {1}(9)), '\n', {1}(10)),"
    r" {1}(57344), '\')"
)


def order(number: int) -> Record:
    """A document for a customer, some with headers."""
    document = {"amount": number * 7, "city": CITIES[number % len(CITIES)]}
    headers = ((("trace"), f"é{number}".encode()), ("none", None)) if number % 3 == 0 else ()
    key = f"Zoë {number % 17}".encode()
    value = json.dumps(document, ensure_ascii=number % 2 == 0).encode()
    return Record(number, T + 1000 * number, 0, key, value, headers)


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

TOPICS = {
    "orders": [order(number) for number in range(COUNT)],
    "odd": ODD,
    "bytes": BYTES,
    "keyless": KEYLESS,
}


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount of topics that the library has written."""
    base = tmp_path_factory.mktemp("views")
    (base / "data").mkdir()
    with LogManager.open(str(base / "data")) as manager:
        for topic, records in TOPICS.items():
            log = manager.create_topic(topic, 1).partitions[0]
            for first in range(0, len(records), 100):
                batch = bytearray(encode(records[first : first + 100]))
                log.append(batch, now_ns=T * 1_000_000)
    with mounted(base, "ro") as mount:
        yield mount


def text(data: bytes | None) -> str | None:
    return None if data is None else data.decode()


# -- jq ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", TOPICS)
def test_jq_reads_every_record(views: Mount, topic: str) -> None:
    said = views.run('"$JQ" -c . "$F"', JQ=program("jq"), F=f"{topic}/.jsonl/0")
    assert [json.loads(line) for line in said.splitlines()] == [
        json_object(record) for record in TOPICS[topic]
    ]


# -- awk ---------------------------------------------------------------------------------------


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


def test_duckdb_sums_json(views: Mount) -> None:
    """Without being told what is in it."""
    path = views / "orders/.jsonl/0"
    total = "sum((value->>'$.amount')::int)"
    rows = duck(f"select key, count(*), {total} from read_json('{path}') group by key")
    expected: Counter[str] = Counter()
    for record in TOPICS["orders"]:
        expected[(record.key or b"").decode()] += json.loads(record.value or b"")["amount"]
    assert {key: amount for key, _, amount in rows} == expected
    assert sum(count for _, count, _ in rows) == COUNT


JSON_COLUMNS = """{"offset": 'BIGINT', timestamp: 'BIGINT', timestampType: 'VARCHAR',
                   key: 'JSON', value: 'JSON', headers: 'JSON'}"""


@pytest.mark.parametrize("topic", TOPICS)
def test_duckdb_reads_every_record(views: Mount, topic: str) -> None:
    path = views / topic / ".jsonl" / "0"
    rows = duck(f"select * from read_json('{path}', columns = {JSON_COLUMNS}) order by 1")
    names = ("offset", "timestamp", "timestampType", "key", "value", "headers")
    found = []
    for row in rows:
        texts = [None if text is None else json.loads(str(text)) for text in row[3:]]
        found.append(dict(zip(names, [*row[:3], *texts], strict=True)))
    assert found == [json_object(record) for record in TOPICS[topic]]


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


def test_duckdb_reads_every_key_and_value(views: Mount) -> None:
    """Tombstones are nulls, empty values are empty."""
    key, value = (UNESCAPED.format(name, "chr") for name in ("key", "value"))
    rows = duck(f"select {key}, {value} from {kv(views / 'odd' / '.kv' / '0')}")
    assert rows == [(text(record.key), text(record.value)) for record in ODD]
