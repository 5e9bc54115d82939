"""The option `group`: commits the progress of a streaming query for a consumer group.

Spark requests the next batch when a batch is done. All records before the start of the next batch
are done then. Spark calls the source's `commit` no earlier, and never after the last batch of a
query that stops by itself.

A thread sends the commits to the owner of the directory, so that Spark does not wait. It sends one
a second at most, and uses at most a tenth of the time if the answers take long. A query that stops
by itself waits for its last commit. A commit that fails is logged once and tried again; it does not
end the query.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kafkafs.spark.location.owner_client import ask_owner, check_owner, make_group
from kafkafs.spark.source.offsets import Offsets
from storage.errors import StorageError, TaskCancelled, reason_of
from storage.owner.group_positions import GroupPositions
from storage.owner.request_kinds import POSITIONS
from storage.task import Task

_log = logging.getLogger(__name__)

PAUSE_S = 1.0
"""The shortest time between two commits, in seconds."""
_SHARE = 10
# How long a commit waits for an owner that takes requests.
_PATIENCE_S = 10.0
# How long a query that stops waits for its last commit.
_LONGEST_S = 60.0


class GroupCommits:
    """See the module. For one thread. `path`: the data directory."""

    def __init__(
        self, path: str, group: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._group = group
        self._monotonic_s = monotonic_s
        self._pool = ThreadPoolExecutor(1, "group")
        self._task = Task()
        # The thread owns these while it works.
        self._running: Future[None] | None = None
        self._committed: Offsets = {}
        self._is_made = False
        self._has_failed = False
        self._due_s = monotonic_s()

    def check(self) -> None:
        """Raise OwnerNotReached if the owner, such as a broker, takes no requests."""
        check_owner(self._path)

    def close(self) -> None:
        """Stop after the commit that is running."""
        self._task.cancel()
        self._pool.shutdown()

    def commit(self, offsets: Offsets, *, waits: bool) -> None:
        """Commit these offsets soon, or those of a later call. `waits`: commit them now."""
        if self._running is not None:
            if waits:
                self._wait()
            elif not self._running.done():
                return
        new = {name: each for name, each in offsets.items() if self._committed.get(name) != each}
        if new and (waits or self._monotonic_s() >= self._due_s):
            self._running = self._pool.submit(self._ask, new)
            if waits:
                self._wait()

    def _wait(self) -> None:
        assert self._running is not None
        if wait([self._running], _LONGEST_S).not_done:
            self._say(
                TimeoutError(
                    errno.ETIMEDOUT, "the process that has the data directory open does not answer"
                )
            )

    def _ask(self, offsets: Offsets) -> None:
        positions: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in offsets.items():
            positions.setdefault(topic, {})[partition] = offset
        request = GroupPositions(self._group, positions)
        began_s = self._monotonic_s()
        try:
            if not self._is_made:
                make_group(self._path, self._group)
                self._is_made = True
            ask_owner(self._path, POSITIONS, request, task=self._task, patience_s=_PATIENCE_S)
        except TaskCancelled:
            return
        except Exception as error:
            self._say(error)
        else:
            self._committed.update(offsets)
            self._has_failed = False
        ended_s = self._monotonic_s()
        self._due_s = ended_s + max(PAUSE_S, _SHARE * (ended_s - began_s))

    def _say(self, error: Exception) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        foreseen = isinstance(error, StorageError | OSError)
        _log.warning(
            "The offsets of group %s cannot be committed now; the query continues: %s",
            self._group,
            reason_of(error) if foreseen else repr(error),
            exc_info=None if foreseen else error,
        )
