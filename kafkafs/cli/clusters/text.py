"""Shows the records of a piece, as the files of a mount show those of a log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka_client.cluster import TopicPartition
from kafkafs.cli.clusters.pieces import ClusterReader, Piece, Span
from kafkafs.cli.common.matching import Report, Scan, rendered
from kafkafs.views import TextView
from kafkafs.views._measure import Cursor, unfilled
from storage.condition.condition import Condition
from storage.errors import CorruptRecord
from storage.record.columns._predicate import Predicate, kept
from storage.record.control import ABORT, parse_marker
from storage.record.header import HEADER_SIZE, Buffer, parse_header
from storage.record.plain import first_offset, plain

# As much as a processor's cache has room for.
_TEXT_BYTES: Final = 256 << 10

#: Holds for every record.
ALWAYS: Final = Predicate(("every",))


def text_of(piece: Piece, view: TextView, predicate: Predicate = ALWAYS) -> Iterator[memoryview]:
    """Yield the text of the records for which the predicate holds. It is valid until the next one.

    Errors: CorruptRecord.
    """
    out = unfilled(_TEXT_BYTES)
    with _naming_partition(piece):
        if predicate is ALWAYS and _is_shown_whole(piece):
            yield from _text_of_all(piece.fetched.records, view, out)
            return
        for batch in batches_of(piece, predicate):
            yield from rendered(view, batch, Cursor(HEADER_SIZE, len(batch), batch), out)


def scan_of(
    reader: ClusterReader,
    partition: TopicPartition,
    span: Span,
    condition: Condition,
    report: Report,
) -> Scan:
    """Search a span of a partition. Errors: ClientError, OSError."""
    predicate = condition.of_partition(*partition).predicate()

    def batches() -> Iterator[tuple[int, Buffer | None]]:
        for piece in reader.pieces({partition: span}):
            for batch in batches_of(piece, predicate, report):
                yield piece.start - span.start, batch
            yield piece.end - span.start, None

    return Scan(0 if span.end is None else span.end - span.start, batches())


@contextmanager
def _naming_partition(piece: Piece) -> Iterator[None]:
    """Name the partition in errors about its records."""
    try:
        yield
    except CorruptRecord as error:
        raise _named(error, piece) from None


def _named(error: CorruptRecord, piece: Piece) -> CorruptRecord:
    return CorruptRecord(f"{piece.fetched.partition}: {error.message}", offset=error.offset)


def _is_shown_whole(piece: Piece) -> bool:
    fetched = piece.fetched
    first = parse_header(fetched.records)
    return (
        not (fetched.aborted or first.is_wrapper)
        and piece.start <= first.base_offset
        and fetched.next_offset <= piece.end
    )


def _text_of_all(data: memoryview, view: TextView, out: bytearray) -> Iterator[memoryview]:
    cursor = Cursor(0)
    yield from rendered(view, data, cursor, out)
    while cursor.encoded:
        at = cursor.position
        header = parse_header(data, at)
        if header.is_plain:
            cursor = Cursor(at + HEADER_SIZE, at + header.size, data[at:])
        else:
            batch, size = plain(data, at, len(data))
            yield from rendered(view, batch, Cursor(HEADER_SIZE, len(batch), batch), out)
            cursor = Cursor(at + size)
        yield from rendered(view, data, cursor, out)


def batches_of(
    piece: Piece, predicate: Predicate = ALWAYS, report: Report | None = None
) -> Iterator[bytearray]:
    """Yield batches in plain form, with the records that are shown and for which the predicate
    holds. Errors: CorruptRecord without `report`.
    """
    data = piece.fetched.records
    aborted = deque(sorted(piece.fetched.aborted, key=lambda each: each[1]))
    hidden: set[int] = set()
    at = 0
    while at < len(data):
        header, begin = parse_header(data, at), at
        batch: Buffer = data[at : at + header.size]
        at += header.size
        while aborted and aborted[0][1] <= header.last_offset:
            hidden.add(aborted.popleft()[0])
        some = None
        try:
            if header.is_control:
                if header.records_count:
                    marker = parse_marker(batch)
                    if marker is not None and marker.type == ABORT:
                        hidden.discard(header.producer_id)
            elif not header.is_transactional or header.producer_id not in hidden:
                if not header.is_plain:
                    batch, size = plain(data, begin, len(data))
                    at = begin + size
                some = kept(batch, predicate, piece.start, piece.end, header.magic == 0)
        except CorruptRecord as error:
            if report is None:
                raise
            report(_named(error, piece))
            if header.is_control:
                # An aborted transaction ends at the next marker of its producer.
                hidden.discard(header.producer_id)
        if some is not None:
            yield some


def stored_in(piece: Piece) -> memoryview:
    """Return the batches that have records of the span, as they are stored. Errors: CorruptRecord.

    Control batches and those of aborted transactions are among them.
    """
    data = piece.fetched.records
    begin = at = 0
    while at < len(data):
        header = parse_header(data, at)
        batch = data[at : at + header.size]
        if header.last_offset >= piece.end and first_offset(batch, header) >= piece.end:
            break
        at += header.size
        if header.last_offset < piece.start:
            begin = at
    return data[begin:at]
