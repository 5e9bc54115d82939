"""A disk that fails, or is full, at each operation of a cleaning that changes something.

The log then has what it had before, or all that the cleaning has left, nothing between; it can be
read and appended to; nothing lies about; and a restart finds the same and cleans it.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from storage.compaction.log_cleaner import LogCleaner
from storage.errors import TaskCancelled
from storage.task import Task
from tests.compaction_model import ModelLog, Outcome, clean, cleanable
from tests.crash.cleaned_log import Life
from tests.crash.failing_disk import FailingDisk
from tests.crash.histories import check_producers, content, known
from tests.crash.moments import Unsynced
from tests.log_check import check_log
from tests.observed import observe, rules_of
from tests.storage.logs import opened


class Attempt:
    """A log that is ready to be cleaned, on a disk that is about to fail."""

    def __init__(self, built: Path, data: Path) -> None:
        shutil.rmtree(data, ignore_errors=True)
        shutil.copytree(built, data)
        self.life = Life(data)
        with opened(data, Unsynced(), clock_ms=lambda: self.life.now_ms) as manager:
            self.life.history += content(manager.log("t", 0))
        self.life.sequences = {7: 2, 8: 2, 9: 2}
        self.disk = FailingDisk(str(data))
        self.life.begin(self.disk)
        self.before = content(self.life.log)
        self.after = self.expect()[1].content(observe(self.life.log))

    def expect(self, checkpoint: int | None = None) -> tuple[ModelLog, Outcome]:
        log, now_ms = self.life.log, self.life.now_ms
        facts, rules = observe(log), rules_of(log.config)
        return facts, clean(facts, cleanable(facts, checkpoint, rules, now_ms), rules, now_ms)

    def fail(self, error: int, at: int) -> bool:
        """Whether the cleaning was long enough to fail there; what follows has a sound disk."""
        life, disk = self.life, self.disk
        disk.fail_from_now(error, at)
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
        names = [each.name for each in (self.life.data / "t-0").iterdir()]
        if got == self.before and not self.disk.failed.startswith("unlink"):
            assert not [n for n in names if n.endswith((".cleaned", ".swap"))]
        if log.flush_error is None:
            self.life.send((b"later", b"1"))
            assert content(log) == (*got, self.life.history[-1])

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
            names = [each.name for each in (self.life.data / "t-0").iterdir()]
            assert not [n for n in names if n.endswith((".cleaned", ".swap"))]


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_at_each_operation(tmp_path: Path, error: int) -> None:
    life = Life(tmp_path / "built")
    life.build()
    at = 1
    while True:
        attempt = Attempt(life.data, tmp_path / "data")
        if not attempt.fail(error, at):
            break
        try:
            attempt.check()
            attempt.restart()
        except BaseException as caught:
            caught.add_note(f"{os.strerror(error)} at {at}: {attempt.disk.failed}")
            raise
        at += 1
    assert content(attempt.life.log) == attempt.after
    assert at > (20 if error == errno.ENOSPC else 40)


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
    attempt = Attempt(life.data, tmp_path / "data")
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
