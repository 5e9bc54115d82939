"""Files of every kind for DumpLogSegments and `kafkafs dump` to be compared on, from a seed."""

from __future__ import annotations

import random
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.index import txn_index
from storage.record.batch import Record, encode_records
from storage.record.compression import compress
from storage.record.header import (
    APPEND_TIME_BIT,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    pack,
    parse_header,
)
from storage.state import producer_state

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the whole client is imported with it
    from kafka.codec import gzip_encode, lz4_encode, lz4_encode_old_kafka, snappy_encode

T = 1_700_000_000_000
GZIP, SNAPPY, LZ4 = 1, 2, 3
# Header names that are ASCII while they are encoded, and then bytes that are no UTF-8.
_ODD_NAMES = ((b"odd1", b"\xff\xc3A\xe2"), (b"odd2", b"\xed\xa0\x80\xf0"))


# -- format v2 -------------------------------------------------------------------------------------


def v2(
    records: list[Record],
    *,
    base: int | None = None,
    attributes: int = 0,
    last_delta: int | None = None,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
) -> bytes:
    """A batch; the codec and all else as the attributes say."""
    first = records[0] if records else Record(base or 0, -1, 0, None, None)
    base = first.offset if base is None else base
    start = first.timestamp if base_timestamp is None else base_timestamp
    body = encode_records(records, base, start)
    for plain, odd in _ODD_NAMES:
        body = body.replace(plain, odd)
    if attributes & 7:
        body = compress(attributes & 7, body)
    largest = max((record.timestamp for record in records), default=T)
    last = records[-1].offset - base if records else 9
    header = BatchHeader(
        base_offset=base,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=last if last_delta is None else last_delta,
        base_timestamp=start,
        max_timestamp=largest if max_timestamp is None else max_timestamp,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        records_count=len(records),
    )
    return pack(header, body)


def control(offset: int, kind: int, value: bytes, version: int = 0) -> bytes:
    record = Record(offset, T, 0, struct.pack(">hh", version, kind), value)
    bits = CONTROL_BIT | (TRANSACTIONAL_BIT if kind < 2 else 0)
    return v2([record], attributes=bits, producer=(1000, 3, -1), leader_epoch=4)


