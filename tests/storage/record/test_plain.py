"""storage.record.plain: the plain form of v2 batches, recompressing, and conversion to v2."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.record._plain import plain_v2
from storage.record._plain import seal as seal_batch
from storage.record.batch import decode, decode_plain
from storage.record.compression import compress, decompress
from storage.record.header import FRAME_SIZE, HEADER_SIZE, pack, parse_header
from storage.record.plain import plain, recompress, to_v2
from tests import oracle
from tests.made_logs import MadeLog, logs
from tests.oracle import Message, put_message, put_wrapper, without_crc
from tests.storage.record.test_batch import (
    ABORT_MARKER,
    EMPTY_BATCH,
    REJECTED,
    THREE_RECORDS,
    V0_ENTRY,
    V1_ENTRY,
    T,
    seal,
)

codecs = st.integers(0, 4)


def packed(batch: bytes, codec: int) -> bytes:
    """The batch compressed, whatever is in it; `recompress` would look."""
    header = parse_header(batch)
    records = compress(codec, batch[HEADER_SIZE:])
    return pack(header._replace(attributes=header.attributes | codec), records)


@given(log=logs(), codec=codecs)
def test_plain_form_is_the_batch_before_it_was_compressed(log: MadeLog, codec: int) -> None:
    for batch in oracle.walk(log.data):
        stored = log.data[batch.position : batch.end]
        compressed = packed(stored, codec)
        for data in (compressed, memoryview(compressed), bytearray(compressed)):
            made, size = plain(data, 0, len(data))
            assert (made, size) == (without_crc(stored), len(compressed))
        made, size = plain(b"abc" + compressed + b"tail", 3, 3 + len(compressed))
        assert (made, size) == (without_crc(stored), len(compressed))
        assert decode(compressed) == decode(stored) == decode_plain(made)


@given(log=logs(), first=codecs, second=codecs)
def test_recompress_changes_the_codec_alone(log: MadeLog, first: int, second: int) -> None:
    for batch in oracle.walk(log.data):
        stored = log.data[batch.position : batch.end]
        once = recompress(stored, first)
        assert recompress(once, 0) == stored
        again = recompress(once, second)
        header = parse_header(again)
        assert decode(again) == decode(stored)
        if header.is_control or header.records_count == 0:
            assert once == again == stored
        else:
            assert header.codec == second
            assert again[HEADER_SIZE:] == compress(second, stored[HEADER_SIZE:])
        before = parse_header(stored)
        kept = before._replace(
            batch_length=header.batch_length, crc=header.crc, attributes=header.attributes
        )
        assert kept == header
        assert header.attributes & ~7 == before.attributes


def test_recompress_with_a_level() -> None:
    row = oracle.put_row(oracle.Row(0, 0, None, b"".join(b"%d," % n for n in range(9000))))
    batch = oracle.put_batch(row, 1)
    assert len(recompress(batch, 4, 19)) < len(recompress(batch, 4, -5))
    assert recompress(batch, 4) == recompress(batch, 4, 3)
    assert decode(recompress(batch, 4, 19)) == decode(batch)
    fast = recompress(batch, 4, -5)
    assert recompress(fast, 4, 19) == fast  # it has that codec already


def test_batches_that_are_never_compressed() -> None:
    for batch in (ABORT_MARKER, EMPTY_BATCH):
        assert recompress(batch + b"x", 4) == batch
        assert plain(batch, 0, len(batch)) == (without_crc(batch), len(batch))


def test_all_of_the_header_is_kept() -> None:
    header = parse_header(THREE_RECORDS)._replace(
        base_offset=2**62,
        leader_epoch=2**31 - 1,
        attributes=0x0F78,
        last_offset_delta=99,
        base_timestamp=-(2**63),
        producer_id=2**63 - 1,
        producer_epoch=32767,
        base_sequence=2**31 - 1,
    )
    batch = pack(header, THREE_RECORDS[HEADER_SIZE:])
    for codec in range(5):
        compressed = packed(batch, codec)
        made, _ = plain(compressed, 0, len(compressed))
        assert made == without_crc(batch)


def test_empty_batch_with_a_codec() -> None:
    header = parse_header(EMPTY_BATCH)._replace(attributes=4)
    for records in (b"", compress(4, b"")):
        batch = pack(header, records)
        assert decode(batch) == []
        assert plain(batch, 0, len(batch))[0] == without_crc(EMPTY_BATCH)
    with pytest.raises(CorruptRecord):
        decode(pack(header, compress(4, b"x")))


@pytest.mark.parametrize("entry", [THREE_RECORDS, V0_ENTRY, V1_ENTRY, recompress(THREE_RECORDS, 1)])
def test_what_is_not_whole(entry: bytes) -> None:
    for size in range(len(entry)):
        wanted = len(entry) if size >= FRAME_SIZE else FRAME_SIZE
        assert plain(b"ab" + entry, 2, 2 + size) == (bytearray(), wanted)
        with pytest.raises(CorruptRecord):
            decode(b"ab" + entry[:size], 2)
        assert to_v2(b"ab" + entry, 2, 2 + size) == (b"", wanted)


FRAMES = {
    "zeros": (bytes(100), "length"),
    "magic 3": (THREE_RECORDS[:16] + b"\3" + THREE_RECORDS[17:], "magic"),
    "magic -1": (THREE_RECORDS[:16] + b"\xff" + THREE_RECORDS[17:], "magic"),
    "length 48": (THREE_RECORDS[:8] + struct.pack(">i", 48) + THREE_RECORDS[12:], "length"),
    "negative length": (THREE_RECORDS[:8] + struct.pack(">i", -1) + THREE_RECORDS[12:], "length"),
    "wrong CRC": (THREE_RECORDS[:-1] + b"\1", "CRC"),
    "codec 5": (seal(THREE_RECORDS[:22] + b"\5" + THREE_RECORDS[23:]), "codec"),
    "no stream": (seal(THREE_RECORDS[:22] + b"\4" + THREE_RECORDS[23:]), "zstd"),
}


@pytest.mark.parametrize(("batch", "reason"), FRAMES.values(), ids=FRAMES.keys())
def test_malformed_batches(batch: bytes, reason: str) -> None:
    data = THREE_RECORDS + batch
    with pytest.raises(CorruptRecord, match=reason) as caught:
        plain(data, 95, len(data))
    assert caught.value.position == 95
    with pytest.raises(CorruptRecord, match=reason):
        decode(data, 95)


LENGTHS = (
    "negative count",
    "fewer records than the count",
    "more records than the count",
    "bytes after the records",
    "no bytes but a count",
    "record longer than its batch",
    "negative record length",
    "varint without an end",
)


@pytest.mark.parametrize("reason", REJECTED)
def test_reader_rejects(reason: str) -> None:
    for codec in range(5):
        data = THREE_RECORDS + packed(REJECTED[reason], codec)
        with pytest.raises(CorruptRecord) as caught:
            decode(data, 95)
        assert caught.value.position is not None
        assert caught.value.position in ([95] if codec else range(95, len(data) + 1)), codec
        if reason in LENGTHS:
            with pytest.raises(CorruptRecord):
                plain(data, 95, len(data))


@given(log=logs(max_batches=1), change=st.sampled_from([-1, 1]))
def test_count_that_is_wrong(log: MadeLog, change: int) -> None:
    for batch in oracle.walk(log.data):
        wrong = bytearray(log.data)
        struct.pack_into(">i", wrong, 57, batch.count + change)
        with pytest.raises(CorruptRecord, match="count"):
            plain(seal(wrong), 0, len(wrong))


def test_sealing() -> None:
    batch = bytearray(THREE_RECORDS)
    batch[8:12] = batch[17:21] = bytes(4)
    seal_batch(batch)
    assert batch == THREE_RECORDS
    with pytest.raises(ValueError, match="60 bytes"):
        seal_batch(bytearray(60))
    for at, size in ((0, 60), (-1, 95), (1, 95)):
        with pytest.raises(ValueError, match="of a buffer"):
            plain_v2(THREE_RECORDS, at, size, decompress, 1 << 20)


@pytest.mark.parametrize("size", [0, 60, 61, len(THREE_RECORDS) - 1])
def test_recompress_wants_a_whole_batch(size: int) -> None:
    with pytest.raises(CorruptRecord, match="truncated"):
        recompress(THREE_RECORDS[:size], 1)
    with pytest.raises(AssertionError):
        recompress(V1_ENTRY * 3, 1)


# -- to_v2 ---------------------------------------------------------------------------------------


def test_messages_become_a_stored_batch() -> None:
    made = [Message(number, b"k%d" % number, b"v", T + number) for number in (5, 7, 8)]
    for magic in (0, 1):
        log = b"ab" + b"".join(put_message(message, magic) for message in made)
        batch, size = to_v2(log, 2, len(log))
        assert size == len(log) - 2
        assert batch[:17] == plain(log, 2, len(log))[0][:17]
        assert decode(batch) == decode_plain(plain(log, 2, len(log))[0])
        assert parse_header(batch).codec == 0


@pytest.mark.parametrize("codec", [1, 2, 3])
def test_wrappers_keep_their_codec(codec: int) -> None:
    inner = [Message(number, None, b"x" * 100, T) for number in range(3)]
    messages = b"".join(put_message(message, 1) for message in inner)
    wrapper = put_message(Message(12, None, compress(codec, messages), T), 1, codec)
    batch, size = to_v2(wrapper, 0, len(wrapper))
    header = parse_header(batch)
    assert (size, header.codec, header.base_offset, header.last_offset) == (
        len(wrapper),
        codec,
        10,
        12,
    )
    assert decode(batch) == decode(wrapper)


def test_append_time_is_kept() -> None:
    wrapper = put_wrapper([Message(0, None, b"x", T)], 1, 1, timestamp=T + 9, attributes=8)
    batch, _ = to_v2(wrapper, 0, len(wrapper))
    assert parse_header(batch).attributes == 8 | 1
    assert [record.timestamp for record in decode(batch)] == [T + 9]
