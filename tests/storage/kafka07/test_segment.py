"""storage.kafka07.segment: directories of Kafka 0.7, loaded, read and never written."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager
from storage.errors import CorruptRecord, OffsetOutOfRange, ReadOnlyFormat
from storage.files import Files
from storage.kafka07.segment import Segment07, holds_entries, load_entries
from storage.record.compression import GZIP, SNAPPY
from storage.segment.reader import SegmentReader
from storage.settings.config import LogConfig
from tests.log_check import check, faults_07
from tests.storage.logs import CountedReads, flip
from tests.storage.old_logs import encode_entry, encode_set

MARKER = ".kafka_cleanshutdown"


def write_files(
    directory: Path, *files: Sequence[bytes], start: int = 0, digits: int = 20
) -> list[Path]:
    """A partition's files, one after another, each of these entries."""
    directory.mkdir(exist_ok=True)
    written = []
    for entries in files:
        data = b"".join(entries)
        written.append(directory / f"{start:0{digits}d}.kafka")
        written[-1].write_bytes(data)
        start += len(data)
    return written


def opened(data: Path) -> LogManager:
    return LogManager.open(str(data), read_only=True)


def shown(log: Log, offset: int | None = None) -> list[tuple[int, bytes | None]]:
    return [(record.offset, record.value) for record in log.records(offset)]


FIRST = [encode_entry(b"one"), encode_entry(b"two", magic=0)]
SECOND = [encode_set([b"three", b"four", b"five"], GZIP), encode_entry(b"")]
THIRD = [encode_set([b"six", b"seven"], SNAPPY)]
IDS = list(itertools.accumulate(map(len, [*FIRST, *SECOND, *THIRD]), initial=1000))
RECORDS = [
    (IDS[0], b"one"),
    (IDS[1], b"two"),
    (IDS[2], b"three"),
    (IDS[2], b"four"),
    (IDS[2], b"five"),
    (IDS[3], b""),
    (IDS[4], b"six"),
    (IDS[4], b"seven"),
]


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    """A partition of three files."""
    write_files(tmp_path / "clicks-0", FIRST, SECOND, THIRD, start=1000)
    return tmp_path


# -- loading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [1, 11, 12, 20, 25])
def test_names_of_any_count_of_digits(tmp_path: Path, digits: int) -> None:
    write_files(tmp_path / "clicks-3", FIRST, SECOND, THIRD, start=1000, digits=digits)
    with opened(tmp_path) as manager:
        log = manager.log("clicks", 3)
        assert shown(log) == RECORDS
        assert (log.log_start_offset, log.log_end_offset) == (1000, IDS[-1])
        assert [segment.sealed for segment in log.segments] == [True, True, False]
        assert check(manager) == []
        assert manager.faults == []


@pytest.mark.parametrize("marker", [False, True])
def test_empty_partition(tmp_path: Path, marker: bool) -> None:
    write_files(tmp_path / "clicks-0", [], start=77)
    if marker:
        (tmp_path / MARKER).touch()
    with opened(tmp_path) as manager:
        log = manager.log("clicks", 0)
        assert shown(log) == []
        assert (log.log_start_offset, log.log_end_offset) == (77, 77)
        assert log.read(77, 100) == b""
        assert check(manager) == []


def test_empty_last_file(tmp_path: Path) -> None:
    write_files(tmp_path / "clicks-0", FIRST, [], start=1000)
    with opened(tmp_path) as manager:
        log = manager.log("clicks", 0)
        assert shown(log) == RECORDS[:2]
        assert log.log_end_offset == log.active.base_offset == IDS[2]


@pytest.mark.parametrize("change", [None, -1, 1], ids=["missing", "shorter", "longer"])
def test_a_missing_file_and_one_of_another_size_are_named(clicks: Path, change: int | None) -> None:
    before, file, following = sorted((clicks / "clicks-0").iterdir())[:3]
    if change is None:
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size + change)
    with pytest.raises(CorruptRecord) as caught:
        opened(clicks)
    for named in (before if change is None else file, following):
        assert str(named) in str(caught.value)


