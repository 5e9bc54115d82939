"""A reader reports files that vanish or are cut, but none that the running writer deletes."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.directory.retain import delete_records, remove_now, retain
from storage.files import Files
from storage.follow.follow import LogFollower
from storage.log.log import Log
from storage.state import manifest_file
from storage.task import Task
from tests.storage.compaction.cleaned import clean, put
from tests.storage.logs import NOW_MS, append, log_file, readable, values
from tests.storage.state.test_segment_manifest import LINES, fill, opened_with_faults

NEVER_FRESH = 1 << 62


class Reader:
    """A log that is followed."""

    def __init__(self, data: Path, files: Files | None = None) -> None:
        self.manager = LogManager.open(str(data), read_only=True, files=files)
        self.log: Log = self.manager.log("t", 0)
        self.follower = LogFollower(self.log, lambda: NEVER_FRESH)

    def look(self) -> list[bytes | None]:
        self.follower.look()
        return readable(self.log)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogManager]:
    """Of four segments of three records, all of them flushed and written down."""
    fill(tmp_path)
    with opened_with_faults(tmp_path) as manager:
        yield manager


@contextlib.contextmanager
def reading(data: Path, files: Files | None = None) -> Iterator[Reader]:
    reader = Reader(data, files)
    try:
        yield reader
    finally:
        reader.manager.close()


def without(*bases: int) -> list[bytes | None]:
    return [None if n - n % 3 in bases else line for n, line in enumerate(LINES)]


def go_on(writer: LogManager) -> None:
    """Names change: the reader looks at them."""
    log = writer.log("t", 0)
    append(log, b"more")
    log.roll(NOW_MS)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("gone", [[0], [3], [6], [0, 3], [3, 6], [0, 6]])
def test_a_file_vanishes(tmp_path: Path, writer: LogManager, gone: list[int], early: bool) -> None:
    """Before it is followed, or later."""
    with contextlib.ExitStack() as stack:
        reader = None if early else stack.enter_context(reading(tmp_path))
        for base in gone:
            log_file(tmp_path, base).unlink()
        reader = reader or stack.enter_context(reading(tmp_path))
        for n in range(3):
            assert reader.look() == [*without(*gone), *[b"more"] * n]
            assert len(reader.log.losses) == len(gone)
            for base, line in zip(gone, reader.log.losses, strict=True):
                assert str(log_file(tmp_path, base)) in line
            segments = reader.log.segments
            reader.look()
            assert reader.log.segments == segments
            go_on(writer)


def test_a_file_vanishes_that_was_not_seen(tmp_path: Path, writer: LogManager) -> None:
    """It was made since the last look, and is in the list of the segments."""
    log = writer.log("t", 0)
    with reading(tmp_path) as reader:
        for _ in range(3):
            go_on(writer)
        log.flush()
        writer.checkpoint()
        log_file(tmp_path, log.segments[-3].base_offset).unlink()
        for n in range(3):
            assert reader.look() == [*LINES, b"more", None, b"more", *[b"more"] * n]
            assert len(reader.log.losses) == 1
            segments = reader.log.segments
            ends = [segment.next_offset for segment in segments[:-1]]
            assert ends == [segment.base_offset for segment in segments[1:]]
            go_on(writer)


@pytest.mark.parametrize("unread", [0, 1])
@pytest.mark.parametrize("count", [1, 2])
def test_the_active_file_vanishes_before_its_roll_is_seen(
    tmp_path: Path, writer: LogManager, count: int, unread: int
) -> None:
    """And so do later ones, until `count` are missing."""
    log = writer.log("t", 0)
    with reading(tmp_path) as reader:
        reader.log.active.close_descriptors()
        for _ in range(unread):
            append(log, b"unread")
        log.roll(NOW_MS)
        for _ in range(count):
            go_on(writer)
        log.flush()
        writer.checkpoint()
        bases = [segment.base_offset for segment in log.segments[3 : 3 + count]]
        for base in bases:
            log_file(tmp_path, base).unlink()
        lost = [None] * (3 + unread + count - 1)
        for n in range(3):
            assert reader.look() == [*LINES[:9], *lost, b"more", *[b"more"] * n]
            assert len(reader.log.losses) == count
            segments = reader.log.segments
            ends = [segment.next_offset for segment in segments[:-1]]
            assert ends == [segment.base_offset for segment in segments[1:]]
            go_on(writer)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("left", [0, 40, 80])
def test_a_file_is_cut(tmp_path: Path, writer: LogManager, left: int, early: bool) -> None:
    with contextlib.ExitStack() as stack:
        reader = None if early else stack.enter_context(reading(tmp_path))
        with log_file(tmp_path, 3).open("r+b") as file:
            file.truncate(left)
        reader = reader or stack.enter_context(reading(tmp_path))
        kept = int(left > 70)
        expected = [*LINES[:3], *LINES[3 : 3 + kept], *[None] * (3 - kept), *LINES[6:]]
        for n in range(3):
            go_on(writer)
            assert reader.look() == [*expected, *[b"more"] * (n + 1)]
            (line,) = reader.log.losses
            assert f"offsets {3 + kept} to 5" in line
            segments = reader.log.segments
            reader.look()
            assert reader.log.segments == segments


def test_the_active_file_is_cut_before_its_roll_is_seen(tmp_path: Path, writer: LogManager) -> None:
    """A reader may be in the segment: another one with the loss takes its place."""
    log = writer.log("t", 0)
    with reading(tmp_path) as reader:
        active = reader.log.active
        append(log, b"cut")
        go_on(writer)
        log.flush()
        writer.checkpoint()
        os.truncate(log_file(tmp_path, 9), active.size)
        reader.follower.look()
        go_on(writer)
        assert reader.look() == [*LINES, None, None, b"more"]
        (line,) = reader.log.losses
        assert "offsets 12 to 13" in line
        assert not active.lost


def test_a_file_is_cut_and_the_active_one_vanishes(tmp_path: Path, writer: LogManager) -> None:
    """That is no truncation of the log."""
    log = writer.log("t", 0)
    with reading(tmp_path) as reader:
        reader.log.active.close_descriptors()
        log.roll(NOW_MS)
        go_on(writer)
        log.flush()
        writer.checkpoint()
        os.truncate(log_file(tmp_path, 3), 0)
        log_file(tmp_path, 9).unlink()
        for n in range(3):
            expected = [*LINES[:3], *[None] * 3, *LINES[6:9], *[None] * 3]
            assert reader.look() == [*expected, *[b"more"] * (n + 1)]
            assert len(reader.log.losses) == 2
            assert reader.log.counters.truncations == 0
            go_on(writer)


def test_an_entry_counts_bytes_after_the_last_batch(tmp_path: Path, writer: LogManager) -> None:
    """A restart has cut them off."""
    with reading(tmp_path) as reader:
        directory = str(tmp_path / "t-0")
        content = manifest_file.read(Files(), directory)
        entries = [each._replace(size=each.size + 40) for each in content.entries]
        data = manifest_file.text(replace(content, entries=entries))
        (tmp_path / "t-0" / manifest_file.FILE_NAME).write_bytes(data)
        segments = reader.log.segments
        for n in range(3):
            go_on(writer)
            assert reader.look() == [*LINES, *[b"more"] * (n + 1)]
            assert reader.log.losses == []
            assert reader.log.segments[:4] == segments


@pytest.mark.parametrize("base", [0, 3])
def test_it_comes_back(tmp_path: Path, writer: LogManager, base: int) -> None:
    shutil.copy(log_file(tmp_path, base), tmp_path / "kept")
    with reading(tmp_path) as reader:
        log_file(tmp_path, base).unlink()
        assert reader.look() == without(base)
        shutil.copy(tmp_path / "kept", log_file(tmp_path, base))
        assert reader.look() == LINES
        assert reader.log.losses == []


@pytest.mark.parametrize("cut", [True, False])
def test_the_loss_is_accepted(tmp_path: Path, cut: bool) -> None:
    fill(tmp_path)
    with reading(tmp_path) as reader:
        if cut:
            with log_file(tmp_path, 3).open("r+b") as file:
                file.truncate(0)
        else:
            log_file(tmp_path, 3).unlink()
        with opened_with_faults(tmp_path) as writer:
            go_on(writer)
        assert None in reader.look()
        outcome = CliRunner().invoke(main, ["repair", "--apply", str(tmp_path), "--accept-loss"])
        assert outcome.exit_code == 0
        reader.follower.look()
        assert reader.log.losses == []
        assert values(reader.log) == [*LINES[:3], *LINES[6:], b"more"]


class Watched(Files):
    """Has a reader look before and after each thing that the writer makes durable."""

    reader: Reader | None = None
    looks = 0

    def sync_directory(self, path: str) -> None:
        self._watch()
        super().sync_directory(path)
        self._watch()

    def _watch(self) -> None:
        if self.reader is not None:
            self.looks += 1
            self.reader.follower.look()
            assert self.reader.log.losses == []


@pytest.mark.parametrize("cleaned", [True, False])
def test_what_the_writer_takes_is_not_missed(tmp_path: Path, cleaned: bool) -> None:
    """At each step of retention, and of a cleaner that makes one segment of several."""
    settings = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"} if cleaned else {}
    files = Watched(str(tmp_path))
    with LogManager.open(str(tmp_path), files=files, clock_ms=lambda: NOW_MS) as writer:
        log = writer.create_topic("t", 1).partitions[0]
        writer.change_topic_settings("t", settings)
        for n in range(40):
            put(log, (b"k%d" % (n % 5), b"v%d" % n))
            if n % 4 == 3:
                log.flush()
                log.roll(NOW_MS)
        writer.checkpoint()
        with reading(tmp_path) as reader:
            files.reader = reader
            if cleaned:
                clean(writer, log)
            else:
                delete_records(writer, log, 17, Task())
                retain(writer, [log], Task())
                remove_now(log)
            writer.checkpoint()
            files.reader = None
            assert files.looks > 4
            reader.follower.look()
            assert reader.log.losses == []
            start = log.log_start_offset
            assert list(reader.log.records(start)) == list(log.records(start))
            assert len(reader.log.segments) < 11
