"""Kafka's own tool reads what the sink has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage import LogManager
from tests.interop.kafka_tools import batches, complaints, dump_log_segments, records
from tests.spark.test_staging import NOW, adopted, batch, begin, set_up

CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


def test_dump_log_segments_reads_it(tmp_path: Path) -> None:
    """Every codec, headers, nulls; the transactions are ordinary ones."""
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        for codec in CODECS:
            manager.create_topic(codec, 1)
    rows: list[dict[str, Any]] = [
        {
            "topic": codec,
            "key": None if number % 3 else b"k%d" % number,
            "value": None if number % 7 == 0 else b"%d" % number + b"v" * (number % 900),
            "headers": [{"key": "h", "value": b"1"}, {"key": "", "value": None}],
            "timestamp": (NOW + number) * 1000,
        }
        for number in range(500)
        for codec in CODECS
    ]
    for codec in CODECS:
        set_up(data, codec, compression_type=codec)
    staging = begin(data)
    staging.add(batch(rows))
    adopted(data, staging.finish()[0])
    logs = [data / f"{codec}-0" / "00000000000000000000.log" for codec in CODECS]
    printed, errors = dump_log_segments(logs, "--print-data-log")
    assert complaints(errors) == []
    assert sum(count for _, _, count in batches(printed)) == len(rows)
    assert printed.count("endTxnMarker: COMMIT") == len(CODECS)
    found = list(records(printed))
    for number, codec in enumerate(CODECS):
        of_topic = [row for row in rows if row["topic"] == codec]
        assert [
            (row.offset, row.timestamp, row.key, row.value, row.header_keys)
            for row in found[500 * number : 500 * (number + 1)]
        ] == [
            (offset, NOW + offset, _text(row["key"]), _text(row["value"]), ("h", ""))
            for offset, row in enumerate(of_topic)
        ]


def _text(field: bytes | None) -> str | None:
    return None if field is None else field.decode()
