"""Files that cannot grow are exact by every way of reading, live names by read and pread.

Writers append text and batches to partitions, with and without pauses, while retention and
compaction run. Each partition has one writer. It first writes the same lines to a file outside of
the mount, the *truth*. Line N of the truth is the value of offset N, has LINE bytes and begins with
N. So the judge can check each line that is read, even if others were deleted or compacted since.

Readers open files, read them and open them again. They read snapshots, ranges and the logs of
sealed segments in all ways (`read_ways`), whole and in odd pieces. They read live names by read and
pread. The judge compares a whole file with the truth: its values, and the lines that it must have.
For example, a snapshot must have all lines that were acknowledged before the lookup of its name.
The judge compares each piece with the whole file, the size with the bytes that were read, and fstat
with stat. If retention or compaction has deleted lines since, a read may fail with ESTALE, which is
counted. But it must not return other bytes.

One more process reads growing files by splice, which no program should do. Zeros that it finds are
counted, and are not faults. But they stay in the page cache, and no other reader may find them.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import Record, encode
from storage.record.crc import crc32c
from tests import oracle
from tests.mount.mounting import mounted
from tests.soak.read_ways import READS, WAYS, Way, by_splice

LINE = 64
#: Bytes of a key with its TAB, and number of keys. Lines N and N + KEYS have the same key.
KEY, KEYS = 8, 2000
SETTINGS = """log.retention.bytes=500000
log.retention.ms=-1
log.segment.delete.delay.ms=500
log.cleaner.enable=false
"""


class Feed(NamedTuple):
    """A partition and its writer. `lines`: the most lines of one append."""

    topic: str
    partition: int
    view: str
    lines: int
    pause_s: float

    def path(self, mount: Path, view: str = "", name: str = "") -> Path:
        return mount / self.topic / view / f"{self.partition}{name}"

    def truth(self, base: Path) -> Path:
        return base / f"truth-{self.topic}-{self.partition}"


FEEDS = (
    Feed("kept", 0, "", 8, 0.0),
    Feed("kept", 1, "", 200, 0.01),
    Feed("kept", 2, ".batches", 40, 0.002),
    Feed("cleaned", 0, ".kv", 40, 0.005),
)
CLEANED = FEEDS[-1]
#: Retention or compaction has deleted it. EFAULT: a map's page cannot be read.
GONE = errno.ESTALE, errno.ENOENT, errno.EFAULT
#: A snapshot's name leads a process that has looked it up to the same one for longer than this.
AGREES_S = 4.0
FIXED = ("range", "snapshot", "sealed")
LIVE = ("live", "range not reached")
#: How many files a reader leaves open.
KEPT = 20
READERS = ("readers 1", "readers 2", "readers 3", "live", "spliced live", "keeper")
#: In less time, not every kind of file is read.
LEAST_S = 30.0


def line(number: int) -> bytes:
    """A value and its newline."""
    spread = number * 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251 & (1 << 188) - 1
    return b"%015d %047x\n" % (number, spread)


def key(number: int) -> bytes:
    return b"%07d\t" % (number * 7919 % KEYS)


class Board:
    """Numbers that all processes see: how many lines and growths each feed has, and when to end."""

    _FIELDS = 2 * len(FEEDS)

    def __init__(self, base: Path) -> None:
        with open(base / "board", "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @classmethod
    def make(cls, base: Path, seconds: float, growths: int) -> Board:
        """All processes run for `seconds` at least, and until `growths` appends have been made."""
        (base / "board").write_bytes(bytes(8 * (cls._FIELDS + 3)))
        board = cls(base)
        board._words[cls._FIELDS] = time.monotonic_ns() + int(seconds * 1e9)
        board._words[cls._FIELDS + 1] = growths
        return board

    @property
    def is_over(self) -> bool:
        until_ns, growths, failed = self._words[self._FIELDS :]
        enough = time.monotonic_ns() >= until_ns and self.growths() >= growths
        return enough or bool(failed)

    def fail(self) -> None:
        """End all processes."""
        self._words[self._FIELDS + 2] = 1

    def lines(self, feed: Feed) -> int:
        """How many lines were acknowledged."""
        return self._words[2 * FEEDS.index(feed)]

    def grown(self, feed: Feed, lines: int) -> None:
        at = 2 * FEEDS.index(feed)
        self._words[at] += lines
        self._words[at + 1] += 1

    def growths(self) -> int:
        return sum(self._words[1 : self._FIELDS : 2])


# -- writers -------------------------------------------------------------------------------------


def write(base: Path, mount: Path, feed: Feed, board: Board) -> None:
    draw = random.Random(repr(feed))
    number = 0
    fd = os.open(feed.path(mount, feed.view), os.O_WRONLY | os.O_APPEND)
    with open(feed.truth(base), "ab", buffering=0) as truth:
        while not board.is_over:
            count = draw.randint(1, feed.lines)
            values = [line(number + at) for at in range(count)]
            truth.write(b"".join(values))
            data = text_of(feed, number, values)
            assert os.write(fd, data) == len(data)
            number += count
            board.grown(feed, count)
            if feed.pause_s and draw.random() < 0.5:
                time.sleep(draw.random() * 2 * feed.pause_s)
    os.close(fd)


def text_of(feed: Feed, number: int, values: list[bytes]) -> bytes:
    if feed.view == ".batches":
        now_ms = time.time_ns() // 1_000_000
        records = [
            Record(number + at, now_ms, 0, None, value[:-1]) for at, value in enumerate(values)
        ]
        return bytes(encode(records))
    if feed.view == ".kv":
        return b"".join(key(number + at) + value for at, value in enumerate(values))
    return b"".join(values)


def keep(mount: Path, board: Board) -> int:
    """Run retention and compaction again and again; how often."""
    runs = 0
    while not board.is_over:
        (mount / "kept/.control/retention").write_text("run\n")
        with contextlib.suppress(OSError):  # the last one runs
            (mount / "cleaned/.control/compaction").write_text("run\n")
        runs += 1
        time.sleep(0.5)
    return runs


# -- the judge -----------------------------------------------------------------------------------


class Wrong(Exception):  # noqa: N818 - what the mount did
    """Bytes, lines or attributes that should not be."""


class Past(NamedTuple):
    """The state of a feed after the last deletion of retention or compaction."""

    log_start: int
    #: Differs after each of their runs that has deleted something.
    generation: bytes


class File(NamedTuple):
    """A file to read: the lines from `start` on, those that were there up to `end`, and none from
    `limit` on, if it has one.

    Retention and compaction may have taken lines of it, at the latest until it is opened.
    """

    feed: Feed
    view: str
    path: Path
    kind: str
    start: int
    end: int
    limit: int | None


class Judge:
    """Knows what is right, of one feed."""

    def __init__(self, base: Path, feed: Feed) -> None:
        self._feed = feed
        self._truth = os.open(feed.truth(base), os.O_RDONLY)

    def written(self) -> int:
        """How many lines there are at most."""
        return os.fstat(self._truth).st_size // LINE

    def numbers(self, view: str, data: bytes) -> Sequence[int]:
        """The numbers of the lines in a file of the view.

        Wrong where it cannot be one, from a line's beginning to a line's end.
        """
        judge = {"": self._values, ".kv": self._pairs, ".jsonl": self._json}
        return judge.get(view, self._batches)(data)

    def complete(
        self, file: File, numbers: Sequence[int], before: Past, after: Past, written: int
    ) -> None:
        """Wrong where these are not the lines that the file must have.

        `before` and `after`: the feed's past before the look-up, and when the file was open;
        `written`: lines then.
        """
        lowest, first = max(file.start, before.log_start), max(file.start, after.log_start)
        limit = self.written() if file.limit is None else file.limit
        if file.view == ".batches" and file.kind == "range":
            # Whole batches.
            lowest, limit = lowest - self._feed.lines + 1, limit + self._feed.lines - 1
        if numbers and not lowest <= numbers[0] <= numbers[-1] < limit:
            raise Wrong(
                f"the lines {numbers[0]} to {numbers[-1]}, not from {lowest} on and below {limit}"
            )
        if self._feed == CLEANED:
            # Compaction may have removed a line if a later one has the same key.
            first = max(first, written - KEYS)
        missing = set(range(first, file.end)).difference(numbers)
        if missing:
            shown = f"{numbers[0]} to {numbers[-1]}" if numbers else "none"
            raise Wrong(
                f"{len(missing)} lines are missing, {min(missing)} to {max(missing)}, of {first} "
                f"to {file.end - 1}; it has {shown}"
            )

    def _values(self, data: bytes) -> Sequence[int]:
        if not data:
            return ()
        first = _number(data)
        if data == self._lines(first, len(data)) and len(data) % LINE == 0:
            return range(first, first + len(data) // LINE)
        if self._feed != CLEANED:
            expected = self._lines(first, len(data)).ljust(len(data), b"?")
            at = next(
                (
                    at
                    for at, (got, right) in enumerate(zip(data, expected, strict=True))
                    if got != right
                ),
                len(data) // LINE * LINE,
            )
            raise Wrong(f"at {at} of {len(data)}: {data[at : at + 100]!r}")
        numbers = []
        before = -1
        for at in range(0, len(data), LINE):
            got = data[at : at + LINE]
            number = _number(got)
            if number <= before or got != line(number):
                raise Wrong(f"at {at} of {len(data)}, after line {before}: {got!r}")
            numbers.append(number)
            before = number
        return numbers

    def _lines(self, first: int, size: int) -> bytes:
        return os.pread(self._truth, size, first * LINE)

    def _pairs(self, data: bytes) -> Sequence[int]:
        if self._feed != CLEANED:
            # There are no keys.
            return self._values(data)
        size = KEY + LINE
        values = []
        for at in range(0, len(data), size):
            pair = data[at : at + size]
            if pair[:KEY] != key(_number(pair[KEY:])):
                raise Wrong(f"at {at} of {len(data)}: {pair!r}")
            values.append(pair[KEY:])
        return self._values(b"".join(values))

    def _json(self, data: bytes) -> Sequence[int]:
        values = []
        for text in data.splitlines(keepends=True):
            try:
                record = json.loads(text)
                value = record["value"].encode() + b"\n"
            except (ValueError, KeyError, AttributeError):
                raise Wrong(f"no record: {text[:200]!r}") from None
            if record["offset"] != _number(value) or not text.endswith(b"\n"):
                raise Wrong(f"not as it was written: {text[:200]!r}")
            values.append(value)
        return self._values(b"".join(values))

    def _batches(self, data: bytes) -> Sequence[int]:
        values = []
        for offset, record in records(data):
            value = (record.value or b"") + b"\n"
            known = key(_number(value))[:-1] if self._feed == CLEANED else None
            if offset != _number(value) or record.key != known:
                raise Wrong(f"not as it was written: offset {offset}: {record}")
            values.append(value)
        return self._values(b"".join(values))


def _number(text: bytes) -> int:
    try:
        return int(text[:15])
    except ValueError:
        raise Wrong(f"no line: {text[:LINE]!r}") from None


def records(data: bytes) -> Iterator[tuple[int, oracle.Row]]:
    """The records and their offsets; Wrong where these are not whole batches with a right CRC."""
    at = 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        batch = data[at : at + size]
        if size < 61 or len(batch) < size:
            raise Wrong(f"at {at} of {len(data)}: no batch: {batch[:64]!r}")
        if crc32c(batch[21:]) != int.from_bytes(batch[17:21], "big"):
            raise Wrong(f"at {at} of {len(data)}: a batch with a wrong CRC")
        (header,) = oracle.walk(batch)
        for _, record in oracle.rows(batch, header):
            yield header.base_offset + record.offset_delta, record
        at += size


# -- readers -------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """A file that is left open: what it is, and what of its feed's past it was opened with."""

    file: File
    fd: int
    data: bytes
    past: Past


