"""The files of words beside segments: which are built, and that none is left behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import Log, LogManager, Record, descriptors, encode, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.repack import repack_all
from storage.directory.retain import remove_now
from storage.directory.word_files import WordFiles, path_of, remove_all, remove_stale
from storage.errors import TaskCancelled
from storage.files import Files
from storage.room import Room
from storage.segment.segment import Segment
from storage.task import Task
from storage.words.words import Words
from tests.crash.disk import SimulatedDisk
from tests.crash.failing_disk import FailingDisk
from tests.storage.logs import NOW_MS, NOW_NS, flip, opened, remove_head, sweep

COUNT = 3


def fill(log: Log, count: int = COUNT) -> None:
    """Make sealed segments, in which records may be joined or cleaned."""
    for _ in range(count):
        for number in range(4):
            record = Record(0, NOW_MS, 0, b"key %d" % number, b"the same words in each line")
            log.append(bytearray(encode([record])), now_ns=NOW_NS)
        log.roll(NOW_MS)


def new_log(manager: LogManager, count: int = COUNT, **settings: str) -> Log:
    log = manager.create_topic("t", 1).partitions[0]
    texts = {name.replace("_", "."): value for name, value in settings.items()}
    manager.change_topic_settings("t", {"segment.index.bytes": "4096", **texts})
    fill(log, count)
    return log


def built(log: Log, words: WordFiles | None = None, cache: str | None = None) -> list[int]:
    """Build what is missing; the base offsets of the segments."""
    return [each.base_offset for each in (words or WordFiles()).build_missing(log, Task(), cache)]


def left_in(directory: Path | str) -> list[str]:
    """The files of words, and those that were not finished."""
    return sorted(name for name in os.listdir(directory) if ".words" in name or ".tmp" in name)


def names_of(*bases: int) -> list[str]:
    return [paths.file_name(base, ".words") for base in bases]


def is_valid(segment: Segment) -> bool:
    return Words.open(segment, path_of(segment)) is not None


def test_each_sealed_segment_gets_one_the_newest_first(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log, words = new_log(manager), WordFiles()
        assert words.totals(log) == (0, 0)
        assert built(log, words) == [8, 4, 0]
        assert left_in(log.directory) == names_of(0, 4, 8)
        sizes = [os.path.getsize(path_of(segment)) for segment in log.segments[:-1]]
        assert words.totals(log) == (sum(sizes), 0)
        assert not words.is_due(log)
        fill(log, 1)
        assert words.is_due(log)
        assert built(log, words) == [12]
        # Another process finds them.
        assert built(log) == []


@pytest.mark.parametrize("suffix", [".log.other", ".words"])
def test_a_file_that_is_not_valid_is_built_again(tmp_path: Path, suffix: str) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        built(log)
        first, second = (Path(path_of(segment)) for segment in log.segments[:2])
        first.write_bytes(second.read_bytes() if suffix == ".words" else b"")
        assert built(log) == [0]
        assert is_valid(log.segments[0])


def test_damage_inside_is_found_on_request(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        built(log)
        path = Path(path_of(log.segments[1]))
        flip(path, 80)
        assert built(log) == []
        assert built(log, WordFiles(checks_pages=True)) == [4]


def test_a_segment_with_damage_gets_none_and_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log, words = new_log(manager), WordFiles()
    path = Path(log.segments[1].log_path)
    data = bytearray(path.read_bytes())
    data[100] ^= 0xFF
    path.write_bytes(data)
    assert built(log, words) == [8, 0]
    assert left_in(log.directory) == names_of(0, 8)
    assert words.totals(log)[1] == 1
    assert not words.is_due(log)
    fill(log, 1)
    assert built(log, words) == [12]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    manager.abandon()


def test_files_that_somebody_has_removed_are_missed_later(tmp_path: Path) -> None:
    now = [0]
    with opened(tmp_path, monotonic_ms=lambda: now[0]) as manager:
        log, words = new_log(manager), WordFiles()
        built(log, words)
        os.unlink(path_of(log.segments[0]))
        assert not words.is_due(log)
        now[0] += 600_000
        assert words.is_due(log)
        assert built(log, words) == [0]
        now[0] += 599_999
        assert not words.is_due(log)


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    class Watching(Files):
        most = 0

        def open(self, path: str, flags: int, mode: int = 0o644) -> int:
            self.most = max(self.most, descriptors.count())
            return super().open(path, flags, mode)

    files = Watching()
    with opened(tmp_path) as manager:
        fill(new_log(manager), 30)
        built(manager.log("t", 0))
    with opened(tmp_path, files) as manager:
        before = files.most = descriptors.count()
        assert built(manager.log("t", 0)) == []
        assert files.most <= before + 2
        assert descriptors.count() == before


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_an_error_of_the_disk_leaves_nothing(tmp_path: Path, error: int) -> None:
    disk = FailingDisk(str(tmp_path))
    manager = LogManager.open(str(tmp_path), files=disk, clock_ms=lambda: NOW_MS)
    log, words, at = new_log(manager), WordFiles(), 0
    remove_all(log)
    while True:
        at, disk.failed = at + 1, ""
        disk.fail_from_now(error, at)
        with contextlib.suppress(OSError):
            built(log, words)
        disk.fail_at = 0
        if not disk.failed:
            break
        # (A disk that became read-only keeps what was begun.)
        if error != errno.EROFS:
            assert not [name for name in os.listdir(log.directory) if name.endswith(".tmp")]
        assert words.is_due(log)
    assert at > 2 * COUNT
    assert all(is_valid(segment) for segment in log.segments[:-1])
    manager.close()


@pytest.mark.parametrize(
    ("error", "left"),
    [(errno.EIO, [0, 8]), (errno.EISDIR, [0, 8]), (errno.ENOSPC, [8]), (errno.EROFS, [8])],
)
def test_one_segment_that_fails_does_not_keep_the_older_ones_from_their_files(
    tmp_path: Path, error: int, left: list[int]
) -> None:
    """But a full disk or a read-only one is not asked again for each segment."""

    disk = SimulatedDisk(str(tmp_path))
    with opened(tmp_path, disk) as manager:
        log, words = new_log(manager), WordFiles()
        disk.fail_next("rename", error, suffix=f"{names_of(4)[0]}.tmp")
        with pytest.raises(OSError, match=os.strerror(error)):
            built(log, words)
        assert left_in(log.directory) == names_of(*left)
        assert words.is_due(log)


def test_no_room_is_taken_from_appends(tmp_path: Path) -> None:
    class Small(Files):
        blocks = 0

        def space(self, path: str) -> os.statvfs_result:
            found = list(super().space(path))
            found[1], found[4] = 1, self.blocks
            return os.statvfs_result(found)

    with opened(tmp_path, files := Small()) as manager:
        log = new_log(manager)
        files.blocks = log.segments[0].size - 1
        with pytest.raises(OSError, match="No space left"):
            built(log)
        assert left_in(log.directory) == []
        files.blocks += 1
        assert built(log) == [8, 4, 0]


def test_no_room_is_taken_from_the_reserve(tmp_path: Path) -> None:
    class UsedUp(Room):
        def check(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cache = tmp_path / "cache"
    cache.mkdir()
    with opened(tmp_path, files := Files()) as manager:
        log = new_log(manager)
        files.room = UsedUp()
        with pytest.raises(OSError, match="No space left"):
            built(log)
        # The cache directory may lie on another disk.
        assert built(log, cache=str(cache)) == [8, 4, 0]
        files.room = Room()


def test_a_directory_of_the_owner_that_vanishes_is_an_error(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        aside = tmp_path / "aside"
        os.rename(log.directory, aside)
        with pytest.raises(FileNotFoundError):
            built(log)
        os.rename(aside, log.directory)
        assert built(log) == [8, 4, 0]


def test_nothing_more_is_built_for_a_topic_that_was_deleted(tmp_path: Path) -> None:
    class Deleting(Task):
        begun = 0

        def begin(self, phase: str, total: int) -> None:
            self.begun += 1
            if "t" in manager.topics:
                manager.delete_topic("t")
            super().begin(phase, total)

    with opened(tmp_path) as manager:
        log, task = new_log(manager), Deleting()
        with pytest.raises(TaskCancelled):
            WordFiles().build_missing(log, task)
        assert task.begun == 1


# -- segments that leave the log -------------------------------------------------------------------


class Interrupted(Files):
    """Calls `act` before an operation that changes files, or looks at one: the `at`-th.

    `watched`: looks at files without this text in their path do not count, as `act` would find the
    same after them.
    """

    def __init__(self, watched: str) -> None:
        super().__init__()
        self.watched = watched
        self.at, self.count, self.is_done = 0, 0, False
        self.act: Callable[[], object] = lambda: None

    @contextlib.contextmanager
    def acting(self, at: int, act: Callable[[], object]) -> Iterator[None]:
        self.at, self.count, self.act = at, 0, act
        yield
        self.at = 0

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.is_done = True
            self.act()


def _interrupted(name: str) -> Callable[..., Any]:
    def call(self: Interrupted, *given: Any, **named: Any) -> Any:
        if name in ("pwrite", "rename", "unlink") or self.watched in str(given[0]):
            self.step()
        return getattr(Files, name)(self, *given, **named)

    return call


for _name in ("open", "pread", "pwrite", "rename", "unlink", "exists", "file_stat"):
    setattr(Interrupted, _name, _interrupted(_name))


class Owner:
    """The process that owns the log, and what it does to the segments."""

    def __init__(self, data: Path, files: Files | None = None) -> None:
        self.data, self.files = data, files
        self.start()

    def start(self) -> None:
        self.manager = LogManager.open(str(self.data), files=self.files, clock_ms=lambda: NOW_MS)
        self.log = self.manager.log("t", 0)

    def delete(self) -> None:
        remove_head(self.log, 1, NOW_MS)

    def delete_at_once(self) -> None:
        self.delete()
        remove_now(self.log)

    def repack(self) -> None:
        repack_all(self.log, NOW_MS, Task())

    def compact(self) -> None:
        LogCleaner(self.manager).clean_all(self.log, Task())

    def delete_topic(self) -> None:
        self.manager.delete_topic("t")

    def make_again(self) -> None:
        self.manager.delete_topic("t")
        fill(self.manager.create_topic("t", 1).partitions[0], 1)

    def undelete(self) -> None:
        self.delete_topic()
        self.log = self.manager.undelete_topic("t").partitions[0]

    def truncate(self) -> None:
        self.manager.truncate(self.log, 2)

    def start_again(self) -> None:
        self.manager.abandon()
        self.start()

    def end(self) -> None:
        """Remove what was deleted, and check that nothing is left of it."""
        remove_now(self.log)
        if "t" in self.manager.topics:
            log = self.manager.log("t", 0)
            sealed = names_of(*(segment.base_offset for segment in log.segments[:-1]))
            assert set(left_in(log.directory)) <= set(sealed), os.listdir(log.directory)


CHANGES: dict[str, Callable[[Owner], object]] = {
    name: getattr(Owner, name)
    for name in (
        *("delete", "delete_at_once", "repack", "compact"),
        *("delete_topic", "make_again", "truncate"),
    )
}


def prepared(data: Path, change: str) -> None:
    data.mkdir()
    policy = "compact" if change == "compact" else "delete"
    with opened(data) as manager:
        new_log(manager, 2, kafkafs_repack="zstd", cleanup_policy=policy)


def at_each_operation(
    tmp_path: Path,
    change: str,
    run: Callable[[Path, Interrupted, int], None],
    watched: str = ".words",
) -> None:
    prepared(tmp_path / "made", change)
    for at in itertools.count(1):
        files = Interrupted(watched)
        run(shutil.copytree(tmp_path / "made", tmp_path / f"data{at}"), files, at)
        if not files.is_done:
            break
    assert at > COUNT


@pytest.mark.parametrize("change", CHANGES)
def test_the_owner_builds_while_it_changes_the_log(tmp_path: Path, change: str) -> None:
    def run(data: Path, files: Interrupted, at: int) -> None:
        owner, words = Owner(data, files), WordFiles()
        with (
            files.acting(at, lambda: CHANGES[change](owner)),
            contextlib.suppress(TaskCancelled),
        ):
            built(owner.log, words)
        owner.end()
        if "t" in owner.manager.topics:
            log = owner.manager.log("t", 0)
            built(log, words)
            assert all(is_valid(segment) for segment in log.segments[:-1])
            assert left_in(log.directory) == names_of(*(s.base_offset for s in log.segments[:-1]))
        owner.manager.close()

    at_each_operation(tmp_path, change, run, watched="")


@pytest.mark.parametrize("change", CHANGES)
def test_another_process_builds_while_the_owner_changes_the_log(
    tmp_path: Path, change: str
) -> None:
    def run(data: Path, files: Interrupted, at: int) -> None:
        owner = Owner(data)
        with (
            LogManager.open(str(data), read_only=True, files=files) as reader,
            files.acting(at, lambda: CHANGES[change](owner)),
        ):
            built(reader.log("t", 0))
        owner.end()
        owner.manager.close()

    at_each_operation(tmp_path, change, run, watched="")


@pytest.mark.parametrize("change", [*CHANGES, "undelete", "start_again"])
def test_the_files_vanish_while_the_owner_changes_the_log(tmp_path: Path, change: str) -> None:
    """`kafkafs words --remove`, the reserve and the end of a build take them."""

    def run(data: Path, files: Interrupted, at: int) -> None:
        def remove() -> None:
            for path in data.glob("t-0/*.words*"):
                if path.suffix != paths.DELETED:
                    path.unlink()

        owner = Owner(data, files)
        built(owner.log)
        directory = Path(owner.log.directory)
        (directory / f"{0:016x}-{paths.file_name(0, paths.WORDS)}.tmp").touch()
        (directory / paths.file_name(2, paths.WORDS)).touch()
        with files.acting(at, remove):
            getattr(owner, change)()
        owner.manager.close()

    at_each_operation(tmp_path, change, run)


@pytest.mark.parametrize("change", CHANGES)
def test_the_owner_changes_the_log_while_another_process_builds(
    tmp_path: Path, change: str
) -> None:
    def run(data: Path, files: Interrupted, at: int) -> None:
        with LogManager.open(str(data), read_only=True) as reader:
            owner = Owner(data, files)
            with files.acting(at, lambda: built(reader.log("t", 0))):
                CHANGES[change](owner)
        owner.end()
        owner.manager.close()

    at_each_operation(tmp_path, change, run)


def test_a_kill_during_a_truncation_leaves_no_words_of_removed_segments(tmp_path: Path) -> None:
    def run(data: Path, files: Interrupted, at: int) -> None:
        killed = data.with_suffix(".killed")
        owner = Owner(data, files)
        built(owner.log)
        with files.acting(at, lambda: shutil.copytree(data, killed)):
            owner.truncate()
        owner.manager.close()
        if files.is_done:
            owner = Owner(killed)
            owner.end()
            owner.manager.close()

    at_each_operation(tmp_path, "truncate", run)


def test_another_process_builds_for_a_log_that_ends_before_its_file(tmp_path: Path) -> None:
    """Zeros follow the last batch until the owner starts again."""
    with opened(tmp_path) as manager:
        log = new_log(manager)
    with open(log.segments[1].log_path, "ab") as file:
        file.write(bytes(100))
    with LogManager.open(str(tmp_path), read_only=True) as reader:
        log = reader.log("t", 0)
        assert built(log) == [8, 4, 0]
        assert all(is_valid(segment) for segment in log.segments[:-1])


# -- files without a segment -----------------------------------------------------------------------


def test_files_that_are_not_of_a_segment_stay(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        own = Path(log.directory, "notes.words")
        own.touch()
        built(log)
        assert remove_stale(log) == 0
        assert remove_all(log) == COUNT
        assert own.exists()
        own.unlink()


def test_a_start_removes_what_has_no_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        directory = Path(new_log(manager).directory)
        built(manager.log("t", 0))
    kept = left_in(directory)
    (directory / paths.file_name(2, ".words")).touch()
    (directory / "0123456789abcdef-00000000000000000004.words.tmp").touch()
    with opened(tmp_path):
        assert left_in(directory) == kept


def test_a_deleted_segment_takes_its_file_along(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = new_log(manager)
        built(log)
        remove_head(log, 1, NOW_MS)
        [first] = names_of(0)
        assert left_in(log.directory) == [first + paths.DELETED, *names_of(4, 8)]
        sweep(manager, 1 << 62)
        assert left_in(log.directory) == names_of(4, 8)


def test_a_segment_that_becomes_active_again_loses_its_file(tmp_path: Path) -> None:
    """Recovery has cut off some of its records."""
    manager = LogManager.open(str(tmp_path), clock_ms=lambda: NOW_MS)
    log = new_log(manager)
    built(log)
    manager.abandon()
    path = log.segments[1].log_path
    os.truncate(path, os.path.getsize(path) - 1)
    with opened(tmp_path) as manager:
        assert manager.log("t", 0).segments[-1].base_offset == 4
        left = [name for name in left_in(log.directory) if name.endswith(".words")]
        assert left == names_of(0)


def test_removal(tmp_path: Path) -> None:
    data, cache = tmp_path / "data", tmp_path / "cache"
    data.mkdir()
    cache.mkdir()
    with opened(data) as manager:
        log = new_log(manager)
        built(log)
        built(log, cache=str(cache))
        for directory in (Path(log.directory), cache):
            (directory / paths.file_name(2, ".words")).touch()
            (directory / paths.file_name(2, ".lines")).touch()
        assert remove_stale(log) == remove_stale(log, str(cache)) == 1
        assert left_in(log.directory) == left_in(cache) == names_of(0, 4, 8)
        assert remove_all(log, str(cache)) == COUNT
        assert left_in(cache) == []
        assert left_in(log.directory) == names_of(0, 4, 8)
        assert remove_all(log) == COUNT
        assert remove_all(log, str(tmp_path / "missing")) == 0
        assert len(list(cache.iterdir())) == 1


def test_removal_of_unfinished_files(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    old, new = (f"{each:016x}-{paths.file_name(0, paths.WORDS)}.tmp" for each in (1, 2))
    with opened(tmp_path) as manager:
        log = new_log(manager)
        for name in (old, new):
            (cache / name).touch()
        os.utime(cache / old, (0, 0))
        assert remove_stale(log, str(cache)) == 1
        assert left_in(cache) == [new]
        assert remove_all(log, str(cache)) == 1
        assert left_in(cache) == []
