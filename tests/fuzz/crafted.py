"""Batches made to find a loop's limits: right in most of their fields, and wrong in few.

A `random.Random` decides their content. `mutated` changes any bytes at random.
"""

from __future__ import annotations

import struct
from random import Random

from storage.record.compression import CODECS, compress
from storage.record.header import BatchHeader, pack
from tests import oracle
from tests.fuzz.targets import with_right_crcs, with_right_crcs_07
from tests.storage.old_logs import encode_entry

T = 1_700_000_000_000
EDGES = (
    0, 0, 0, 1, -1, -2, 2, 63, 64, -64, -65, 127, 128, 8191, 8192, -8192, 2**31 - 1, -(2**31),
    2**31, 2**63 - 1, -(2**63), T,
)  # fmt: skip
INTERESTING = [
    bytes(1), bytes(4), bytes(8), b"\xff", b"\xff" * 4, b"\xff" * 8, b"\x7f\xff\xff\xff",
    b"\x80\0\0\0", b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\x01", b"\x02", b"\0\0\0\x0e",
    b"\x81\0", b"\x80\x80\x80\x80\0", b"\x80" * 10, b"\t", b"\n", b"\\", b'"', b"\\u00", b"\\N",
    b"{}", b"[]", b'{"base64":"', b"null", b"\xe2\x82", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80",
]  # fmt: skip


def varint(draw: Random, number: int, most: int = 5) -> bytes:
    """A zig-zag varint, now and then longer than it must be."""
    bits = (number << 1 ^ number >> 63) & (2**64 - 1)
    out = bytearray()
    while bits >= 0x80:
        out.append(bits & 0x7F | 0x80)
        bits >>= 7
    out.append(bits)
    if draw.random() < 0.05:
        while len(out) < draw.randrange(most + 2):
            out[-1] |= 0x80
            out.append(0)
    return bytes(out)


def _number(draw: Random, right: int) -> int:
    return right if draw.random() < 0.97 else draw.choice(EDGES)


def _field(draw: Random) -> bytes:
    kind = draw.random()
    if kind < 0.2:
        return varint(draw, -1)
    content = draw.choice(
        (b"", b"k", b"key", b"a\tb\n\\", b"\xff\xfe", "é€😀".encode(), b'"\x01', bytes(40))
    ) * draw.choice((1, 1, 1, 2, 9))
    return varint(draw, _number(draw, len(content))) + content


def record(draw: Random, number: int) -> bytes:
    body = bytes([draw.choice((0, 0, 0, 0, 1, 255))])
    body += varint(draw, _number(draw, draw.randrange(-70, 70)), 10)
    body += varint(draw, _number(draw, number))
    body += _field(draw) + _field(draw)
    headers = draw.choice((0, 0, 0, 1, 2, 9))
    body += varint(draw, _number(draw, headers))
    for _ in range(headers):
        body += _field(draw) + _field(draw)
    return varint(draw, _number(draw, len(body))) + body


def batch(draw: Random) -> bytes:
    """A batch of v2, with a right CRC mostly."""
    count = draw.choice((0, 1, 1, 2, 3, 5, 70))
    records = b"".join(record(draw, number) for number in range(count))
    codec = draw.choice((0, 0, 0, 0, 0, 1, 2, 3, 4, 7))
    if codec < len(CODECS):
        records = compress(codec, records)
    bits = codec | draw.choice((0, 0, 0, 0, 8, 0x10, 0x20, 0x30, 0x40, 0x80))
    stored = pack(
        BatchHeader(
            _number(draw, draw.randrange(5)), 0, 0, 2, 0, bits, 0, _number(draw, T),
            _number(draw, T + 70), _number(draw, draw.choice((-1, -1, 7))), 0, -1,
            count if draw.random() < 0.97 else draw.choice((0, 1, 2**31 - 1, -1, count + 1)),
        ),
        records,
    )  # fmt: skip
    changed = bytearray(stored)
    delta = _number(draw, max(count - 1, 0)) & 0xFFFFFFFF
    struct.pack_into(">I", changed, 23, delta)
    return bytes(changed)


def message(draw: Random, magic: int, depth: int = 0) -> bytes:
    """A message of v0 or v1, or a wrapper of some, now and then with wrappers inside."""
    fields = [None, b"", b"key", b"v" * 30, b"\xff\n\t"]
    key, value, codec = draw.choice(fields), draw.choice(fields), 0
    if depth < 3 and draw.random() < 0.4 / (depth * 4 + 1):
        codec = draw.randrange(1, 4)
        inner = b"".join(
            oracle.put_message(oracle.Message(n, draw.choice(fields), value, T), magic)
            for n in range(draw.randrange(4))
        )
        if draw.random() < 0.1:
            inner += message(draw, magic, depth + 1)
        value = compress(codec, inner)
    offset = _number(draw, draw.randrange(8))
    return oracle.put_message(
        oracle.Message(offset, key, value, _number(draw, T) if magic else -1), magic, codec
    )


def log(draw: Random) -> bytes:
    """Some batches of any format, back to back."""
    made = b""
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        kind = draw.randrange(4)
        made += message(draw, kind) if kind < 2 else batch(draw)
    return with_right_crcs(made)


def plain_log(draw: Random) -> bytes:
    """One batch of v2, which most loops take alone."""
    return with_right_crcs(batch(draw))


def log_07(draw: Random) -> bytes:
    made = b""
    for _ in range(draw.choice((1, 2, 5))):
        codec = draw.choice((0, 0, 1, 2))
        payload = draw.choice((b"", b"x", b"hello" * 9))
        if codec:
            payload = compress(codec, encode_entry(payload) + encode_entry(b"y", magic=0))
        made += encode_entry(payload, codec=codec, magic=1 if codec else draw.randrange(2))
    return with_right_crcs_07(made)


def line(draw: Random) -> bytes:
    """Lines of text as the views show them, or nearly."""
    return b"\n".join(
        draw.choice(
            (
                b"value", b"key\tvalue", b"\\N\t\\\\\\t\\n", b"{}", b'{"value":"a\\u00e9\\n"}',
                b'{"offset":5,"timestamp":%d,"timestampType":"CreateTime","key":{"base64":"/w=="},'
                b'"value":"%s","headers":[["n",null],["m","\xc3\xa9"]]}'
                % (draw.choice(EDGES), b"x\\\"\\u0001" * draw.randrange(12)),
                b'{"headers":[["a",{"base64":"AA=="}]],"key":null}', draw.randbytes(9),
            )
        )
        for _ in range(draw.randrange(1, 5))
    )  # fmt: skip


def mutated(draw: Random, data_before: bytes) -> bytes:
    """Some bytes are changed, put in, taken out or repeated."""
    data = bytearray(data_before)
    for _ in range(draw.choice((0, 1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        what = draw.randrange(6)
        if what == 0 and at < len(data):
            data[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            data[at:at] = draw.randbytes(draw.randrange(9))
        elif what == 2:
            piece = draw.choice(INTERESTING)
            data[at : at + len(piece)] = piece
        elif what == 3:
            del data[at : at + draw.randrange(9)]
        elif what == 4:
            data[at:at] = data[at : at + draw.randrange(9)]
        else:
            del data[at:]
    return bytes(data)
