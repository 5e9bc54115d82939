"""The promises of readers of foreign bytes, as functions of any bytes.

A target takes bytes and reads them as one of the formats.  It returns where they are refused with
a StorageError, and fails where anything else is raised, where what was accepted is not what an
independent reading of the same bytes gives, or where a checksum that is in them would have told
better.  Nothing may take long or much memory.

The bytes of `record` targets lie before a page that nobody may touch, so that a loop that looks
one byte too far ends the process.

Not here: where bytes come from: mutated seeds in the suite (`test_targets.py`), a coverage-guided
fuzzer for as long as one likes (`scripts/fuzz`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kafka_client.fetch import check_batches
from kafka_client.messages import encode, read_answer, schemas
from kafkafs.dump._dump import Walk
from kafkafs.dump.decoders import topic_decoder
from kafkafs.schemas.avro import compiled
from kafkafs.schemas.errors import SchemaError
from kafkafs.views import TextView, json_lines_view, key_value_view
from kafkafs.views._measure import Cursor, Measure
from storage import paths
from storage.errors import CorruptRecord, InvalidRecord, RecordTooLarge, StorageError
from storage.files import Files, Kind
from storage.index import txn_index
from storage.kafka07._entries import walk
from storage.kafka07.entries import headers_07, plain_07
from storage.record._batch import Rebuild, assign_offsets
from storage.record.batch import Record, decode_plain
from storage.record.columns._columns import decode_columns
from storage.record.compression import CODECS, compress, decompress, largest_decompressed
from storage.record.control import parse_marker
from storage.record.crc import crc32c
from storage.record.header import HEADER_SIZE, BatchHeader, pack, parse_header
from storage.record.plain import plain, recompress, to_v2
from storage.record.scan import batches
from storage.settings.messages import MessageError
from storage.settings.setting_files import TOPIC_FILE
from storage.settings.settings import SETTINGS_FILE, Settings
from storage.state import checkpoint_file, producer_state
from storage.words._words import PartBuilder
from storage.words.query import EVERYTHING, AllOf, Entry, OneOf, query_of_key
from storage.words.words import Words, check
from tests import oracle
from tests.fuzz import words_files
from tests.fuzz.cleaning import cleaned
from tests.guard_page import ROOM, before_guard_page
from tests.kafkafs.schemas.avro_values import ORDER
from tests.storage.old_logs import encode_entry
from tests.storage.words import words_twin

Target = Callable[[bytes], None]

TARGETS: dict[str, Target] = {}

KEY_VALUE = key_value_view()
JSON_LINES = json_lines_view()

# As much as a stream may decompress to here: keeps a run in bounds that many may share a machine.
LIMIT = 4 << 20


def target(function: Target) -> Target:
    """Make a function known by its name."""
    TARGETS[function.__name__] = function
    return function


class Source:
    """Bytes in memory as a source of a log."""

    path = "fuzzed"

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def size(self) -> int:
        return len(self._data)

    def read_at(self, position: int, size: int) -> memoryview:
        return self._data[position : position + size]


class OneFile(Files):
    """A disk that has the same content under every name."""

    def __init__(self, data: bytes, name: str = "") -> None:
        self._data = data
        self._name = name

    def read_whole(self, path: str) -> bytes:
        if not path.endswith(self._name):
            raise FileNotFoundError(path)
        return self._data

    def exists(self, path: str) -> bool:
        return path.endswith(self._name)

    def listing(self, path: str) -> list[tuple[str, Kind]]:
        return [(self._name, "file")]

    def replace_atomically(self, path: str, data: bytes, *, sync: bool = True) -> None:
        raise AssertionError("reading writes nothing")


# -- checksums that are right --------------------------------------------------------------------


def with_right_crcs(data: bytes) -> bytes:
    """The same log of v0, v1 and v2 with a right CRC for each entry that is whole."""
    out = bytearray(data)
    at = 0
    while len(out) - at > 16:
        size = int.from_bytes(out[at + 8 : at + 12], "big", signed=True) + 12
        if not 17 < size <= len(out) - at:
            break
        if out[at + 16] == 2 and size >= HEADER_SIZE:
            struct.pack_into(">I", out, at + 17, crc32c(out[at + 21 : at + size]))
        elif out[at + 16] < 2:
            struct.pack_into(">I", out, at + 12, zlib.crc32(out[at + 16 : at + size]))
        at += size
    return bytes(out)


def with_right_crcs_07(data: bytes) -> bytes:
    """The same for entries of 0.7."""
    out = bytearray(data)
    at = 0
    while len(out) - at > 4:
        size = int.from_bytes(out[at : at + 4], "big", signed=True) + 4
        head = 9 + out[at + 4]
        if not head <= size <= len(out) - at or head > 10:
            break
        struct.pack_into(">I", out, at + head - 4, zlib.crc32(out[at + head : at + size]))
        at += size
    return bytes(out)


# -- logs ----------------------------------------------------------------------------------------


def _assert_at(error: StorageError, position: int) -> None:
    assert error.position == position


def _plain_batches(data: memoryview) -> Iterator[tuple[int, bytes | bytearray, int]]:
    """(position, plain form, size) of what a log holds up to its first fault."""
    at = 0
    while at < len(data):
        try:
            made, size = plain(data, at, len(data))
        except StorageError as error:
            _assert_at(error, at)
            return
        if not made:
            assert size > len(data) - at, "says how much more it needs"
            return
        assert 0 < size <= len(data) - at
        yield at, made, size
        at += size


def _assert_crcs(data: memoryview, at: int, end: int) -> None:
    """Every entry between the two has the CRC that it says."""
    while at < end:
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        if data[at + 16] == 2:
            stored, right = data[at + 17 : at + 21], crc32c(data[at + 21 : at + size])
        else:
            stored, right = data[at + 12 : at + 16], zlib.crc32(data[at + 16 : at + size])
        assert int.from_bytes(stored, "big") == right
        at += size
    assert at == end


def _records(made: bytes | bytearray) -> list[Record]:
    """The records of a plain form; CorruptRecord."""
    header = parse_header(made)
    assert (header.size, header.magic, header.codec, header.crc) == (len(made), 2, 0, 0)
    records = decode_plain(made)
    assert len(records) == header.records_count
    return records


@target
def log(data: bytes) -> None:
    """A log of v0, v1 and v2, read in plain form, and the same by other ways."""
    with before_guard_page(data[:ROOM]) as view:
        taken = 0
        for at, made, size in _plain_batches(view):
            _assert_crcs(view, at, at + size)
            taken = at + size
            try:
                records = _records(made)
            except StorageError:
                # Of v2 the plain form was made by the records' lengths alone.
                assert view[at + 16] == 2
                continue
            _assert_columns(view, at, size, records)
            _assert_forms(view, at, size, records)
        _scan(view, taken)


def _assert_columns(view: memoryview, at: int, size: int, records: list[Record]) -> None:
    if parse_header(view[at:]).is_control:
        return
    columns = decode_columns(view[at : at + size], 0, size)
    shown = [record for record in records if 0 <= record.offset < 2**63 - 1]
    assert columns.consumed == size
    assert list(memoryview(columns.offsets).cast("q")) == [record.offset for record in shown]
    assert list(memoryview(columns.timestamps).cast("q")) == [record.timestamp for record in shown]
    assert columns.keys is not None
    assert columns.values is not None
    assert columns.keys.block == b"".join(record.key or b"" for record in shown)
    assert columns.values.block == b"".join(record.value or b"" for record in shown)
    _assert_headers(view, at, size, shown)


def _assert_headers(view: memoryview, at: int, size: int, shown: list[Record]) -> None:
    """The same batch as who reads a log for Spark does. In a log no batch ends before it begins."""
    if parse_header(view[at:]).last_offset_delta < 0:
        return
    largest = max((abs(record.timestamp) for record in shown), default=0)
    try:
        columns = decode_columns(
            view[at : at + size],
            0,
            size,
            headers=True,
            timestamps_us=True,
            timestamp_types=True,
            stop=True,
        )
    except CorruptRecord:
        if largest <= (2**63 - 1) // 1000:
            raise
        return
    headers = [header for record in shown for header in record.headers]
    names = [name.encode(errors="surrogateescape") for name, _ in headers]
    assert columns.rows == len(shown)
    assert columns.header_names is not None
    assert columns.header_names.block.decode() == "".join(map(oracle.java_text, names))
    assert columns.header_values is not None
    assert columns.header_values.block == b"".join(value or b"" for _, value in headers)
    assert columns.header_count == len(headers)
    assert columns.headers is not None
    assert columns.headers.nulls == sum(not record.headers for record in shown)


def _assert_forms(view: memoryview, at: int, size: int, records: list[Record]) -> None:
    """A batch says the same with another codec, or as one of today's format."""
    stored: bytes | memoryview = view[at : at + size]
    header = parse_header(stored)
    if header.magic < 2:
        stored, taken = to_v2(view, at, at + size)
        assert taken == size
    if header.is_control:
        with contextlib.suppress(StorageError):
            parse_marker(stored if not header.codec else _first_plain(stored))
    if len(records) < 1000:
        for codec in range(len(CODECS)):
            again = recompress(stored, codec)
            assert decode_plain(_first_plain(again)) == records
            assert parse_header(again).last_offset == parse_header(stored).last_offset