def test_two_files_of_one_name(tmp_path: Path) -> None:
    write_files(tmp_path / "clicks-0", FIRST, digits=1)
    write_files(tmp_path / "clicks-0", FIRST, digits=2)
    with pytest.raises(CorruptRecord):
        opened(tmp_path)


def test_a_file_that_ends_behind_every_offset(tmp_path: Path) -> None:
    write_files(tmp_path / "clicks-0", FIRST, start=2**63 - 5)
    with pytest.raises(CorruptRecord, match="largest offset"):
        opened(tmp_path)


def test_not_opened_for_writing_and_nothing_is_changed(clicks: Path) -> None:
    # A partition of the current format; opening for writing would make its index.
    other = clicks / "aaa-0"
    other.mkdir()
    (other / f"{0:020d}.log").touch()
    (clicks / MARKER).touch()
    before = sorted(str(path) for path in clicks.rglob("*"))
    with pytest.raises(ReadOnlyFormat) as caught:
        LogManager.open(str(clicks))
    message = str(caught.value)
    assert "partition clicks-0" in message
    assert "-o ro" in message
    assert "kafkafs convert" in message
    assert "\n" not in message
    (clicks / ".lock").unlink()
    assert sorted(str(path) for path in clicks.rglob("*")) == before


def test_reading_changes_nothing(clicks: Path) -> None:
    before = {path: path.stat() for path in clicks.rglob("*")}
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        assert shown(log) == RECORDS
        assert log.history.nonce
        assert log.segments[0].offset_index.count == 0
    after = {path: path.stat() for path in clicks.rglob("*")}
    assert after.keys() == before.keys()
    for path, stat in before.items():
        assert after[path].st_mtime_ns == stat.st_mtime_ns


def test_a_broker_of_today_does_not_see_these_files(clicks: Path) -> None:
    (clicks / "clicks-0" / f"{0:020d}.log").touch()
    with opened(clicks) as manager:
        assert shown(manager.log("clicks", 0)) == []
    assert holds_entries(["5.kafka"])
    assert not holds_entries(["5.kafka", f"{0:020d}.log"])
    assert not holds_entries(["x.kafka", ".kafka", "5.kafka.tmp", f"{2**63}.kafka"])


def test_nonce_stays_while_the_head_does(clicks: Path) -> None:
    nonces = set()
    for _ in range(2):
        with opened(clicks) as manager:
            nonces.add(manager.log("clicks", 0).history.nonce)
    assert len(nonces) == 1
    sorted((clicks / "clicks-0").iterdir())[0].unlink()
    with opened(clicks) as manager:
        assert manager.log("clicks", 0).history.nonce not in nonces


# -- the tail ------------------------------------------------------------------------------------

TAILS = {
    "half a length": (b"\0\0", "incomplete"),
    "half an entry": (encode_entry(b"never acknowledged")[:-1], "incomplete"),
    "a length only": (b"\0\0\1\0", "incomplete"),
    "zeros": (bytes(50), "length"),
    "length 4": (b"\0\0\0\4" + bytes(4), "length"),
    "a wrong CRC": (encode_entry(b"abc")[:-1] + b"d" + FIRST[0], "CRC"),
    "no magic": (b"\0\0\0\7\7" + bytes(6), "magic"),
}


@pytest.mark.parametrize(("tail", "reason"), TAILS.values(), ids=TAILS.keys())
def test_a_torn_tail_is_out_of_sight_and_stays(clicks: Path, tail: bytes, reason: str) -> None:
    last = sorted((clicks / "clicks-0").iterdir())[-1]
    with last.open("ab") as file:
        file.write(tail)
    size = last.stat().st_size
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        assert shown(log) == RECORDS
        assert log.log_end_offset == IDS[-1]
        [fault] = manager.faults
        assert str(last) in fault
        assert reason in fault
        assert f"position {len(THIRD[0])}" in fault
        assert f"{len(tail)} bytes" in fault
        assert check(manager) == []
    assert last.stat().st_size == size


