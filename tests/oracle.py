"""Plain-Python twins of the hot loops, written from the format and sharing no code with them.

Slow and simple on purpose: one record at a time, no state between calls, whole logs only.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Headers = list[tuple[bytes, bytes | None]]


@dataclass
class Row:
    """One record as it is stored: deltas, not offsets."""

    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    value: bytes | None
    headers: Headers = field(default_factory=list)


@dataclass
class Batch:
    """One batch of the log, with its place in the file."""

    position: int
    size: int
    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    count: int

    @property
    def end(self) -> int:
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def put_varint(value: int) -> bytes:
    bits = (value << 1) ^ (value >> 63)
    out = b""
    while bits >= 128:
        out += bytes([bits % 128 + 128])
        bits //= 128
    return out + bytes([bits])


def take_varint(data: bytes, at: int) -> tuple[int, int]:
    bits = shift = 0
    while True:
        byte = data[at]
        at += 1
        bits += byte % 128 << shift
        shift += 7
        if byte < 128:
            return (bits >> 1) ^ -(bits & 1), at


def put_bytes(value: bytes | None) -> bytes:
    return put_varint(-1) if value is None else put_varint(len(value)) + value


def take_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = take_varint(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)


def put_row(row: Row) -> bytes:
    body = b"\0" + put_varint(row.timestamp_delta) + put_varint(row.offset_delta)
    body += put_bytes(row.key) + put_bytes(row.value) + put_varint(len(row.headers))
    for name, value in row.headers:
        body += put_bytes(name) + put_bytes(value)
    return put_varint(len(body)) + body


def put_batch(
    records: bytes,
    count: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
) -> bytes:
    """A batch around encoded records; nothing is checked, so it can be a wrong one."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    tail = struct.pack(
        ">hiqqqhii", attributes, delta, base_timestamp, max_timestamp, -1, -1, -1, count
    )
    tail += records
    head = struct.pack(">qiibI", base_offset, len(tail) + 9, leader_epoch, 2, crc32c(tail))
    return head + tail


def _shifted(crc: int) -> int:
    """Divide by the polynomial of CRC-32C, for one byte."""
    for _ in range(8):
        crc = crc >> 1 ^ (crc & 1) * 0x82F63B78
    return crc


_CRCS = [_shifted(byte) for byte in range(256)]


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """The CRC-32C of `data`, or of bytes whose own is `crc` and `data` after them."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRCS[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def walk(log: bytes) -> Iterator[Batch]:
    position = 0
    while position < len(log):
        base, length, epoch = struct.unpack_from(">qii", log, position)
        attributes, delta, first, largest = struct.unpack_from(">hiqq", log, position + 21)
        (count,) = struct.unpack_from(">i", log, position + 57)
        yield Batch(position, length + 12, base, epoch, attributes, delta, first, largest, count)
        position += length + 12


def rows(log: bytes, batch: Batch) -> Iterator[tuple[int, Row]]:
    """Each record of a batch with its position in the log."""
    at = batch.position + 61
    while at < batch.end:
        start = at
        length, at = take_varint(log, at)
        end = at + length
        timestamp_delta, at = take_varint(log, at + 1)
        offset_delta, at = take_varint(log, at)
        key, at = take_bytes(log, at)
        value, at = take_bytes(log, at)
        count, at = take_varint(log, at)
        headers: Headers = []
        for _ in range(count):
            name, at = take_bytes(log, at)
            content, at = take_bytes(log, at)
            headers.append((name or b"", content))
        assert at == end
        yield start, Row(timestamp_delta, offset_delta, key, value, headers)


def shown(log: bytes) -> Iterator[tuple[Batch, int, Row]]:
    """Each record that a view shows: control batches show none."""
    for batch in walk(log):
        if not batch.attributes & 0x20:
            for position, row in rows(log, batch):
                yield batch, position, row


def value_line(_batch: Batch, row: Row) -> bytes:
    """Return the line of a record in the values view."""
    return (row.value or b"") + b"\n"


def key_value_line(row: Row) -> bytes:
    """Return the line of a record in the kv view."""

    def escape(field: bytes) -> bytes:
        return field.replace(b"\\", b"\\\\").replace(b"\t", b"\\t").replace(b"\n", b"\\n")

    value = b"\\N" if row.value is None else escape(row.value)
    return (value if row.key is None else escape(row.key) + b"\t" + value) + b"\n"


def key_value_fields(line: bytes) -> tuple[bytes | None, bytes | None]:
    """The key and value that a line of the kv view stands for; ValueError."""

    def unescape(field: bytes) -> bytes | None:
        if field == b"\\N":
            return None
        parts = re.split(rb"(?s)(\\.?)", field)
        codes = {b"\\\\": b"\\", b"\\t": b"\t", b"\\n": b"\n"}
        if not codes.keys() >= set(parts[1::2]):
            raise ValueError(field)
        parts[1::2] = [codes[part] for part in parts[1::2]]
        return b"".join(parts)

    key, tab, value = line.partition(b"\t")
    return (unescape(key), unescape(value)) if tab else (None, unescape(key))


def json_bytes(data: bytes | None) -> object:
    """Return the JSON value that represents bytes in the jsonl view."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_line(batch: Batch, row: Row) -> bytes:
    """Return the line of a record in the jsonl view."""
    append_time = batch.attributes & 8
    timestamp = batch.max_timestamp if append_time else batch.base_timestamp + row.timestamp_delta
    shown = {
        "offset": batch.base_offset + row.offset_delta,
        # Numbers of more than 64 bits wrap, as in Java.
        "timestamp": (timestamp + 2**63) % 2**64 - 2**63,
        "timestampType": "LogAppendTime" if append_time else "CreateTime",
        "key": json_bytes(row.key),
        "value": json_bytes(row.value),
        "headers": [[json_bytes(name), json_bytes(content)] for name, content in row.headers],
    }
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


