from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

import storage.adopt.adopt
import storage.log.staged_batches
from storage import LogManager, Record, encode
from storage.adopt.adoptions import FILE, FIRST_PRODUCER_ID, MAX_EPOCH
from storage.adopt.staged import AdoptRequest, QueryKind, StagedName
from storage.errors import (
    BatchGap,
    CorruptCheckpoint,
    CorruptRecord,
    Fenced,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTxnState,
    RecordTooLarge,
    TaskCancelled,
    UnknownTopicOrPartition,
    UnusableFile,
)
from storage.files import Files
from storage.log.append import append_batches
from storage.record.control import ABORT, COMMIT, encode_marker
from storage.record.header import HEADER_SIZE, TRANSACTIONAL_BIT, BatchHeader
from storage.segment.reader import SegmentReader
from storage.task import Task
from tests.oracle import crc32c
from tests.storage.logs import NOW_MS, NOW_NS, append, opened, values, write_settings
from tests.storage.staging import adopted, batches, left, stage, staged
from tests.storage.transactions import Client

T = TypeVar("T")

FILES = Files()
DAY_NS = 24 * 3600 * 10**9
A, B0, B1 = ("a", 0), ("b", 0), ("b", 1)


class StoppedBeforeFlush(Task):
    """It is cancelled when all is appended."""

    def begin(self, phase: str, total: int) -> None:
        if phase == "flushing":
            raise TaskCancelled("cancelled")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with opened(tmp_path) as manager:
        manager.create_topic("a", 1)
        manager.create_topic("b", 2)
    return tmp_path


def headers_of(manager: LogManager) -> list[BatchHeader]:
    """Of all batches of the topic `a` but the markers."""
    batches = SegmentReader(manager.log("a", 0).active).batches()
    return [header for _, header in batches if not header.is_control]


def test_files_of_several_partitions_become_one_transaction(data: Path) -> None:
    with opened(data) as manager:
        append(manager.log("a", 0), b"before")
        request = staged(FILES, str(data), "q", 0, {A: [[b"1", None], [b"2"]], B1: [[b"3"]]})
        outcome = adopted(manager, request)
        assert not outcome.duplicate
        assert outcome.records == 4
        assert outcome.offsets == {A: (1, 3), B1: (0, 0)}
        assert values(manager.log("a", 0)) == [b"before", b"1", None, b"2"]
        assert values(manager.log("b", 0)) == []
        assert values(manager.log("b", 1)) == [b"3"]
        # A marker follows the records in each partition, and no transaction is open.
        assert manager.log("a", 0).log_end_offset == manager.log("a", 0).last_stable_offset == 5
        assert manager.log("b", 1).log_end_offset == 2
        assert left(str(data)) == []
        _, *headers = headers_of(manager)
        assert [header.base_sequence for header in headers] == [0, 2]
        (producer_id,) = {header.producer_id for header in headers}
        assert FIRST_PRODUCER_ID <= producer_id < 2**62
        assert all(header.attributes & TRANSACTIONAL_BIT for header in headers)
    with opened(data) as manager:
        assert values(manager.log("a", 0)) == [b"before", b"1", None, b"2"]


def test_batches_follow_one_another(data: Path) -> None:
    with opened(data) as manager:
        adopted(manager, staged(FILES, str(data), "q", 5, {A: [[b"5"]]}))
        adopted(manager, staged(FILES, str(data), "q", 6, {A: [[b"6"]]}))
        request = staged(FILES, str(data), "q", 8, {A: [[b"8"]]})
        with pytest.raises(BatchGap, match="batch 8 of query q does not follow batch 6"):
            adopted(manager, request)
        assert left(str(data)) == ["q-8-0-0.staged"]
        assert values(manager.log("a", 0)) == [b"5", b"6"]
        # One producer, whose sequences go on.
        assert [header.base_sequence for header in headers_of(manager)] == [0, 1]


