"""Runs the loop of a consumer: passes batches of each partition in turn to an output, and commits.

Between two batches, the loop checks for signals and for changes of its share of the partitions. It
drops a partition that was deleted or that it must return. Records of that partition that were read
but not handled are discarded.
"""

from __future__ import annotations

import errno
import resource
import select
import time
from contextlib import suppress
from typing import NamedTuple

from kafkafs.cli.common.decoding import TopicDecoders
from kafkafs.cli.common.ending import fail, warn
from kafkafs.cli.records.consume.outputs import DeadLetters, Interrupts, Output
from kafkafs.cli.records.consume.positions import Positions
from kafkafs.cli.records.consume.reader import Batch, BatchesReader, Limits, LinesReader, Reader
from kafkafs.cli.records.consume.sources import Directories, Partition
from storage.plural import counted

#: Seconds between two searches for new partitions, if no daemon reports them.
_LOOK_S = 5.0
#: Seconds between two checks whether a transaction has ended, if its records fill the buffer.
_TRANSACTION_S = 0.2
#: The first and the longest pause before a batch is tried again, in seconds.
_AGAIN_S = 0.1, 30.0


class Rules(NamedTuple):
    """The options of the command."""

    view: str
    point: str
    follow: bool
    max_records: int | None
    limits: Limits
    wait_s: float
    on_failure: str


class _Turn:
    """A partition that the consumer reads."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.committed: int | None = None
        self.batch: Batch | None = None
        """The batch that was taken and is not handled yet."""
        self.due: float | None = None
        """The time at which the records that were read become a batch, even if it is not full.
        After a failure: the time of the next attempt. None: nothing waits.
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
        decoders: TopicDecoders | None,
        dead_letters: DeadLetters | None,
    ) -> None:
        self._rules = rules
        self._positions = positions
        self._directories = directories
        self._output = output
        self._decoders = decoders
        self._dead_letters = dead_letters
        self._interrupts = Interrupts(output)
        self._turns: dict[Partition, _Turn] = {}
        # Deleted partitions that are still granted.
        self._gone: set[Partition] = set()
        self._left = rules.max_records
        # The partitions that existed at the start. New ones are read from their beginning.
        self._at_first: frozenset[Partition] | None = None
        self._look_at = 0.0
        self._epoll = select.epoll()
        self._epoll.register(self._interrupts.fd, select.EPOLLIN)
        if positions.fd >= 0:
            self._epoll.register(positions.fd, select.EPOLLPRI)
        with suppress(OSError):  # epoll does not accept a plain file
            if output.fd >= 0:
                self._epoll.register(output.fd, 0)

    def run(self) -> int:
        """Consume, and return the exit status. Errors: ClickException, OSError."""
        try:
            status = self._run()
        except OSError as error:
            if error.errno == errno.EMFILE:
                raise self._too_many() from None
            raise
        number = self._interrupts.number
        return 128 + number if number else status

    def _too_many(self) -> Exception:
        """Close all partitions, and return the error that each partition needs a descriptor."""
        count = len(self._turns)
        for partition in list(self._turns):
            self._drop(partition)  # the message needs descriptors, too
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
                if status := self._handle(turn):
                    return status
            elif not (self._rules.follow or self._waits()):
                break
            else:
                self._wait()
                continue
            self._heed(self._epoll.poll(0))
        return 0

    def _waits(self) -> bool:
        return self._positions.is_waiting or any(turn.batch for turn in self._turns.values())

    # -- the share -----------------------------------------------------------------------------

    def _share(self) -> None:
        """Begin newly granted partitions, and drop those that are no longer granted."""
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
            kind = BatchesReader if rules.view == BatchesReader.view else LinesReader
            directory = self._directories.of(partition)
            reader = kind(partition, directory, position, point, rules.view)
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
        """Take a batch of the next partition that has one, and move that partition to the end."""
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
                warn(f"{partition.name}: deleted")
                self._drop(partition)
                self._gone.add(partition)
        return None

    def _prepare(self, turn: _Turn, now: float) -> bool:
        """Read, and take a batch if one is due. Return whether there is a batch to handle."""
        reader, rules = turn.reader, self._rules
        if turn.batch is not None:
            return turn.due is None or now >= turn.due
        limits = rules.limits
        if self._left is not None:
            # Batches that wait for another attempt count, too.
            waiting = sum(each.batch.records for each in self._turns.values() if each.batch)
            if waiting >= self._left:
                return False
            limits = limits._replace(records=min(limits.records, self._left - waiting))
        while turn.batch is None:
            if not reader.at_end:
                self._fill(reader)
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

    def _fill(self, reader: Reader) -> None:
        """Read on. Errors: ClickException, which names the partition, for EIO; OSError."""
        try:
            reader.fill(self._rules.limits)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            position = "the start" if reader.position is None else f"offset {reader.position}"
            raise fail(
                f"{reader.partition.name}: cannot read the records from {position} on: "
                f"{error.strerror} (see {self._directories.mount}/.kafkafs/log)"
            ) from None

    def _await(self, reader: Reader) -> None:
        """Ask the kernel to report once that the file has grown."""
        if not self._rules.follow or not reader.at_end or reader.is_gone:
            return
        events = select.EPOLLPRI | select.EPOLLONESHOT
        try:
            self._epoll.register(reader.fd, events)
        except FileExistsError:
            self._epoll.modify(reader.fd, events)

    def _handle(self, turn: _Turn) -> int:
        """Pass a batch to the output, and commit it. Return the exit status; 0: continue."""
        batch = turn.batch
        assert batch is not None
        shown = batch
        if self._decoders is not None:
            decoder = self._decoders.decoder_of(batch.partition.topic)
            shown = batch._replace(data=decoder.feed(batch.data))
        if status := self._output.put(shown):
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
        """Raise ClickException if a position of a granted partition was refused.

        The partition of a deleted topic is no longer granted, so its error does not count.
        """
        if partition in set(self._positions.granted()):
            reason = error.strerror
            raise fail(f"{partition.name}: cannot commit offset {position}: {reason}") from None

    def _failed(self, turn: _Turn, batch: Batch, status: int) -> int:
        """Handle a batch that the command has refused, as --on-failure says.

        Return the exit status; 0: continue.
        """
        what = f"{batch.partition.name}: {batch.first}..{batch.last}"
        reason = f"the command exited with status {status}"
        if self._rules.on_failure == "stop":
            warn(f"{what}: {reason}")
            return status
        if self._rules.on_failure == "skip":
            assert self._dead_letters is not None
            lines = turn.reader.lines(batch)
            if lines is None:
                raise fail(f"{what}: deleted before it was copied to the dead-letter topic")
            warn(f"{what}: {reason}; copied to the dead-letter topic")
            self._dead_letters.put(batch, lines, reason)
            self._done(turn, batch)
            return 0
        warn(f"{what}: {reason}; retrying in {turn.pause_s:g} s")
        turn.due = time.monotonic() + turn.pause_s
        turn.pause_s = min(turn.pause_s * 2, _AGAIN_S[1])
        return 0

    # -- waiting -------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait for the next event, or until something is due."""
        turns = self._turns.values()
        due = [turn.due for turn in turns if turn.due is not None]
        now = time.monotonic()
        if any(not (turn.batch or turn.reader.at_end) for turn in turns):
            due.append(now + _TRANSACTION_S)
        left_s = min([*due, self._look_at]) - now
        self._heed(self._epoll.poll(None if left_s == float("inf") else max(left_s, 0)))

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
