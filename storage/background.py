"""Keeps account of the duties that run by the clock: how often each has failed, what fails now.

A *duty* is work for a partition, a topic or the directory: to flush, to write checkpoints, to apply
retention, to compact, to check, to remove what was deleted, to close old descriptors, to save
indexes. A duty that fails is tried again at its next turn, for ever, so no fault lasts longer than
its cause. A line is logged when a duty begins to fail, when it fails in another way than before,
and when it succeeds again.

Any thread may report a duty; two never report the same one at once.

Not here: the clock that calls, and when the next turn is.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from storage.errors import StorageError, TaskCancelled, reason_of

_log = logging.getLogger(__name__)


class Say(Protocol):
    """Logs a line; a bug of ours comes with its traceback."""

    def __call__(self, message: str, traceback: str = "") -> None: ...


def _warn(message: str, traceback: str = "") -> None:
    _log.warning("%s", f"{message}\n{traceback}".rstrip())


class Duties:
    """The duties of one data directory. `say` logs a line, by default to the module's logger."""

    def __init__(self) -> None:
        self.say: Say = _warn
        self.failures: Counter[str] = Counter()
        """By duty: how often it has failed."""
        # What fails now, and how, by (duty, what it is a duty of).
        self._failing: dict[tuple[str, str], tuple[type[Exception], int | None]] = {}

    @property
    def failing(self) -> dict[str, int]:
        """By duty that ever failed: of how many partitions, topics, … it fails now."""
        now = Counter(duty for duty, _ in list(self._failing))
        return {duty: now[duty] for duty in sorted(self.failures)}

    @contextlib.contextmanager
    def attempt(self, duty: str, of: str = "") -> Iterator[None]:
        """A turn of a duty: report what is raised in it, and raise nothing."""
        try:
            yield
        except TaskCancelled:
            pass
        except Exception as error:
            self.failed(duty, error, of)
        else:
            self.succeeded(duty, of)

    def failed(self, duty: str, error: Exception, of: str = "") -> None:
        """A turn has failed."""
        self.failures[duty] += 1
        how = (type(error), error.errno if isinstance(error, OSError) else None)
        if self._failing.get((duty, of)) != how:
            self._failing[duty, of] = how
            what = f"{_named(duty, of)} failed, will retry"
            if isinstance(error, OSError | StorageError):
                self.say(f"{what}: {reason_of(error)}")
            else:
                self.say(f"{what}: unexpected error", "".join(traceback.format_exception(error)))

    def succeeded(self, duty: str, of: str = "") -> None:
        """A turn has succeeded."""
        if self._failing.pop((duty, of), None) is not None:
            self.say(f"{_named(duty, of)} works again")

    def forget(self, of: str) -> None:
        """Forget the failures of something that is gone."""
        for key in [key for key in list(self._failing) if key[1] == of]:
            self._failing.pop(key, None)


def _named(duty: str, of: str) -> str:
    return f"{of}: {duty}" if of else duty