def test_a_newer_run_fences_the_older_one(data: Path) -> None:
    with opened(data) as manager:
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"0"]]}, run="first"))
        adopted(manager, staged(FILES, str(data), "q", 1, {A: [[b"1"]]}, run="second"))
        late = staged(FILES, str(data), "q", 2, {A: [[b"late"]]}, run="first")
        with pytest.raises(Fenced, match="run first of query q is fenced: run second"):
            adopted(manager, late)
        # A run that is fenced may still repeat a batch that is there.
        repeated = staged(FILES, str(data), "q", 1, {A: [[b"1"]]}, run="first")
        assert adopted(manager, repeated).duplicate
        found = [(header.producer_epoch, header.base_sequence) for header in headers_of(manager)]
        assert found == [(0, 0), (1, 0)]


def test_an_old_checkpoint_is_refused(data: Path) -> None:
    """The batches of the new run may have other rows. A run may repeat what it has adopted."""
    with opened(data) as manager:
        for number in range(3):
            adopted(manager, staged(FILES, str(data), "q", number, {A: [[b"x"]]}, run="first"))
        older = staged(FILES, str(data), "q", 1, {A: [[b"x"], [b"more"]]}, run="second")
        with pytest.raises(BatchGap, match=r"batch 1 .* older than batch 2.* old checkpoint"):
            adopted(manager, older)
        assert len(left(str(data))) == 2
        for number, run in (1, "first"), (2, "second"):
            again = staged(FILES, str(data), "q", number, {A: [[b"x"]]}, run=run)
            assert adopted(manager, again).duplicate
        assert values(manager.log("a", 0)) == [b"x"] * 3


@pytest.mark.parametrize("batch", [0, 1])
def test_a_run_whose_adoption_fails_takes_nobodys_place(data: Path, batch: int) -> None:
    with opened(data) as manager:
        for number in range(batch):
            adopted(manager, staged(FILES, str(data), "q", number, {A: [[b"x"]]}, run="current"))
        request = staged(FILES, str(data), "q", batch, {A: [[b"late"]]}, run="late")
        with pytest.raises(TaskCancelled):
            manager.adopter.adopt(request, StoppedBeforeFlush(), lambda: NOW_NS)
        adopted(manager, staged(FILES, str(data), "q", batch, {A: [[b"x"]]}, run="current"))
        assert values(manager.log("a", 0)) == [b"x"] * (batch + 1)
        # Nor has it lost its own.
        assert adopted(manager, request).duplicate
        after = staged(FILES, str(data), "q", batch + 1, {A: [[b"y"]]}, run="late")
        assert not adopted(manager, after).duplicate


def test_runs_without_end(data: Path) -> None:
    """Each run has a producer epoch. After the last epoch, the query gets another producer id."""
    with opened(data) as manager:
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"0"]]}, run="run"))
        known = manager.adopter.adoptions.queries["q"]
        most = {"q": dataclasses.replace(known, producer_epoch=MAX_EPOCH)}
        manager.adopter.adoptions = dataclasses.replace(manager.adopter.adoptions, queries=most)
        for number in range(3):
            assert adopted(manager, AdoptRequest("q", 0, f"run {number}", ())).duplicate
        adopted(manager, staged(FILES, str(data), "q", 1, {A: [[b"1"]]}, run="run 2"))
        adopted(manager, staged(FILES, str(data), "r", 0, {A: [[b"2"]]}))
        assert values(manager.log("a", 0)) == [b"0", b"1", b"2"]
        found = [(h.producer_id - known.producer_id, h.producer_epoch) for h in headers_of(manager)]
        assert found == [(0, 0), (1, 0), (2, 0)]


def test_queries_have_producers_of_their_own_above_all_that_logs_know(data: Path) -> None:
    with opened(data) as manager:
        first = manager.adopter.adoptions.next_producer_id
        Client(manager.log("b", 0), first + 7).send(b"other", transactional=False)
        for query in ("q", "r"):
            adopted(manager, staged(FILES, str(data), query, 0, {A: [[b"0"]]}))
        assert [header.producer_id - first for header in headers_of(manager)] == [8, 9]


