"""The loop of a consumer: gives batches of its partitions, in turn, to an output, and commits them.

Between two batches it looks at signals and at its share. A partition that it is to give back, or
that was deleted, it drops; what was read of it and not handled is forgotten.
"""

from __future__ import annotations

import errno
import resource
import select
import time
from contextlib import suppress
from typing import NamedTuple

from kafkafs.cli.common.ending import fail, say
from kafkafs.cli.records.consume.dead_letters import DeadLetters
from kafkafs.cli.records.consume.outputs import Interrupts, Output
from kafkafs.cli.records.consume.positions import Positions
from kafkafs.cli.records.consume.reader import Batch, Limits, Reader, reader_of
from kafkafs.cli.records.consume.sources import Directories, Partition
from storage.plural import counted

#: How often to look for new partitions where no daemon tells of them, in seconds.
_LOOK_S = 5.0
#: How often to look whether a transaction has ended of which more was read than a batch may have.
_TRANSACTION_S = 0.2
#: The pauses before a batch is tried again, in seconds: the first and the longest one.
_AGAIN_S = 0.1, 30.0


class Rules(NamedTuple):
    """What the options say."""

    view: str
    point: str
    follow: bool
    max_records: int | None
    limits: Limits
    wait_s: float
    on_failure: str
    with_offsets: bool