class Generator:
    """Random contents, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def content(self) -> bytes | None:
        kind = self.random.randrange(8)
        length = self.random.choice([0, 1, 3, 7, 8, 9, 40, 300])
        if kind == 0:
            return None
        if kind <= 3:
            return "".join(self.random.choices("aZ 0:,|é€𝄞\n\t\0", k=length)).encode()
        if kind == 4:
            return self.random.randbytes(length)
        # Mostly beginnings of characters and bytes that go on with one.
        bytes_ = b"a\x80\xbf\xc0\xc2\xdf\xe0\xed\xef\xf0\xf4\xf5\xff\x90\x9f\xa0\x8f"
        return bytes(self.random.choices(bytes_, k=length))

    def records(self, offset: int, count: int, *, gaps: bool = False) -> list[Record]:
        found = []
        for _ in range(count):
            names = self.random.choices(["h", "", "é", "odd1", "odd2", "a,b"], k=3)
            headers = tuple((name, self.content()) for name in names[: self.random.randrange(4)])
            timestamp = T + self.random.randrange(-5000, 5000)
            found.append(Record(offset, timestamp, 0, self.content(), self.content(), headers))
            offset += self.random.randrange(1, 4) if gaps else 1
        return found

    def log(self, *, codecs: Iterable[int] = (0,), gaps: bool = False, base: int = 0) -> bytes:
        """Some twenty batches."""
        out = bytearray()
        offset = base
        for codec in list(codecs) * 20:
            records = self.records(offset, self.random.choice([1, 1, 2, 9]), gaps=gaps)
            bits = codec | self.random.choice([0, 0, APPEND_TIME_BIT, TRANSACTIONAL_BIT])
            producer = self.random.choice([(-1, -1, -1), (7, 2, 2**31 - 3), (2**40, 9, 0)])
            out += v2(records, attributes=bits, producer=producer, leader_epoch=offset % 5)
            offset = records[-1].offset + 1
        return bytes(out)


def special_batches() -> bytes:
    """Return rare v2 batches: control batches, empty ones, a damaged one, odd attributes."""
    voter = struct.pack(">i", 1) + bytes(range(16))
    leader_change = struct.pack(">hi", 0, 5) + b"\x02" + struct.pack(">ib", 5, 0) + b"\x01\0"
    voters = (
        struct.pack(">h", 0)
        + b"\x02"
        + voter
        + b"\x02\x05SSL\x01\x03h\xff"
        + struct.pack(">H", 65000)
        + b"\0"
        + struct.pack(">hh", 0, 1)
        + b"\0\0\0"
    )
    damaged = bytearray(v2([Record(30, T, 0, b"k", b"damaged")]))
    damaged[20] ^= 1
    return b"".join(
        [
            control(0, 0, struct.pack(">hi", 0, 7)),
            control(1, 1, struct.pack(">hi", 5, -1) + b"later"),
            control(2, 9, b""),
            control(3, 2, leader_change),
            control(4, 3, struct.pack(">hq", 0, T) + b"\0"),
            control(5, 4, struct.pack(">h", 0) + b"\0"),
            control(6, 5, struct.pack(">hh", 0, 1) + b"\0"),
            control(7, 6, voters, version=3),
            v2([], base=8, producer=(1000, 3, 5)),
            v2([], base=18, attributes=TRANSACTIONAL_BIT | APPEND_TIME_BIT | GZIP),
            v2([Record(28, T, 0, None, None)], attributes=DELETE_HORIZON_BIT, last_delta=1),
            bytes(damaged),
            v2([Record(31, -5, 0, b"", b"")], producer=(5, 1, -2), attributes=0x700),
        ]
    )


# -- formats v0 and v1 -----------------------------------------------------------------------------


def message(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp: int = T,
    attributes: int = 0,
    crc: int | None = None,
) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for field in (key, value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    stored = zlib.crc32(body) if crc is None else crc
    return struct.pack(">qiI", offset, len(body) + 4, stored) + body


def wrapper(
    magic: int,
    codec: int,
    messages: list[bytes],
    offset: int,
    *,
    attributes: int = 0,
    timestamp: int = T,
) -> bytes:
    packers = {
        GZIP: gzip_encode,
        SNAPPY: snappy_encode,
        LZ4: lz4_encode if magic else lz4_encode_old_kafka,
    }
    packed = packers[codec](b"".join(messages))
    return message(magic, offset, None, packed, attributes=attributes | codec, timestamp=timestamp)


def legacy_log(generator: Generator, magic: int) -> bytes:
    content = generator.content
    out = [message(magic, n, content(), content(), timestamp=T + n) for n in range(20)]
    out.append(message(magic, 20, b"k", b"damaged", crc=1))
    for codec in (GZIP, SNAPPY, LZ4):
        first = 100 * codec
        for bits in (0, APPEND_TIME_BIT) if magic else (0,):
            inner = [
                message(magic, n if magic else first + n, content(), content(), timestamp=T - n)
                for n in (0, 1, 2, 5)
            ]
            inner[1] = message(magic, 1 if magic else first + 1, b"", b"x", crc=12345)
            out.append(wrapper(magic, codec, inner, first + 5, attributes=bits, timestamp=T + 9))
    if magic:
        inner = [message(1, n, b"rdkafka", b"v") for n in range(2)]
        out.append(wrapper(1, GZIP, inner, 0))
        out.append(message(1, 700, b"k", None, attributes=APPEND_TIME_BIT, timestamp=-1))
    return b"".join(out)


# -- what lies beside a log ------------------------------------------------------------------------


def frames(log: bytes) -> Iterator[tuple[int, int, int]]:
    """(position, last offset, largest timestamp) of each v2 batch."""
    position = 0
    while position < len(log):
        header = parse_header(log, position)
        yield position, header.last_offset, header.max_timestamp
        position += header.size


def offset_entries(log: bytes, base: int) -> list[tuple[int, int]]:
    return [(last - base, position) for position, last, _ in frames(log)][1::3]


def time_entries(log: bytes, base: int) -> list[tuple[int, int]]:
    found = [(-1, 0)]
    for _, last, largest in frames(log):
        if largest > found[-1][0]:
            found.append((largest, last - base))
    return found[1:]


def pack_offsets(entries: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">ii", *entry) for entry in entries)


def pack_times(entries: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(struct.pack(">qi", *entry) for entry in entries)


def name(offset: int, suffix: str) -> str:
    return f"{offset:020}{suffix}"


class Samples:
    """Files below ``root``. ``good``: those that DumpLogSegments gets through in any way;
    ``indexes``: the same, but not with --index-sanity-check.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.good: list[Path] = []
        self.indexes: list[Path] = []
        self._generator = Generator(seed)
        self._logs()
        self._indexes()
        self._tables()
        for unknown in ("unknown.x", "nodot", "00.log.deleted"):
            self.good.append(root / unknown)

    def write(self, partition: str, file: str, data: bytes) -> Path:
        path = self.root / partition / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        return path

    def _logs(self) -> None:
        generator = self._generator
        whole = generator.log(base=1000)
        odd_tail = [whole + whole[:n] for n in (1, 17, 18, 60, 61, len(whole) // 40)]
        logs = {
            **{f"codec{codec}": generator.log(codecs=(codec,)) for codec in range(5)},
            "mixed": generator.log(codecs=range(5), gaps=True),
            "special": special_batches(),
            **{f"v{magic}": legacy_log(generator, magic) for magic in (0, 1)},
            "all": legacy_log(generator, 0) + legacy_log(generator, 1) + generator.log(base=701),
            "empty": b"",
            **{f"tail{number}": log for number, log in enumerate(odd_tail)},
            # A batch of 26 bytes: a reader takes the next bytes for the rest of its header.
            "short": struct.pack(">qiib", 5, 14, 0, 3) + bytes(9) + whole,
        }
        for partition, log in logs.items():
            if partition != "short":
                self.good.append(self.write(partition, name(1000, ".log"), log))
        self.short = self.write("short", name(0, ".log"), logs["short"])
        self.good.append(self.write("kraft", f"{7:020}-{3:010}.checkpoint", logs["special"]))
        self.good.append(self.write("kraft", "bootstrap.checkpoint", logs["codec0"]))

    def _indexes(self) -> None:
        base = 1000
        log = self._generator.log(codecs=(0, 3), base=base)
        offsets, times = offset_entries(log, base), time_entries(log, base)
        wrong = [
            (relative + number % 2, position) for number, (relative, position) in enumerate(offsets)
        ]
        pairs = {
            "right": (offsets, times),
            "zeros": ([*offsets, (0, 0), (0, 0)], [*times, (0, 0)]),
            "wrong": (wrong, [(timestamp + 1, relative) for timestamp, relative in times]),
            "order": (offsets, times[::-1]),
            "between": (offsets[::2], [(T, r + 1) for _, r in times]),
            "above": (offsets, [(T, 1 << 30)]),
            "none": ([], times),
            "nothing": (offsets, []),
        }
        for partition, (offset_part, time_part) in pairs.items():
            self.write(partition, name(base, ".log"), log)
            files = [
                self.write(partition, name(base, ".index"), pack_offsets(offset_part)),
                self.write(partition, name(base, ".timeindex"), pack_times(time_part)),
            ]
            sane = partition in ("right", "wrong", "above", "none", "nothing")
            (self.good if sane else self.indexes).extend(files)
        self.write("odd", name(base, ".log"), log)
        odd = self.write("odd", name(base, ".index"), pack_offsets(offsets) + b"odd")
        self.odd_index = odd
        odd_time = self.write("odd", name(base, ".timeindex"), pack_times(times) + b"odd")
        self.indexes += [odd, odd_time]

    def _tables(self) -> None:
        entry = producer_state.ProducerEntry
        producers = [
            entry(1000, 3, 4, 14, 4, T, 7, -1),
            entry(2**60, 32767, 2, 99, 5, T, -1, 88),
            entry(5, 0, -1, -1, 0, -1, 2, 0),
        ]
        snapshot = producer_state.encode(producers)
        damaged = bytearray(snapshot)
        damaged[20] ^= 1
        odd = {
            "several": snapshot,
            "none": producer_state.encode([]),
            "damaged": bytes(damaged),
            "cut": snapshot[:-1],
            "more": snapshot + b"more",
            "version": b"\0\2" + snapshot[2:],
            "tiny": b"\0",
            "headless": snapshot[:8],
            "negative": snapshot[:6] + b"\xff" * 4 + snapshot[10:],
            "many": snapshot[:6] + b"\0\1\0\0" + snapshot[10:],
        }
        for partition, data in odd.items():
            self.good.append(self.write(f"snapshot-{partition}", name(15, ".snapshot"), data))
        aborted = [txn_index.TxnEntry(1000 + n, 5 * n, 5 * n + 4, 5 * n + 5) for n in range(3)]
        data = txn_index.encode(aborted)
        self.good.append(self.write("txn", name(0, ".txnindex"), data + data[:20]))
        self.good.append(self.root / "txn" / name(7, ".txnindex"))