def test_what_is_copied_from_another_data_directory(data: Path, tmp_path: Path) -> None:
    """Queries there have other producers: nothing of it counts as written before."""
    other = tmp_path / "other"
    other.mkdir()
    with opened(data) as manager, opened(other) as there:
        there.create_topic("a", 1)
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"here"]]}))
        adopted(there, staged(FILES, str(other), "r", 0, {A: [[b"there"]]}))
        segment = there.log("a", 0).active
        copied = Path(segment.log_path).read_bytes()[: segment.size]
        append_batches(manager.log("a", 0), copied, now_ns=NOW_NS)
        adopted(manager, staged(FILES, str(data), "q", 1, {A: [[b"next"]]}))
        assert values(manager.log("a", 0)) == [b"here", b"there", b"next"]


def test_who_writes_once_is_forgotten_in_time(data: Path) -> None:
    with opened(data) as manager:
        adopted(manager, staged(FILES, str(data), "once", 0, {A: [[b"0"]]}, kind=QueryKind.ONCE))
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"0"]]}))
        assert adopted(manager, AdoptRequest("once", 0, "run", (), kind=QueryKind.ONCE)).duplicate
        later = NOW_NS + 2 * DAY_NS
        manager.adopter.adopt(AdoptRequest("q", 1, "run", ()), Task(), lambda: later)
        assert set(manager.adopter.adoptions.queries) == {"q"}


def test_who_would_write_once_and_was_stopped_is_forgotten(data: Path) -> None:
    with opened(data) as manager:
        request = staged(FILES, str(data), "once", 0, {A: [[b"0"]]}, kind=QueryKind.ONCE)
        with pytest.raises(TaskCancelled):
            manager.adopter.adopt(request, StoppedBeforeFlush(), lambda: NOW_NS)
        assert manager.adopter.adoptions.queries["once"].batch == -1
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"q"]]}))
        assert set(manager.adopter.adoptions.queries) == {"q"}
        assert not adopted(manager, request).duplicate
        assert adopted(manager, request).duplicate
        assert values(manager.log("a", 0)) == [b"q", b"0"]