def _first_plain(data: bytes | memoryview) -> bytes | bytearray:
    made, size = plain(data, 0, len(data))
    assert size == len(data)
    return made


def _scan(view: memoryview, good: int) -> None:
    """The scans find what the reader finds, and no more than there is."""
    found = 0
    with contextlib.suppress(StorageError):
        for at, header in batches(Source(view), 0):
            assert at == found
            found = at + header.size
            assert found <= len(view)
    assert found >= good or not len(view)
    _rebuild(view)
    changed = bytearray(view)
    try:
        entries = assign_offsets(changed, 5, 7)
    except StorageError:
        assert changed == view
    else:
        assert sum(entry[1] for entry in entries) == len(view)


def _rebuild(view: memoryview) -> None:
    whole = Rebuild(0, 100)
    taken = whole.feed(view, len(view), 0)
    assert taken == whole.position <= len(view)
    assert whole.next_offset >= 0
    _assert_crcs(view, 0, taken)
    assert len(whole.offset_entries) % 8 == len(whole.time_entries) % 12 == 0
    offsets = [entry[0] for entry in struct.iter_unpack(">ii", whole.offset_entries)]
    assert offsets == sorted(offsets)
    # In two pieces it is the same.
    half = Rebuild(0, 100)
    middle = len(view) // 2
    first = half.feed(view, middle, 0)
    half.feed(view[first:], len(view) - first, first)
    for name in (
        *("position", "next_offset", "offset_entries", "time_entries", "producers", "epochs"),
        *("max_timestamp", "max_timestamp_offset", "first_max_timestamp", "last_batch_position"),
        *("records", "bytes_since", "fault"),
    ):
        assert getattr(half, name) == getattr(whole, name), name


