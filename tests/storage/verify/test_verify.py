"""Verify names every fault with its place, and nothing that is none."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import LogManager, paths
from storage.directory.word_files import WordFiles
from storage.files import Files
from storage.record.control import ABORT, COMMIT
from storage.state import gaps_file
from storage.state.gaps_file import Gap
from storage.state.manifest_file import drop
from storage.state.producer_state import ProducerEntry, encode
from storage.task import Task
from storage.verify.verify import VerifyReport, log_bytes, verify
from storage.verify.verify_segment import LogPiece, Verified, verify_piece
from tests import oracle
from tests.storage.logs import NOW_MS, append, batch, opened, opened_log, write_settings
from tests.storage.old_logs import (
    content,
    copy,
    old_file,
    wrapper,
    write_legacy,
    write_old,
)
from tests.storage.transactions import Client

INTERVAL = 200


def fill(data: Path) -> None:
    """A topic `t` of several segments with many index entries, and one aborted transaction."""
    write_settings(data, log_index_interval_bytes=INTERVAL, log_index_size_max_bytes=4096)
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"internal.segment.bytes": "2000"})
        for number in range(60):
            append(log, b"%d" % number * 20, timestamp_ms=NOW_MS + number)
        for producer, kind in ((7, ABORT), (8, COMMIT)):
            client = Client(log, producer)
            client.send(b"in a transaction")
            client.end(kind)
        append(log, b"end")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of `fill` that nobody changes."""
    path = tmp_path_factory.mktemp("filled")
    fill(path)
    return path


def checked(data: Path) -> VerifyReport:
    """Verify, here and piece by piece elsewhere, and see that nothing has changed."""
    before = content(data)
    found = verify(str(data))
    assert verify(str(data), read_ahead=read_elsewhere) == found
    assert content(data) == before
    return found


def read_elsewhere(pieces: Sequence[LogPiece]) -> Sequence[Verified | None]:
    """As other processes may: in any order, and what they find is sent back."""
    found = {piece: pickle.dumps(verify_piece(piece)) for piece in reversed(pieces)}
    return [pickle.loads(found[piece]) for piece in pieces]


def faults(data: Path) -> list[tuple[str, int | None, int | None, str]]:
    return [
        (Path(fault.path).name, fault.position, fault.offset, fault.reason)
        for fault in checked(data).faults
    ]


def segments(data: Path, suffix: str = ".log") -> list[Path]:
    return sorted((data / "t-0").glob(f"*{suffix}"))


