"""Counts the failures of duties: work that is repeated in the background.

A *duty* is work for a partition, a topic or the directory: flush, checkpoint, retention,
compaction, check, removal of deleted files, closing of unused descriptors, saving of indexes. A
failed duty runs again at its next turn, without a limit, so a fault ends when its cause ends. A
line is logged when a duty begins to fail, when it fails in another way, and when it succeeds again.

Thread-safe, but only one thread at a time reports the same duty.

Not here: the timer, and the time of the next turn.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections import Counter
from collections.abc import Callable, Iterator

from storage.errors import StorageError, TaskCancelled, reason_of

_log = logging.getLogger(__name__)


def _warn(message: str, traceback: str) -> None:
    _log.warning("%s", f"{message}\n{traceback}".rstrip())


class Duties:
    """The duties of one data directory.

    `say` logs a line, by default to the module's logger; an unexpected error comes with its
    traceback, other lines with an empty one.
    """

    def __init__(self) -> None:
        self.say: Callable[[str, str], None] = _warn
        self.failures: Counter[str] = Counter()
        """Number of failures by duty."""
        # The present failures by (duty, its object).
        self._failing: dict[tuple[str, str], tuple[type[Exception], int | None]] = {}

    @property
    def failing(self) -> dict[str, int]:
        """By duty: the number of partitions, topics, … for which it fails now."""
        now = Counter(duty for duty, _ in list(self._failing))
        return {duty: now[duty] for duty in sorted(self.failures)}

    @contextlib.contextmanager
    def attempt(self, duty: str, of: str = "") -> Iterator[None]:
        """Run one turn of a duty: report its errors, and raise nothing."""
        try:
            yield
        except TaskCancelled:
            pass
        except Exception as error:
            self.failed(duty, error, of)
        else:
            self.succeeded(duty, of)

    def failed(self, duty: str, error: Exception, of: str = "") -> None:
        """Report a failed turn."""
        self.failures[duty] += 1
        how = (type(error), error.errno if isinstance(error, OSError) else None)
        if self._failing.get((duty, of)) != how:
            self._failing[duty, of] = how
            what = f"{_named(duty, of)} failed, will retry"
            if isinstance(error, OSError | StorageError):
                self.say(f"{what}: {reason_of(error)}", "")
            else:
                self.say(f"{what}: unexpected error", "".join(traceback.format_exception(error)))

    def succeeded(self, duty: str, of: str = "") -> None:
        """Report a successful turn."""
        if self._failing.pop((duty, of), None) is not None:
            self.say(f"{_named(duty, of)} works again", "")

    def no_longer_due(self, duty: str, of: str) -> None:
        """Forget a failure: new settings or other work have ended the need for the duty."""
        self._failing.pop((duty, of), None)

    def forget(self, of: str) -> None:
        """Forget the failures of an object that was deleted or closed."""
        for key in [key for key in list(self._failing) if key[1] == of]:
            self._failing.pop(key, None)


def _named(duty: str, of: str) -> str:
    return f"{of}: {duty}" if of else duty