@target
def records_of_a_batch(data: bytes) -> None:
    """Arbitrary records in a v2 batch of any codec, with a right CRC."""
    if len(data) < 4:
        return
    codec, count, bits = data[0] % 8, data[1], data[2]
    records = data[3:]
    if codec < len(CODECS):
        records = compress(codec, records)
    header = BatchHeader(
        0, 0, 0, 2, 0, codec | bits & 0x78, max(count - 1, 0), 0, 0, bits - 1, 0, 0, count
    )
    log(pack(header, records))


@target
def set_of_messages(data: bytes) -> None:
    """Arbitrary messages in a wrapper of v0 or v1, with a right CRC."""
    if len(data) < 4:
        return
    magic, codec = data[0] & 1, data[1] % 4
    value = with_right_crcs(data[3:])
    value = compress(codec, value)
    wrapper = oracle.Message(data[2], None, value, data[2])
    log(oracle.put_message(wrapper, magic, codec | data[0] & 8))


@target
def dumped_log(data: bytes) -> None:
    """A log as lines and as rows, by whole bytes and by pieces."""
    with before_guard_page(data[:ROOM]) as view:
        whole, pieces = bytearray(), bytearray()
        bits = zlib.crc32(data)
        deep, contents, metadata = bits & 3 != 0, bits & 12 != 0, bits & 48 != 0
        made = partial(Walk, _decompress, deep=deep, contents=contents, metadata=metadata)
        walks = [made(lambda *_: b"."), made(lambda *_: b".")]
        rows = made(rows=True)
        ends = [
            _walked(walks[0], view, len(view), lambda: walks[0].take(whole.extend)),
            _walked(walks[1], view, 1, lambda: walks[1].take(pieces.extend)),
            _walked(rows, view, len(view), rows.take_rows),
        ]
        assert whole == pieces
        assert ends[0] == ends[1]
        # Only lines without contents show records whose contents would lie after their end.
        assert ends[2] == ends[0] or (deep and not contents)
        whole.decode()  # whatever the records hold


