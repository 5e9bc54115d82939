"""Appends to a view of text: turns lines into records.

A write appends all its complete lines, or none. The handle joins the bytes after the last newline
with the next write; at release they become a record. A line that is too large is refused
(EMSGSIZE). After any refused write that ends inside a line the handle drops the bytes up to that
line's newline, so that no remainder becomes a record. A refused piece of a larger write() is an
exception: the kernel does not send the rest of that write(), so the next one begins a line.
"""

from __future__ import annotations

from typing import NoReturn

from kafkafs.tree.append.append_handle import AppendHandle
from kafkafs.tree.append.append_target import AppendTarget, OutOfOrderError
from kafkafs.tree.handles import Handle
from kafkafs.tree.unfinished import Rest
from kafkafs.views import TextView
from storage.errors import InvalidRecord, RecordTooLarge, StorageError

UNSPLIT_BYTES = (1 << 20) - (4 << 10)
"""The kernel sends a write() of at most this size as one request. Each piece of a larger write() is
larger than this, except the last one."""
_OVERHEAD = 128
"""Bytes that a record's batch has at most besides its value."""
_TEXT_PER_BYTE = 10
"""The most text that a byte of a record makes in any view: as JSON, a header of one byte that is
not UTF-8 has 38 bytes of text for 4."""
_NEWLINE = 10
_ZERO = b"\0"


class LinesHandle(AppendHandle[AppendTarget]):
    """See the module."""

    __slots__ = ("_discarding", "_unfinished", "_view")

    def __init__(
        self, target: AppendTarget, view: TextView, flags: int, reader: Handle | None
    ) -> None:
        super().__init__(target, flags, reader)
        self._view = view
        self._discarding = False
        # Whether the target counts this handle's line among the unfinished ones.
        self._unfinished = False

    def _take(self, data: bytes) -> tuple[int, bool]:
        if self._discarding or self._kept.size or data[-1] != _NEWLINE:
            has_appended = self._take_in_parts(data)
            self._count_unfinished()
            return len(data), has_appended
        self._append(data, 0, len(data))
        return len(data), True

    def _take_in_parts(self, data: bytes) -> bool:
        """Take a write that begins or ends inside a line. Return whether anything was appended;
        raise as `_take`.
        """
        start = 0
        if self._discarding:
            start = data.find(b"\n") + 1
            if not start:
                return False
        end = data.rfind(b"\n") + 1
        if end <= start:
            # No complete line.
            self._check_unfinished(self._kept, data, start)
            self._kept.add(memoryview(data)[start:])
        else:
            self._check_unfinished(Rest(), data, end)
            rest = self._kept.rest_of(memoryview(data)[end:])
            self._append(data, start, end, self._kept.joined())
            self._kept.replace(rest)
        self._discarding = False
        return end > start

    def _check_unfinished(self, rest: Rest, data: bytes, start: int) -> None:
        """Raise where a line that begins with `rest` and `data[start:]` is too large already."""
        size = len(rest) + len(data) - start
        limit = self._target.config.max_message_bytes
        if self._view.whole_records:
            # An unfinished line cannot be parsed: only its size counts.
            if size > limit * _TEXT_PER_BYTE:
                raise RecordTooLarge(size, limit)
        elif size > limit - _OVERHEAD:
            self._check_line(rest, data[start:])

    def _append(
        self, data: bytes | bytearray, start: int, end: int, begun: bytes | bytearray = b""
    ) -> None:
        """Append the lines `begun + data[start:end]`; `begun` has no newline."""
        target = self._target
        now_ns = target.mount.clock_ns()
        limit = target.config.max_message_bytes
        batches, _ = self._view.parse(data, start, end, now_ns // 1_000_000, limit, begun)
        try:
            target.append(batches, now_ns)
        except InvalidRecord as error:
            lines = b"".join((begun, memoryview(data)[start:end]))
            raise self._of_its_line(error, lines, now_ns) from None

    def _of_its_line(self, error: InvalidRecord, data: bytes, now_ns: int) -> InvalidRecord:
        """The target's error for the first line alone that it refuses, with the line's number."""
        good, bad = 0, len(data)
        while data.find(b"\n", good, bad) + 1 < bad:
            # It refuses the lines up to `bad`, not those up to `good`: try half of the others.
            middle = (good + bad) // 2
            half = data.rfind(b"\n", good, middle) + 1 or data.find(b"\n", middle, bad) + 1
            try:
                self._check(data, good, half, now_ns)
                good = half
            except InvalidRecord:
                bad = half
        try:
            self._check(data, good, bad, now_ns)
        except InvalidRecord as found:
            error = found
        number = data.count(b"\n", 0, good) + 1
        error.message = f"line {number}: {error.message}"
        return error

    def _check_rest(self) -> None:
        self._check_line(self._kept, b"")

    def _check_line(self, rest: Rest, data: bytes) -> None:
        """Raise where the unfinished line `rest + data` would be refused as it is."""
        line = rest.joined(data + b"\n")
        self._check(line, 0, len(line), self._target.mount.clock_ns())

    def _check(self, data: bytes | bytearray, start: int, end: int, now_ns: int) -> None:
        limit = self._target.config.max_message_bytes
        batches, _ = self._view.parse(data, start, end, now_ns // 1_000_000, limit)
        self._target.check(batches, now_ns)

    def _is_inside(self) -> bool:
        return self._discarding or bool(self._kept)

    def _begin_again(self) -> None:
        self._discarding = False

    def _refuse(self, error: StorageError | OSError, data: bytes) -> NoReturn:
        if isinstance(error, OutOfOrderError) and data == self._kept.joined() == _ZERO:
            # posix_fallocate has written its first zero in order, and this is the next one.
            self._drop_line()
        super()._refuse(error, data)

    def _drop_rest(self, data: bytes) -> None:
        self._drop_line()
        self._discarding = data[-1] != _NEWLINE and len(data) <= UNSPLIT_BYTES

    def _count_unfinished(self) -> None:
        if self._unfinished != bool(self._kept):
            self._unfinished = not self._unfinished
            if self._unfinished:
                self._target.line_begun()
            else:
                self._target.line_ended()

    def release(self) -> None:
        """Append the unfinished line as a record. MustQueue: nothing has changed."""
        if self._kept:
            self._target.check_may_append()
            try:
                self._append(b"\n", 0, 1, self._kept.joined())
            except (StorageError, OSError) as error:
                self._drop_line()
                super().release()
                self._log_refusal(error)
                raise
            self._drop_line()
            # The kernel has counted the line without its newline.
            self._target.written(-1)
        super().release()

    def _drop_line(self) -> None:
        self._kept.clear()
        self._count_unfinished()