@pytest.mark.parametrize(
    ("days", "retention_ms", "is_there"),
    [(29, None, True), (31, None, False), (31, -1, True), (2, DAY_NS // 1_000_000, False)],
)
def test_names_of_writes_are_forgotten_in_time(
    data: Path, days: int, retention_ms: int | None, is_there: bool
) -> None:
    """Those of streams and of applications are not."""
    others = [QueryKind.STREAM, QueryKind.RISING]
    if retention_ms is not None:
        write_settings(data, kafkafs_txn_retention_ms=retention_ms)
    with opened(data) as manager:
        for kind in (QueryKind.NAMED, *others):
            adopted(manager, staged(FILES, str(data), str(kind), 0, {A: [[b"0"]]}, kind=kind))
        now_ns = NOW_NS + days * DAY_NS
        manager.adopter.adopt(AdoptRequest("q", 0, "r", ()), Task(), lambda: now_ns)
        assert set(manager.adopter.adoptions.queries) == {"q", *others} | (
            {"named"} if is_there else set()
        )


def test_versions_of_an_application_may_jump(data: Path) -> None:
    """Whatever is not above the last one is there; also after a restart."""
    for restarted in (False, True):
        with opened(data) as manager:
            for version, is_there in ((3, restarted), (17, restarted), (17, True), (4, True)):
                rows: dict[tuple[str, int], list[list[bytes | None]]] = {A: [[b"%d" % version]]}
                kind = QueryKind.RISING
                asked = staged(FILES, str(data), "app", version, rows, run="app", kind=kind)
                assert adopted(manager, asked).duplicate is is_there
            assert values(manager.log("a", 0)) == [b"3", b"17"]
            assert left(str(data)) == []


def test_an_application_writes_within_a_stream_and_on_its_own(data: Path) -> None:
    """The run of the application can write again after a stream; a replaced stream cannot."""
    with opened(data) as manager:

        def write(version: int, run: str) -> None:
            rows: dict[tuple[str, int], list[list[bytes | None]]] = {A: [[b"%d" % version]]}
            kind = QueryKind.RISING
            adopted(manager, staged(FILES, str(data), "app", version, rows, run=run, kind=kind))

        for version, run in enumerate(("app", "stream", "app", "app", "stream 2", "app")):
            write(version, run)
        with pytest.raises(
            Fenced, match="run stream of query app is fenced: run app has replaced it"
        ):
            write(9, "stream")
        write(10, "app")
        assert values(manager.log("a", 0)) == [b"%d" % each for each in (0, 1, 2, 3, 4, 5, 10)]


def test_a_name_belongs_to_one_kind_of_query(data: Path) -> None:
    """Else what one of them writes would count as what the other one has written."""
    with opened(data) as manager:
        first = staged(FILES, str(data), "q", 0, {A: [[b"0"]]}, kind=QueryKind.NAMED)
        adopted(manager, first)
        for batch in (0, 1):
            other = staged(FILES, str(data), "q", batch, {A: [[b"1"]]}, kind=QueryKind.RISING)
            with pytest.raises(
                InvalidRecord, match="as kind named before, not rising: choose another"
            ):
                adopted(manager, other)
        assert values(manager.log("a", 0)) == [b"0"]


def bad_batch(**changes: object) -> bytes:
    options: dict[str, object] = {"producer_id": -1, **changes}
    return encode([Record(0, NOW_MS, 0, b"k", b"v")], **options)  # type: ignore[arg-type]


def repeated_offset() -> bytes:
    """The second record has the first one's offset."""
    first, second = Record(0, NOW_MS, 0, b"k", b"v"), Record(1, NOW_MS, 0, b"k", b"v")
    content = bytearray(encode([first, second]))
    at = HEADER_SIZE + 1 + (content[HEADER_SIZE] >> 1)
    assert content[at + 3] == 2
    content[at + 3] = 0
    content[17:21] = crc32c(bytes(content[21:])).to_bytes(4, "big")
    return bytes(content)


def flipped(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


GOOD = batches([b"x", b"y"])
BAD = {
    "cut off": (GOOD[:-1], CorruptRecord, "truncated"),
    "a few bytes": (GOOD + b"abc", CorruptRecord, "truncated"),
    "no batch": (b"\0" * 100, InvalidRecord, "no valid batch starts"),
    "CRC": (GOOD + flipped(GOOD), CorruptRecord, "CRC"),
    "producer": (bad_batch(producer_id=7, producer_epoch=0), InvalidRecord, "producer"),
    "gap": (
        encode([Record(0, NOW_MS, 0, b"k", b"v"), Record(5, NOW_MS, 0, b"k", b"v")]),
        InvalidRecord,
        "offsets",
    ),
    "offset": (GOOD + repeated_offset(), InvalidRecord, "are not ascending"),
    "future": (batches([b"x"], NOW_MS + 10**9), InvalidTimestamp, "in the future"),
    "large": (batches([b"x" * 2_000_000]), RecordTooLarge, "max.message.bytes"),
}


@pytest.mark.parametrize("kind", BAD)
def test_what_breaks_a_rule_refuses_all_and_changes_nothing(data: Path, kind: str) -> None:
    content, error, reason = BAD[kind]
    with opened(data) as manager:
        good = stage(FILES, str(data), A, StagedName("q", 0, 0, 0), GOOD)
        bad = stage(FILES, str(data), B1, StagedName("q", 0, 1, 0), content)
        with pytest.raises(error, match=reason) as raised:
            adopted(manager, AdoptRequest("q", 0, "run", (good, bad)))
        assert "b-1/q-0-1-0.staged" in str(raised.value)
        assert manager.log("a", 0).log_end_offset == 0
        assert manager.adopter.adoptions.queries == {}
        assert not (data / FILE).exists()
        assert len(left(str(data))) == 2


def test_a_file_that_is_not_as_announced(data: Path) -> None:
    with opened(data) as manager:
        file = stage(FILES, str(data), A, StagedName("q", 0, 0, 0), GOOD)
        with pytest.raises(InvalidRecord, match="bytes instead of"):
            adopted(manager, AdoptRequest("q", 0, "run", (file._replace(size=7),)))
        (data / "a-0" / file.name).unlink()
        with pytest.raises(FileNotFoundError):
            adopted(manager, AdoptRequest("q", 0, "run", (file,)))
        (data / "a-0" / file.name).symlink_to(data / "kafkafs.properties")
        with pytest.raises(UnusableFile):
            adopted(manager, AdoptRequest("q", 0, "run", (file,)))
        with pytest.raises(UnknownTopicOrPartition):
            adopted(manager, AdoptRequest("q", 0, "run", (file._replace(partition=3),)))


PARTS = [batches([b"%d" % n * 3000], per_batch=1) for n in range(4)]
LOST: dict[str, bytes | None] = {
    "the file": None,
    "all bytes": b"",
    "the last batch": b"".join(PARTS[:3]),
    "half a batch": b"".join(PARTS)[:-1500],
    "the last batch's pages": b"".join(PARTS[:3]) + bytes(len(PARTS[3])),
    "the last bytes' page": b"".join(PARTS)[:-10] + bytes(10),
    "a page between": b"".join(PARTS)[:4096] + bytes(4096) + b"".join(PARTS)[8192:],
    "all pages": bytes(sum(map(len, PARTS))),
}


@pytest.mark.parametrize("lost", LOST)
@pytest.mark.parametrize("chunk", [1 << 20, 3000])
def test_what_a_power_cut_has_taken_of_a_staged_file(
    data: Path, lost: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staged file was not flushed. The batch is refused, and the query stages it again."""
    monkeypatch.setattr(storage.log.staged_batches, "_CHUNK_BYTES", chunk)
    with opened(data) as manager:
        whole = stage(FILES, str(data), A, StagedName("q", 0, 0, 0), b"".join(PARTS))
        torn = stage(FILES, str(data), B1, StagedName("q", 0, 1, 0), b"".join(PARTS))
        content, path = LOST[lost], data / "b-1" / torn.name
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with pytest.raises((CorruptRecord, InvalidRecord, FileNotFoundError)) as raised:
            adopted(manager, AdoptRequest("q", 0, "run", (whole, torn)))
        assert "b-1/q-0-1-0.staged" in str(raised.value)
        assert [log.log_end_offset for log in manager.logs()] == [0, 0, 0]
        again = stage(FILES, str(data), B1, StagedName("q", 0, 1, 7), b"".join(PARTS))
        adopted(manager, AdoptRequest("q", 0, "next run", (whole, again)))
        for number, name in ((0, "a"), (1, "b")):
            assert values(manager.log(name, number)) == [b"%d" % n * 3000 for n in range(4)]


def test_a_record_without_a_key_is_refused_by_a_compacted_topic(data: Path) -> None:
    with opened(data) as manager:
        manager.change_topic_settings("a", {"cleanup.policy": "compact"})
        content = encode([Record(0, NOW_MS, 0, None, b"v")])
        file = stage(FILES, str(data), A, StagedName("q", 0, 0, 0), content)
        with pytest.raises(InvalidRecord, match="requires a key"):
            adopted(manager, AdoptRequest("q", 0, "run", (file,)))


@pytest.mark.parametrize("codec", ["zstd", "lz4", "gzip", "snappy", "uncompressed"])
def test_batches_are_stored_as_the_topic_wants_them(data: Path, codec: str) -> None:
    with opened(data) as manager:
        manager.change_topic_settings("a", {"compression.type": codec})
        manager.change_topic_settings("a", {"message.timestamp.type": "LogAppendTime"})
        lines = [b"line" * 100, None, b"x"]
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [lines]}))
        assert values(manager.log("a", 0)) == lines
        assert {header.codec for header in headers_of(manager)} == {
            ["uncompressed", "gzip", "snappy", "lz4", "zstd"].index(codec)
        }
        assert {record.timestamp for record in manager.log("a", 0).records()} == {NOW_MS}


def test_what_cannot_be_compressed_stays_as_it_is(data: Path) -> None:
    """It would become too large by it, as whoever has staged it knew."""
    with opened(data) as manager:
        manager.change_topic_settings("a", {"compression.type": "zstd"})
        manager.change_topic_settings("a", {"max.message.bytes": "5000"})
        value = os.urandom(4925)
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[value], [b"x" * 1000]]}))
        assert values(manager.log("a", 0)) == [value, b"x" * 1000]
        assert [header.codec for header in headers_of(manager)] == [0, 4]
        # A broker refuses it where a producer's batch becomes too large.
        with pytest.raises(RecordTooLarge):
            append_batches(manager.log("a", 0), batches([value]), now_ns=NOW_NS)


@pytest.mark.parametrize("turn", range(12))
def test_a_topic_of_the_batch_before_is_deleted_meanwhile(data: Path, turn: int) -> None:
    turns = iter(range(100))

    def on_log_thread(function: Callable[[], T]) -> T:
        if next(turns) == turn:
            manager.delete_topic("b")
        return function()

    with opened(data) as manager:
        manager.create_topic("c", 1)
        adopted(manager, staged(FILES, str(data), "q", 0, {("c", 0): [[b"0"]], B0: [[b"0"]]}))
        manager.log("c", 0).flush()
        request = staged(FILES, str(data), "q", 1, {A: [[b"1"]]})
        manager.adopter.adopt(request, Task(on_log_thread), lambda: NOW_NS)
        assert values(manager.log("a", 0)) == [b"1"]
        assert next(turns) > 10


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("phase", ["adopting", "flushing"])
def test_another_one_ends_its_transaction(data: Path, kind: int, phase: str) -> None:
    """By a marker in what is copied from elsewhere."""

    class Ending(Task):
        def begin(self, began: str, total: int) -> None:
            super().begin(began, total)
            if began == phase:
                self.end()

        def advance(self, size: int) -> None:
            super().advance(size)
            if phase == self.phase == "adopting":
                self.end()

        def end(self) -> None:
            pending = manager.adopter.adoptions.pending
            assert pending is not None
            marker = encode_marker(kind, pending.producer_id, 0, 0, 0, NOW_MS, 0)
            append_batches(manager.log("a", 0), bytearray(marker), now_ns=NOW_NS)

    with opened(data) as manager:
        request = staged(FILES, str(data), "q", 0, {A: [[b"1"], [b"2"]], B0: [[b"3"]]})
        with pytest.raises(
            InvalidTxnState, match="another transaction was written with this producer id"
        ):
            manager.adopter.adopt(request, Ending(), lambda: NOW_NS)
        assert values(manager.log("b", 0)) == []
        for log in manager.logs():
            assert log.last_stable_offset == log.log_end_offset
        assert manager.adopter.adoptions.queries["q"].batch == -1
        assert not adopted(manager, request).duplicate
        assert values(manager.log("a", 0))[-2:] == [b"1", b"2"]
        assert values(manager.log("b", 0)) == [b"3"]


def test_a_memory_that_cannot_be_read_refuses_to_open(data: Path) -> None:
    with opened(data) as manager:
        adopted(manager, staged(FILES, str(data), "q", 0, {A: [[b"0"]]}))
    for damage in (b"", b"{}", b'{"version":7,"queries":{},"pending":null}', b"[1]", b"\xff"):
        (data / FILE).write_bytes(damage)
        with pytest.raises(
            CorruptCheckpoint, match=r"(cannot read|unknown version).*kafkafs\.adopted"
        ):
            LogManager.open(str(data))
    with LogManager.open(str(data), read_only=True) as manager:
        assert values(manager.log("a", 0)) == [b"0"]
