"""What cannot grow is exact by every way of reading, and live names by read and pread.

Writers append to partitions, with pauses and without, text and batches, while retention and
compaction run. Each partition has one writer, who first writes the same lines into a file outside
of the mount, the *truth*: line N of that is the value of offset N, LINE bytes, and begins with N.
So any line that is read can be judged, whatever has been deleted or compacted since.

Readers open, read and open again: snapshots and ranges in all views, the logs of sealed segments,
in all ways (`read_ways`), whole and in odd pieces; and live names by read and pread. The whole is
judged by the truth, each piece by the whole, the size by what was read. What retention has deleted
may be ESTALE, which is counted, but never other bytes.

One more reads what grows by splice, as nobody should. Zeros that it finds are counted, and are no
fault; but they stay in the page cache, where none of the others may find them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from storage import Record, encode
from storage.record._crc import crc32c
from tests.mount.mounting import mounted
from tests.soak.read_ways import READS, WAYS, Way, by_splice

LINE = 64
#: A key of the compacted topic, and the TAB behind it.
KEY = 8
SETTINGS = f"""log.segment.bytes={1 << 20}
log.retention.bytes={2 << 20}
log.retention.ms=-1
log.segment.delete.delay.ms=500
log.cleaner.enable=false
"""


class Feed(NamedTuple):
    """A partition and who writes it. `lines`: at most so many at once."""

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
#: Retention has deleted it. EFAULT: a map's page cannot be read.
GONE = errno.ESTALE, errno.ENOENT, errno.EFAULT
#: How many files a reader leaves open.
KEPT = 50
READERS = ("readers 1", "readers 2", "readers 3", "live", "spliced live", "keeper")


def line(number: int) -> bytes:
    """A value and its newline."""
    spread = number * 0x9E3779B97F4A7C15F39CC0605CEDC8341082276BF3A27251 & (1 << 188) - 1
    return b"%015d %047x\n" % (number, spread)


def key(number: int) -> bytes:
    return b"%07d\t" % (number * 7919 % 2000)


class Board:
    """Numbers that all processes see: how many lines and growths each feed has."""

    def __init__(self, base: Path) -> None:
        with open(base / "board", "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    @staticmethod
    def make(base: Path) -> None:
        (base / "board").write_bytes(bytes(16 * len(FEEDS)))

    def lines(self, feed: Feed) -> int:
        return self._words[2 * FEEDS.index(feed)]

    def grown(self, feed: Feed, lines: int) -> None:
        at = 2 * FEEDS.index(feed)
        self._words[at] += lines
        self._words[at + 1] += 1

    def growths(self) -> int:
        return sum(self._words[1::2])


# -- writers -------------------------------------------------------------------------------------


def write(base: Path, mount: Path, feed: Feed, until: float) -> None:
    draw, board = random.Random(repr(feed)), Board(base)
    number = 0
    fd = os.open(feed.path(mount, feed.view), os.O_WRONLY | os.O_APPEND)
    with open(feed.truth(base), "ab", buffering=0) as truth:
        while time.monotonic() < until:
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


def keep(mount: Path, until: float) -> int:
    """Run retention and compaction again and again; how often."""
    runs = 0
    while time.monotonic() < until:
        (mount / "kept/.control/retention").write_text("run\n")
        with contextlib.suppress(OSError):  # the last one runs
            (mount / "cleaned/.control/compaction").write_text("run\n")
        runs += 1
        time.sleep(0.5)
    return runs


# -- the judge -----------------------------------------------------------------------------------


class Wrong(Exception):  # noqa: N818 - what the mount did
    """Bytes or a size that should not be."""


class Judge:
    """Knows what is right, of one feed."""

    def __init__(self, base: Path, feed: Feed) -> None:
        self._feed = feed
        self._truth = os.open(feed.truth(base), os.O_RDONLY)

    def whole(self, view: str, data: bytes) -> None:
        """Wrong where this cannot be a file of the view, from a line's beginning to an end."""
        judge = {"": self._values, ".kv": self._pairs, ".jsonl": self._json, ".batches": batches}
        judge[view](data)

    def _values(self, data: bytes) -> None:
        if not data:
            return
        first = _number(data)
        if data == self._lines(first, len(data)):
            return
        if self._feed != CLEANED:
            expected = self._lines(first, len(data)).ljust(len(data), b"?")
            at = next(
                at
                for at, (got, right) in enumerate(zip(data, expected, strict=True))
                if got != right
            )
            raise Wrong(f"at {at} of {len(data)}: {data[at : at + 100]!r}")
        before = -1
        for at in range(0, len(data), LINE):
            got = data[at : at + LINE]
            number = _number(got)
            if number <= before or got != line(number):
                raise Wrong(f"at {at} of {len(data)}, after line {before}: {got!r}")
            before = number

    def _lines(self, first: int, size: int) -> bytes:
        return os.pread(self._truth, size, first * LINE)

    def _pairs(self, data: bytes) -> None:
        if self._feed != CLEANED:
            # There are no keys.
            self._values(data)
            return
        size = KEY + LINE
        values = []
        for at in range(0, len(data), size):
            pair = data[at : at + size]
            if pair[:KEY] != key(_number(pair[KEY:])):
                raise Wrong(f"at {at} of {len(data)}: {pair!r}")
            values.append(pair[KEY:])
        self._values(b"".join(values))

    def _json(self, data: bytes) -> None:
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
        self._values(b"".join(values))