def patch(path: Path, at: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    path.write_bytes(data)


# -- what is whole -------------------------------------------------------------------------------


def test_what_we_wrote_is_whole(tmp_path: Path) -> None:
    fill(tmp_path)
    assert len(segments(tmp_path)) > 3
    assert segments(tmp_path, ".txnindex")
    read: list[int] = []
    found = verify(str(tmp_path), progress=read.append)
    assert (found.faults, found.left_over) == ([], [])
    assert (found.partitions, found.records) == (1, 63), "markers are no records"
    assert found.size == sum(read) == log_bytes(str(tmp_path))


def test_an_empty_directory_is_whole(tmp_path: Path) -> None:
    assert checked(tmp_path) == VerifyReport()


def test_one_partition_is_checked_alone(tmp_path: Path) -> None:
    fill(tmp_path)
    assert verify(str(tmp_path / "t-0")) == verify(str(tmp_path))
    text(paths.RECOVERY_POINTS, "0\n1\nt 0 1000\n")(tmp_path)
    assert len(verify(str(tmp_path / "t-0")).faults) == 1
    assert log_bytes(str(tmp_path / "t-0")) == log_bytes(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        verify(str(tmp_path / "nothing"))


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_looked_into(tmp_path: Path, codec: str) -> None:
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        manager.change_topic_settings("t", {"compression.type": codec})
        append(log, *[b"value %d" % n for n in range(500)])
    assert checked(tmp_path).records == 500
    # The stream is damaged and the CRC is right: only who decompresses it sees that.
    path = segments(tmp_path)[0]
    data = bytearray(path.read_bytes())
    data[-20:] = bytes(20)
    path.write_bytes(with_crc(data))
    assert [fault[:3] for fault in faults(tmp_path)] == [(path.name, 0, 0)]


def with_crc(data: bytes | bytearray) -> bytes:
    """The one batch, its CRC made right."""
    return bytes(data[:17]) + struct.pack(">I", oracle.crc32c(data[21:])) + bytes(data[21:])


@pytest.mark.parametrize("magic", [0, 1])
def test_logs_of_old_brokers_are_whole(tmp_path: Path, magic: int) -> None:
    directory = write_legacy(tmp_path, "t", magic)
    found = checked(tmp_path)
    assert found.records == 200
    missing = {".index"} if magic == 0 else {".index", ".timeindex"}
    assert found.faults == []
    assert {(Path(f.path).suffix, f.reason) for f in found.left_over} == {
        (suffix, "the file is missing: the next start rebuilds it") for suffix in missing
    }
    with LogManager.open(str(tmp_path)):
        pass
    assert checked(tmp_path).faults == []
    # A set whose CRC is right and which holds too little.
    broken = wrapper([oracle.Message(300, None, b"x" * 50, 0)], magic, 0)
    broken = oracle.put_message(oracle.Message(300, None, broken[:-3], 0), magic, 1)
    path = max(directory.glob("*.log"))
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + broken)
    assert [fault[:2] for fault in faults(tmp_path)] == [(path.name, size)]


def test_logs_of_0_7_are_whole(tmp_path: Path) -> None:
    one, two = old_file(b"one", b"two"), old_file(b"three")
    directory = write_old(tmp_path, "t", one, two)
    found = checked(tmp_path)
    assert (found.faults, found.records, found.size) == ([], 9 + 6, len(one + two))
    path = directory / f"{len(one):020}.kafka"
    path.write_bytes(two[:-1])
    assert [fault[3] for fault in faults(tmp_path)] == ["the last entry is incomplete"]
    patch(path, 12, b"?")
    assert [fault[1] for fault in faults(tmp_path)] == [0]
    path.unlink()
    (directory / f"{len(one) + 1:020}.kafka").write_bytes(two)
    assert [fault[0] for fault in faults(tmp_path)] == [f"{0:020}.kafka"]


def per_append(first: list[int], positions: list[int]) -> bytes:
    """An index as older brokers wrote it: the largest offset of an append, where it began."""
    return b"".join(map(struct.Struct(">ii").pack, first, positions))


def test_indexes_of_older_brokers_are_sound(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=INTERVAL)
    with opened_log(tmp_path) as log:
        for number in range(0, 9, 3):
            data = bytearray()
            for n in range(3):
                data += batch([b"%d" % n * 60], NOW_MS + number + n)
            log.append(data, now_ns=NOW_MS * 1_000_000)
    size = segments(tmp_path)[0].stat().st_size // 9
    index, times = segments(tmp_path, ".index")[0], segments(tmp_path, ".timeindex")[0]
    index.write_bytes(per_append([5, 8], [3 * size, 6 * size]))
    times.write_bytes(b"".join(struct.pack(">qi", NOW_MS + n, n) for n in (2, 5, 8)))
    assert checked(tmp_path).faults == []


# -- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [0, 1, -1])
def test_a_damaged_batch_is_named_with_its_place(tmp_path: Path, where: int) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[where]
    starts = [batch.position for batch in oracle.walk(path.read_bytes())]
    offset = [batch.base_offset for batch in oracle.walk(path.read_bytes())]
    last = len(starts) - 1
    patch(path, starts[last] + 70, b"\xff\xff")
    assert faults(tmp_path) == [(path.name, starts[last], offset[last], "the CRC is wrong")]


@given(data=st.data())
def test_any_changed_byte_is_found(
    tmp_path_factory: pytest.TempPathFactory, filled: Path, data: st.DataObject
) -> None:
    target = copy(filled, tmp_path_factory.getbasetemp() / "changed")
    path = data.draw(st.sampled_from(segments(target)))
    log = path.read_bytes()
    at = data.draw(st.integers(0, len(log) - 1))
    patch(path, at, bytes([log[at] ^ data.draw(st.integers(1, 255))]))
    batch = next(batch for batch in oracle.walk(log) if batch.position <= at < batch.end)
    # No CRC covers the first sixteen bytes: a changed epoch may be one, an offset a gap.
    expected = {(path.name, batch.position)} if at >= batch.position + 16 else set()
    assert expected <= {fault[:2] for fault in faults(target)}


def test_an_incomplete_batch_at_the_end_is_a_fault_where_nobody_writes(tmp_path: Path) -> None:
    fill(tmp_path)
    path = segments(tmp_path)[-1]
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(batch([b"torn"]))[:-1])
    assert [fault[:2] for fault in faults(tmp_path)] == [(path.name, size)]