class Reader:
    """Reads files and counts what it found: `counts`."""

    def __init__(self, base: Path, mount: Path, seed: str) -> None:
        self._mount = mount
        self._board = Board(base)
        self._draw = random.Random(seed)
        self._judges = {feed: Judge(base, feed) for feed in FEEDS}
        self._kept: list[Kept] = []
        self._live_kinds = itertools.cycle(LIVE)
        self.counts: Counter[str] = Counter()

    def read_one(self, choose: Callable[[Feed, Past], File]) -> None:
        """Read a file that `choose` has chosen of a feed."""
        feed = self._draw.choice(FEEDS)
        before = self._past(feed)
        file = choose(feed, before)
        with self._may_be_gone(file, before, ""):
            self._kept.append(self._read(file, before))
            self.counts[file.kind] += 1
        if len(self._kept) > KEPT:
            old = self._kept.pop(self._draw.randrange(KEPT))
            try:
                with self._may_be_gone(old.file, old.past, ", open for a while"):
                    self._pieces(old.fd, old.data, _ways(old.file))
                    self.counts["read again later"] += 1
            finally:
                os.close(old.fd)

    @contextlib.contextmanager
    def _may_be_gone(self, file: File, past: Past, when: str) -> Iterator[None]:
        """Count a file that cannot be read, where its feed has another past by now."""
        try:
            yield
        except OSError as error:
            if error.errno not in GONE or self._past(file.feed) == past:
                raise Wrong(f"{file.path} ({file.kind}{when}): {error}, {past} before") from error
            self.counts[f"{file.kind} gone{when}"] += 1
        except Wrong as wrong:
            raise Wrong(f"{file.path} ({file.kind}{when}): {wrong}") from None

    def _past(self, feed: Feed) -> Past:
        path = feed.path(self._mount)
        log_start = int(os.getxattr(path, "user.kafkafs.log_start"))
        return Past(log_start, os.getxattr(path, "user.kafkafs.generation"))

    def _read(self, file: File, before: Past) -> Kept:
        """Look it up, open it, and read all of it. OSError, Wrong."""
        judge, looked_up = self._judges[file.feed], time.monotonic()
        told = os.stat(file.path)
        fd = os.open(file.path, os.O_RDONLY)
        try:
            found, after, written = os.fstat(fd), self._past(file.feed), judge.written()
            if told.st_ino == found.st_ino:
                self._agree(file, told, found)
            elif not (
                after != before
                or (file.kind == "snapshot" and time.monotonic() - looked_up > AGREES_S)
                # One that has reached its end is another file.
                or (file.kind in LIVE and file.limit is not None and written >= file.limit)
            ):
                raise Wrong(f"another file than stat has told: {told}, {found}")
            if file.kind in LIVE:
                data = self._live(fd)
                shown = data + self._follow(fd, len(data))
            else:
                data = shown = self._fixed(fd)
            judge.complete(file, judge.numbers(file.view, shown), before, after, written)
            self.counts["bytes"] += len(data)
            return Kept(file, fd, data, before)
        except BaseException:
            os.close(fd)
            raise

    @staticmethod
    def _agree(file: File, told: os.stat_result, found: os.stat_result) -> None:
        before, after = (told.st_size, told.st_mtime_ns), (found.st_size, found.st_mtime_ns)
        agree = before <= after if file.kind in LIVE else before == after
        if not agree:
            raise Wrong(f"fstat differs from stat: {told}, {found}")

    def _pieces(self, fd: int, whole: bytes, ways: tuple[Way, ...]) -> None:
        """Compare odd pieces of a file with `whole`, which was read before."""
        draw = self._draw
        for _ in range(20):
            way, position = draw.choice(ways), draw.randrange(len(whole) + 1)
            piece = way(fd, position, draw.choice((1, 100, 4096, 70_000)))
            known = whole[position : position + len(piece)]
            if piece[: len(known)] != known:
                at = next(at for at, (a, b) in enumerate(zip(piece, known, strict=False)) if a != b)
                raise Wrong(
                    f"{way.__name__} of {len(piece)} at {position}: {piece[at : at + 100]!r} at "
                    f"{position + at} of {len(whole)}, and {known[at : at + 100]!r} before"
                )

    def _fixed(self, fd: int) -> bytes:
        """A file that cannot grow: in all ways, in any order, whole and in pieces."""
        size = os.fstat(fd).st_size
        first, *others = self._draw.sample(WAYS, len(WAYS))
        whole = first(fd, 0, size + LINE)
        for way in others:
            if way(fd, 0, size + LINE) != whole:
                raise Wrong(f"{way.__name__} finds other bytes than {first.__name__}")
        self._pieces(fd, whole, WAYS)
        sizes = size, len(whole), os.fstat(fd).st_size
        if len(set(sizes)) > 1:
            raise Wrong(f"sizes differ: {sizes}")
        return whole

    def _live(self, fd: int) -> bytes:
        """A file that grows: what was read once stays, and is right."""
        before = os.fstat(fd).st_size
        whole = self._draw.choice(READS)(fd, 0, 1 << 30)
        after = os.fstat(fd).st_size
        if not before <= len(whole) <= after:
            raise Wrong(f"{len(whole)} bytes, between sizes of {before} and {after}")
        self._pieces(fd, whole, READS)
        return whole

    def _follow(self, fd: int, position: int) -> bytes:
        """Return the bytes that are appended meanwhile, read as `tail -f` does."""
        text = bytearray()
        for _ in range(100):
            text += self._draw.choice(READS)(fd, position + len(text), 1 << 16)
            self.counts["reads at the end"] += 1
        return bytes(text)

    # -- what to read --------------------------------------------------------------------------

    def fixed(self, feed: Feed, past: Past) -> File:
        kind = self._draw.choice(FIXED)
        if kind == "sealed":
            directory = feed.path(self._mount, ".raw")
            bases = sorted(int(name[:-4]) for name in os.listdir(directory) if ".log" in name)
            # One that is deleted may have its name a moment longer than its segment.
            bases = [base for base in bases if base >= past.log_start]
            if len(bases) > 1:
                at = self._draw.randrange(len(bases) - 1)
                start, limit = bases[at : at + 2]
                path = directory / f"{start:020}.log"
                if feed == CLEANED:
                    # Cleaned segments take their names one after the other: the next one may lack
                    # its own, or become a part of this one.
                    return File(feed, ".batches", path, kind, start, start, None)
                return File(feed, ".batches", path, kind, start, limit, limit)
        view = self._draw.choice(("", "", ".kv", ".jsonl", ".batches"))
        lines = self._board.lines(feed)
        if kind == "snapshot":
            path = self._mount / feed.topic / view / ".snapshot" / str(feed.partition)
            return File(feed, view, path, kind, 0, lines, None)
        end = max(lines - self._draw.choice((0, 0, 1, 10, 1000)), 0)
        start = max(end - self._draw.choice((1, 100, 10_000, 40_000)), 0)
        path = feed.path(self._mount, view, f"@{start}..{end}")
        return File(feed, view, path, "range", start, end, end)

    def live(self, feed: Feed, past: Past) -> File:
        view, lines = self._draw.choice(("", "", ".kv")), self._board.lines(feed)
        if next(self._live_kinds) == "live":
            return File(feed, view, feed.path(self._mount, view), "live", 0, lines, None)
        # The log has not reached its end, or does while it is read.
        start, limit = max(lines - 2000, 0), lines + self._draw.choice((1, 100, 10_000))
        path = feed.path(self._mount, view, f"@{start}..{limit}")
        return File(feed, view, path, "range not reached", start, lines, limit)

    def splice_live(self) -> None:
        """Read the end of what grows as nobody should, and count how often zeros are there.

        Its pages are in the cache then: of ranges that are reached later, of segments that are
        sealed, and of names that others read.
        """
        feed = self._draw.choice(FEEDS)
        live = self.live(feed, self._past(feed)).path
        path = self._draw.choice((FEEDS[0].path(self._mount), live, self._active()))
        with contextlib.suppress(FileNotFoundError), _opened(path) as fd:
            end = os.fstat(fd).st_size
            for _ in range(500):
                start = end // 4096 * 4096
                data = by_splice(fd, start, 1 << 16)
                end = start + len(data)
                if path.suffix != ".log" and b"\0" in data:
                    self.counts["zeros by splice on what grows"] += 1
            self.counts["spliced"] += 1

    def _active(self) -> Path:
        """The log of an active segment."""
        directory = self._draw.choice(FEEDS).path(self._mount, ".raw")
        return max(directory.glob("*.log"))


