"""A handle for appending: lines become records.

All complete lines of one write are appended together, or none of them. What follows the last
newline stays with the handle (`_rest`), is joined with the next write, and becomes a record at
release. A line that is too large is refused with EMSGSIZE, and the handle then drops what comes up
to its newline, so that no remainder becomes a record of its own.

What a refused write leaves: after a disk error the handle is as before, and the same write can be
tried again. After a refusal of the content (EMSGSIZE, EINVAL) the unfinished line, which may be
part of what was refused, is dropped; and where the write ended inside a line, the rest of that line
with it. Of a large write() the kernel reports a piece that is refused as a short count, and the
writer goes on from there: the same bytes once more are looked at as they were the first time.

Everything here runs on the owner's thread. Where the kernel's guess of the file's size, the place
of the write and its length, is not the size that came out of it, the kernel is told.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, NoReturn

from kafkafs.tree.handles import FlushPlan, Handle
from storage.errors import InvalidRecord, LogClosed, RecordTooLarge, StorageError
from storage.record.batch import decode

if TYPE_CHECKING:
    from kafkafs.tree.partition import Partition
    from kafkafs.tree.partition_view import PartitionView, ViewGeneration

_OVERHEAD = 128
"""Bytes that a record's batch has at most besides its value."""
_NEWLINE = 10
_PAGE = 4096
"""No piece of a large write() but the last is smaller."""
_SYNC = os.O_SYNC | os.O_DSYNC


