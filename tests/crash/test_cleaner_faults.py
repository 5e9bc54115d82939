"""A disk that fails, or is full, at each operation of a cleaning that changes something.

The log then has what it had before, or all that the cleaning has left, nothing between; it can be
read and appended to; nothing lies about; and a restart finds the same and cleans it. So does the
next cleaning of the same process, wherever it is killed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from storage import LogManager, paths
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.replacing import finish_last
from storage.errors import TaskCancelled
from storage.settings.config import LONG_MAX
from storage.task import Task
from tests.compaction_model import ModelLog, Outcome, clean, cleanable
from tests.crash.cleaned_log import Life
from tests.crash.failing_disk import FailingDisk, left_by_a_swap
from tests.crash.histories import check_producers, content, known
from tests.crash.moments import Found, Stops, Unsynced, chosen_numbers
from tests.log_check import check_log
from tests.observed import observe, rules_of
from tests.storage.logs import opened

T = TypeVar("T")


def assert_nothing_lies_about(data: Path) -> None:
    """No file of an unfinished cleaning is left."""
    names = [each.name for each in (data / "t-0").iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap"))]


class Attempt:
    """A log that is ready to be cleaned, on a disk that is about to fail."""

    def __init__(self, built: Life, data: Path, *, seeds: Sequence[int] = ()) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(built.data, data)
        self.life = Life(data)
        self.life.history = [*built.history]
        self.life.sequences = {**built.sequences}
        self.stops = Stops(data, seeds=seeds, new_disk=FailingDisk)
        assert isinstance(self.stops.disk, FailingDisk)
        self.disk = self.stops.disk
        self.life.begin(self.disk)

    def note_contents(self) -> None:
        """Note the content before a cleaning, and what it must be after it."""
        facts, outcome = self.expect()
        self.before, self.after = content(self.life.log), outcome.content(facts)

    def expect(self, checkpoint: int | None = None) -> tuple[ModelLog, Outcome]:
        log, now_ms = self.life.log, self.life.now_ms
        facts, rules = observe(log), rules_of(log.config)
        return facts, clean(facts, cleanable(facts, checkpoint, rules, now_ms), rules, now_ms)

    def fail(self, error: int, at: int, *, kind: str = "") -> bool:
        """Whether the cleaning was long enough to fail there; what follows has a sound disk."""
        life, disk = self.life, self.disk
        disk.fail_from_now(error, at, kind=kind)
        cleaner = LogCleaner(life.manager)
        try:
            cleaner.clean(life.log, Task())
        except OSError:
            assert life.log in cleaner.uncleanable
        else:
            assert life.log not in cleaner.uncleanable
        assert not life.log.cleaning
        disk.fail_at = 0
        return bool(disk.failed)

    def check(self) -> None:
        log = self.life.log
        got = content(log)
        assert got in (self.before, self.after)
        facts = known(self.life.history, log.log_end_offset)
        check_producers(facts, log)
        assert check_log(log) == []
        if got == self.before and not self.disk.failed.startswith("unlink"):
            assert_nothing_lies_about(self.life.data)
        if log.flush_error is None:
            self.life.send((b"later", b"1"))
            assert content(log) == (*got, self.life.history[-1])

    def clean_again(self, where: Path) -> None:
        """The same process cleans a part of it again, and may be killed at each operation."""
        life = self.life
        contents = [content(life.log)]

        def check(path: Path, found: Found) -> None:
            with LogManager.open(str(path), read_only=True) as reader:
                assert content(reader.log("t", 0)) in contents
            with opened(path, Unsynced(), clock_ms=lambda: life.now_ms) as manager:
                assert content(manager.log("t", 0)) in contents
            assert_nothing_lies_about(path)

        cleaner = LogCleaner(life.manager)
        self.disk.armed = True
        # Until the end no worker thread removes the files that are due meanwhile.
        doomed = life.log.release_retired(life.log.monotonic_ms() + 600)
        # The cleaner does so, too; but half renamed indexes cannot be compared.
        finish_last(life.log, Task())
        facts, outcome = self.expect(cleaner.first_dirty(life.log))
        contents.append(outcome.content(facts))
        assert cleaner.clean(life.log, Task()) is not None
        assert content(life.log) == contents[-1]
        assert_nothing_lies_about(life.data)
        for path in doomed:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(path)
        life.manager.abandon()
        self.stops.end()
        self.stops.judge(check, where)

    def restart(self) -> None:
        """Nothing is left of what failed, and the next cleaning does what it has to."""
        found = content(self.life.log)
        self.life.manager.abandon()
        self.disk.kill()
        with opened(self.life.data, Unsynced(), clock_ms=lambda: self.life.now_ms) as manager:
            self.life.manager = manager
            log = manager.log("t", 0)
            assert content(log) == found
            cleaner = LogCleaner(manager)
            facts, outcome = self.expect(cleaner.first_dirty(log))
            if cleaner.clean(log, Task()) is not None:
                assert content(log) == outcome.content(facts)
            assert_nothing_lies_about(self.life.data)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_each_operation(tmp_path: Path, error: int) -> None:
    life = Life(tmp_path / "built")
    life.build()
    for at in chosen_numbers():
        attempt = Attempt(life, tmp_path / "data")
        attempt.note_contents()
        if not attempt.fail(error, at):
            break
        try:
            attempt.check()
            attempt.restart()
        except BaseException as caught:
            caught.add_note(f"{os.strerror(error)} at {at}: {attempt.disk.failed}")
            raise
    assert content(attempt.life.log) == attempt.after
    assert at > (20 if error == errno.ENOSPC else 40)


def test_a_kill_while_the_same_process_cleans_again(tmp_path: Path) -> None:
    life = Life(tmp_path / "built")
    life.build()
    tried: set[tuple[frozenset[str], bool]] = set()
    for error in (errno.EROFS, errno.EIO):
        clean_again_after(life, error, tmp_path, tried)
    assert len(tried) > 6


def clean_again_after(
    life: Life, error: int, tmp_path: Path, tried: set[tuple[frozenset[str], bool]]
) -> None:
    for at in chosen_numbers():
        attempt = Attempt(life, tmp_path / "data")
        if not attempt.fail(error, at):
            break
        log = attempt.life.log
        names = left_by_a_swap(attempt.life.data / "t-0")
        # Only the names decide how it goes on.
        state = names, log.replacement is not None and log.replacement.is_done
        if names and state not in tried and log.flush_error is None:
            tried.add(state)
            try:
                attempt.clean_again(tmp_path / "found")
            except BaseException as caught:
                caught.add_note(f"{os.strerror(error)} at {at}: {attempt.disk.failed}")
                raise
        else:
            attempt.life.manager.abandon()


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_cleaner_finishes_a_swap_first(tmp_path: Path, *, is_removed: bool) -> None:
    life = Life(tmp_path / "built")
    life.build()
    attempt = Attempt(life, tmp_path / "data")
    assert attempt.fail(errno.EIO, 1, kind=paths.DELETED)
    log = attempt.life.log
    assert log.replacement is not None
    assert log.replacement.is_done
    if is_removed:
        log.rename_to_deleted(log.remove_head(len(log.segments) - 1, log.monotonic_ms()))
    cleaner = LogCleaner(attempt.life.manager)
    assert cleaner.filthiest(attempt.life.now_ms) is log
    cleaned = cleaner.clean(log, Task())
    assert (cleaned is None) == is_removed
    assert attempt.life.log.replacement is None
    assert cleaner.filthiest(attempt.life.now_ms) is None
    assert_nothing_lies_about(attempt.life.data)


def test_a_power_cut_while_a_swap_is_taken_back_again(tmp_path: Path) -> None:
    life = Life(tmp_path / "built")
    life.build()
    at = 1
    while True:
        attempt = Attempt(life, tmp_path / "data", seeds=range(-32, 0))
        attempt.note_contents()
        log, disk = attempt.life.log, attempt.disk
        if not cancel_decided(attempt, at):
            break
        at += 1
        disk.armed = True
        finish_last(log, Task())
        attempt.life.manager.abandon()
        attempt.stops.end()
        attempt.stops.found = attempt.stops.power_cuts

        def check(path: Path, _: Found, attempt: Attempt = attempt) -> None:
            with opened(path, Unsynced(), clock_ms=lambda: attempt.life.now_ms) as manager:
                assert content(manager.log("t", 0)) in (attempt.before, attempt.after)

        try:
            attempt.stops.judge_all(check, tmp_path / "found")
        except BaseException as caught:
            caught.add_note(f"at {at}: {disk.failed}")
            raise
    assert log.replacement is None
    assert at > 2


def cancel_decided(attempt: Attempt, at: int) -> bool:
    """Cancel a cleaning whose swap is decided, and fail a sync; return whether it was reached."""
    log, disk = attempt.life.log, attempt.disk

    def on_log_thread(function: Callable[[], T]) -> T:
        if log.replacement is not None and not disk.fail_at:
            disk.fail_from_now(errno.EIO, at, kind="sync_directory")
            raise TaskCancelled("the process ends")
        return function()

    with contextlib.suppress(OSError, TaskCancelled):
        LogCleaner(attempt.life.manager).clean(log, Task(on_log_thread))
    disk.fail_at = 0
    return bool(disk.failed)


def test_a_cleaning_that_is_cancelled_leaves_all_as_it_was(tmp_path: Path) -> None:
    life = Life(tmp_path / "built")
    life.build()

    class Cancelled(Task):
        """Cancelled at its ``left``-th step."""

        left = 0

        def check(self) -> None:
            self.left -= 1
            if not self.left:
                self.cancel()
            super().check()

    at = 1
    attempt = Attempt(life, tmp_path / "data")
    attempt.note_contents()
    while True:
        task = Cancelled()
        task.left = at
        cleaner = LogCleaner(attempt.life.manager)
        try:
            cleaner.clean(attempt.life.log, task)
        except TaskCancelled:
            assert attempt.life.log not in cleaner.uncleanable
            attempt.before = content(attempt.life.log)
            attempt.check()
            attempt.before = content(attempt.life.log)
            at += 1
        else:
            break
    assert at > 10
    _, outcome = attempt.expect()
    attempt.restart()
    assert outcome.first_dirty > 0


def test_deleted_records_stay_deleted_beside_a_swap_that_could_not_be_taken_back(
    tmp_path: Path,
) -> None:
    life = Life(tmp_path / "built")
    life.build()
    at = 1
    while (attempt := Attempt(life, tmp_path / "data")).fail(
        errno.EROFS, at, kind="sync_directory"
    ):
        log, manager = attempt.life.log, attempt.life.manager
        is_decided = os.path.exists(log.segments[0].log_path + ".swap")
        if is_decided and log.replacement is not None and not log.replacement.is_done:
            break
        manager.abandon()
        at += 1
    assert is_decided
    log.rename_to_deleted(log.remove_head(1, log.monotonic_ms()))
    for path in log.release_retired(LONG_MAX):
        attempt.disk.unlink(path)
    log.flush()
    manager.checkpoint()
    assert log.log_start_offset > 0
    manager.abandon()
    attempt.disk.kill()
    with opened(tmp_path / "data", Unsynced()) as manager:
        assert manager.log("t", 0).log_start_offset == log.log_start_offset
