"""The line index against plain rendering: every text position leads to the right record."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.line_index import LineStore, SegmentLines, reader_at
from kafkafs.line_index.records import count_back, gaps_of, text_before
from kafkafs.views import TEXT_VIEWS, values_view
from kafkafs.views._measure import Cursor
from storage import LogManager
from storage.files import Files
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.record.control import ABORT, COMMIT
from storage.record.header import HEADER_SIZE
from storage.room import Room
from storage.segment.reader import SegmentReader
from storage.segment.segment import Segment
from storage.waiting import at_once
from tests.storage.logs import NOW_MS, append, opened
from tests.storage.transactions import Client, new_log

BATCHES = st.lists(
    st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=6), min_size=1, max_size=12
)
FEW = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@contextlib.contextmanager
def a_log(tmp_path: Path) -> Iterator[Log]:
    """An empty log in a new directory."""
    data = tmp_path / f"data{time.monotonic_ns()}"
    data.mkdir()
    with opened(data) as manager:
        manager.create_topic("t", 1)
        yield manager.log("t", 0)


class Following(LogListener[Log]):
    """Keeps one segment's index while it is appended to."""

    def __init__(self, lines: SegmentLines) -> None:
        self.lines = lines

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        self.lines.append(position, data)


def text_of(batches: list[list[bytes | None]]) -> bytes:
    return b"".join((value or b"") + b"\n" for values in batches for value in values)


def check(lines: SegmentLines, text: bytes) -> None:
    """Totals are right, and rendering from where `find` leads gives the text."""
    assert lines.complete
    assert (lines.text_length, lines.covered) == (len(text), lines.segment.size)
    log = SegmentReader(lines.segment).read(0, lines.segment.size)
    for position in range(len(text)):
        before, _, at, batch_end, _ = lines.find(position)
        assert before <= position
        out = bytearray(20)
        size = min(20, len(text) - position)
        end, skip = values_view().render(
            log[at:], at, len(log) - at, Cursor(at, batch_end), out, 0, size, position - before
        )
        assert (end, skip) == (size, 0)
        assert out[:size] == text[position : position + size]


def new_lines(log: Log, store: LineStore | None = None, cache: str | None = None) -> SegmentLines:
    return new_lines_of(log.active, cache, store)


def new_lines_of(
    segment: Segment, cache: str | None, store: LineStore | None = None
) -> SegmentLines:
    store = store or LineStore(Files(), granularity=16)
    return SegmentLines(store, segment, values_view(), cache=cache)


@FEW
@given(batches=BATCHES, save_after=st.sets(st.integers(0, 11)))
def test_kept_while_appending(
    tmp_path: Path, batches: list[list[bytes | None]], save_after: set[int]
) -> None:
    with a_log(tmp_path) as log:
        lines = new_lines(log)
        log.listeners.append(Following(lines))
        for number, values in enumerate(batches):
            append(log, *values)
            if number in save_after:
                assert lines.save()
                assert not lines.unsaved
        text = text_of(batches)
        assert lines.records == sum(map(len, batches))
        check(lines, text)
        values = [value for batch in batches for value in batch]
        for offset in range(len(values) + 1):
            assert text_before(lines, offset) == (len(text_of([values[:offset]])), offset)
        lines.save()
        again = new_lines(log)
        again.measure()
        assert (again.covered, again.text_length, again.records) == (
            lines.covered,
            lines.text_length,
            lines.records,
        )
        assert not again.unsaved
        check(again, text)


@FEW
@given(batches=BATCHES, saved=st.integers(0, 11))
def test_measured_where_it_was_not_kept(
    tmp_path: Path, batches: list[list[bytes | None]], saved: int
) -> None:
    """Also the rest of what was saved, as after the daemon's death."""
    with a_log(tmp_path) as log:
        lines = new_lines(log)
        log.listeners.append(Following(lines))
        for number, values in enumerate(batches):
            append(log, *values)
            if number == saved:
                lines.save()
        again = new_lines(log)
        assert again.text_length == 0
        again.measure()
        check(again, text_of(batches))