def test_offsets_that_do_not_rise(tmp_path: Path) -> None:
    fill(tmp_path)
    second = segments(tmp_path)[1]
    base = int(second.name[:20])
    first = segments(tmp_path)[0]
    patch(first, list(oracle.walk(first.read_bytes()))[-1].position, struct.pack(">q", base + 3))
    found = faults(tmp_path)
    assert (second.name, None, base, f"the segment before it ends at {base + 4}") in found
    patch(second, 0, struct.pack(">q", base - 1))
    assert (second.name, 0, base) in [fault[:3] for fault in faults(tmp_path)]


def test_records_whose_offsets_do_not_rise(tmp_path: Path) -> None:
    rows = [oracle.Row(0, delta, None, b"x") for delta in (0, 2, 2, 3)]
    records = b"".join(map(oracle.put_row, rows))
    directory = tmp_path / "t-0"
    directory.mkdir()
    for name, data in (
        (".log", oracle.put_batch(records, 4)),
        (".index", b""),
        (".timeindex", b""),
    ):
        (directory / f"{0:020}{name}").write_bytes(data)
    assert [fault[1:] for fault in faults(tmp_path)] == [
        (0, 0, "a record's offset is not above the previous one")
    ]


Damage = Callable[[Path], str]
"""Damages a file of the directory of `fill`, and returns its name."""


def changed(suffix: str, number: int, change: Callable[[bytes], bytes]) -> Damage:
    """Change the content of the file of this suffix with this number."""

    def damage(data: Path) -> str:
        path = segments(data, suffix)[number]
        path.write_bytes(change(path.read_bytes()))
        return path.name

    return damage


def removed(suffix: str, number: int) -> Damage:
    def damage(data: Path) -> str:
        path = segments(data, suffix)[number]
        path.unlink()
        return path.name

    return damage


def snapshot_beyond_the_log(data: Path) -> str:
    path = data / "t-0" / paths.file_name(1000, ".snapshot")
    path.write_bytes(encode(()))
    return path.name


def snapshot_of_the_future(data: Path) -> str:
    path = segments(data, ".snapshot")[0]
    offset = int(path.name[:20])
    path.write_bytes(encode([ProducerEntry(1, 0, 0, offset, 0, NOW_MS, -1, -1)]))
    return path.name


def text(name: str, content: str) -> Damage:
    def write(data: Path) -> str:
        (data / name).write_text(content)
        return Path(name).name

    return write


