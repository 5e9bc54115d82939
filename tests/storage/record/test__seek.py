"""storage.record._seek: the record that a walk over the decoded batch finds, or CorruptRecord."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Record, encode
from storage.record._seek import find_record, record_position
from storage.record.batch import decode_plain
from storage.record.header import APPEND_TIME_BIT, HEADER_SIZE
from tests.guard_page import before_guard_page

RECORDS = st.lists(
    st.builds(
        lambda delta, time, key, value: (delta, time, key, value),
        st.integers(1, 300),
        st.integers(-1, 40) | st.integers(0, 2**40),
        st.none() | st.binary(max_size=90),
        st.none() | st.binary(max_size=200),
    ),
    min_size=1,
    max_size=12,
)


@given(records=RECORDS, append_time=st.booleans(), base=st.integers(0, 2**62), data=st.data())
def test_the_first_that_is_wanted(
    records: list[tuple[int, int, bytes | None, bytes | None]],
    append_time: bool,
    base: int,
    data: st.DataObject,
) -> None:
    offset, made = base, []
    for delta, time, key, value in records:
        made.append(Record(offset, time, 0, key, value))
        offset += delta
    batch = encode(made, attributes=APPEND_TIME_BIT if append_time else 0)
    known = decode_plain(batch)
    least = data.draw(st.sampled_from(known))
    wanted = (
        data.draw(st.sampled_from([0, least.offset, least.offset + 1, offset])),
        data.draw(st.sampled_from([-1, least.timestamp, least.timestamp + 1])),
        data.draw(st.integers(0, len(known))),
    )
    expected = next(
        (
            (number, record.offset, record.timestamp)
            for number, record in enumerate(known)
            if (record.offset, record.timestamp, number)
            == tuple(map(max, (record.offset, record.timestamp, number), wanted))
        ),
        None,
    )
    with before_guard_page(bytes(batch)) as guarded:
        found = find_record(guarded, offset=wanted[0], timestamp=wanted[1], number=wanted[2])
    assert found == expected


def test_less_than_a_header_is_no_batch() -> None:
    with pytest.raises(ValueError, match="a batch of 60 bytes"):
        find_record(bytes(60))
    assert find_record(bytes(HEADER_SIZE)) is None


def test_where_a_record_begins() -> None:
    rows = [Record(n, 0, 0, b"k" * n, b"v") for n in range(200)]
    batch = encode(rows)
    positions = [record_position(batch, number) for number in range(len(rows))]
    assert positions == [HEADER_SIZE, *(len(encode(rows[:number])) for number in range(1, 200))]
    with pytest.raises(ValueError, match="a batch of 200 records has no record 200"):
        record_position(batch, 200)
    with pytest.raises(ValueError, match="a batch of 60 bytes"):
        record_position(bytes(60), 0)
