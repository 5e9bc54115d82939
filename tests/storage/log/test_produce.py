"""A stream of batches is appended by whole batches, up to the first that is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager, Record
from storage.errors import (
    CorruptRecord,
    InvalidRecord,
    OutOfOrderSequence,
    RecordTooLarge,
    StorageError,
)
from storage.log.produce import Produced, StreamAppender
from storage.record.batch import encode
from tests.made_logs import MadeLog
from tests.made_logs import logs as made_logs
from tests.storage.logs import NOW_MS, batch, opened, values
from tests.storage.old_logs import legacy_segment


def new_log(manager: LogManager) -> Log:
    return manager.create_topic("t", 1).partitions[0]


def produce(log: Log, data: bytes) -> Produced:
    producer = StreamAppender(log, lambda: NOW_MS * 1_000_000)
    producer.run(io.BytesIO(data).read)
    return producer.produced


def refused(log: Log, data: bytes, kind: type[StorageError]) -> tuple[Produced, StorageError]:
    producer = StreamAppender(log, lambda: NOW_MS * 1_000_000)
    with pytest.raises(kind) as error:
        producer.run(io.BytesIO(data).read)
    return producer.produced, error.value


def sequenced(value: bytes, sequence: int) -> bytes:
    record = Record(0, NOW_MS, 0, None, value)
    return encode([record], producer_id=5, producer_epoch=0, base_sequence=sequence)


def test_batches_get_new_offsets(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        data = bytes(batch([b"a", b"b"]) + batch([b"c"]))
        assert produce(log, data) == Produced(len(data), 2, 0, 0, 2)
        assert produce(log, data) == Produced(len(data), 2, 0, 3, 5)
        assert values(log) == [b"a", b"b", b"c"] * 2
        assert produce(log, b"") == Produced()


def test_a_stream_of_many_chunks_in_odd_pieces(tmp_path: Path) -> None:
    data = b"".join(bytes(batch([b"%d" % n * 100] * (n % 7 + 1))) for n in range(3000))
    large = bytes(batch([b"x" * 900_000]))
    whole = data + large + data
    assert len(whole) > 4 << 20
    stream = io.BytesIO(whole)
    sizes = iter([1, 2, 16, 61, 100_000, 3] * 10_000)
    with opened(tmp_path) as manager:
        log = new_log(manager)
        producer = StreamAppender(log, lambda: NOW_MS * 1_000_000)
        producer.run(lambda size: stream.read(min(size, next(sizes))))
        assert producer.produced.size == len(whole)
        assert producer.produced.batches == 6001
        assert log.log_end_offset == producer.produced.last_offset + 1


def test_old_formats_become_v2(tmp_path: Path) -> None:
    for magic in (0, 1):
        with opened(tmp_path) as manager:
            log = new_log(manager) if magic == 0 else manager.log("t", 0)
            first = log.log_end_offset
            data, _ = legacy_segment(first, magic)
            assert produce(log, data).last_offset == first + 99
            headers = [header for s in log.segments for _, header in s.batches()]
            assert all(header.magic == 2 for header in headers)


def test_an_incomplete_batch_at_the_end(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        one, two = bytes(batch([b"one"])), bytes(batch([b"two"]))
        for cut in (1, 11, 16, 17, 60, len(two) - 1):
            produced, error = refused(log, one + two[:cut], CorruptRecord)
            assert (produced.size, produced.batches) == (len(one), 1)
            assert error.position == len(one)
        assert values(log) == [b"one"] * 6


@pytest.mark.parametrize("before", [0, 1, 3])
def test_a_damaged_batch_ends_the_stream(tmp_path: Path, before: int) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        good = bytes(batch([b"good"]))
        bad = bytearray(good)
        bad[-1] ^= 1
        produced, error = refused(log, good * before + bad + good, InvalidRecord)
        assert (produced.batches, error.position) == (before, before * len(good))
        assert error.message == "a batch's CRC is wrong"
        assert log.log_end_offset == before


def test_garbage_and_a_length_that_cannot_be(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        good = bytes(batch([b"good"]))
        for bad in (bytes(100), good[:8] + b"\xff\xff\xff\xff" + good[12:], b"\x7f" * 100):
            produced, error = refused(log, good + bad, StorageError)
            assert (produced.batches, error.position) == (1, len(good))


def test_a_batch_that_is_too_large(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        manager.change_topic_settings("t", {"max.message.bytes": "1000"})
        good = bytes(batch([b"good"]))
        produced, error = refused(log, good + bytes(batch([b"x" * 2000])), RecordTooLarge)
        assert (produced.batches, error.position) == (1, len(good))


def test_duplicates_are_left_out_and_gaps_end_the_stream(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        some = sequenced(b"a", 0) + sequenced(b"b", 1)
        assert produce(log, some + sequenced(b"b", 1)).duplicates == 1
        assert str(produce(log, some)) == "0 batches, nothing, 2 duplicates skipped"
        produced, error = refused(log, sequenced(b"d", 3), OutOfOrderSequence)
        assert (produced.batches, error.position) == (0, 0)
        # A gap is right where the stream itself brought what is in front of it.
        assert produce(log, sequenced(b"b", 1) + sequenced(b"d", 3)).batches == 1
        assert values(log) == [b"a", b"b", b"d"]


@given(made_logs(control=False), st.integers(1, 50))
def test_any_log_is_copied(
    tmp_path_factory: pytest.TempPathFactory, made: MadeLog, step: int
) -> None:
    with opened(tmp_path_factory.mktemp("log")) as manager:
        log = new_log(manager)
        stream = io.BytesIO(made.data)
        producer = StreamAppender(log, lambda: NOW_MS * 1_000_000)
        producer.run(lambda size: stream.read(min(size, step)))
        assert producer.produced.size == len(made.data)
        copied = b"".join(segment.read_at(0, segment.size) for segment in log.segments)
        assert len(copied) == len(made.data)
