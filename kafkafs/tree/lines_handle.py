"""Appending to a view of text: lines become records.

All complete lines of one write are appended together, or none of them. What follows the last
newline is joined with the next write, and becomes a record at release. A line that is too large is
refused with EMSGSIZE, and the handle then drops what comes up to its newline, so that no remainder
becomes a record of its own: as after any write whose content was refused and that ended inside a
line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.tree.append_handle import AppendHandle
from kafkafs.tree.handles import Handle
from storage.errors import InvalidRecord, LogClosed, StorageError
from storage.record.batch import decode

if TYPE_CHECKING:
    from kafkafs.tree.partition import Partition
    from kafkafs.tree.partition_view import ViewGeneration
    from kafkafs.views import TextView

_OVERHEAD = 128
"""Bytes that a record's batch has at most besides its value."""
_NEWLINE = 10


class LinesHandle(AppendHandle):
    """See the module."""

    __slots__ = ("_discarding", "_unfinished", "_view")

    def __init__(
        self,
        partition: Partition,
        inode: int,
        view: TextView,
        generation: ViewGeneration,
        flags: int,
        reader: Handle | None,
    ) -> None:
        super().__init__(partition, inode, generation, flags, reader)
        self._view = view
        self._discarding = False
        # Whether the partition counts this handle's line among the unfinished ones.
        self._unfinished = False

    def _take(self, data: bytes) -> None:
        if self._discarding or self._rest or data[-1] != _NEWLINE:
            self._take_in_parts(data)
            self._count_unfinished()
        else:
            self._append(data, 0, len(data))

    def _take_in_parts(self, data: bytes) -> None:
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

    def _put(self, data: bytes | bytearray, start: int, end: int, now_ns: int) -> None:
        partition = self._partition
        log = partition.log
        batches, _ = self._view.parse(
            data, start, end, now_ns // 1_000_000, log.config.max_message_bytes
        )
        # The time of modification rises even where the clock does not.
        if now_ns <= partition.mtime_ns:
            now_ns = partition.mtime_ns + 1
        log.append(batches, now_ns=now_ns, defer_flush=True)

    def _check_rest(self) -> None:
        self._check_line(self._rest)

    def _check_line(self, line: bytes | bytearray) -> None:
        """Whether an unfinished line would be accepted as it is. The errors of `Log.append`."""
        log = self._partition.log
        if log.closed:
            raise LogClosed("the topic has been deleted", path=log.directory)
        limit = log.config.max_message_bytes
        batches, _ = self._view.parse(line + b"\n", 0, len(line) + 1, 0, limit)
        if log.config.is_compacted and any(record.key is None for record in decode(batches, 0)):
            raise InvalidRecord("a compacted topic takes no record without a key")

    def _is_inside(self) -> bool:
        return self._discarding or bool(self._rest)

    def _begin_again(self) -> None:
        self._discarding = False

    def _drop_rest(self, data: bytes) -> None:
        self._rest = bytearray()
        self._count_unfinished()
        self._discarding = data[-1] != _NEWLINE

    def _count_unfinished(self) -> None:
        if self._unfinished != bool(self._rest):
            self._unfinished = not self._unfinished
            if self._unfinished:
                self._partition.line_begun(self._inode)
            else:
                self._partition.line_ended()

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
