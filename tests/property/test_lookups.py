"""Lookups by offset and by time in a directory that is only read, whatever its indexes hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LogManager, Record, encode
from tests.storage.logs import NOW_MS, write_settings

BATCHES = 60

# Entries that could be, and bytes that cannot.
entries = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 6000)).map(
        lambda pair: pair[0].to_bytes(4, "big") + pair[1].to_bytes(4, "big")
    ),
    max_size=30,
)
contents = st.none() | entries.map(lambda found: b"".join(sorted(found))) | st.binary(max_size=90)


def write_log(directory: Path) -> list[Record]:
    """Three segments of small batches with gaps of offsets, indexed densely; timestamps jump."""
    directory.mkdir(exist_ok=True)
    write_settings(directory, log_index_interval_bytes=100)
    with LogManager.open(str(directory)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number in range(BATCHES):
            records = [
                Record(
                    offset, NOW_MS + (number * 7 + offset) % 50 - number // 9, 0, None, b"v" * 20
                )
                for offset in range(1 + number % 3)
            ]
            log.append(bytearray(encode(records)), now_ns=NOW_MS * 10**6)
            if number % 20 == 19:
                log.roll(NOW_MS)
        return list(log.records())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Record]]:
    directory = tmp_path_factory.mktemp("lookups") / "data"
    return directory, write_log(directory)


@given(
    index=contents,
    time_index=st.none() | st.binary(max_size=100),
    segment=st.integers(0, 3),
    clean=st.booleans(),
)
def test_what_an_index_says_never_hides_a_record(
    written: tuple[Path, list[Record]],
    index: bytes | None,
    time_index: bytes | None,
    segment: int,
    clean: bool,
) -> None:
    directory, records = written
    marker = directory / ".kafka_cleanshutdown"
    marker.touch()
    if not clean:
        marker.unlink()
    logs = sorted((directory / "t-0").glob("*.log"))
    changed = {
        logs[segment].with_suffix(".index"): index,
        logs[segment].with_suffix(".timeindex"): time_index,
    }
    before = {path: path.read_bytes() for path in changed}
    try:
        for path, content in changed.items():
            if content is not None:
                path.write_bytes(content)
        with LogManager.open(str(directory), read_only=True) as manager:
            log = manager.log("t", 0)
            for offset in range(0, records[-1].offset + 1, 5):
                assert next(log.records(offset)).offset == offset
                assert log.read(offset, 1)[:8] <= offset.to_bytes(8, "big")
            if time_index is None:
                for timestamp in range(NOW_MS - 5, NOW_MS + 55, 3):
                    found = log.reader.offset_for_timestamp(timestamp)
                    assert (found or (-1, -1)) == first_from(records, timestamp)
    finally:
        for path, content in before.items():
            path.write_bytes(content)


def first_from(records: list[Record], timestamp: int) -> tuple[int, int]:
    for record in records:
        if record.timestamp >= timestamp:
            return record.timestamp, record.offset
    return -1, -1
