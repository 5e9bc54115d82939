"""The messages that a fetch returns from a log, and the two layouts of its response."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager
from storage.convert.fetch import (
    ErrorCode,
    MessageSet,
    encode_multi_response,
    encode_response,
    read_messages,
)
from storage.errors import OffsetOutOfRange
from storage.log.append import append_batches
from storage.record.batch import Record, encode
from storage.record.control import ABORT, encode_marker
from tests import fetch_responses
from tests.storage.logs import NOW_MS, append, batch, opened
from tests.storage.old_logs import encode_entry, encode_set

# storage-format's vector: magic 0, "hello".
HELLO = bytes.fromhex("0000000a003610a68668656c6c6f")
OVERHEAD = 9  # bytes of a message beside its payload


def payloads(found: MessageSet) -> list[bytes]:
    return fetch_responses.payloads(found.data)


def filled(manager: LogManager, *values: bytes | None) -> Log:
    log = manager.create_topic("t", 1).partitions[0]
    for value in values:
        append(log, value)
    return log


# -- reading -------------------------------------------------------------------------------------


def test_a_record_is_a_message_of_magic_0(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        assert read_messages(filled(manager, b"hello"), 0, 100) == MessageSet(HELLO, 1, 1)


def test_a_null_value_is_an_empty_payload(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        assert payloads(read_messages(filled(manager, None, b""), 0, 100)) == [b"", b""]


def test_a_set_goes_over_batches_and_segments(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number in range(20):
            append(log, b"a%d" % number, b"b%d" % number)
            if number % 7 == 6:
                log.roll(NOW_MS)
        found = read_messages(log, 1, 1 << 20)
        expected = [b"%c%d" % (kind, n) for n in range(20) for kind in b"ab"][1:]
        assert (payloads(found), found.next_offset) == (expected, 40)


def test_an_empty_set_at_the_end_and_no_set_outside(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = filled(manager, b"hello")
        assert read_messages(log, 1, 10) == MessageSet(b"", 0, 1)
        for offset in (-1, 2):
            with pytest.raises(OffsetOutOfRange):
                read_messages(log, offset, 10)


def test_what_no_consumer_gets_is_left_out(tmp_path: Path) -> None:
    def of_producer(value: bytes, producer: int, sequence: int) -> bytearray:
        record = Record(0, NOW_MS, 0, None, value)
        return bytearray(
            encode(
                [record],
                attributes=0x10,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
            )
        )

    with opened(tmp_path) as manager:
        log = filled(manager, b"before")
        now_ns = NOW_MS * 1_000_000
        append_batches(log, of_producer(b"aborted", 1, 0), now_ns=now_ns)
        append_batches(log, bytearray(encode_marker(ABORT, 1, 0, 0, 2, NOW_MS, 0)), now_ns=now_ns)
        append_batches(log, batch([b"between"]), now_ns=now_ns)
        append_batches(log, of_producer(b"open", 2, 0), now_ns=now_ns)
        append_batches(log, batch([b"behind"]), now_ns=now_ns)
        found = read_messages(log, 0, 1000)
        assert (payloads(found), found.next_offset) == ([b"before", b"between"], 4)
        # A fetch at aborted records skips them, and the next offset is after the last one returned.
        found = read_messages(log, 1, len(HELLO) + 2)
        assert (payloads(found), found.next_offset) == ([b"between"], 4)


def test_an_old_log_goes_out_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    directory.mkdir()
    first = encode_entry(b"one", magic=0) + encode_set([b"two", b"three"], 1)
    second = encode_entry(b"four")
    (directory / f"{0:020}.kafka").write_bytes(first)
    (directory / f"{len(first):020}.kafka").write_bytes(second)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        log = manager.log("t", 0)
        found = read_messages(log, 0, 1000)
        assert (found.data, found.count, found.next_offset) == (first, 2, len(first))
        assert payloads(found) == [b"one", b"two", b"three"]
        found = read_messages(log, found.next_offset, 1000)
        assert (found.data, found.next_offset) == (second, len(first + second))
        assert read_messages(log, found.next_offset, 1000).data == b""
        assert read_messages(log, 0, 1).data == first[: OVERHEAD + 3]
        assert read_messages(log, 1, 1000).data == first[OVERHEAD + 3 :]
        # Between the last id of a file and its end.
        found = read_messages(log, len(first) - 1, 1000)
        assert (found.data, found.next_offset) == (second, len(first + second))


@given(
    sizes=st.lists(st.integers(0, 40), max_size=12),
    max_bytes=st.integers(1, 300),
    first=st.integers(0, 12),
)
def test_a_set_is_a_cut_of_all_messages(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], max_bytes: int, first: int
) -> None:
    values = [bytes([number]) * size for number, size in enumerate(sizes)]
    first = min(first, len(values))
    messages = [encode_entry(value, magic=0) for value in values[first:]]
    whole = b"".join(messages)
    with opened(tmp_path_factory.mktemp("log")) as manager:
        log = filled(manager, *values)
        found = read_messages(log, first, max_bytes)
        assert found.data == whole[: max(max_bytes, len(messages[0]) if messages else 0)]
        assert found.count == len(payloads(found))
        assert found.next_offset == first + found.count


# -- the layouts ---------------------------------------------------------------------------------


def test_the_layouts_byte_by_byte() -> None:
    one = encode_response(HELLO)
    assert one == bytes.fromhex("00000010 0000") + HELLO
    refused = encode_response(b"", ErrorCode.OFFSET_OUT_OF_RANGE)
    assert refused == bytes.fromhex("00000002 0001")
    assert encode_response(b"", ErrorCode.UNKNOWN) == bytes.fromhex("00000002 ffff")
    assert encode_multi_response([one, refused]) == bytes.fromhex("0000001c 0000") + one + refused
    assert encode_multi_response([]) == bytes.fromhex("00000002 0000")