def _ways(file: File) -> tuple[Way, ...]:
    return READS if file.kind in LIVE else WAYS


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


# -- all of them ---------------------------------------------------------------------------------


@pytest.mark.soak
def test_not_a_byte_is_wrong(
    tmp_path: Path, soak_s: float, growths: int, figures: Callable[[str, object], None]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kafkafs.properties").write_text(SETTINGS)
    with mounted(tmp_path) as mount:
        mount.topic("kept", 3)
        mount.topic("cleaned")
        for topic in ("kept", "cleaned"):
            (mount / topic / ".config").write_text("internal.segment.bytes=100000\n")
        (mount / "cleaned/.config").write_text("cleanup.policy=compact\n")
        for feed in FEEDS:
            feed.truth(tmp_path).touch()
        board = Board.make(tmp_path, max(soak_s, LEAST_S), growths)
        roles = [*(f"feed {number}" for number in range(len(FEEDS))), *READERS]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(tmp_path), role],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for role in roles
        ]
        said = [process.communicate() for process in processes]
        ends = [process.returncode for process in processes]
        faults = [
            f"{role} ended with {end}: {err}"
            for role, end, (_, err) in zip(roles, ends, said, strict=True)
            if end or err
        ]
        assert not faults, "\n".join(faults)
    counts: Counter[str] = Counter()
    for out, _ in said:
        counts.update(json.loads(out))
    counts["growths"] = board.growths()
    for kind in (*FIXED, *LIVE):
        assert counts[kind] > counts[f"{kind} gone"], f"most of {kind} are gone: {counts}"
    for kind in ("reads at the end", "read again later"):
        assert counts[kind], f"no {kind}: {counts}"
    for kind, count in sorted(counts.items()):
        figures(f"page cache: {kind}", count)