def _decompress(codec: int, data: memoryview, *, magic: int) -> bytes | bytearray | memoryview:
    return decompress(codec, data, magic=magic, limit=LIMIT)


def _walked(walk: Walk, view: memoryview, step: int, take: Callable[[], object]) -> int:
    """Where the walk ends that always has at least `step` bytes."""
    start = size = 0
    with contextlib.suppress(StorageError):
        while wanted := walk.step(view[start:], start, size, len(view), len(view)):
            if walk.position + wanted > start + size:
                start, size = walk.position, max(wanted, step)
                assert start + wanted <= len(view)
                size = min(size, len(view) - start)
            take()
    take()
    return walk.position


@target
def dumped_coordinator_record(data: bytes) -> None:
    """A key and a value, the key's length before it, of the topics of Kafka's coordinators."""
    if not data:
        return
    key, value = data[1 : 1 + data[0]], data[1 + data[0] :]
    for name in ("offsets", "transaction-log", "share-group-state"):
        shown, _ = topic_decoder(f"{name}-decoder")(3, key, value)
        assert shown is not None
        if not shown.startswith((b"Unknown record type ", b"Error at offset 3, skipping. ")):
            json.loads(shown)


# -- what a broker sends --------------------------------------------------------------------------

ANSWERS = [message for name, message in schemas().items() if name.endswith("Response")]


@target
def answer_of_a_broker(data: bytes) -> None:
    """An answer, of the API and the version that the first two bytes choose."""
    if len(data) < 2:
        return
    message = ANSWERS[data[0] % len(ANSWERS)]
    version = message.first + data[1] % (message.last - message.first + 1)
    # Of a view the records of Fetch are views, too.
    body = memoryview(data)[2:] if message.name == "FetchResponse" else data[2:]
    try:
        found = read_answer(message, version, body)
    except MessageError:
        return
    known = _without_unknown_tags(found)
    out = bytearray()
    if version >= message.flexible and message.name != "ApiVersionsResponse":
        out += b"\0"
    encode(out, message, version, known)
    assert read_answer(message, version, bytes(out)) == known


def _without_unknown_tags(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_unknown_tags(value[name]) for name in value if name}
    return [_without_unknown_tags(item) for item in value] if isinstance(value, list) else value


@target
def fetched_batches(data: bytes) -> None:
    """Batches that a broker sends for an offset below a high watermark."""
    with before_guard_page(data[:ROOM]) as view:
        for offset, end in ((0, 1 << 62), (3, 100)):
            checked = check_batches(view, offset, end)
            assert 0 <= checked.size <= len(view)
            _assert_crcs(view, 0, checked.size)
            at, next_offset = 0, offset
            while at < checked.size:
                header = parse_header(view, at)
                assert header.base_offset >= next_offset or not at
                assert next_offset <= header.last_offset < end
                at, next_offset = at + header.size, header.last_offset + 1
            assert checked.next_offset == next_offset


# -- compaction ----------------------------------------------------------------------------------


@target
def cleaned_log(data: bytes) -> None:
    """A log that is cleaned by the loops of compaction, where no checksum helps."""
    cleaned(with_right_crcs(data[:ROOM]))


@target
def cleaned_records(data: bytes) -> None:
    """Arbitrary records in an uncompressed batch, cleaned."""
    if len(data) < 3:
        return
    count, bits = data[0], data[1]
    header = BatchHeader(0, 0, 0, 2, 0, bits & 0x58, max(count - 1, 0), 0, 0, -1, -1, -1, count)
    cleaned(pack(header, data[2:]))


# -- words ---------------------------------------------------------------------------------------