@dataclass
class JsonFields:
    """The fields of a line in the jsonl view; a timestamp of None means now."""

    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers


class _Object(list[tuple[str, object]]):
    """A JSON object, names that come twice included."""


def json_fields(line: bytes) -> JsonFields:
    """Parse a line. If a name comes twice, the last one counts; both must be valid. ValueError."""

    def check(right: bool) -> None:
        if not right:
            raise ValueError(line)

    def no_constant(name: str) -> None:
        raise ValueError(name)

    def to_bytes(text: object) -> bytes:
        if isinstance(text, _Object):
            check(bool(text))
            for name, digits in text:
                check(name == "base64" and isinstance(digits, str))
                pattern = "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?"
                check(re.fullmatch(pattern, str(digits)) is not None)
            return base64.b64decode(str(text[-1][1]))
        check(isinstance(text, str))
        return str(text).encode()  # half of a surrogate pair is a UnicodeEncodeError, a ValueError

    def to_headers(found: object) -> Headers:
        check(isinstance(found, list) and not isinstance(found, _Object))
        assert isinstance(found, list)
        for header in found:
            check(isinstance(header, list) and not isinstance(header, _Object))
            check(len(header) == 2)
        return [(to_bytes(name), None if text is None else to_bytes(text)) for name, text in found]

    check(not line.startswith(b"\xef\xbb\xbf"))
    try:
        found = json.loads(line.decode(), parse_constant=no_constant, object_pairs_hook=_Object)
    except RecursionError:
        raise ValueError(line) from None
    check(isinstance(found, _Object))
    fields = JsonFields(None, None, None, [])
    for name, value in found:
        if name == "offset":
            check(type(value) is int)
        elif name == "timestamp":
            check(type(value) is int and -1 <= value < 2**63)
            fields.timestamp = value
        elif name == "timestampType":
            check(value in ("CreateTime", "LogAppendTime"))
        elif name == "key":
            fields.key = None if value is None else to_bytes(value)
        elif name == "value":
            fields.value = None if value is None else to_bytes(value)
        else:
            check(name == "headers")
            fields.headers = to_headers(value)
    return fields


def encode_json(records: list[JsonFields], timestamp_ms: int, max_batch_bytes: int) -> bytes | int:
    """Twin of `json_records.parse`; the number of a line that is too long is an int."""
    out = b""
    batch: list[tuple[int, bytes]] = []

    def record(fields: JsonFields, timestamp: int) -> bytes:
        base = batch[0][0] if batch else timestamp
        # Numbers of more than 64 bits wrap, as in Java.
        delta = (timestamp - base + 2**63) % 2**64 - 2**63
        row = Row(delta, len(batch), fields.key, fields.value, fields.headers)
        return put_row(row)

    def finished() -> bytes:
        times = [timestamp for timestamp, _ in batch]
        return put_batch(
            b"".join(row for _, row in batch),
            len(batch),
            base_timestamp=times[0],
            max_timestamp=max(times),
        )

    for number, fields in enumerate(records, 1):
        timestamp = timestamp_ms if fields.timestamp is None else fields.timestamp
        made = record(fields, timestamp)
        if batch and 61 + sum(len(row) for _, row in batch) + len(made) > max_batch_bytes:
            out += finished()
            batch.clear()
            made = record(fields, timestamp)
        if 61 + len(made) > max_batch_bytes:
            return number
        batch.append((timestamp, made))
    return out + finished() if batch else out