@pytest.mark.soak
def test_the_judge_sees_zeros(tmp_path: Path) -> None:
    feed = FEEDS[0]
    text = b"".join(line(number) for number in range(100))
    feed.truth(tmp_path).write_bytes(text)
    judge = Judge(tmp_path, feed)
    assert judge.numbers("", text[LINE:]) == range(1, 100)
    for wrong in (
        text[:-10] + bytes(10),
        text[:-10],
        text[: 50 * LINE] + bytes(LINE) + text[51 * LINE :],
        text[: 50 * LINE] + text[51 * LINE :],
    ):
        with pytest.raises(Wrong):
            judge.numbers("", wrong)


@pytest.mark.soak
@pytest.mark.parametrize("feed", [FEEDS[0], CLEANED], ids=["kept", "cleaned"])
def test_the_judge_sees_other_records(tmp_path: Path, feed: Feed) -> None:
    """With a right CRC, but another value, offset or key."""
    feed.truth(tmp_path).write_bytes(b"".join(line(number) for number in range(100)))
    judge = Judge(tmp_path, feed)

    def batch(number: int, of: int, with_key: bool) -> bytes:
        known = key(of)[:-1] if with_key else None
        return bytes(encode([Record(number, 0, 0, known, line(of)[:-1])]))

    whole = b"".join(batch(number, number, feed == CLEANED) for number in range(3))
    assert judge.numbers(".batches", whole) == range(3)
    for wrong in (
        batch(4, 3, feed == CLEANED),
        batch(3, 3, feed != CLEANED),
        batch(4, 4, feed == CLEANED) + batch(3, 3, feed == CLEANED),
        whole[:-1],
    ):
        with pytest.raises(Wrong):
            judge.numbers(".batches", whole + wrong)


