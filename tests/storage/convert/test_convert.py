"""Old formats become v2, in place, with the same records."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import Log, LogManager, Record
from storage.convert.convert import Outcome, convert
from storage.errors import LogLocked, UnknownTopicOrPartition
from storage.segment.reader import SegmentReader
from storage.verify.verify import verify
from tests.crash.disk import SimulatedDisk
from tests.storage.logs import append, flip, opened, values
from tests.storage.old_logs import (
    MTIME_NS,
    content,
    copy,
    encode_entry,
    encode_set,
    old_and_legacy,
    old_file,
    write_legacy,
    write_old,
)


def records(data: Path) -> list[Record]:
    with LogManager.open(str(data), read_only=True) as manager:
        return list(manager.log("t", 0).records())


def whole(outcome: Outcome) -> int:
    """How many files were converted, all well."""
    assert (outcome.faults, outcome.cuts) == ([], [])
    return len(outcome.converted)


def codecs(log: Log) -> list[int]:
    headers = [header for segment in log.segments for _, header in SegmentReader(segment).batches()]
    assert all(header.magic == 2 for header in headers)
    return [header.codec for header in headers]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_messages_become_v2(tmp_path: Path, magic: int) -> None:
    directory = write_legacy(tmp_path, "t", magic)
    before = records(tmp_path)
    assert len(before) == 200
    assert whole(convert(str(tmp_path))) == 2
    assert verify(str(tmp_path)).faults == []
    for path in directory.glob("*.log"):
        assert path.stat().st_mtime_ns == MTIME_NS
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert list(log.records()) == before
        assert codecs(log) == [0, 1, 2, 3, 0] * 2
        assert [segment.base_offset for segment in log.segments] == [5, 105]
        assert log.log_end_offset == 205
        append(log, b"goes on")
    assert whole(convert(str(tmp_path))) == 0, "there is nothing left to do"


def test_what_is_v2_already_is_copied_as_it_is(tmp_path: Path) -> None:
    directory = write_legacy(tmp_path, "t", 1, segments=1)
    with opened(tmp_path) as manager:
        append(manager.log("t", 0), b"a", b"b")
        manager.log("t", 0).roll(0)
        append(manager.log("t", 0), b"c")
    younger = (directory / f"{107:020}.log").read_bytes()
    before = records(tmp_path)
    assert whole(convert(str(tmp_path))) == 1
    assert records(tmp_path) == before
    assert (directory / f"{107:020}.log").read_bytes() == younger
    data = (directory / f"{5:020}.log").read_bytes()
    assert data.endswith(b"a\0\x0e\0\0\2\1\2b\0")
    assert verify(str(tmp_path)).faults == []


def test_a_directory_that_was_not_closed_is_recovered_first(tmp_path: Path) -> None:
    directory = write_legacy(tmp_path, "t", 0)
    last = directory / f"{105:020}.log"
    last.write_bytes(last.read_bytes()[:-3])
    outcome = convert(str(tmp_path))
    assert (len(outcome.converted), outcome.faults) == (2, [])
    assert [cut.reason for cut in outcome.cuts] == ["the last batch is incomplete"]
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).log_end_offset == 204


def test_only_these_topics(tmp_path: Path) -> None:
    for topic in ("t", "u"):
        write_legacy(tmp_path, topic, 1)
    untouched = content(tmp_path / "u-0")
    (tmp_path / ".kafka_cleanshutdown").touch()
    assert whole(convert(str(tmp_path), topics=["t"])) == 2
    assert content(tmp_path / "u-0") == untouched
    with pytest.raises(UnknownTopicOrPartition):
        convert(str(tmp_path), topics=["v"])


def test_a_dry_run_changes_nothing_and_says_the_same(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_legacy(data, "t", 1)
    write_old(data, "old", old_file(b"one", b"two"), digits=11)
    before = content(data)
    outcome = convert(str(data), dry_run=True)
    assert whole(outcome) == 3
    assert content(data) == before
    done = convert(str(data))
    facts = [(item.records, item.batches, item.size_after) for item in outcome.converted]
    assert [(item.records, item.batches, item.size_after) for item in done.converted] == facts


def test_a_partition_is_no_data_directory(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        convert(str(write_legacy(tmp_path, "t", 1)))


def test_what_is_open_is_refused(tmp_path: Path) -> None:
    with LogManager.open(str(tmp_path)), pytest.raises(LogLocked):
        convert(str(tmp_path))


def test_a_damaged_log_stays_and_the_others_are_converted(tmp_path: Path) -> None:
    for topic in ("s", "t"):
        write_legacy(tmp_path, topic, 1)
    write_old(tmp_path, "old", old_file(b"one"), old_file(b"two"))
    (tmp_path / ".kafka_cleanshutdown").touch()
    for path in (tmp_path / "s-0" / f"{5:020}.log", tmp_path / "old-0" / f"{0:020}.kafka"):
        flip(path, 60)
    before = content(tmp_path / "old-0")
    outcome = convert(str(tmp_path))
    assert ["old-0" in fault or "s-0" in fault for fault in outcome.faults] == [True, True]
    assert len(outcome.converted) == 3, "one segment of s, two of t"
    assert content(tmp_path / "old-0") == before
    assert list(tmp_path.rglob("*.cleaned")) == []
    assert records(tmp_path)[0].offset == 5


def codec_bytes(file: bytes | bytearray) -> set[int]:
    """The positions of the codecs in a file of 0.7, whose CRCs cover nothing but the payloads."""
    found, at = set(), 0
    while at < len(file):
        if file[at + 4] == 1:
            found.add(at + 5)
        at += 4 + int.from_bytes(file[at : at + 4], "big")
    return found


@given(data=st.data(), magic=st.sampled_from([0, 1, 7]))
def test_whatever_is_damaged_nothing_is_invented(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, magic: int
) -> None:
    """A converted file has only records that were there; or there is a fault and the file stays."""
    target = tmp_path_factory.mktemp("damaged")
    if magic == 7:
        path = write_old(target, "t", old_file(b"one", b"two")) / f"{0:020}.kafka"
    else:
        path = write_legacy(target, "t", magic, segments=1) / f"{5:020}.log"
    (target / ".kafka_cleanshutdown").touch()
    expected = [record.value for record in records(target)]
    log = bytearray(path.read_bytes())
    unchecked = codec_bytes(log) if magic == 7 else set()
    at = data.draw(st.integers(0, len(log) - 1).filter(lambda at: at not in unchecked))
    log[at] ^= data.draw(st.integers(1, 255))
    path.write_bytes(log[: data.draw(st.sampled_from([len(log), at]))])
    before = path.read_bytes()
    outcome = convert(str(target))
    if outcome.faults:
        assert path.read_bytes() == before
        assert list(path.parent.glob("*.cleaned")) == []
    else:
        found = [record.value for record in records(target)]
        assert found == expected[: len(found)]


# -- 0.7 -----------------------------------------------------------------------------------------


def test_ids_stay_as_offsets(tmp_path: Path) -> None:
    one = encode_entry(b"one", magic=0)
    packed = encode_set([b"two", b"three"], 1)
    four = encode_entry(b"four")
    directory = write_old(tmp_path, "t", one + packed, four, b"")
    assert whole(convert(str(tmp_path))) == 3
    assert sorted(path.suffix for path in directory.glob("*.*")) == [
        ".index", ".index", ".index", ".log", ".log", ".log",
        ".timeindex", ".timeindex", ".timeindex",
    ]  # fmt: skip
    start = len(one)
    following = len(one + packed)
    end = len(one + packed + four)
    assert [(record.offset, record.value) for record in records(tmp_path)] == [
        (0, b"one"),
        (start, b"two"),
        (start + 1, b"three"),
        (following, b"four"),
    ]
    assert all(record.timestamp == -1 for record in records(tmp_path))
    with opened(tmp_path) as manager:
        log = manager.log("t", 0)
        assert log.log_end_offset == end, "a consumer that had read all goes on there"
        assert [segment.base_offset for segment in log.segments] == [0, following, end]
        assert codecs(log) == [0, 1, 0]
        assert values(log, start) == [b"two", b"three", b"four"]
        assert append(log, b"new") == end
    assert verify(str(tmp_path)).faults == []


def test_many_old_messages_in_all_their_forms(tmp_path: Path) -> None:
    payloads = [b"payload %d" % n * (n % 50) for n in range(2000)]
    data = old_file(*payloads)
    directory = write_old(tmp_path, "t", data, old_file(b"x"), digits=11)
    before = [record.value for record in records(tmp_path)]
    assert whole(convert(str(tmp_path))) == 2
    found = records(tmp_path)
    assert [record.value for record in found] == before
    offsets = [record.offset for record in found]
    assert offsets == sorted(set(offsets))
    assert (directory / f"{0:020}.log").stat().st_mtime_ns == MTIME_NS
    assert list(directory.glob("*.kafka*")) == []
    with opened(tmp_path):
        pass


def test_a_torn_tail_is_kept_beside(tmp_path: Path) -> None:
    data = encode_entry(b"one") + encode_entry(b"two")
    directory = write_old(tmp_path, "t", data[:-1])
    outcome = convert(str(tmp_path))
    size = len(encode_entry(b"one"))
    assert [(cut.position, cut.size) for cut in outcome.cuts] == [(size, size - 1)]
    kept = directory / f"{0:020}.kafka.{size}.cut"
    assert kept.read_bytes() == data[size:-1]
    assert [record.value for record in records(tmp_path)] == [b"one"]
    with opened(tmp_path):
        pass


def test_a_set_of_more_messages_than_bytes_is_refused(tmp_path: Path) -> None:
    write_old(tmp_path, "t", encode_set([b""] * 5000, 1))
    outcome = convert(str(tmp_path))
    assert len(outcome.faults) == 1
    assert "5000 messages" in outcome.faults[0]
    assert len(records(tmp_path)) == 5000


def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    original = tmp_path / "original"
    old_and_legacy(original)
    for suffix in (".log.cleaned", ".index.cleaned"):
        data = copy(original, tmp_path / "data")
        before = content(data)
        disk = SimulatedDisk(str(data))
        disk.fail_next("pwrite", 28, suffix=suffix, partial=10)
        with pytest.raises(OSError, match="28"):
            convert(str(data), files=disk)
        disk.kill()
        after = content(data)
        after.pop(".lock")
        assert sorted(after.values()) == sorted(before.values())