SECRET = 1, 2


@target
def words_of_a_log(data: bytes) -> None:
    """The words of each batch of a log, where no checksum helps."""
    for _, made, _ in _plain_batches(memoryview(with_right_crcs(data[:ROOM]))):
        header = parse_header(made)
        builder = PartBuilder(*SECRET, header.base_offset)
        records: list[Record] | None = None
        with contextlib.suppress(StorageError):
            records = [] if header.is_control else _records(made)
        try:
            with before_guard_page(made) as view:
                builder.read(view)
        except StorageError:
            last = header.last_offset
            assert (
                records is None
                or not header.base_offset <= last < paths.MAX_OFFSET
                or not all(header.base_offset <= record.offset <= last for record in records)
            )
            continue
        assert records is not None
        assert builder.block_count is not None
        builder.end_block(0)
        pages, directory, buckets = builder.end(0)
        expected = words_twin.part([words_twin.hashes(records, SECRET)], SECRET, 0)
        assert (bytes(pages), bytes(directory), buckets) == expected


@target
def words_file(data: bytes) -> None:
    """Any bytes as the words of a segment: refused, or ranges in the segment."""
    segment = words_files.segment_on(words_files.TwoFiles(data))
    path = segment.file_path(".words")
    check(segment, path)
    words = Words.open(segment, path)
    if words is None:
        return
    for query in (EVERYTHING, Entry(b"all"), query_of_key(b"key"), AllOf((Entry(b"in3"),))):
        for either in (query, OneOf((query, Entry(b"absent")))):
            assert all(type(first) is type(last) is int for first, last in words.offsets(either))


# -- views ---------------------------------------------------------------------------------------


def _batches_of_records(data: bytes) -> Iterator[tuple[bytes | bytearray, list[Record]]]:
    """The sound batches of a log in plain form, without markers."""
    for _, made, _ in _plain_batches(memoryview(data[:ROOM])):
        with contextlib.suppress(StorageError):
            records = _records(made)
            if not parse_header(made).is_control:
                yield made, records


@target
def key_value_text(data: bytes) -> None:
    """A log as lines of key and value, at once and in pieces, and back."""
    for made, records in _batches_of_records(data):
        rows = [oracle.Row(0, 0, record.key, record.value) for record in records]
        text = b"".join(map(oracle.key_value_line, rows))
        _assert_shown(KEY_VALUE, made, text)
        again, lines = KEY_VALUE.parse(text, 0, len(text), 0, 1 << 30)
        assert lines == len(records)
        assert [
            (record.key, record.value) for record in (decode_plain(again) if lines else [])
        ] == [(record.key, record.value) for record in records]


def _assert_shown(view: TextView, made: bytes | bytearray, text: bytes) -> None:
    """A view shows this text of a batch in plain form."""
    # Of a transaction's somebody else has judged whether it is shown.
    plain_form = bytearray(made)
    plain_form[22] &= ~0x10
    with before_guard_page(plain_form) as batch:
        assert _shown(view, batch, len(batch), len(text) + 1) == text
        assert _shown(view, batch, 70, 7) == text
        state = Measure()
        view.measure(batch, 0, len(batch), state)
        assert state.text_length == len(text)


def _shown(view: TextView, log: memoryview, window: int, room: int) -> bytes:
    """Return a view's text, with windows of at least `window` bytes and a buffer of `room`."""
    text = b""
    out = bytearray(room)
    cursor = Cursor(0)
    while True:
        start = min(cursor.position, len(log))
        end = min(start + max(window, cursor.needed), len(log))
        done, _ = view.render(log[start:end], start, end - start, cursor, out, 0, room, 0)
        text += out[:done]
        if not done and end == len(log):
            return text


