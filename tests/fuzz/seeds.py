"""Small valid inputs of each target, for a fuzzer to begin with."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Iterator
from typing import Any

from kafka_client.messages import encode as encode_message
from kafka_client.messages import schemas
from storage.index import txn_index
from storage.record.batch import Record, encode, encode_records
from storage.record.compression import GZIP, LZ4, SNAPPY, ZSTD, compress
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.plain import recompress
from storage.settings.messages import Field
from storage.state.producer_state import ProducerEntry
from storage.state.producer_state import encode as encode_snapshot
from tests import oracle
from tests.fuzz.words_files import built
from tests.kafkafs.schemas import avro_values
from tests.storage.old_logs import encode_entry, encode_set

T = 1_700_000_000_000


def records(count: int = 5) -> list[Record]:
    """Keys, values and headers, null and empty ones among them."""
    draw = random.Random(count)
    return [
        Record(
            offset,
            T + draw.randrange(-100, 100),
            0,
            draw.choice([None, b"", b"key"]),
            draw.choice([None, b"", b"value" * draw.randrange(20)]),
            (("name", b"x"), ("", None))[: draw.randrange(3)],
        )
        for offset in range(count)
    ]


def v2() -> Iterator[bytes]:
    for codec in range(5):
        yield recompress(encode(records()), codec)
    yield encode(records(), producer_id=7, producer_epoch=1, base_sequence=5, attributes=0x10)
    yield encode(records(2), attributes=0x08)
    for kind in (ABORT, COMMIT):
        yield bytes(encode_marker(kind, 7, 1, 3, 5, T, 0))


def legacy() -> Iterator[bytes]:
    for magic in (0, 1):
        messages = [
            oracle.Message(offset, key, b"value", -1 if magic == 0 else T)
            for offset, key in enumerate([None, b"", b"key"])
        ]
        yield b"".join(oracle.put_message(message, magic) for message in messages)
        for codec in (GZIP, SNAPPY, LZ4):
            inner = b"".join(oracle.put_message(message, magic) for message in messages)
            wrapper = oracle.Message(2, None, compress(codec, inner), messages[-1].timestamp)
            yield oracle.put_message(wrapper, magic, codec)


def entries_07() -> Iterator[bytes]:
    yield encode_entry(b"hello", magic=0) + encode_entry(b"hello") + encode_entry(b"")
    for codec in (GZIP, SNAPPY):
        yield encode_set([b"hello", b"", b"x" * 100], codec) + encode_entry(b"hello")


def answers() -> Iterator[bytes]:
    """Of each API in its first and its last version, with one element in each array."""
    names = [name for name in schemas() if name.endswith("Response")]
    for number, name in enumerate(names):
        message = schemas()[name]
        for version in {message.first, message.last}:
            out = bytearray([number, version - message.first])
            if version >= message.flexible and name != "ApiVersionsResponse":
                out += b"\0"
            encode_message(out, message, version, filled(message.fields))
            yield bytes(out)


def filled(fields: list[Field]) -> dict[str, Any]:
    found = {}
    for each in fields:
        one = filled(each.fields) if each.type == "struct" else each.default_value()
        if each.is_array:
            one = [one if each.fields else b"x" if each.type == "string" else 7]
        found[each.name] = one
    return found


@functools.cache
def seeds(name: str) -> list[bytes]:
    """Of the target of this name."""
    logs = [*v2(), *legacy()]
    if name in _OF_LOGS:
        return [*logs, b"".join(logs)]
    if name == "records_of_a_batch":
        body = encode_records(records(), 0, T)
        return [bytes([codec, 5, bits]) + body for codec in range(5) for bits in (0, 8, 0x30)]
    if name == "cleaned_records":
        body = encode_records(records(), 0, T)
        return [bytes([5, bits]) + body for bits in (0, 0x08, 0x40, 0x48)]
    if name == "set_of_messages":
        return [
            bytes([magic, codec, 2]) + next(legacy_of(magic))
            for magic in (0, 1)
            for codec in range(4)
        ]
    if name in ("log_07", "log_07_of_right_crcs"):
        return list(entries_07())
    if name == "set_of_entries_07":
        return [bytes([codec]) + data for codec in (0, 1) for data in entries_07()]
    if name == "answer_of_a_broker":
        return list(answers())
    if name == "dumped_coordinator_record":
        return [
            b"\x0b\0\1\0\1g\0\1t\0\0\0\7" + b"\0\4" + bytes(8) + b"\xff" * 4 + b"\1" + bytes(9),
            b"\5\0\2\0\1g" + b"\0\3\0\bconsumer" + bytes(4) + b"\xff" * 4 + bytes(12),
        ]
    if name == "avro_value":
        draw = random.Random(name)
        return [avro_values.encoded(avro_values.ORDER, avro_values.order(draw)) for _ in range(9)]
    if name.startswith("words_file"):
        return [built()]
    if name == "avro_schema":
        draw = random.Random(name)
        schemas = [avro_values.ORDER, *(avro_values.random_schema(draw) for _ in range(20))]
        return [json.dumps(schema).encode() for schema in schemas]
    streams = {"gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}
    if name.endswith("_stream"):
        codec = streams[name.removesuffix("_stream")]
        plain = [b"", b"a", b"abc" * 1000, random.Random(1).randbytes(70_000)]
        return [compress(codec, data) for data in plain]
    return _SMALL[name]


_OF_LOGS = (
    "fetched_batches",
    "fetched_batches_of_right_crcs",
    "log",
    "log_of_right_crcs",
    "dumped_log",
    "dumped_log_of_right_crcs",
    "cleaned_log",
    "key_value_text",
    "json_text",
    "words_of_a_log",
)


def legacy_of(magic: int) -> Iterator[bytes]:
    return (entry for entry in legacy() if entry[16] == magic)


_SMALL = {
    "key_value_lines": [
        b"key\tvalue\nno key\n\\N\nkey\t\\N",
        b"a\\tb\\n\t\\\\\n\n\t\n" * 5,
        b"\\N\tvalue\tmore\nkey\twrong\\q\nlast",
    ],
    "json_lines": [
        b'{"offset":5,"timestamp":1700000000000,"timestampType":"CreateTime","key":"k","value":'
        b'"a\\"b\\u0001\\n\xc3\xa9","headers":[["n","v"],["",null],["b",{"base64":"/w=="}]]}',
        b'{"offset":5,"timestamp":-1,"timestampType":"LogAppendTime","key":null,"value":'
        b'{"base64":"AP8A"},"headers":[]}\n{"offset":6,"timestamp":0,"timestampType":"CreateTime",'
        b'"key":{"base64":"/w=="},"value":"","headers":[]}',
        b'{}\n { "value" : "\\ud83d\\ude00\\u00e9\\/" , "key":null }\n'
        b'{"headers":[["a",{"base64":""}]]}',
        b'{"timestamp":-1,"offset":-1}\n{"timestampType":"CreateTime","value":"'
        + b"x" * 99
        + b'"}',
        b'{"value":"a","value":"b"}\n{"value":1.5e3}\n{"value":{"base64":"AA="}}',
    ],
    "snapshot": [
        encode_snapshot([]),
        encode_snapshot([ProducerEntry(1000, 3, 4, 14, 4, T, 7, -1)]),
        encode_snapshot([ProducerEntry(n, 0, -1, -1, 0, T, -1, n) for n in range(3)]),
    ],
    "transaction_index": [
        txn_index.encode([txn_index.TxnEntry(1000, 5, 10, 11), txn_index.TxnEntry(7, 12, 20, 21)])
    ],
    "checkpoints": [
        b"0\n1\norders 0 17\n",
        b"0\n2\n0 0\n3 1000\n",
        b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ",
        b"",
    ],
    "settings": [
        b"# all\nlog.segment.bytes=1048576\nnum.partitions=3\nlog.retention.hours=1\n",
        b"orders/retention.ms=1000\norders/kafkafs.owner=0:0:755\norders/0/kafkafs.owner=1:2:600\n",
    ],
}