def _number(text: bytes) -> int:
    try:
        return int(text[:15])
    except ValueError:
        raise Wrong(f"no line: {text[:LINE]!r}") from None


def batches(data: bytes) -> None:
    """Wrong where these are not whole batches with a right CRC."""
    at = 0
    while at < len(data):
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        batch = data[at : at + size]
        if size < 61 or len(batch) < size:
            raise Wrong(f"at {at} of {len(data)}: no batch: {batch[:64]!r}")
        if crc32c(batch[21:]) != int.from_bytes(batch[17:21], "big"):
            raise Wrong(f"at {at} of {len(data)}: a batch with a wrong CRC")
        at += size


# -- readers -------------------------------------------------------------------------------------


class Reader:
    """Reads files and counts what it found: `counts`."""

    def __init__(self, base: Path, mount: Path, seed: str) -> None:
        self._mount = mount
        self._board = Board(base)
        self._draw = random.Random(seed)
        self._judges = {feed: Judge(base, feed) for feed in FEEDS}
        # Open files: what they are, what they hold, and how they are read.
        self._kept: list[tuple[str, int, bytes, tuple[Way, ...]]] = []
        self.counts: Counter[str] = Counter()

    def read_one(self, choose: Callable[[], tuple[Feed, str, Path, str]], ways: bool) -> None:
        """Read a file of a choice: its feed, its view, its path and its kind."""
        feed, view, path, kind = choose()
        what = f"{path} ({kind})"
        try:
            fd = os.open(path, os.O_RDONLY)
            try:
                data = self._fixed(fd) if ways else self._live(fd)
                self._judges[feed].whole(view, data)
                if not ways:
                    self._judges[feed].whole(view, self._follow(fd, len(data)))
            except BaseException:
                os.close(fd)
                raise
            self.counts[kind] += 1
            self.counts["bytes"] += len(data)
            self._kept.append((what, fd, data, WAYS if ways else READS))
            if len(self._kept) > KEPT:
                what, old, known, how = self._kept.pop(self._draw.randrange(KEPT))
                what += ", open for a while"
                self._read_again(old, known, how)
        except OSError as error:
            if error.errno not in GONE:
                raise
            self.counts["gone"] += 1
        except Wrong as wrong:
            raise Wrong(f"{what}: {wrong}") from None

    def _read_again(self, old: int, known: bytes, ways: tuple[Way, ...]) -> None:
        try:
            self._pieces(old, known, ways)
            self.counts["read again later"] += 1
        finally:
            os.close(old)

    def _pieces(self, fd: int, whole: bytes, ways: tuple[Way, ...]) -> None:
        """Odd pieces of a file of which `whole` was read before."""
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
        """A file that cannot grow: by all ways, whole and in pieces."""
        size = os.fstat(fd).st_size
        first, *others = self._draw.sample(WAYS, 4)
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
        """What is appended meanwhile, as `tail -f` reads it."""
        text = bytearray()
        for _ in range(300):
            text += self._draw.choice(READS)(fd, position + len(text), 1 << 16)
            self.counts["reads at the end"] += 1
        return bytes(text)

    # -- what to read --------------------------------------------------------------------------

    def fixed(self) -> tuple[Feed, str, Path, str]:
        feed = self._draw.choice(FEEDS)
        kind = self._draw.choice(("range", "snapshot", "sealed"))
        if kind == "sealed":
            names = sorted(os.listdir(feed.path(self._mount, ".raw")))
            logs = [name for name in names if name.endswith(".log")][:-1]
            if logs:
                path = feed.path(self._mount, ".raw") / self._draw.choice(logs)
                return feed, ".batches", path, kind
        view = self._draw.choice(("", "", ".kv", ".jsonl", ".batches"))
        if kind == "snapshot":
            return feed, view, self._snapshot(feed, view), kind
        return feed, view, feed.path(self._mount, view, self._reached(feed)), "range"

    def _snapshot(self, feed: Feed, view: str) -> Path:
        return self._mount / feed.topic / view / ".snapshot" / str(feed.partition)

    def _reached(self, feed: Feed) -> str:
        """A range whose end the log has reached."""
        lines = self._board.lines(feed)
        end = max(lines - self._draw.choice((0, 0, 1, 10, 1000)), 0)
        return f"@{max(end - self._draw.choice((1, 100, 10_000, 40_000)), 0)}..{end}"

    def live(self) -> tuple[Feed, str, Path, str]:
        feed, view = self._draw.choice(FEEDS), self._draw.choice(("", "", ".kv"))
        if self._draw.random() < 0.5:
            return feed, view, feed.path(self._mount, view), "live"
        # The log has not reached its end, or does while it is read.
        lines = self._board.lines(feed)
        name = f"@{max(lines - 2000, 0)}..{lines + self._draw.choice((1, 100, 10_000))}"
        return feed, view, feed.path(self._mount, view, name), "range not reached"

    def splice_live(self) -> None:
        """Read the end of what grows as nobody should, and count how often zeros are there.

        Its pages are in the cache then: of ranges that are reached later, of segments that are
        sealed, and of names that others read.
        """
        path = self._draw.choice((FEEDS[0].path(self._mount), self.live()[2], self._active()))
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
    tmp_path: Path, soak_s: float, figures: Callable[[str, object], None]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "kafkafs.properties").write_text(SETTINGS)
    Board.make(tmp_path)
    with mounted(tmp_path) as mount:
        mount.topic("kept", 3)
        mount.topic("cleaned")
        (mount.path / "cleaned/.config").write_text("cleanup.policy=compact\n")
        for feed in FEEDS:
            feed.truth(tmp_path).touch()
        roles = [*(f"feed {number}" for number in range(len(FEEDS))), *READERS]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, str(tmp_path), role, str(soak_s)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for role in roles
        ]
        said = [process.communicate() for process in processes]
        faults = [f"{role}: {err}" for role, (_, err) in zip(roles, said, strict=True) if err]
        assert not faults, "\n".join(faults)
    counts: Counter[str] = Counter()
    for out, _ in said:
        counts.update(json.loads(out))
    counts["growths"] = Board(tmp_path).growths()
    for kind in ("growths", "range", "snapshot", "sealed", "live", "reads at the end"):
        assert counts[kind], f"no {kind}: {counts}"
    for kind, count in sorted(counts.items()):
        figures(f"page cache: {kind}", count)


