"""The errors of a commit log. A bug of our own is an `AssertionError` instead.

`StorageError` and its subclasses name the place of the fault: path, position (bytes in that file)
and offset (count of records in the partition). An error of the disk itself (ENOSPC, EIO, EMFILE, …)
is an `OSError`.

A torn tail found in recovery is an outcome, not an error, and has no class here.
"""

# The names are Kafka's words for these errors.
# ruff: noqa: N818

from __future__ import annotations

import errno
import os


class StorageError(Exception):
    """The base class; `str()` is the message and the known ones of path, position and offset."""

    _facts: tuple[tuple[str, str], ...] = (
        ("file", "path"),
        ("position", "position"),
        ("offset", "offset"),
    )

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.position = position
        self.offset = offset

    def __str__(self) -> str:
        return self.describe()

    def describe(self, *hidden: str) -> str:
        """Return `str()` without the facts of the names `hidden`."""
        facts = [
            f"{name} {value}"
            for name, attribute in self._facts
            if name not in hidden and (value := getattr(self, attribute)) is not None
        ]
        return f"{self.message} ({', '.join(facts)})" if facts else self.message


class UnusableFile(OSError):
    """A link, a pipe, a device, a directory or a far too large file instead of a regular file;
    errno EIO. It is neither followed nor waited for.
    """


class IgnoredEntry(FileExistsError):
    """An ignored entry of another user has the name (`directory/top_level`); errno EEXIST."""


class CutShort(OSError):
    """Another process has truncated the file; errno EIO. Nothing was appended."""


class NoThread(OSError):
    """The system starts no further thread; errno ENOMEM. Its work has not begun."""

    def __init__(self) -> None:
        super().__init__(errno.ENOMEM, "cannot start a thread")


class CorruptRecord(StorageError):
    """A record batch that breaks a rule of its format: sizes, counts, checksum."""


class LogWouldEnd(CorruptRecord):
    """Damage where recovery would truncate a log that must not end there; nothing is truncated."""


class CorruptCheckpoint(StorageError):
    """A small file of the log that cannot be read; `line` counts from 1; None: the whole file."""

    def __init__(self, message: str, *, path: str, line: int | None = None) -> None:
        where = message if line is None else f"line {line}: {message}"
        super().__init__(where, path=path)
        self.line = line


class OffsetOutOfRange(StorageError):
    """A read below the log start or above the log end (Kafka's OFFSET_OUT_OF_RANGE)."""

    # The message names the offset already.
    _facts = (("file", "path"),)

    def __init__(
        self, offset: int, log_start: int, log_end: int, *, path: str | None = None
    ) -> None:
        super().__init__(
            f"offset {offset} is outside the log, which runs from {log_start} to {log_end}",
            path=path,
        )
        self.offset = offset
        self.log_start = log_start
        self.log_end = log_end


class RecordTooLarge(StorageError):
    """A record whose batch exceeds `max.message.bytes`; `size` and `limit` in bytes.

    `line`: the record's number, from 1, in a request of several records.
    """

    def __init__(self, size: int, limit: int, *, line: int | None = None) -> None:
        prefix = "" if line is None else f"line {line}: "
        super().__init__(f"{prefix}a batch of {size} bytes exceeds max.message.bytes={limit}")
        self.size = size
        self.limit = limit
        self.line = line


class InvalidRecord(StorageError):
    """A record that the topic's settings or the append rules refuse."""


class InvalidTimestamp(InvalidRecord):
    """A record whose timestamp is outside message.timestamp.before.max.ms and .after.max.ms."""


class ProducerError(InvalidRecord):
    """A batch that does not follow the previous batch of its producer, `producer_id`."""

    def __init__(
        self,
        message: str,
        producer_id: int,
        *,
        path: str | None = None,
        offset: int | None = None,
    ) -> None:
        super().__init__(f"producer {producer_id}: {message}", path=path, offset=offset)
        self.producer_id = producer_id


class OutOfOrderSequence(ProducerError):
    """A gap in a producer's sequence numbers (OUT_OF_ORDER_SEQUENCE_NUMBER)."""


class InvalidProducerEpoch(ProducerError):
    """A batch of an epoch that a newer one has fenced off (INVALID_PRODUCER_EPOCH)."""


class InvalidTxnState(ProducerError):
    """A batch that the state of its producer's transaction does not allow (INVALID_TXN_STATE)."""


class InvalidTopic(StorageError):
    """A topic name that Kafka does not allow (`Topic.java`)."""


class TopicExists(StorageError):
    """A topic, or another directory, has that name."""


class HandoverRefused(StorageError):
    """Topics that cannot be handed over to a broker, or an unfinished handover."""


class UnknownTopicOrPartition(StorageError):
    """No topic or partition has that name."""


class InvalidConfig(StorageError):
    """A setting that does not exist, or a value that its rule refuses."""


class PolicyViolation(StorageError):
    """A change that the topic's settings do not allow (POLICY_VIOLATION)."""


class FaultyPartition(StorageError):
    """A partition that could not be opened; the message gives the reason and a remedy."""


class LogLocked(StorageError):
    """Another process has the data directory open; `pid`: if it is known."""

    def __init__(self, pid: int | None, *, path: str | None = None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"the data directory is in use by {holder}", path=path)
        self.pid = pid


class ReadOnlyLog(StorageError):
    """A change to a log that was opened for reading only."""


class MirroredDirectory(ReadOnlyLog):
    """A change to the mirror of a cluster, which only `kafkafs mirror` writes."""


class ReadOnlyFormat(StorageError):
    """A write to a log in Kafka 0.7's format, which is read-only."""


class SegmentGone(StorageError):
    """Bytes that were deleted or replaced."""


class LogClosed(StorageError):
    """A call to a log that has been closed."""


class TaskCancelled(StorageError):
    """Long work that was cancelled before it had changed anything."""


class Fenced(StorageError):
    """A request of an older run of a query, after a newer run has taken over."""


class BatchGap(StorageError):
    """A batch of a query that neither follows the last adopted one nor repeats it."""


class SwapRefused(StorageError):
    """Cleaned segments that are incomplete or do not match the present log."""


def refusal_of(error: Exception) -> str:
    """Return why a request is refused; the text names a file only if that file is damaged."""
    if isinstance(error, (CorruptRecord, CorruptCheckpoint, FaultyPartition)):
        return str(error)
    if isinstance(error, StorageError):
        return error.describe("file")
    return (error.strerror if isinstance(error, OSError) else None) or reason_of(error)


def reason_of(error: Exception) -> str:
    """Return an error in words: an OSError with its file, and without its number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ({error.filename})" if error.filename else error.strerror
    return os.strerror(errno.ENOMEM) if isinstance(error, MemoryError) else str(error)