@pytest.mark.soak
def test_the_judge_sees_missing_lines(tmp_path: Path) -> None:
    lines = 3 * KEYS
    for feed in FEEDS[0], CLEANED:
        feed.truth(tmp_path).write_bytes(bytes(lines * LINE))
    path, before, after = tmp_path, Past(10, b"1"), Past(20, b"2")
    snapshot = File(FEEDS[0], "", path, "snapshot", 0, lines - 5, None)
    part = File(FEEDS[0], "", path, "range", 15, 100, 100)
    cleaned = File(CLEANED, "", path, "snapshot", 0, lines - 5, None)
    old, new = range(0, KEYS, 2), range(2 * KEYS, lines)
    for file, right, wrong in (
        (snapshot, range(10, lines - 5), range(9, lines)),
        (snapshot, range(20, lines), range(21, lines)),
        (snapshot, range(20, lines), range(20, lines - 6)),
        (snapshot, range(20, lines), ()),
        (part, range(15, 100), range(14, 100)),
        (part, range(20, 100), range(21, 100)),
        (part, range(20, 100), range(20, 99)),
        (part, range(20, 100), range(20, 101)),
        (cleaned, [*old[10:], *new], [*old[10:], *new[1:]]),
        (cleaned, [*old[10:], *new[:-5]], [*old[10:], *new[:-6]]),
    ):
        judge = Judge(tmp_path, file.feed)
        judge.complete(file, right, before, after, lines)
        with pytest.raises(Wrong):
            judge.complete(file, wrong, before, after, lines)


def main() -> None:
    base, mount, role = Path(sys.argv[1]), Path(sys.argv[1]) / "mnt", sys.argv[2]
    board = Board(base)
    try:
        counts = play(role, base, mount, board)
    except BaseException:
        board.fail()
        raise
    print(json.dumps(counts))


def play(role: str, base: Path, mount: Path, board: Board) -> Counter[str]:
    """Do what one of the processes does, until it is over; what it has counted."""
    kind, _, number = role.partition(" ")
    if kind == "feed":
        write(base, mount, FEEDS[int(number)], board)
        return Counter()
    if kind == "keeper":
        return Counter({"runs of retention and compaction": keep(mount, board)})
    reader = Reader(base, mount, role)
    while not board.is_over:
        if kind == "readers":
            reader.read_one(reader.fixed)
        elif kind == "live":
            reader.read_one(reader.live)
        else:
            reader.splice_live()
    return reader.counts


if __name__ == "__main__":
    main()