@pytest.mark.soak
def test_the_judge_sees_zeros(tmp_path: Path) -> None:
    feed = FEEDS[0]
    text = b"".join(line(number) for number in range(100))
    feed.truth(tmp_path).write_bytes(text)
    judge = Judge(tmp_path, feed)
    judge.whole("", text[LINE:])
    for wrong in (
        text[:-10] + bytes(10),
        text[: 50 * LINE] + bytes(LINE) + text[51 * LINE :],
        text[: 50 * LINE] + text[51 * LINE :],
    ):
        with pytest.raises(Wrong):
            judge.whole("", wrong)


def main() -> None:
    base, role, seconds = sys.argv[1:]
    until, mount = time.monotonic() + float(seconds), Path(base) / "mnt"
    kind, _, number = role.partition(" ")
    counts: Counter[str] = Counter()
    if kind == "feed":
        write(Path(base), mount, FEEDS[int(number)], until)
    elif kind == "keeper":
        counts["runs of retention and compaction"] = keep(mount, until)
    else:
        reader = Reader(Path(base), mount, role)
        counts = reader.counts
        while time.monotonic() < until:
            if kind == "readers":
                reader.read_one(reader.fixed, ways=True)
            elif kind == "live":
                reader.read_one(reader.live, ways=False)
            else:
                reader.splice_live()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
