from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.errors import CorruptRecord, InvalidRecord
from storage.record._plain import seal
from storage.record._stamp import stamp_transaction, survey_staged
from storage.record.batch import decode
from storage.record.header import (
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    TRANSACTIONAL_BIT,
    parse_header,
)
from storage.record.plain import recompress
from tests.guard_page import before_guard_page

BATCHES = st.lists(
    st.tuples(
        st.lists(st.binary(max_size=40), min_size=1, max_size=5),
        st.integers(0, 2**40),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=6,
)


def made(parts: list[tuple[list[bytes], int, int]]) -> list[bytes]:
    return [
        bytes(
            recompress(
                encode([Record(n, time, 0, None, value) for n, value in enumerate(values)]),
                codec,
                None,
            )
        )
        for values, time, codec in parts
    ]


@given(BATCHES, st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1))
def test_batches_get_a_producer_and_sequences_and_keep_all_else(
    parts: list[tuple[list[bytes], int, int]], producer_id: int, epoch: int, sequence: int
) -> None:
    before = made(parts)
    data = bytearray().join(before)
    assert survey_staged(data) == (
        max(len(batch) for batch in before),
        max(time for _, time, _ in parts),
        sum(1 << codec for codec in {codec for _, _, codec in parts}),
    )
    after = stamp_transaction(data, producer_id, epoch, sequence)
    at = 0
    for batch in before:
        header = parse_header(data, at)
        old = parse_header(batch)
        assert header == old._replace(
            crc=header.crc,
            attributes=old.attributes | TRANSACTIONAL_BIT,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
        # Its CRC is checked by this.
        assert decode(data, at) == decode(batch)
        sequence = (sequence + header.records_count) % 2**31
        at += header.size
    assert after == sequence


@pytest.mark.parametrize("bit", [TRANSACTIONAL_BIT, CONTROL_BIT, DELETE_HORIZON_BIT])
def test_only_plain_data_is_accepted(bit: int) -> None:
    batch = bytearray(encode([Record(0, 5, 0, None, b"v")]))
    batch[22] |= bit  # the lower byte of the attributes
    seal(batch)
    for check in (survey_staged, lambda data: stamp_transaction(data, 1, 0, 0)):
        with pytest.raises(InvalidRecord, match="is a control batch"):
            check(batch)


@given(BATCHES, st.data())
def test_damage_is_refused_and_nothing_beyond_the_end_is_read(
    parts: list[tuple[list[bytes], int, int]], draw: st.DataObject
) -> None:
    data = bytearray().join(made(parts))
    at = draw.draw(st.integers(0, len(data) - 1))
    # The base offset and the leader epoch are not covered by the CRC.
    data[at] ^= draw.draw(st.integers(1, 255))
    with before_guard_page(data) as view:
        try:
            survey_staged(view)
        except (CorruptRecord, InvalidRecord):
            with pytest.raises((CorruptRecord, InvalidRecord)):
                stamp_transaction(data, 1, 0, 0)
        else:
            position = at
            for batch in made(parts):
                if position < len(batch):
                    break
                position -= len(batch)
            assert position < 8 or 12 <= position < 16