def render(log: bytes, line: Callable[[Batch, Row], bytes] = value_line) -> bytes:
    """Twin of a view's `render`: a segment's whole text."""
    return b"".join(line(batch, row) for batch, _, row in shown(log))


def measure(
    log: bytes, granularity: int, line: Callable[[Batch, Row], bytes] = value_line
) -> list[tuple[int, int, int, int, int]]:
    """Twin of a view's `measure`: the line index's entries."""
    entries = [(0, 0, 0, 0, 0)]
    text = last = 0
    for ordinal, (batch, position, row) in enumerate(shown(log)):
        if text - last >= granularity:
            entries.append((text, batch.position, position, batch.end, ordinal))
            last = text
        text += len(line(batch, row))
    return entries


def encode_lines(lines: list[bytes], timestamp_ms: int, max_batch_bytes: int) -> bytes | int:
    """Twin of `_parse.encode_lines`; the number of a line that is too long is an int."""
    return encode_pairs([(None, line) for line in lines], timestamp_ms, max_batch_bytes)


def encode_pairs(
    pairs: list[tuple[bytes | None, bytes | None]], timestamp_ms: int, max_batch_bytes: int
) -> bytes | int:
    """The same of keys and values."""
    out = records = b""
    count = 0
    for number, pair in enumerate(pairs, 1):
        record = put_row(Row(0, count, *pair))
        if count and 61 + len(records) + len(record) > max_batch_bytes:
            out += put_batch(
                records, count, base_timestamp=timestamp_ms, max_timestamp=timestamp_ms
            )
            records, count = b"", 0
            record = put_row(Row(0, 0, *pair))
        if 61 + len(record) > max_batch_bytes:
            return number
        records += record
        count += 1
    if count:
        out += put_batch(records, count, base_timestamp=timestamp_ms, max_timestamp=timestamp_ms)
    return out


def assign_offsets(
    log: bytes, first: int, epoch: int
) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    """Twin of `_batch.assign_offsets`: what the bytes become, and what is returned."""
    out = b""
    told = []
    for batch in walk(log):
        last = first + batch.last_offset_delta
        told.append((batch.position, batch.size, last, batch.max_timestamp))
        body = log[batch.position + 16 : batch.end]
        out += struct.pack(">qii", first, batch.size - 12, epoch) + body
        first = last + 1
    return out, told


@dataclass
class Message:
    """A message of v0 or v1; v0 has no timestamp."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = -1


def put_field(value: bytes | None) -> bytes:
    return struct.pack(">i", -1) if value is None else struct.pack(">i", len(value)) + value


def put_message(message: Message, magic: int, attributes: int = 0) -> bytes:
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", message.timestamp)
    body += put_field(message.key) + put_field(message.value)
    head = struct.pack(">qiI", message.offset, len(body) + 4, zlib.crc32(body))
    return head + body


def put_wrapper(
    messages: list[Message],
    magic: int,
    codec: int,
    *,
    attributes: int = 0,
    offset: int | None = None,
    timestamp: int | None = None,
) -> bytes:
    """A wrapper around messages with their offsets as they are to be stored inside.

    Only gzip; its offset and timestamp are by default the last one's and the largest inside.
    """
    inner = b"".join(put_message(message, magic) for message in messages)
    largest = max((message.timestamp for message in messages), default=-1)
    wrapper = Message(
        (messages[-1].offset if messages else 0) if offset is None else offset,
        None,
        gzip.compress(inner) if codec == 1 else inner,
        largest if timestamp is None else timestamp,
    )
    return put_message(wrapper, magic, codec | attributes)


def plain_of(
    messages: list[Message],
    *,
    append_time: int | None = None,
    last_offset: int | None = None,
    max_timestamp: int | None = None,
) -> bytearray:
    """Twin of `_legacy`'s loops: messages, with their absolute offsets, in plain form."""
    base = messages[0].offset
    first = messages[0].timestamp if append_time is None else append_time
    largest = max(message.timestamp for message in messages)
    if append_time is not None:
        largest = append_time
    elif max_timestamp is not None:
        largest = max_timestamp
    rows = [
        Row(
            message.timestamp - first if append_time is None else 0,
            message.offset - base,
            message.key,
            message.value,
        )
        for message in messages
    ]
    return without_crc(
        put_batch(
            b"".join(map(put_row, rows)),
            len(rows),
            base_offset=base,
            leader_epoch=-1,
            attributes=0 if append_time is None else 8,
            last_offset_delta=(messages[-1].offset if last_offset is None else last_offset) - base,
            base_timestamp=first,
            max_timestamp=largest,
        )
    )