def test_after_a_clean_stop_the_last_file_is_not_read(clicks: Path) -> None:
    (clicks / MARKER).touch()
    last = sorted((clicks / "clicks-0").iterdir())[-1]
    with last.open("ab") as file:
        file.write(b"\0")
    with opened(clicks) as manager:
        assert manager.faults == []
        [fault] = check(manager)
        assert "incomplete" in fault


@given(
    sizes=st.lists(
        st.sampled_from([0, 1, 100, 5000, 262_134, 262_135, 300_000, 700_000]), max_size=6
    ),
    damage=st.none() | st.floats(0, 1, exclude_max=True),
    cut=st.integers(0, 12),
)
def test_entries_are_checked_whatever_their_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], damage: float | None, cut: int
) -> None:
    entries = [encode_entry(bytes(size)) for size in sizes]
    edges = list(itertools.accumulate(map(len, entries), initial=0))
    data = bytearray(b"".join(entries))
    good = edges[-1]
    if damage is not None and data:
        # A payload's byte, or one of the CRC.
        at = int(damage * len(data))
        number = next(n for n, edge in enumerate(edges[1:]) if at < edge)
        at = max(at, edges[number] + 6)
        data[at] ^= 1
        good = edges[number]
    data += encode_entry(b"the last")[:cut]
    path = tmp_path_factory.mktemp("checked") / "0.kafka"
    path.write_bytes(data)
    told: list[int] = []
    [segment], _ = load_entries(Files(), str(path.parent), [path.name], LogConfig(), progress=None)
    position, reason = segment.check(told.append)
    assert position == good
    assert sum(told) == good
    assert (reason is None) == (good == len(data))


# -- reading -------------------------------------------------------------------------------------


def test_offsets_are_ids(clicks: Path) -> None:
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        for number, id_ in enumerate(IDS[:-1]):
            expected = [record for record in RECORDS if record[0] >= id_]
            assert shown(log, id_) == expected
            # Between two ids there is nothing, as where a cleaner has been.
            following = [record for record in RECORDS if record[0] > id_]
            assert shown(log, id_ + 1) == following
            assert shown(log, IDS[number + 1] - 1) == following
        assert shown(log, IDS[-1]) == []
        for outside in (999, IDS[-1] + 1):
            with pytest.raises(OffsetOutOfRange):
                shown(log, outside)
            with pytest.raises(OffsetOutOfRange):
                log.read(outside, 100)


def test_read_gives_the_file_s_bytes(clicks: Path) -> None:
    entries = [*FIRST, *SECOND, *THIRD]
    ends = [IDS[2], IDS[2], IDS[4], IDS[4], IDS[5]]
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        for number, (id_, end) in enumerate(zip(IDS, ends, strict=False)):
            rest = b"".join(entries)[id_ - 1000 : end - 1000]
            assert log.read(id_, 1 << 20) == rest
            # One entry at least, and no more bytes than asked for.
            assert log.read(id_, 1) == entries[number]
            assert (
                log.read(id_ + 1, 1)[:4]
                == (b"".join(entries) + bytes(4))[IDS[number + 1] - 1000 : IDS[number + 1] - 996]
                or number == len(entries) - 1
            )
        assert log.read(IDS[-1], 100) == b""


def test_offsets_request(clicks: Path) -> None:
    """0.7.2's Log.getOffsetsBefore: the newest file last written at or before the time."""
    files = sorted((clicks / "clicks-0").iterdir())
    for number, path in enumerate(files):
        os.utime(path, ns=(0, (1000 + 100 * number) * 1_000_000))
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        assert log.reader.offset_for_timestamp(999) is None
        assert log.reader.offset_for_timestamp(1000) == (1000, 1000)
        assert log.reader.offset_for_timestamp(1099) == (1000, 1000)
        assert log.reader.offset_for_timestamp(1100) == (1100, IDS[2])
        assert log.reader.offset_for_timestamp(1200) == (1200, IDS[4])
        assert log.reader.offset_for_timestamp(10**15) == (1200, IDS[4])
        assert [segment.largest_timestamp for segment in log.segments] == [1000, 1100, 1200]
        assert [segment.max_timestamp for segment in log.segments] == [-1, -1, -1]