class AppendHandle(Handle):
    """See the module. `reader` answers reads where the file is open for both."""

    __slots__ = (
        "_discarding",
        "_flags",
        "_generation",
        "_inode",
        "_part",
        "_partition",
        "_reader",
        "_refused",
        "_rest",
        "_unfinished",
        "sync_due",
    )

    direct_io = True

    def __init__(
        self,
        partition: Partition,
        inode: int,
        part: PartitionView,
        generation: ViewGeneration,
        flags: int,
        reader: Handle | None,
    ) -> None:
        self._partition = partition
        self._inode = inode
        self._part = part
        self._generation = generation
        self._flags = flags
        self._reader = reader
        self._rest = bytearray()
        self._discarding = False
        # The last write where its content was refused, and its error where that write had begun
        # inside a line.
        self._refused: tuple[bytes, StorageError | None] | None = None
        # Whether the partition counts this handle's line among the unfinished ones.
        self._unfinished = False
        self.sync_due = False

    def read(self, position: int, size: int, wait: bool) -> bytes | bytearray | memoryview:
        if self._reader is None:
            raise OSError(errno.EBADF, "not open for reading")
        return self._reader.read(position, size, wait)

    # -- writing -------------------------------------------------------------------------------

    def write(self, position: int, data: bytes) -> int:
        """Append the complete lines of `data`, and keep the rest."""
        size = len(data)
        if not size:
            return 0
        fs = self._partition.fs
        if self._refused is not None:
            self._look_again(data)
        try:
            if fs.stopping:
                raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
            if not self._flags & os.O_APPEND:
                raise OSError(errno.EPERM, "a partition is written with O_APPEND only")
            if self._discarding or self._rest or data[-1] != _NEWLINE:
                self._write_in_parts(data)
                self._count_unfinished()
            else:
                self._append(data, 0, size)
        except (StorageError, OSError) as error:
            self._refuse(error, data)
        generation = self._generation
        if generation.timeline.end - generation.shift != position + size:
            fs.notices.attributes_changed(self._inode)
        return size

    def _write_in_parts(self, data: bytes) -> None:
        """A write that begins or ends inside a line."""
        start = 0
        if self._discarding:
            start = data.find(b"\n") + 1
            if not start:
                return
        end = data.rfind(b"\n") + 1
        limit = self._partition.log.config.max_message_bytes - _OVERHEAD
        if end <= start:
            # No complete line.
            if len(self._rest) + len(data) - start > limit:
                self._check_line(self._rest + data[start:])
            self._rest += data[start:]
        else:
            if len(data) - end > limit:
                self._check_line(data[end:])
            if self._rest:
                lines = self._rest + data[start:end]
                self._append(lines, 0, len(lines))
            else:
                self._append(data, start, end)
            self._rest = bytearray(data[end:])
        self._discarding = False

    def _append(self, data: bytes | bytearray, start: int, end: int) -> None:
        partition = self._partition
        log = partition.log
        now_ns = partition.fs.clock_ns()
        batches, _ = self._part.view.parse(
            data, start, end, now_ns // 1_000_000, log.config.max_message_bytes
        )
        # The time of modification rises even where the clock does not.
        if now_ns <= partition.mtime_ns:
            now_ns = partition.mtime_ns + 1
        partition.writer = self._inode
        try:
            log.append(batches, now_ns=now_ns, defer_flush=True)
        finally:
            partition.writer = 0
        self.sync_due = log.flush_due or self._flags & _SYNC != 0

    def _check_line(self, line: bytes | bytearray) -> None:
        """Whether an unfinished line would be accepted as it is. The errors of `Log.append`."""
        log = self._partition.log
        if log.closed:
            raise LogClosed("the topic has been deleted", path=log.directory)
        limit = log.config.max_message_bytes
        batches, _ = self._part.view.parse(line + b"\n", 0, len(line) + 1, 0, limit)
        if log.config.is_compacted and any(record.key is None for record in decode(batches, 0)):
            raise InvalidRecord("a compacted topic takes no record without a key")

    def _look_again(self, data: bytes) -> None:
        """After a refusal: whether the refused bytes come again, perhaps in smaller pieces.

        Where they began a line, they are looked at anew; where they belonged to a line whose
        beginning has been dropped, they are refused again.
        """
        assert self._refused is not None
        refused, error = self._refused
        if error is None:
            if data.startswith(refused):
                self._discarding = False
        elif data.startswith(refused) or (len(data) >= _PAGE and refused.startswith(data)):
            raise error
        self._refused = None

    def _refuse(self, error: StorageError | OSError, data: bytes) -> NoReturn:
        """Name the error in the log, leave the handle in order, and raise it on."""
        if isinstance(error, (RecordTooLarge, InvalidRecord)):
            inside = self._discarding or bool(self._rest)
            self._refused = (data, error if inside else None)
            self._rest = bytearray()
            self._count_unfinished()
            self._discarding = data[-1] != _NEWLINE
        self._tell(error)
        raise error

    def _count_unfinished(self) -> None:
        if self._unfinished != bool(self._rest):
            self._unfinished = not self._unfinished
            if self._unfinished:
                self._partition.line_begun(self._inode)
            else:
                self._partition.line_ended()

    def _tell(self, error: StorageError | OSError) -> None:
        log = self._partition.log
        reason = str(error) if isinstance(error, StorageError) else error.strerror
        self._partition.fs.events(f"{log.topic}/{log.partition}: append refused: {reason}")

    # -- the end -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Whether the unfinished line would be accepted as it is; nothing is appended."""
        if not self._rest:
            return
        try:
            if self._partition.fs.stopping:
                raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
            self._check_line(self._rest)
        except (StorageError, OSError) as error:
            self._tell(error)
            raise

    def release(self) -> None:
        """The unfinished line becomes a record."""
        rest, self._rest = self._rest, bytearray()
        if not rest:
            return
        self._count_unfinished()
        try:
            self._append(rest + b"\n", 0, len(rest) + 1)
        except (StorageError, OSError) as error:
            self._tell(error)
            raise
        # The kernel has counted the line without its newline.
        self._partition.fs.notices.attributes_changed(self._inode)

    def sync_plan(self) -> FlushPlan | None:
        self.sync_due = False
        return self._partition.flush_plan()