DAMAGES = {
    "cut index": changed(".index", 1, lambda data: data[:-3]),
    "no index": removed(".index", 1),
    "no time index": removed(".timeindex", 1),
    "no final time": changed(".timeindex", 0, lambda data: data[:-12]),
    "not trimmed": changed(".index", 0, lambda data: data + bytes(80)),
    "no abort": removed(".txnindex", 0),
    "other producer": changed(".txnindex", 0, lambda data: data[:9] + b"\x08" + data[10:]),
    "late transaction": changed(".txnindex", 0, lambda data: data[:17] + b"\x3d" + data[18:]),
    "snapshot": changed(".snapshot", 0, lambda data: data[:3] + b"?" + data[4:]),
    "snapshot beyond the log": snapshot_beyond_the_log,
    "snapshot of the future": snapshot_of_the_future,
    "metadata": text("t-0/partition.metadata", "version: 0"),
    "fewer epochs": text("t-0/leader-epoch-checkpoint", "0\n2\n0 0\n"),
    "negative epoch": text("t-0/leader-epoch-checkpoint", "0\n2\n-1 0\n0 10\n"),
    "equal epochs": text("t-0/leader-epoch-checkpoint", "0\n2\n0 0\n0 10\n"),
    "epoch beyond the log": text("t-0/leader-epoch-checkpoint", "0\n2\n0 0\n5 1000\n"),
    **{
        name: text(name, "0\n1\nt 0 1000\n")
        for name in (
            *(paths.RECOVERY_POINTS, paths.LOG_STARTS),
            *(paths.HIGH_WATERMARKS, paths.CLEANER_OFFSETS),
        )
    },
    "no offset": text(paths.RECOVERY_POINTS, "0\n1\nt 0\n"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_fault_beside_the_log_is_named(tmp_path: Path, damage: Damage) -> None:
    fill(tmp_path)
    name = damage(tmp_path)
    found = faults(tmp_path)
    assert found
    assert {fault[0] for fault in found} == {name}


@pytest.mark.parametrize("name", ["t-1", "u-0", f"t-0/{0:020}.log", f"t-0/{0:020}.index"])
def test_a_link_is_a_fault_of_its_partition(tmp_path: Path, name: str) -> None:
    fill(tmp_path)
    with opened(tmp_path) as manager:
        append(manager.create_topic("v", 1).partitions[0], b"one")
    path, aside = tmp_path / name, tmp_path / "aside"
    if path.exists():
        path.rename(aside)
    else:
        aside.mkdir()
    path.symlink_to(aside)
    reason = "the path contains a symbolic link; links are not followed"
    found = faults(tmp_path)
    assert found[0] == (path.name, None, None, reason)
    assert {fault[0] for fault in found} == {path.name}
    assert verify(str(tmp_path), wanted=lambda topic, _: topic == "v").faults == []
    assert verify(str(tmp_path)).records > 0
    assert log_bytes(str(tmp_path)) > 0


def test_a_flushed_abort_without_an_entry_is_a_fault_before_and_after_a_start(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    (tmp_path / paths.CLEAN_SHUTDOWN).unlink()
    segments(tmp_path, ".txnindex")[0].unlink()
    (before,) = faults(tmp_path)
    LogManager.open(str(tmp_path)).close()
    assert faults(tmp_path) == [before]


def test_topic_ids_that_differ(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        manager.create_topic("t", 2)
    (tmp_path / "t-1" / paths.PARTITION_METADATA).write_text(
        "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
    )
    assert [fault[0] for fault in faults(tmp_path)] == [paths.PARTITION_METADATA]


def test_a_file_that_is_wrong_everywhere_is_named_a_few_times(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=0)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number in range(100):
            append(log, b"%d" % number)
    index = segments(tmp_path, ".index")[0]
    data = index.read_bytes()
    entries = [(offset, at + 1) for offset, at in struct.Struct(">ii").iter_unpack(data)]
    index.write_bytes(per_append(*map(list, zip(*entries, strict=True))))
    found = faults(tmp_path)
    assert len(found) == 21
    assert found[-1][3] == "79 more entries are wrong"


# -- what is left over, and what lives -----------------------------------------------------------


def test_what_is_left_over_is_named_and_is_no_fault(tmp_path: Path) -> None:
    fill(tmp_path)
    names = {
        "t-0/00000000000000000000.log.200.cut",
        "t-0/00000000000000000000.log.deleted",
        "t-0/00000000000000000000.index.cleaned",
        "t-0/00000000000000099999.index",
        "t-0/00000000000000099999.words",
        "recovery-point-offset-checkpoint.tmp",
    }
    for name in names:
        (tmp_path / name).touch()
    for name in (
        "x-0.0123456789abcdef0123456789abcdef-delete",
        "lost+found",
        "remote-log-index-cache",
    ):
        (tmp_path / name).mkdir()
        names.add(name)
    found = checked(tmp_path)
    assert found.faults == []
    named = {str(Path(item.path).relative_to(tmp_path)) for item in found.left_over}
    assert named == names - {"remote-log-index-cache"}
    asked = verify(str(tmp_path), wanted=lambda topic, number: topic == "x")
    assert [os.path.basename(item.path) for item in asked.left_over] == [
        "x-0.0123456789abcdef0123456789abcdef-delete"
    ]


def test_a_swap_that_a_clean_stop_has_left_is_read_as_the_next_start_leaves_it(
    tmp_path: Path,
) -> None:
    fill(tmp_path)
    log = segments(tmp_path, ".log")[1]
    swapped = [log, log.with_suffix(".index"), log.with_suffix(".timeindex")]
    for path in swapped:
        path.rename(f"{path}.swap")
    found = checked(tmp_path)
    assert found.faults == []
    assert [Path(item.path) for item in found.left_over] == sorted(
        Path(f"{path}.swap") for path in swapped
    )
    # A kill has renamed only the offset index. The start removes it, and builds it from the log.
    Path(f"{swapped[1]}.swap").rename(swapped[1])
    found = checked(tmp_path)
    assert found.faults == []
    left = {item.reason for item in found.left_over}
    assert left == {
        "part of a decided swap; the next start completes it",
        "the file is missing: the next start rebuilds it",
    }
    records = found.records
    with opened(tmp_path):
        pass
    found = checked(tmp_path)
    assert (found.faults, found.left_over, found.records) == ([], [], records)


def test_gaps_of_a_mirror_are_no_faults(tmp_path: Path) -> None:
    """A list of them that cannot be read is one."""
    fill(tmp_path)
    path = tmp_path / "t-0" / gaps_file.FILE_NAME
    path.write_text("deleted 0 9 5\nmissing 12 14 6\n")
    found = checked(tmp_path)
    assert (found.faults, found.left_over) == ([], [])
    expected = [Gap("deleted", 0, 9, 5), Gap("missing", 12, 14, 6)]
    assert found.gaps == [(str(path), gap) for gap in expected]
    path.write_text("deleted 0 9")
    (fault,) = checked(tmp_path).faults
    assert (fault.path, fault.reason) == (str(path), "not a list of gaps")


@pytest.mark.parametrize(
    ("at", "new"),
    [(0, b""), (0, b"x"), (70, b"xx"), (80, b"xxxx"), (-30, b"xxxx")],
    ids=["another's", "magic", "header", "page", "index"],
)
def test_words_that_are_not_valid_are_left_over(tmp_path: Path, at: int, new: bytes) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        WordFiles().build_missing(manager.log("t", 0), Task())
    whole = checked(tmp_path)
    assert (whole.faults, whole.left_over) == ([], [])
    first, second = segments(tmp_path, ".words")[:2]
    size = first.stat().st_size
    if new:
        patch(first, at % size, new)
    else:
        first.write_bytes(second.read_bytes())
    found = checked(tmp_path)
    assert found.faults == []
    assert [fault.path for fault in found.left_over] == [str(first)]
    assert "To build it again: kafkafs words" in found.left_over[0].reason


def test_what_a_living_writer_is_at_work_on_is_no_fault(tmp_path: Path) -> None:
    fill(tmp_path)
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.log("t", 0)
        append(log, b"more")
        unfinished = tmp_path / "t-0/0123456789abcdef-00000000000000000000.words.tmp"
        unfinished.touch()
        assert checked(tmp_path).left_over == []
        os.utime(unfinished, (0, 0))
        assert [fault.path for fault in checked(tmp_path).left_over] == [str(unfinished)]
        unfinished.unlink()
        path = segments(tmp_path)[-1]
        for tail in (bytes(batch([b"half written"]))[:-1], bytes(100), b""):
            size = path.stat().st_size
            with path.open("ab") as file:
                file.write(tail)
            assert checked(tmp_path).faults == []
            with path.open("ab") as file:
                file.truncate(size)
        patch(path, path.stat().st_size - 3, b"???")
        assert [fault[0] for fault in faults(tmp_path)] == [path.name]
        patch(path, path.stat().st_size - 5, b"more\0")
        snapshot = segments(tmp_path)[-1].with_suffix(".snapshot")
        whole = snapshot.read_bytes()
        for written in (b"", whole[:-1]):
            snapshot.write_bytes(written)
            assert checked(tmp_path).faults == []
        snapshot.write_bytes(whole)
        # As sealed segments are not being written, theirs is one.
        with segments(tmp_path)[0].open("ab") as file:
            file.write(b"\0" * 5)
        assert [fault[0] for fault in faults(tmp_path)] == [segments(tmp_path)[0].name]
        manager.abandon()


def test_what_vanishes_meanwhile_was_deleted(tmp_path: Path) -> None:
    fill(tmp_path)
    doomed = segments(tmp_path)[0]

    class Deleting(Files):
        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            if path == str(doomed) and doomed.exists():
                # As its owner does: what is claimed of it goes before it.
                drop(Files(), str(doomed.parent))
                doomed.unlink()
            return super().open(path, flags, mode)

    with LogManager.open(str(tmp_path)) as manager:
        assert verify(str(tmp_path), files=Deleting()).faults == []
        manager.abandon()


def test_an_aborted_transaction_of_several_segments(tmp_path: Path) -> None:
    write_settings(tmp_path, log_index_interval_bytes=INTERVAL)
    with opened(tmp_path) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        client = Client(log, 7)
        for number in range(3):
            append(log, b"plain")
            client.send(b"%d" % number)
            log.roll(NOW_MS)
        client.abort()
        client.send(b"in a transaction")
        client.commit()
    assert checked(tmp_path).faults == []
    (path,) = segments(tmp_path, ".txnindex")
    patch(path, 10, struct.pack(">q", 2))
    begins_late = "the transaction begins before the offset of the entry"
    assert faults(tmp_path) == [(path.name, None, 2, begins_late)]
    path.unlink()
    has_none = "the aborted transaction of producer 7 has no entry"
    assert faults(tmp_path) == [(path.name, None, 6, has_none)]


def test_only_wanted_partitions(tmp_path: Path) -> None:
    fill(tmp_path)
    with opened(tmp_path) as manager:
        append(manager.create_topic("other", 1).partitions[0], b"other")
    patch(segments(tmp_path)[0], 80, b"?")
    found = verify(str(tmp_path), wanted=lambda topic, partition: topic == "other")
    assert (found.partitions, found.records, found.faults) == (1, 1, [])


def test_indexes_of_another_interval_are_as_sound(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "kafkafs.properties").unlink()
    assert checked(tmp_path).faults == []