def test_a_damaged_entry_is_said_with_its_place(clicks: Path) -> None:
    middle = sorted((clicks / "clicks-0").iterdir())[1]
    flip(middle, len(SECOND[0]) - 1)
    with opened(clicks) as manager:
        log = manager.log("clicks", 0)
        found = log.records()
        assert next(found).value == b"one"
        assert next(found).value == b"two"
        with pytest.raises(CorruptRecord, match="CRC") as caught:
            next(found)
        assert (caught.value.path, caught.value.position) == (str(middle), 0)
        assert caught.value.offset == IDS[2]
        # The records after the damage can be read.
        assert shown(log, IDS[3]) == RECORDS[5:]
        [fault] = check(manager)
        assert str(middle) in fault


def segment_of(directory: Path, entries: Sequence[bytes], start: int = 0) -> Segment07:
    write_files(directory, entries, start=start)
    names = [path.name for path in directory.iterdir()]
    segments, faults = load_entries(
        Files(), str(directory), names, LogConfig(), progress=lambda size: None
    )
    assert faults == []
    return segments[0]


@given(
    sizes=st.lists(st.integers(0, 300) | st.integers(0, 300_000), min_size=1, max_size=60),
    wanted=st.lists(st.floats(0, 1), min_size=1, max_size=20),
)
def test_locate_finds_the_first_id_from_there_on(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], wanted: list[float]
) -> None:
    entries = [encode_entry(bytes(size)) for size in sizes]
    edges = list(itertools.accumulate(map(len, entries), initial=0))
    segment = segment_of(tmp_path_factory.mktemp("located"), entries, start=10**12)
    for share in wanted:
        at = round(share * edges[-1])
        for target in {at, max(edge for edge in edges if edge <= at)}:
            expected = next((edge for edge in edges[:-1] if edge >= target), None)
            found = SegmentReader(segment).locate(10**12 + target)
            if expected is None:
                assert found is None
            else:
                assert found is not None
                assert found[0] == expected
                assert found[1].base_offset == 10**12 + expected
    assert SegmentReader(segment).locate(0) == next(SegmentReader(segment).batches())
    segment.close()


def test_what_was_walked_once_is_not_read_again(tmp_path: Path) -> None:
    entries = [encode_entry(bytes(100))] * 40_000
    write_files(tmp_path / "p", entries)
    files = CountedReads()
    name = "00000000000000000000.kafka"
    [segment], _ = load_entries(files, str(tmp_path / "p"), [name], LogConfig(), progress=None)
    assert files.bytes_read == 0
    assert SegmentReader(segment).locate(110 * 39_999) is not None
    assert files.bytes_read < 2 * segment.size
    files.bytes_read = 0
    for number in (0, 10_000, 39_998):
        found = SegmentReader(segment).locate(110 * number)
        assert found is not None
        assert found[0] == 110 * number
    assert files.bytes_read < 1 << 19
    segment.close()


def test_locating_in_several_threads(tmp_path: Path) -> None:
    entries = [encode_entry(bytes(100))] * 20_000
    segment = segment_of(tmp_path / "p", entries)
    wrong: list[int] = []

    def look(first: int) -> None:
        for number in range(first, 20_000, 997):
            found = SegmentReader(segment).locate(110 * number)
            if found is None or found[0] != 110 * number:
                wrong.append(number)

    threads = [threading.Thread(target=look, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    segment.close()


def test_a_file_that_has_become_shorter(tmp_path: Path) -> None:
    segment = segment_of(tmp_path / "p", [encode_entry(bytes(100))] * 10_000)
    os.truncate(segment.log_path, 110 * 5000)
    with pytest.raises(CorruptRecord):
        SegmentReader(segment).locate(110 * 9000)
    assert faults_07(segment, segment.next_offset) != []
    segment.close()