def without_crc(batch: bytes) -> bytearray:
    """As a plain form has it: not worked out."""
    return bytearray(batch[:17] + bytes(4) + batch[21:])


@dataclass
class Index:
    """The result of `rebuild`: the fields that `_batch.Rebuild` has."""

    offsets: bytes = b""
    times: bytes = b""
    max_timestamp: int = -1
    max_timestamp_offset: int = 0
    records: int = 0
    bytes_since: int = 0
    epochs: list[tuple[int, int]] = field(default_factory=list)


def rebuild(log: bytes, base_offset: int, interval: int) -> Index:
    """Twin of `_batch.Rebuild`: LogSegment.append's three steps, batch by batch."""
    index = Index(max_timestamp_offset=base_offset)
    last_time = last_epoch = -1
    for batch in walk(log):
        if batch.max_timestamp > index.max_timestamp:
            index.max_timestamp = batch.max_timestamp
            index.max_timestamp_offset = batch.last_offset
        if index.bytes_since > interval:
            relative = batch.last_offset - base_offset
            index.offsets += struct.pack(">ii", relative, batch.position)
            if index.max_timestamp > last_time:
                relative = index.max_timestamp_offset - base_offset
                index.times += struct.pack(">qi", index.max_timestamp, relative)
                last_time = index.max_timestamp
            index.bytes_since = 0
        index.bytes_since += batch.size
        index.records += batch.count
        if batch.leader_epoch > last_epoch:
            last_epoch = batch.leader_epoch
            index.epochs.append((last_epoch, batch.base_offset))
    return index


def columns(log: bytes, first: int, last: int) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Twin of `_columns.decode_columns`: (offset, timestamp, key, value) of each row."""
    out = []
    for batch, _, row in shown(log):
        timestamp = batch.base_timestamp + row.timestamp_delta
        if batch.attributes & 8:
            timestamp = batch.max_timestamp
        offset = batch.base_offset + row.offset_delta
        if first <= offset < last:
            out.append((offset, timestamp, row.key, row.value))
    return out


@dataclass
class Shown:
    """One record as a source shows it; timestamp in ms; no headers are None."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None


def shown_records(
    log: bytes, first: int, last: int, aborted: list[tuple[int, int, int]]
) -> list[Shown]:
    """The same with all columns, without what is of an aborted transaction."""
    out = []
    for batch, _, row in shown(log):
        (producer_id,) = struct.unpack_from(">q", log, batch.position + 43)
        hidden = batch.attributes & 0x10 and any(
            producer_id == producer and start <= batch.base_offset <= end
            for producer, start, end in aborted
        )
        offset = batch.base_offset + row.offset_delta
        append_time = bool(batch.attributes & 8)
        timestamp = batch.max_timestamp if append_time else batch.base_timestamp
        timestamp += 0 if append_time else row.timestamp_delta
        if first <= offset < last and not hidden:
            headers = [(java_text(name), value) for name, value in row.headers]
            out.append(
                Shown(offset, timestamp, int(append_time), row.key, row.value, headers or None)
            )
    return out


def java_text(data: bytes) -> str:
    """Decode bytes as Java's `new String(data, UTF_8)`.

    Java replaces an encoded half of a surrogate pair by one character, Python by several.
    """
    out = ""
    while data:
        half = re.match(rb"\xed[\xa0-\xbf][\x80-\xbf]?", data)
        if half is not None:
            out += "\N{REPLACEMENT CHARACTER}"
            data = data[half.end() :]
            continue
        until = data.find(b"\xed", 1)
        piece = data if until < 0 else data[:until]
        out += piece.decode(errors="replace")
        data = data[len(piece) :]
    return out
