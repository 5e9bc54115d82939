"""Files that take lines and act on them: `.config`, and those in `.control`.

A line acts inside the `write()` that carries its newline, which returns the errno; `>` and `>>` do
the same. A line without a newline waits for the next write, or acts at release. All lines of a
write are parsed before the first one acts: a wrong one is EINVAL and changes nothing.

Reading shows the state as text, made at open as for any `TextFile`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkafs.tree.handles import FlushPlan, Handle, WritingHandle
from kafkafs.tree.jobs import Job, JobState
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import planned
from kafkafs.tree.unfinished import Unfinished
from storage.errors import InvalidConfig, StorageError, refusal_of
from storage.log.append_queue import MustQueue

LONGEST_LINE = 1 << 16
MOST_LINES = 4096
"""Lines of a write at most: the loop thread parses them."""


class CommandEffects(NamedTuple):
    """What lines have done. `grown`: partitions with new records. The answer to the write waits for
    the jobs in `begun` and for the cancelled ones in `stopped`.
    """

    grown: Sequence[Partition] = ()
    begun: Sequence[Job] = ()
    stopped: Sequence[Job] = ()


Act = Callable[[Sequence[str]], CommandEffects]
"""Carries out lines, all of them or none. Raises StorageError or OSError."""
_SYNC = os.O_SYNC | os.O_DSYNC


class ControlHandle(WritingHandle):
    """Collects lines; `act` carries out the complete ones of a write.

    `say` is told why a line is refused. `structural`: `act` waits for the disk, and changes the
    tree or its settings, but no log.
    """

    __slots__ = ("_act", "_begun", "_flags", "_grown", "_say", "awaited", "structural", "sync_due")

    def __init__(
        self,
        act: Act,
        say: Callable[[str], None],
        flags: int,
        unfinished: Unfinished,
        reader: Handle | None,
        *,
        structural: bool,
    ) -> None:
        super().__init__(unfinished, reader)
        self._act = act
        self._say = say
        self._flags = flags
        # Partitions that may still have to be flushed.
        self._grown: dict[Partition, None] = {}
        # The jobs that the last write has begun and whose end it waits for.
        self._begun: Sequence[Job] = ()
        self.awaited: Sequence[Job] = ()
        self.structural = structural
        self.sync_due = False

    def write(self, position: int, data: bytes) -> int:
        self.awaited = self._begun = ()
        count = data.count(b"\n")
        if count > MOST_LINES:
            self._rest = bytearray()
            error = InvalidConfig(f"a write may have at most {MOST_LINES} lines, not {count}")
            self._say(refusal_of(error))
            raise error
        *lines, rest = (self._rest + data).split(b"\n")
        self._carry_out(lines, rest)
        return len(data)

    def release(self) -> None:
        if self._rest:
            self._carry_out([self._rest])

    def _carry_out(self, lines: Sequence[bytearray], rest: bytearray | None = None) -> None:
        """Carry out whole lines, and keep the rest. MustQueue: nothing has changed."""
        before, self._rest = self._rest, bytearray()
        try:
            if rest is not None and len(rest) > LONGEST_LINE:
                raise InvalidConfig(f"a line of more than {LONGEST_LINE} bytes")
            if rest is not None:
                self._check_room(len(rest))
            effects = self._act(_decoded(lines)) if lines else None
        except MustQueue:
            self._rest = before
            raise
        except (StorageError, OSError) as error:
            # A refused write leaves nothing behind: the next one begins with a new line.
            self._say(refusal_of(error))
            raise
        if rest is not None:
            self._rest = rest
        if effects is not None:
            self._grown.update(dict.fromkeys(effects.grown))
            self._begun = effects.begun
            self.awaited = (*effects.begun, *effects.stopped)
            asked = self._flags & _SYNC != 0
            self.sync_due = any(
                asked or partition.log.durability.flush_due for partition in self._grown
            )

    def awaited_over(self) -> None:
        for job in self._begun:
            if isinstance(job.error, StorageError | OSError):
                raise job.error.with_traceback(None)  # it is raised for each who waits
            if job.state is JobState.FAILED:
                raise OSError(errno.EIO, "unexpected error")  # the log has its traceback
            deleted = job.topic is not None and not job.topic.partitions
            if job.state is JobState.CANCELLED and deleted:
                raise OSError(errno.ENOENT, "the topic has been deleted")
            if job.state is JobState.CANCELLED:
                raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")

    def sync_plan(self) -> FlushPlan | None:
        self.sync_due = False
        plan = planned(self._grown)
        self._grown = {}
        return plan


def _decoded(lines: Sequence[bytearray]) -> list[str]:
    try:
        return [line.decode() for line in lines]
    except UnicodeDecodeError:
        raise InvalidConfig("a line is not UTF-8") from None
