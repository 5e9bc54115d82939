"""The line buffer of the files that take lines and act on them.

A line acts inside the `write()` that carries its newline, which returns the errno; `>` and `>>` do
the same. A line without a newline waits for the next write, or acts at release. All lines of a
write are decoded before the first one acts: a wrong one is EINVAL and changes nothing.

`Commands` has the rules of one file, and carries its lines out. Reading shows the state as text,
made at open as for any `TextFile`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kafkafs.tree.context import MountContext
from kafkafs.tree.errnos import errno_of
from kafkafs.tree.events import mark_logged
from kafkafs.tree.handles import Handle, NotExamined, Opener
from kafkafs.tree.jobs import Job, JobState
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import flush_plans
from kafkafs.tree.unfinished import CountedRest
from storage.errors import InvalidConfig, StorageError, refusal_of
from storage.log.flush import FlushPlan

LONGEST_LINE = 1 << 16
MOST_LINES = 4096
"""Lines of a write at most: the loop thread parses them."""
_SYNC = os.O_SYNC | os.O_DSYNC
T = TypeVar("T")
Take = Callable[[int, Handle | None], Handle]
"""Opens a file for writing, with the flags and the handle that answers reads."""


class CommandEffects(NamedTuple):
    """The effects of lines. `grown`: partitions with new records. The answer to the write waits for
    the jobs in `begun` and for the cancelled ones in `stopped`.
    """

    grown: Sequence[Partition] = ()
    begun: Sequence[Job] = ()
    stopped: Sequence[Job] = ()


class Commands(Generic[T]):
    """The rules of an open file that takes lines. Each line is decoded to a T."""

    longest_line = LONGEST_LINE
    most_lines = MOST_LINES
    too_long = errno.EINVAL
    """The error of a longer line."""
    decoded_at_once: int | None = None
    """Bytes of lines that the loop thread decodes at most; a worker thread decodes more. None: the
    loop thread decodes all."""
    resumes = False
    """After an OSError the open file is as before: the kernel reports a refused piece of a large
    write() as a short count, and the writer gets the error by writing the rest again."""
    opener: Opener
    """Set after the open."""
    structural = False
    """The lines wait for the disk, and change the tree or its settings, but no log."""

    def __init__(self, mount: MountContext, path: str) -> None:
        """`path`: that of the file, for the event log."""
        self.mount = mount
        self.path = path

    def open(self, flags: int, reader: Handle | None) -> ControlHandle[T]:
        """Open the file for writing; `reader` answers reads if it is open for both."""
        return ControlHandle(self, flags, reader)

    def decode(self, lines: Sequence[bytes]) -> Sequence[T]:
        """Parse lines. StorageError if one is wrong."""
        raise NotImplementedError

    def check_rest(self, line: bytes) -> None:
        """Raise where a line would be refused, as far as that is known without waiting."""

    def carry_out(self, lines: Sequence[T]) -> CommandEffects:
        """Carry out all lines, or none. Errors: StorageError, OSError, MustQueue."""
        raise NotImplementedError


class TextCommands(Commands[str]):
    """The rules of a file whose lines are text."""

    def decode(self, lines: Sequence[bytes]) -> Sequence[str]:
        try:
            return [line.decode() for line in lines]
        except UnicodeDecodeError:
            raise InvalidConfig("a line is not UTF-8") from None


class ControlHandle(Handle, Generic[T]):
    """Collects lines, and has `commands` carry out the complete ones of a write."""

    __slots__ = (
        *("_asks_sync", "_begun", "_commands", "_decoded", "_grown", "_kept"),
        *("awaited", "reader", "structural", "sync_due"),
    )

    asks_groups = True
    direct_io = True

    def __init__(self, commands: Commands[T], flags: int, reader: Handle | None) -> None:
        self._commands = commands
        self.reader = reader
        # The incomplete line at the end of the last write.
        self._kept = CountedRest(commands.mount.unfinished)
        self._asks_sync = flags & _SYNC != 0
        # Partitions that may still have to be flushed.
        self._grown: dict[Partition, None] = {}
        # The jobs that the last write has begun and whose end it waits for.
        self._begun: Sequence[Job] = ()
        # A write that `examine` has decoded, and its lines or the error of one.
        self._decoded: tuple[bytes, Sequence[T] | StorageError] | None = None
        self.awaited: Sequence[Job] = ()
        self.structural = commands.structural
        self.sync_due = False

    def opened_by(self, opener: Opener) -> None:
        self._kept.uid = opener.uid
        self._commands.opener = opener

    def write(self, position: int, data: bytes) -> int:
        self.awaited = self._begun = ()
        self._take(data, resumes=self._commands.resumes)
        return len(data)

    def flush(self) -> None:
        """Raise where the rest would be refused; carries nothing out."""
        if not self._kept:
            return
        try:
            self._commands.check_rest(self._kept.joined())
        except (StorageError, OSError) as error:
            self._say_refused(error)
            raise

    def release(self) -> None:
        super().release()
        if self._kept:
            self.examine(b"\n")
            self._take(b"\n", resumes=False)

    def _take(self, data: bytes, *, resumes: bool) -> None:
        """Carry out the complete lines, and keep the rest. MustQueue, NotExamined."""
        try:
            self._check_lengths(data)
            end = data.rfind(b"\n") + 1
            if end:
                rest = self._kept.rest_of(memoryview(data)[end:])
                self._note(self._commands.carry_out(self._lines(data, end)))
                self._kept.replace(rest)
            else:
                self._kept.add(memoryview(data))
        except (StorageError, OSError) as error:
            if not (resumes and isinstance(error, OSError)):
                # The next write begins with a new line.
                self._kept.clear()
            self._say_refused(error)
            raise

    def _say_refused(self, error: StorageError | OSError) -> None:
        line = f"{self._commands.path}: {refusal_of(error)}"
        self._commands.mount.events.of_request(line, errno_of(error))
        mark_logged(error)

    def _check_lengths(self, data: bytes) -> None:
        most, longest = self._commands.most_lines, self._commands.longest_line
        count = data.count(b"\n")
        if count > most:
            raise InvalidConfig(f"a write may have at most {most} lines, not {count}")
        first = data.find(b"\n") if count else len(data)
        if len(self._kept) + first > longest or len(data) - data.rfind(b"\n") - 1 > longest:
            raise OSError(self._commands.too_long, f"a line of more than {longest} bytes")

    def _lines(self, data: bytes, end: int) -> Sequence[T]:
        """Decode the complete lines of a write. NotExamined: a worker thread has to."""
        found, self._decoded = self._decoded, None
        if found is None or found[0] != data:
            most = self._commands.decoded_at_once
            if most is not None and len(self._kept) + end > most:
                raise NotExamined
            self.examine(data)
            found, self._decoded = self._decoded, None
        assert found is not None
        if isinstance(found[1], StorageError):
            raise found[1]
        return found[1]

    def examine(self, data: bytes) -> None:
        lines = self._kept.joined(data[: data.rfind(b"\n")]).split(b"\n")
        try:
            self._decoded = data, self._commands.decode(lines)
        except StorageError as error:
            self._decoded = data, error

    def _note(self, effects: CommandEffects) -> None:
        """Have the answer to the write wait for the effects of its lines."""
        self._grown.update(dict.fromkeys(effects.grown))
        self._begun = effects.begun
        self.awaited = (*effects.begun, *effects.stopped)
        self.sync_due = any(
            self._asks_sync or partition.log.durability.flush_due for partition in self._grown
        )

    def awaited_over(self) -> None:
        for job in self._begun:
            if job.error is not None:
                raise job.error.with_traceback(None)  # each waiting write raises it
            deleted = job.topic is not None and not job.topic.partitions
            if job.state is JobState.CANCELLED and deleted:
                raise OSError(errno.ENOENT, "the topic has been deleted")
            if job.state is JobState.CANCELLED:
                error = OSError(errno.ESHUTDOWN, "the file system is being unmounted")
                mark_logged(error)  # by the end of the job
                raise error

    def sync_plans(self) -> Sequence[FlushPlan]:
        self.sync_due = False
        plans = flush_plans(self._grown)
        self._grown = {}
        return plans


def taking(begin: Callable[[], Commands[T]]) -> Take:
    """The `take` of a `TextFile`: `begin` makes the rules of each open file."""
    return lambda flags, reader: begin().open(flags, reader)