def _assert_parsed(
    view: TextView,
    data: bytes,
    fields: Callable[[bytes], Any],
    encode: Callable[[list[Any], int, int], bytes | int],
    choice: int,
) -> None:
    """A view parses any bytes as the oracle's functions do, or names the same line.

    `choice`: the position of a byte that chooses how large a batch may be.
    """
    text = data[: ROOM - 1] + b"\n"
    lines = []
    wrong = None
    for number, line in enumerate(text[:-1].split(b"\n"), 1):
        try:
            lines.append(fields(line))
        except ValueError:
            wrong = number
            break
    limit = (70, 100, 1000, 1 << 30)[text[choice:][0] % 4]
    expected = encode(lines, 0, limit)
    if wrong is not None and not isinstance(expected, int):
        expected = b"line %d" % wrong
    found: bytes | int | None
    with before_guard_page(text) as guarded:
        try:
            found = bytes(view.parse(guarded, 0, len(guarded), 0, limit)[0])
        except RecordTooLarge as error:
            found = error.line
        except InvalidRecord as error:
            found = error.message.partition(": ")[0].encode()
            if not error.message.isprintable():
                raise AssertionError("the reason is no line of text") from error
    assert found == expected


@target
def key_value_lines(data: bytes) -> None:
    """Any bytes as lines of key and value."""
    _assert_parsed(KEY_VALUE, data, oracle.key_value_fields, oracle.encode_pairs, 0)


@target
def json_text(data: bytes) -> None:
    """A log as lines of JSON, at once and in pieces, and back."""
    for made, records in _batches_of_records(data):
        text = b"".join(map(_json_line, records))
        _assert_shown(JSON_LINES, made, text)
        if any(json.loads(line)["timestamp"] < -1 for line in text.splitlines()):
            with contextlib.suppress(InvalidRecord):
                JSON_LINES.parse(text, 0, len(text), 0, 1 << 30)
                raise AssertionError("a timestamp below -1")
            continue
        again, lines = JSON_LINES.parse(text, 0, len(text), 0, 1 << 30)
        assert lines == len(records)
        for record, back in zip(records, decode_plain(again) if lines else [], strict=True):
            assert back == record._replace(
                offset=back.offset, timestamp=back.timestamp, timestamp_type=0
            )
            assert back.timestamp == _wrapped(record.timestamp)


def _json_line(record: Record) -> bytes:
    headers = [(name.encode("utf-8", "surrogateescape"), value) for name, value in record.headers]
    offset, timestamp = _wrapped(record.offset), record.timestamp
    attributes = 8 if record.timestamp_type else 0
    batch = oracle.Batch(0, 0, offset, 0, attributes, 0, timestamp, timestamp, 1)
    return oracle.json_line(batch, oracle.Row(0, 0, record.key, record.value, headers))


def _wrapped(number: int) -> int:
    """As Java's numbers of 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


AVRO = compiled(json.dumps(ORDER))
AVRO_JSON = compiled(json.dumps(ORDER), avro_json=True)


@target
def avro_value(data: bytes) -> None:
    """Any bytes as a value in Avro's encoding: refused, or JSON of a limited length."""
    with before_guard_page(data[:ROOM]) as view:
        for avro in (AVRO, AVRO_JSON):
            with contextlib.suppress(SchemaError):
                text, end = avro.decode(view)
                json.loads(text)
                assert end <= len(view)
                assert len(text) <= 64 * len(view) + (1 << 20)


@target
def avro_schema(data: bytes) -> None:
    """Any text as a schema: refused, or it decodes some bytes or refuses them."""
    with contextlib.suppress(UnicodeDecodeError, SchemaError):
        avro = compiled(data.decode(), iso_times=True)
        json.loads(avro.decode(bytes(300))[0])


@target
def json_lines(data: bytes) -> None:
    """Any bytes as lines of JSON."""
    _assert_parsed(JSON_LINES, data, oracle.json_fields, oracle.encode_json, -2)


# -- 0.7 -----------------------------------------------------------------------------------------