def test_granularity_bounds_the_scan(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        lines = new_lines(log, LineStore(Files(), granularity=100))
        log.listeners.append(Following(lines))
        append(log, *[b"x" * 9] * 100)
        for position in range(1000):
            assert position - at_once(lines.find, position)[0] < 110


def damaged(change: Callable[[bytearray], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    return damage


def _flip(at: int) -> Callable[[Path], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 1

    return damaged(change)


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        _flip(20),
        _flip(-1),
        damaged(lambda data: data.__delitem__(slice(-10, None))),
        damaged(bytearray.clear),
    ],
    ids=["missing", "header", "entries", "cut", "empty"],
)
@pytest.mark.parametrize("when", ["before loading", "after loading"])
def test_a_damaged_file_is_measured_anew(
    tmp_path: Path, damage: Callable[[Path], None], when: str
) -> None:
    values = [b"%d" % number for number in range(200)]
    with a_log(tmp_path) as log:
        lines = new_lines(log)
        log.listeners.append(Following(lines))
        append(log, *values)
        lines.save()
        path = Path(lines.path)
        if when == "before loading":
            damage(path)
            lines = new_lines(log)
            lines.measure()
        else:
            damage(path)
        check(lines, text_of([list(values)]))
        again = new_lines(log)
        again.measure()
        check(again, text_of([list(values)]))


def test_the_index_of_another_log_is_not_taken(tmp_path: Path) -> None:
    with a_log(tmp_path) as log, a_log(tmp_path) as other:
        for target, value in ((log, b"aaa"), (other, b"b")):
            lines = new_lines(target)
            target.listeners.append(Following(lines))
            append(target, *[value] * 50)
            lines.save()
        Path(new_lines(log).path).write_bytes(Path(new_lines(other).path).read_bytes())
        lines = new_lines(log)
        lines.measure()
        check(lines, b"aaa\n" * 50)


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("has_cache", [False, True])
def test_the_next_mount_measures_a_log_that_shows_less_than_its_index(
    tmp_path: Path, sealed: bool, has_cache: bool
) -> None:
    """A mount with a cache changes nothing beside the log."""
    cache = str(tmp_path) if has_cache else None
    with a_log(tmp_path) as log:
        producer = Client(log, 7)
        producer.send(b"aborted")
        producer.abort()
        append(log, b"shown")
        segment = log.active
        store = LineStore(Files(), granularity=1)
        not_aborted = SegmentLines(store, segment, values_view(), lambda *_: False)
        not_aborted.measure()
        assert not_aborted.save()
        beside = Path(not_aborted.path)
        saved = beside.read_bytes()
        if sealed:
            log.roll(1)

        def opened_again() -> SegmentLines:
            is_aborted = log.transactions.is_aborted
            lines = SegmentLines(store, segment, values_view(), is_aborted, cache)
            lines.measure()
            return lines

        lines = opened_again()
        assert lines.text_length == len(b"aborted\nshown\n")
        reader = reader_at(lines, 0)
        assert reader.fill(bytearray(lines.text_length), 0) == len(b"shown\n")
        with pytest.raises(BlockingIOError):
            at_once(reader.check_again)
        reader.check_again()
        if not sealed:
            append(log, b"later")
            lines.measure()
            assert not lines.save()
            log.roll(1)
            lines.seal()
        # This mount still finds the records.
        out = bytearray(len(b"shown\n"))
        assert reader_at(lines, len(b"aborted\n")).fill(out, 0) == len(out)
        assert out == b"shown\n"
        for _ in range(3):
            again = opened_again()
            assert again.text_length == len(b"shown\n" if sealed else b"shown\nlater\n")
            again.save()
        assert (beside.read_bytes() == saved) == has_cache


@pytest.mark.parametrize("kind", [ABORT, COMMIT])
@pytest.mark.parametrize("others", [[], [b"other"]])
def test_an_index_is_not_used_if_a_transaction_has_another_outcome(
    tmp_path: Path, kind: int, others: list[bytes]
) -> None:
    """The marker of the transaction lies after the index, and another one takes its place: with
    `others`, in a later segment.
    """
    data = tmp_path / "data"
    data.mkdir()
    with opened(data) as manager:
        log = new_log(manager)
        producer = Client(log, 7)
        append(log, b"before")
        producer.send(b"in it")
        append(log, b"after")
        log.roll(NOW_MS)
        for value in others:
            append(log, value)
        end = log.log_end_offset
        producer.end(kind)

        def measured() -> SegmentLines:
            transactions = log.transactions
            lines = SegmentLines(
                LineStore(Files()),
                log.segments[0],
                values_view(),
                transactions.is_aborted,
                str(tmp_path),
                aborted_across=transactions.aborted_across,
            )
            lines.measure()
            return lines

        def text() -> bytes:
            shown = [record.value or b"" for record in log.records(isolation="read_committed")]
            return b"".join(value + b"\n" for value in shown if value not in others)

        lines = measured()
        assert lines.text_length == len(text())
        assert lines.save()
        again = measured()
        assert not again.unsaved
        manager.truncate(log, end)
        assert measured().text_length == len(b"before\n")
        producer.end(ABORT + COMMIT - kind)
        lines = measured()
        out = bytearray(lines.text_length)
        assert reader_at(lines, 0).fill(out, 0) == len(out)
        assert out == text()


def test_the_last_records_before_an_open_transaction_are_found_at_once(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        for number in range(200):
            append(log, b"%d" % number * 400)
        Client(log, 7).send(*[b"open" * 2000] * 10)
        for _ in range(10):
            append(log, b"after it" * 1000)
        lines = SegmentLines(
            LineStore(Files()), log.active, values_view(), log.transactions.is_aborted
        )
        assert at_once(count_back, lines, 3) == (3, 197)


@pytest.mark.parametrize("number", range(5, 15))
def test_the_last_records_are_counted_over_a_damaged_batch(tmp_path: Path, number: int) -> None:
    """The index names some of the batches."""
    manager = LogManager.open(str(tmp_path))
    manager.create_topic("t", 1, settings={"index.interval.bytes": "300"})
    log = manager.log("t", 0)
    for each in range(20):
        append(log, b"%d" % each * 50)
    lines = new_lines(log)
    position = [at for at, _ in SegmentReader(log.active).batches()][number]
    with open(log.active.log_path, "r+b") as file:
        file.seek(position + 70)
        file.write(b"?")
    lines.reader.check_again(0, log.active.size)
    assert count_back(lines, 18) == (18, 1)
    assert count_back(lines, 20) == (19, None)
    manager.abandon()


@pytest.mark.parametrize("first", [1, 2])
def test_damage_after_the_saved_part_hides_nothing_before_it(tmp_path: Path, first: int) -> None:
    """The saved part has two batches. Without its file it is measured again.

    `first` 1: the second saved batch and the batch after it are damaged. `first` 2: only the batch
    after it is damaged.
    """
    manager = LogManager.open(str(tmp_path))
    manager.create_topic("t", 1)
    log = manager.log("t", 0)
    lines = new_lines(log)
    append(log, b"good")
    append(log, b"saved")
    lines.measure()
    assert lines.save()
    append(log, b"not saved")
    lines.measure()
    damaged = [at for at, _ in SegmentReader(log.active).batches()][first:]
    with open(log.active.log_path, "r+b") as file:
        for position in damaged:
            file.seek(position + 70)
            file.write(b"!")
    lines.reader.check_again(0, log.active.size)
    os.unlink(lines.path)
    assert lines.find(0) == (0, 0, 0, 0, 0)
    manager.abandon()


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("at", ["length", "value"])
def test_damage_that_was_measured_is_measured_again(tmp_path: Path, at: str, sealed: bool) -> None:
    """The file is replaced by a good copy, whose text has another length."""
    data, cache = tmp_path / "data", str(tmp_path / "cache")
    data.mkdir()
    with opened(data) as manager:
        log = new_log(manager)
        append(log, b"before")
        append(log, b"damaged" * 10, b"damaged, too")
        for _ in range(10):
            append(log, b"after it" * 200)
        position = [at for at, _ in log.active.headers(0, log.active.size)][1]
        place = position + HEADER_SIZE + {"length": 0, "value": 20}[at]
        path = Path(log.active.log_path)
        if sealed:
            log.roll(NOW_MS)
    good = path.read_bytes()

    def text_length(cache: str | None = None) -> int:
        with LogManager.open(str(data)) as manager:
            segment = manager.log("t", 0).segments[0]
            lines = SegmentLines(LineStore(Files()), segment, TEXT_VIEWS["jsonl"](), cache=cache)
            lines.measure()
            lines.save()
            return lines.text_length

    right = text_length(cache)
    path.write_bytes(good[:place] + b"\1" + good[place + 1 :])
    assert text_length() != right
    path.write_bytes(good)
    assert text_length() == right


def test_of_sealed_segments_a_bounded_number_of_bytes_stays_in_memory(tmp_path: Path) -> None:
    store = LineStore(Files(), granularity=16, budget=3000)
    with a_log(tmp_path) as log:
        sealed = []
        for _ in range(8):
            lines = new_lines(log, store)
            log.listeners[:] = [Following(lines)]
            append(log, *[b"x" * 20] * 50)
            log.roll(1)
            lines.seal()
            sealed.append(lines)
        for lines in sealed:
            with pytest.raises(BlockingIOError):
                at_once(lines.find, 0)
            check(lines, (b"x" * 20 + b"\n") * 50)
            assert 0 < store.memory.total <= 3000
        at_once(sealed[-1].find, 5)
        with pytest.raises(BlockingIOError):
            at_once(sealed[0].find, 5)
        for lines in sealed:
            lines.vanish()
        assert store.memory.total == 0, "what is deleted is not held any longer"
        with pytest.raises(BlockingIOError):
            at_once(sealed[-1].find, 5)


def test_where_nothing_can_be_saved_sealed_segments_are_measured_again(tmp_path: Path) -> None:
    class Full(Files):
        def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
            raise OSError(28, "no space")

    with a_log(tmp_path) as log:
        lines = new_lines(log, LineStore(Full(), granularity=16))
        log.listeners.append(Following(lines))
        append(log, *[b"y"] * 100)
        assert not lines.save()
        check(lines, b"y\n" * 100)
        log.roll(1)
        lines.seal()
        check(lines, b"y\n" * 100)
        assert not os.path.exists(lines.path) or os.path.getsize(lines.path) == 0


def test_what_is_left_for_deletions_is_not_for_it(tmp_path: Path) -> None:
    """On a full disk it would take what a part of the reserve was given up for."""

    class Spent(Room):
        is_whole = False

        def check(self) -> None:
            if not self.is_whole:
                raise OSError(errno.ENOSPC, "full")

    with a_log(tmp_path) as log:
        files = Files()
        files.room = spent = Spent()
        lines = new_lines(log, LineStore(files, granularity=16))
        log.listeners.append(Following(lines))
        append(log, *[b"y"] * 100)
        assert not lines.save()
        assert not os.path.exists(lines.path)
        check(lines, b"y\n" * 100)
        spent.is_whole = True
        assert lines.save()
        assert os.path.exists(lines.path)


def test_a_cache_directory_takes_the_file(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache" / "deep")
    with a_log(tmp_path) as log:
        lines = new_lines(log, cache=cache)
        log.listeners.append(Following(lines))
        append(log, b"z")
        assert lines.save()
        assert os.listdir(cache) == ["00000000000000000000.lines"]
        again = new_lines(log, cache=cache)
        again.measure()
        assert not again.unsaved
        check(again, b"z\n")


def saved_beside(log: Log, *values: bytes) -> Path:
    """The index that the writer of a log has saved, of all its values."""
    append(log, *values)
    lines = new_lines(log)
    lines.measure()
    assert lines.save()
    return Path(lines.path)


@FEW
@given(before=BATCHES, after=BATCHES, are_entries_read=st.booleans(), sealed=st.booleans())
def test_a_cache_gets_only_what_the_index_beside_the_log_lacks(
    tmp_path: Path,
    before: list[list[bytes | None]],
    after: list[list[bytes | None]],
    are_entries_read: bool,
    sealed: bool,
) -> None:
    with a_log(tmp_path) as log:
        for values in before:
            append(log, *values)
        beside = saved_beside(log, b"last")
        kept = beside.read_bytes(), beside.stat().st_mtime_ns
        cache = os.path.join(log.directory, "cache")
        lines = new_lines(log, cache=cache)
        lines.measure()
        assert not lines.unsaved
        text = text_of([*before, [b"last"]])
        if are_entries_read:
            check(lines, text)
        assert lines.save()
        assert not os.path.exists(cache)
        for values in after:
            append(log, *values)
        if sealed:
            log.roll(1)
            lines = new_lines_of(log.segments[0], cache)
        text += text_of(after)
        lines.measure()
        assert lines.save()
        assert (beside.read_bytes(), beside.stat().st_mtime_ns) == kept
        beside.unlink()
        again = new_lines_of(log.segments[0], cache)
        again.measure()
        assert not again.unsaved
        check(lines, text)
        check(again, text)


def test_the_longer_one_of_two_indexes_is_used(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    with a_log(tmp_path) as log:
        append(log, b"in the cache")
        lines = new_lines(log, cache=cache)
        lines.measure()
        assert lines.save()
        saved_beside(log, b"beside the log")
        again = new_lines(log, cache=cache)
        again.measure()
        assert not again.unsaved
        check(again, b"in the cache\nbeside the log\n")


def _cut_entries(beside: Path) -> None:
    os.truncate(beside, beside.stat().st_size - 1)


def _flip_entry(beside: Path) -> None:
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(data)


def _flip_header(beside: Path) -> None:
    data = bytearray(beside.read_bytes())
    data[20] ^= 1
    beside.write_bytes(data)


@pytest.mark.parametrize(
    "spoil",
    [_cut_entries, _flip_entry, _flip_header, Path.unlink, lambda beside: os.truncate(beside, 0)],
)
@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_damaged_index_beside_the_log_is_not_used_and_not_changed(
    tmp_path: Path, spoil: Callable[[Path], None], is_loaded: bool
) -> None:
    """Also if that happens after a mount has found it valid."""
    cache = str(tmp_path / "cache")
    with a_log(tmp_path) as log:
        beside = saved_beside(log, *[b"y"] * 100)
        lines = new_lines(log, cache=cache)
        if is_loaded:
            lines.measure()
        spoil(beside)
        spoilt = beside.read_bytes() if beside.exists() else None
        lines.measure()
        check(lines, b"y\n" * 100)
        assert lines.save()
        assert spoilt == (beside.read_bytes() if beside.exists() else None)
        again = new_lines(log, cache=cache)
        again.measure()
        check(again, b"y\n" * 100)


@pytest.mark.parametrize("is_loaded", [False, True])
def test_the_index_beside_the_log_may_be_that_of_its_replacement(
    tmp_path: Path, is_loaded: bool
) -> None:
    """Another process replaces a segment whose log a mount has open."""
    with a_log(tmp_path) as log, a_log(tmp_path) as other:
        beside = saved_beside(log, *[b"%d" % n for n in range(100)])
        replacement = saved_beside(other, *[b"%d" % (n * n) for n in range(80)])
        lines = new_lines(log, cache=str(tmp_path / "cache"))
        if is_loaded:
            lines.measure()
        os.replace(replacement, beside)
        lines.measure()
        check(lines, b"".join(b"%d\n" % n for n in range(100)))


def test_measuring_stops_in_time_and_goes_on(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        append(log, *[b"v"] * 10)
        lines = new_lines(log)
        with pytest.raises(BlockingIOError):
            lines.measure(time.monotonic())
        lines.measure()
        check(lines, b"v\n" * 10)


def test_appends_behind_a_gap_wait_for_measuring(tmp_path: Path) -> None:
    with a_log(tmp_path) as log:
        append(log, b"before")
        lines = new_lines(log)
        log.listeners.append(Following(lines))
        append(log, b"behind")
        assert lines.covered == 0
        lines.measure()
        append(log, b"after")
        check(lines, b"before\nbehind\nafter\n")


def test_of_a_log_that_is_cut_short_the_rest_is_measured(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    manager = LogManager.open(str(data))
    try:
        manager.create_topic("t", 1)
        log = manager.log("t", 0)
        append(log, b"v")
        kept = log.active.size
        append(log, *[b"w"] * 10)
        os.truncate(log.active.log_path, log.active.size - 3)
        lines = new_lines(log)
        lines.measure()
        assert [gap.place.start for gap in gaps_of(lines)] == [kept]
        assert lines.complete
    finally:
        manager.abandon()