class _Turn:
    """A partition that is consumed."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.committed: int | None = None
        self.batch: Batch | None = None
        """What was taken and not handled yet."""
        self.due: float | None = None
        """When what was read is a batch even if it is not full; after a failure, when to try again.
        None: nothing waits.
        """
        self.pause_s = _AGAIN_S[0]


class Consumer:
    """See the module."""

    def __init__(
        self,
        rules: Rules,
        positions: Positions,
        directories: Directories,
        output: Output,
        dead_letters: DeadLetters | None,
    ) -> None:
        self._rules = rules
        self._positions = positions
        self._directories = directories
        self._output = output
        self._dead_letters = dead_letters
        self._interrupts = Interrupts(output)
        self._turns: dict[Partition, _Turn] = {}
        # Those that were deleted, as long as they are granted still.
        self._gone: set[Partition] = set()
        self._left = rules.max_records
        # What was there already: new partitions are read from their beginning.
        self._at_first: frozenset[Partition] | None = None
        self._look_at = 0.0
        self._epoll = select.epoll()
        self._epoll.register(self._interrupts.fd, select.EPOLLIN)
        if positions.fd >= 0:
            self._epoll.register(positions.fd, select.EPOLLPRI)
        with suppress(OSError):  # a plain file cannot be waited for
            if output.fd >= 0:
                self._epoll.register(output.fd, 0)

    def run(self) -> int:
        """Consume; the exit status. click's error, OSError."""
        try:
            status = self._run()
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise self._too_many() from None
            raise
        number = self._interrupts.number
        return 128 + number if number else status

    def _too_many(self) -> Exception:
        """That each partition needs a descriptor."""
        count = len(self._turns)
        for partition in list(self._turns):
            self._drop(partition)  # also what is said takes some
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return fail(
            f"the limit of {most} open files is too low for {counted(count, 'partition')} "
            "(see ulimit -n)"
        )

    def _run(self) -> int:
        while not self._interrupts.number and (self._left is None or self._left > 0):
            if time.monotonic() >= self._look_at:
                self._share()
            turn = self._next()
            if turn is not None:
                status = self._handle(turn)
                if status:
                    return status
            elif self._is_over():
                break
            else:
                self._wait()
                continue
            self._look_around()
        return 0

    def _is_over(self) -> bool:
        waits = self._positions.is_waiting or any(turn.batch for turn in self._turns.values())
        return not (self._rules.follow or waits)

    # -- the share -----------------------------------------------------------------------------

    def _share(self) -> None:
        """Begin with partitions that it has got, and drop those that it has not any more."""
        if self._at_first is None:
            self._at_first = frozenset(self._directories.present())
        granted = set(self._positions.granted())
        for partition in self._turns.keys() - granted:
            self._drop(partition)
        for partition in self._positions.asked_back:
            with suppress(PermissionError, FileNotFoundError):  # it is deleted
                self._positions.give_back(partition)
        self._gone &= granted
        for partition in sorted(granted - self._turns.keys() - self._gone):
            self._begin(partition)
        told = self._positions.fd >= 0
        self._look_at = float("inf") if told else time.monotonic() + _LOOK_S

    def _begin(self, partition: Partition) -> None:
        rules = self._rules
        is_new = self._at_first is not None and partition not in self._at_first
        point = "start" if is_new else rules.point
        try:
            position = self._positions.position(partition)
            if position is None and rules.point != "start":
                position = self._positions.begin(partition, point)
            reader = reader_of(
                rules.view,
                partition,
                self._directories.of(partition),
                position,
                point,
                with_offsets=rules.with_offsets,
            )
        except (PermissionError, FileNotFoundError) as error:
            self._refused(partition, point, error)
            return
        turn = self._turns[partition] = _Turn(reader)
        turn.committed = position

    def _drop(self, partition: Partition) -> None:
        turn = self._turns.pop(partition, None)
        if turn is not None:
            turn.reader.close()

    # -- batches -------------------------------------------------------------------------------

    def _next(self) -> _Turn | None:
        """The next partition that has a batch, which is taken then; those before it come last."""
        now = time.monotonic()
        for partition, turn in list(self._turns.items()):
            try:
                if self._prepare(turn, now):
                    del self._turns[partition]
                    self._turns[partition] = turn
                    return turn
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ESTALE):
                    raise
                turn.reader.is_gone = True
            if turn.reader.is_gone and not turn.batch:
                say(f"kafkafs: {partition.name}: deleted", err=True)
                self._drop(partition)
                self._gone.add(partition)
        return None

    def _prepare(self, turn: _Turn, now: float) -> bool:
        """Read, and take a batch if there is one that is due."""
        reader, rules = turn.reader, self._rules
        if turn.batch is not None:
            return turn.due is None or now >= turn.due
        limits = rules.limits
        if self._left is not None:
            limits = limits._replace(records=min(limits.records, self._left))
        while turn.batch is None:
            if not reader.at_end:
                reader.fill(rules.limits)
                self._await(reader)
            if not reader.has_some:
                turn.due = None
                self._commit(turn, reader.rest())
                return False
            if rules.wait_s and rules.follow and not reader.is_full(rules.limits):
                if turn.due is None:
                    turn.due = now + rules.wait_s
                if now < turn.due:
                    return False
            turn.due = None
            turn.batch = reader.take(limits)
        return True

    def _await(self, reader: Reader) -> None:
        """Have the kernel tell, once, when there is more."""
        if not self._rules.follow or not reader.at_end or reader.is_gone:
            return
        events = select.EPOLLPRI | select.EPOLLONESHOT
        try:
            self._epoll.register(reader.fd, events)
        except FileExistsError:
            self._epoll.modify(reader.fd, events)

    def _handle(self, turn: _Turn) -> int:
        """Give a batch to the output, and commit it; else the status with which to end."""
        batch = turn.batch
        assert batch is not None
        status = self._output.put(batch)
        if status:
            return self._failed(turn, batch, status)
        self._done(turn, batch)
        return 0

    def _done(self, turn: _Turn, batch: Batch) -> None:
        turn.batch = turn.due = None
        turn.pause_s = _AGAIN_S[0]
        if self._left is not None:
            self._left -= batch.records
        self._commit(turn, batch.end)

    def _commit(self, turn: _Turn, position: int | None) -> None:
        if position is None or position == turn.committed or not self._positions.keeps:
            return
        try:
            self._positions.commit(turn.reader.partition, position)
        except (PermissionError, FileNotFoundError) as error:
            self._refused(turn.reader.partition, position, error)
        turn.committed = position

    def _refused(self, partition: Partition, position: object, error: OSError) -> None:
        """click's error where a position was refused though the partition is granted: that of a
        topic that is deleted is not any more.
        """
        if partition in set(self._positions.granted()):
            reason = error.strerror
            raise fail(f"{partition.name}: cannot commit offset {position}: {reason}") from None

    def _failed(self, turn: _Turn, batch: Batch, status: int) -> int:
        """Do with a batch that the command has refused what --on-failure says."""
        what = f"{batch.partition.name}: {batch.first}..{batch.last}"
        reason = f"the command exited with status {status}"
        if self._rules.on_failure == "stop":
            say(f"kafkafs: {what}: {reason}", err=True)
            return status
        if self._rules.on_failure == "skip":
            assert self._dead_letters is not None
            lines = turn.reader.lines(batch)
            if lines is None:
                raise fail(f"{what}: deleted before it was copied to the dead-letter topic")
            say(f"kafkafs: {what}: {reason}; copied to the dead-letter topic", err=True)
            self._dead_letters.put(batch, lines, reason)
            self._done(turn, batch)
            return 0
        say(f"kafkafs: {what}: {reason}; retrying in {turn.pause_s:g} s", err=True)
        turn.due = time.monotonic() + turn.pause_s
        turn.pause_s = min(turn.pause_s * 2, _AGAIN_S[1])
        return 0

    # -- waiting -------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Until something comes, or is due."""
        turns = self._turns.values()
        due = [turn.due for turn in turns if turn.due is not None]
        now = time.monotonic()
        if any(not (turn.batch or turn.reader.at_end) for turn in turns):
            due.append(now + _TRANSACTION_S)
        left_s = min([*due, self._look_at]) - now
        self._heed(self._epoll.poll(None if left_s == float("inf") else max(left_s, 0)))

    def _look_around(self) -> None:
        """What has come by now."""
        self._heed(self._epoll.poll(0))

    def _heed(self, events: list[tuple[int, int]]) -> None:
        readers = {turn.reader.fd: turn.reader for turn in self._turns.values()}
        for fd, event in events:
            if fd == self._output.fd:
                raise BrokenPipeError
            if fd == self._positions.fd:
                self._look_at = 0
            elif fd in readers:
                readers[fd].at_end = False
                if event & (select.EPOLLHUP | select.EPOLLERR):
                    readers[fd].is_gone = True
                    self._epoll.unregister(fd)