@target
def log_07(data: bytes) -> None:
    """A log of Kafka 0.7."""
    with before_guard_page(data[:ROOM]) as view:
        edges = [0]
        at = 0
        while at < len(view):
            try:
                made, size = plain_07(view, at, len(view), at)
            except StorageError as error:
                _assert_at(error, at)
                break
            if not made:
                assert size > len(view) - at
                break
            records = _records(made)
            end = at + size
            ids = []
            while at < end:
                ids.append(at)
                length = int.from_bytes(view[at : at + 4], "big")
                head = 9 + view[at + 4]
                crc = zlib.crc32(view[at + head : at + 4 + length])
                assert view[at + head - 4 : at + head] == struct.pack(">I", crc)
                at += 4 + length
                edges.append(at)
            assert at == end
            assert [id_ for id_, _ in itertools.groupby(record.offset for record in records)] == [
                id_ for id_ in ids if len(ids) > 1 or records
            ]
        end, _ = walk(view, 0, len(view), len(view), check_crc=True)
        assert edges[-1] <= end <= len(view)
        found = [0]
        with contextlib.suppress(StorageError):
            for position, header in headers_07(Source(view), 0, len(view), 0):
                assert position == found[-1] == header.base_offset
                found.append(position + header.size)
        assert found[: len(edges)] == edges


@target
def set_of_entries_07(data: bytes) -> None:
    """Arbitrary entries in a compressed message set of 0.7."""
    if len(data) < 2:
        return
    codec = 1 + data[0] % 2
    log_07(encode_entry(compress(codec, with_right_crcs_07(data[1:])), codec=codec))


# -- streams -------------------------------------------------------------------------------------


def _stream(codec: int, data: bytes) -> None:
    for magic in (0, 1, 2):
        try:
            with before_guard_page(data[:ROOM]) as stream:
                found = bytes(decompress(codec, stream, magic=magic, limit=LIMIT))
                assert magic < 2 or len(found) <= largest_decompressed(codec, stream)
        except StorageError:
            continue
        assert len(found) <= LIMIT
        if len(found) < 1 << 16:
            # With one byte less of room it is refused, so this was all.
            assert bytes(decompress(codec, compress(codec, found))) == bytes(found)
            if len(found):
                with contextlib.suppress(StorageError):
                    decompress(codec, data[:ROOM], magic=magic, limit=len(found) - 1)
                    raise AssertionError("more than the limit")


for number, name in enumerate(CODECS[1:], 1):
    TARGETS[f"{name}_stream"] = partial(_stream, number)


# -- small files ---------------------------------------------------------------------------------


@target
def snapshot(data: bytes) -> None:
    """Producer snapshots, with the CRC that they have and with a right one."""
    right = bytearray(data)
    if len(right) >= 6:
        struct.pack_into(">I", right, 2, crc32c(right[6:]))
    for given in (data, bytes(right)):
        with contextlib.suppress(StorageError):
            entries = producer_state.decode(given, path="s")
            assert producer_state.encode(entries) == given
        with contextlib.suppress(StorageError):
            state = producer_state.ProducerState.decode(given, path="s")
            again = producer_state.ProducerState.decode(state.encode(), path="s")
            assert again.by_id == state.by_id


@target
def transaction_index(data: bytes) -> None:
    entries = txn_index.decode(data)
    assert len(entries) == len(data) // txn_index.ENTRY_SIZE
    txn_index.sanity(entries, 0, 100)
    assert txn_index.decode(txn_index.encode(entries)) == entries


@target
def checkpoints(data: bytes) -> None:
    files = OneFile(data)
    with contextlib.suppress(StorageError):
        for offset in checkpoint_file.read_offsets(files, "f").values():
            assert 0 <= offset < 2**63
    with contextlib.suppress(StorageError):
        epochs = checkpoint_file.read_epochs(files, "f")
        assert epochs == sorted(epochs)
    with contextlib.suppress(StorageError):
        topic_id = checkpoint_file.read_partition_metadata(files, "f")
        assert topic_id is None or len(topic_id) == 22


@target
def settings(data: bytes) -> None:
    for name in (SETTINGS_FILE, TOPIC_FILE):
        with contextlib.suppress(StorageError):
            found = Settings(OneFile(data, name), "/d")
            found.log_config("t")
            found.get_owner("t", 0)


# -- the same where no checksum helps ------------------------------------------------------------


def _of_right_crcs(function: Target, right: Callable[[bytes], bytes], data: bytes) -> None:
    function(right(data[:ROOM]))


for function, right in (
    *((each, with_right_crcs) for each in (log, dumped_log, fetched_batches)),
    (log_07, with_right_crcs_07),
    (words_file, words_files.with_right_checksums),
):
    TARGETS[f"{function.__name__}_of_right_crcs"] = partial(_of_right_crcs, function, right)
