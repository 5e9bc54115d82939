"""Turns staged batches into one Kafka transaction, exactly once.

Other processes stage batches, and the owner of the logs adopts them: one request is one
transaction, over all partitions that it names. In this order, which a crash may interrupt at any
point:

1. The staged files are read and checked. If a batch breaks a rule, the request is refused, and
   nothing has changed.
2. The intent is recorded (`adoptions`): the query and batch, the partitions, the producer.
3. The batches are appended with offsets, the producer's id and sequences, as transactional ones.
   Other appends may come between; readers see none of them yet.
4. The logs are flushed. Most of the flush began during the appends (`early_flush`).
5. The batch is recorded as committed. From this moment on it is.
6. Each partition gets a COMMIT marker: readers see the records. The staged files are removed.

A restart finds the last adoption that was begun: it writes ABORT markers if that was not committed,
else the missing COMMIT markers. Nothing is ever truncated. An adoption begins when the markers of
the previous one are durable, as its intent replaces the previous one.

A query has one producer id, like a transactional id at a coordinator; a new run of it gets a new
epoch.

Threads: `Adopter.adopt` runs on a worker thread and uses logs by `task.on_log_thread` only, a
mebibyte at a time. One adoption at a time per data directory.

Not here: receiving requests (the mount, the command line), orphaned staged files (`owner`).
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from storage import paths
from storage.adopt.adoptions import Adoptions, Pending, Query
from storage.adopt.early_flush import EarlyFlush, early_flush
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.directory.data_directory import DataDirectory
from storage.errors import CorruptCheckpoint, InvalidTxnState, StorageError, UnknownTopicOrPartition
from storage.log.append import append_batches, end_transaction
from storage.log.flush import FlushPlan
from storage.log.log import Log
from storage.log.staged_batches import StagedBatches, Stamped
from storage.record.control import ABORT, COMMIT
from storage.state.producer_state import sequence_after
from storage.task import Task
from storage.threads import side_by_side

_log = logging.getLogger(__name__)

_FLUSHING_THREADS = 8


Partition = tuple[str, int]


@dataclass(slots=True)
class Adopted:
    """The outcome. `duplicate`: the batch had been adopted before, and nothing was appended.

    `offsets`: by partition, the first and the last appended offset; other appends may lie between.
    `size` in bytes.
    """

    duplicate: bool = False
    records: int = 0
    size: int = 0
    offsets: dict[Partition, tuple[int, int]] = field(default_factory=dict)


class Adopter:
    """Adopts batches into the logs of a data directory, one request at a time.

    `adoptions`: the recorded state. `undecided`: the state to be written before the next adoption,
    because a failed write left the file's content unknown.
    """

    def __init__(self, directory: DataDirectory) -> None:
        self.directory = directory
        self.adoptions = Adoptions()
        self.undecided: Adoptions | None = None
        # Why the file cannot be read, so that nothing may be adopted.
        self._fault: CorruptCheckpoint | None = None
        self._lock = Lock()

    def adopt(self, request: AdoptRequest, task: Task, now_ns: Callable[[], int]) -> Adopted:
        """Adopt the batches of a request. Runs on a worker thread; `now_ns` is wall time.

        Errors: InvalidRecord and its kinds, CorruptRecord, RecordTooLarge if a staged batch breaks
        a rule, with its file and position; InvalidRecord if a query of another kind has the name;
        Fenced, BatchGap; UnknownTopicOrPartition; FileNotFoundError if a staged file was deleted;
        InvalidTxnState, OutOfOrderSequence and other ProducerErrors if another writer uses its
        producer; OSError; TaskCancelled. Then no record of it can be read, now or later, and the
        staged files still exist.

        A disk error in the last step, when the batch is committed already, is not raised: `settle`,
        the next adoption, or a restart writes the missing markers.
        """
        request.check()
        with self._lock:
            return _Adoption(self, request, task, now_ns).run()

    def has_unwritten_markers(self) -> bool:
        """Return whether markers are missing that `settle` should write."""
        pending = self.adoptions.pending
        if pending is None or self._lock.locked():
            return False
        return self.undecided is not None or any(
            _lacks_marker(log, pending) for log in self._logs_of(pending)
        )

    def settle(self, task: Task, now_ns: Callable[[], int]) -> None:
        """Write the markers that could not be written when an adoption ended. Runs on a worker
        thread. Errors: StorageError, OSError; they are still missing.
        """
        with self._lock:
            self.decide()
            self.settle_pending(task, now_ns)

    def recover(self) -> None:
        """End an adoption that a crash has interrupted, when the directory was just opened.

        If the disk refuses that, the next adoption tries again. Until then readers do not see later
        records, and a line says so. Errors: CorruptCheckpoint, OSError if the adopted batches are
        not known.
        """
        directory = self.directory
        try:
            self.adoptions = Adoptions.load(directory.files, directory.path)
        except CorruptCheckpoint as error:
            if not directory.keeps_faulty:
                raise
            self._fault = error
            directory.faults.append(str(error))
            _log.warning("%s", error)
            return
        try:
            directory.files.with_reserve(
                lambda: self.settle_pending(Task(), lambda: directory.clock_ms() * 1_000_000)
            )
        except (StorageError, OSError) as error:
            fault = (
                f"{directory.path}: the adoption that a crash interrupted is still unfinished: "
                f"{error}"
            )
            directory.faults.append(fault)
            _log.warning("%s", fault)

    def decide(self) -> None:
        """Record that a batch is not committed if a disk error has left that open. Errors: OSError;
        CorruptCheckpoint if the adopted batches are not known.
        """
        if self._fault is not None:
            raise self._fault
        if self.undecided is not None:
            self.save(self.undecided)
            self.undecided = None

    def save(self, changed: Adoptions) -> None:
        """Record another state, durably. Errors: OSError; see `Adoptions.save`."""
        changed.save(self.directory.files, self.directory.path)
        self.adoptions = changed

    def settle_pending(self, task: Task, now_ns: Callable[[], int]) -> None:
        """Make the markers of the last adoption durable, before its intent record is overwritten.
        Errors: StorageError, OSError.
        """
        logs = self.end(task, now_ns)
        ends = task.on_log_thread(lambda: {log: log.log_end_offset for log in logs})

        def left() -> list[Log]:
            return [
                log
                for log, end in ends.items()
                if not log.closed and log.durability.recovery_point < end
            ]

        while waiting := task.on_log_thread(left):
            try:
                _flush(waiting, task)
            except (StorageError, OSError):
                # A topic that was deleted meanwhile needs no flush.
                if not any(log.closed for log in waiting):
                    raise

    def end(self, task: Task, now_ns: Callable[[], int]) -> list[Log]:
        """Write the missing markers of the last adoption; return the logs that it wrote to. Errors:
        StorageError, OSError.
        """
        pending = self.adoptions.pending
        if pending is None:
            return []
        topics = self.directory.topics
        for topic, partition in pending.partitions:
            if topic in topics:
                # The markers of a faulty partition cannot be written before it is repaired.
                topics[topic].check(partition)
        logs = task.on_log_thread(lambda: self._logs_of(pending))
        failure: StorageError | OSError | None = None
        for log in logs:
            try:
                task.on_log_thread(partial(_write_marker, log, pending, now_ns))
            except (StorageError, OSError) as error:
                failure = error
        if failure is not None:
            raise failure
        return logs

    def _logs_of(self, pending: Pending) -> list[Log]:
        """Return the logs that an adoption wrote to, except those of deleted topics."""
        topics = self.directory.topics
        return [
            log
            for topic, partition in pending.partitions
            if topic in topics and (log := topics[topic].partitions.get(partition)) is not None
        ]

    def largest_producer_id(self) -> int:
        """Return the largest producer id in the logs; -1: none."""
        return max(
            (number for log in self.directory.topics.logs() for number in log.producers.by_id),
            default=-1,
        )


@dataclass(slots=True)
class _Adoption:
    """One request that is being carried out."""

    adopter: Adopter
    request: AdoptRequest
    task: Task
    now_ns: Callable[[], int]
    logs: dict[Partition, Log] = field(default_factory=dict)
    adopted: Adopted = field(default_factory=Adopted)

    def run(self) -> Adopted:
        """Take the steps of the module."""
        adopter, request, task = self.adopter, self.request, self.task
        adopter.decide()
        known = adopter.adoptions.queries.get(request.query)
        if known is not None and known.is_done(request):
            self._remove_staged()
            return Adopted(duplicate=True)
        if known is not None:
            known.check(request)
        self.logs = task.on_log_thread(self._find_logs)
        total = sum(file.size for file in request.files)
        task.begin("checking", total)
        for file in request.files:
            for size in self._batches(file).check(self.now_ns):
                task.advance(size)
        adopter.settle_pending(task, self.now_ns)
        seen = task.on_log_thread(lambda: adopter.largest_producer_id())
        begun = adopter.adoptions.begun(request, seen)
        if request.files:
            adopter.save(begun)
            try:
                task.begin("adopting", total)
                with early_flush(task) as flush:
                    for file in request.files:
                        self._append(file, begun.queries[request.query], flush)
                task.begin("flushing", 0)
                _flush(self.logs.values(), task)
                task.on_log_thread(lambda: self._check_appended(begun.queries[request.query]))
            except BaseException:
                self._end()
                raise
        self._commit(begun)
        self._end()
        self._remove_staged()
        return self.adopted

    def _commit(self, begun: Adoptions) -> None:
        """Record that the batch is committed; if that fails, that it is not."""
        now_ms = self.now_ns() // 1_000_000
        names_ms = self.adopter.directory.settings.broker.kafkafs_txn_retention_ms
        try:
            self.adopter.save(begun.committed(self.request, now_ms, names_ms))
        except BaseException:
            # The file may have either state now. Before a marker is written it must have one for
            # sure.
            self.adopter.undecided = begun
            with contextlib.suppress(OSError):
                self.adopter.decide()
                self._end()
            raise

    def _end(self) -> None:
        """Write the markers; `settle` or a restart writes those that fail now."""
        with contextlib.suppress(StorageError, OSError):
            self.adopter.end(self.task, self.now_ns)

    def _find_logs(self) -> dict[Partition, Log]:
        found: dict[Partition, Log] = {}
        for file in self.request.files:
            paths.check_takes_records(file.topic)
            topic = self.adopter.directory.topics.get(file.topic)
            log = None
            if topic is not None:
                topic.check(file.partition)
                log = topic.partitions.get(file.partition)
            if log is None:
                raise UnknownTopicOrPartition(
                    f"topic {file.topic!r} has no partition {file.partition}",
                    path=self.adopter.directory.path,
                )
            log.check_not_read_only()
            found[file.topic, file.partition] = log
        return found

    def _path(self, file: StagedFile) -> str:
        directory = paths.partition_directory(file.topic, file.partition)
        return os.path.join(self.adopter.directory.path, directory, file.name)

    def _batches(self, file: StagedFile) -> StagedBatches:
        log = self.logs[file.topic, file.partition]
        return StagedBatches(self.adopter.directory.files, self._path(file), file.size, log.config)

    def _remove_staged(self) -> None:
        for file in self.request.files:
            with contextlib.suppress(OSError):
                self.adopter.directory.files.unlink(self._path(file))

    def _append(self, file: StagedFile, query: Query, flush: EarlyFlush) -> None:
        log, task = self.logs[file.topic, file.partition], self.task
        producer_id, epoch = query.producer_id, query.producer_epoch

        def next_sequence() -> int:
            producer = log.producers.by_id.get(producer_id)
            if producer is None or producer.epoch != epoch or not producer.batches:
                return 0
            return sequence_after(producer.last_sequence, 1)

        sequence = task.on_log_thread(next_sequence)
        stamped = self._batches(file).stamped(producer_id, epoch, sequence, self.now_ns)
        with contextlib.closing(stamped):
            for chunk in stamped:

                def append(chunk: Stamped = chunk) -> None:
                    log.append_queue.check_may_append()
                    appended = append_batches(
                        log,
                        chunk.data,
                        now_ns=chunk.now_ns,
                        checked=chunk.batches,
                        in_place=True,
                        defer_flush=True,
                    )
                    adopted, partition = self.adopted, (file.topic, file.partition)
                    first, last = appended[0].base_offset, appended[-1].last_offset
                    adopted.size += len(chunk.data)
                    adopted.records += last - first + 1
                    adopted.offsets[partition] = adopted.offsets.get(partition, (first,))[0], last

                task.on_log_thread(append)
                flush.appended(log, len(chunk.data))
                task.advance(chunk.staged_size)

    def _check_appended(self, query: Query) -> None:
        """Check that the appended batches are all of an open transaction: another writer may use
        this producer, too.

        A copy of batches and markers from elsewhere has their producer in a partition.
        """
        for partition, span in self.adopted.offsets.items():
            log = self.logs[partition]
            producer = log.producers.by_id.get(query.producer_id)
            if (
                producer is None
                or (producer.transaction_first_offset, producer.last_offset) != span
            ):
                reason = (
                    "another transaction was written with this producer id meanwhile: send "
                    "the request again"
                )
                raise InvalidTxnState(reason, query.producer_id, path=log.directory)


def _lacks_marker(log: Log, pending: Pending) -> bool:
    producer = log.producers.by_id.get(pending.producer_id)
    return not log.closed and producer is not None and producer.in_transaction


def _write_marker(log: Log, pending: Pending, now_ns: Callable[[], int]) -> None:
    if _lacks_marker(log, pending):
        log.append_queue.check_may_append()
        kind = COMMIT if pending.committed else ABORT
        end_transaction(log, pending.producer_id, kind, now_ns())


def _flush(logs: Iterable[Log], task: Task) -> None:
    """Sync logs, several at a time: a disk can sync many at once."""
    plans: list[FlushPlan] = []
    try:
        for log in logs:
            plans.append(task.on_log_thread(log.durability.start_flush))
        side_by_side(FlushPlan.run, plans, _FLUSHING_THREADS, "adopting")
    finally:
        for plan in plans:
            task.on_log_thread(plan.finish)
