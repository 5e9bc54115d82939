"""Reads a partition batch by batch, from a mount's files.

A file that begins at a position is read on and on; it tells where records end and which offsets
they have:

    LinesReader      `.jsonl`, a record a line, from which the lines of another view are made
    BatchesReader    `.batches`, a batch of the log as one
    TextReader       lines of any view, where nobody asks for offsets

An open file goes on with all that is appended, also when the past of the partition is rewritten.
What is deleted while it is read (ESTALE) has it opened anew, behind what was read.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple

from kafkafs.cli.common.ending import say
from kafkafs.cli.common.patience import patiently
from kafkafs.cli.common.views import path_in_topic
from kafkafs.cli.records.consume.sources import Partition, TopicDirectory

_READ_BYTES: Final = 1 << 20
_ANY_SIZE: Final = (1 << 31) - 1
_OFFSET: Final = re.compile(rb'\{"offset":(-?[0-9]+)[,}]')
#: Base offset, size of the rest.
_HEAD: Final = struct.Struct(">qi")
#: From the format 2 on: the offset of the last record, less the base offset; the number of records.
_LAST: Final = struct.Struct(">i")
_LAST_AT, _COUNT_AT, _MAGIC_AT, _V2_BYTES = 23, 57, 16, 61


class Limits(NamedTuple):
    """How much one batch has at most; it has at least one record."""

    records: int
    bytes: int


class Batch(NamedTuple):
    """Records of a partition. `first` and `last`: their offsets. `end`: the position behind them;
    None: not known. `lines`: the same records as in `.jsonl`, where they were read.
    """

    partition: Partition
    data: bytes
    records: int = 0
    first: int = -1
    last: int = -1
    end: int | None = None
    lines: bytes | None = None


class Reader:
    """Reads one partition. `position`: of the next record that was not taken; None: `point` says
    where that is, a word of `N@POINT`.
    """

    view = ""

    def __init__(
        self, partition: Partition, directory: TopicDirectory, position: int | None, point: str
    ) -> None:
        self.partition = partition
        self.position = position
        self.fd = -1
        self.at_end = False
        """Whether everything was read that there was."""
        self.is_gone = False
        """Whether there will be no more, as the topic was deleted."""
        self._directory = directory
        self._point = point
        self._unread = bytearray()
        # The last stable offset when the end was reached.
        self._stable: int | None = None

    # -- the file ------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file where the position is. OSError."""
        self.close()
        self._unread.clear()
        self._stable = None
        self.at_end = False
        if self._point == "latest" and self.position is None:
            self.position = self._fact("last_stable")
        while self.fd < 0:
            # Before, as the name of a position that is gone may lead nowhere (`out_of_range`), and
            # behind, as more may go meanwhile.
            self._name_what_is_gone()
            point = self._point if self.position is None else str(self.position)
            try:
                self.fd = self._open_at(self.view, point)
            except OSError as error:
                if error.errno != errno.ERANGE or self.position is None:
                    raise
        self._name_what_is_gone()

    def _open_at(self, view: str, point: str) -> int:
        name = "/".join(path_in_topic(view, f"{self.partition.number}@{point}"))
        return patiently(lambda: self._directory.open(name))

    def _name_what_is_gone(self) -> None:
        """Say which records retention has deleted before they were taken."""
        if self.position is None:
            return
        start, end = self._fact("log_start"), self._fact("log_end")
        name = self.partition.name
        if self.position < start:
            say(
                f"kafkafs: {name}: {self.position}..{start} were deleted before they were read",
                err=True,
            )
            self.position = start
        elif self.position > end:
            say(
                f"kafkafs: {name}: offset {self.position} is beyond the end of the log ({end})",
                err=True,
            )
            self.position = end

    def _fact(self, name: str) -> int:
        if self.fd >= 0:
            return int(os.getxattr(self.fd, f"user.kafkafs.{name}"))
        fd = patiently(lambda: self._directory.open(str(self.partition.number)))
        try:
            return int(os.getxattr(fd, f"user.kafkafs.{name}"))
        finally:
            os.close(fd)

    def lines(self, batch: Batch) -> bytes | None:
        """The records of a batch in `.jsonl`; None where some of them were deleted. OSError."""
        return self._read("jsonl", batch.first, batch.last) if batch.lines is None else batch.lines

    def _read(self, view: str, first: int, last: int) -> bytes | None:
        """The records from one offset to another in a view; None where some of them were deleted.
        OSError.
        """
        try:
            fd = self._open_at(view, f"{first}..{last + 1}")
            try:
                data = b"".join(iter(lambda: patiently(lambda: os.read(fd, _READ_BYTES)), b""))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno not in (errno.ESTALE, errno.ERANGE):
                raise
            return None
        return data if self._fact("log_start") <= first else None

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            with suppress(OSError):  # close(2) of a dead mount's file says so, and closes it
                os.close(fd)

    def fill(self, limits: Limits) -> None:
        """Read until there is a whole batch, or the end. OSError."""
        if self.fd < 0:
            self.open()
        while not (self.at_end or self.is_full(limits)):
            # Asked for before the end is seen: what lies before it has been read then.
            stable = self._fact("last_stable")
            try:
                data = patiently(lambda: os.read(self.fd, _READ_BYTES))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.open()
                continue
            self._unread += data
            if not data:
                self.at_end = True
                self._stable = stable

    # -- batches -------------------------------------------------------------------------------

    def is_full(self, limits: Limits) -> bool:
        """Whether a whole batch has been read."""
        return len(self._unread) >= max(limits.bytes, _READ_BYTES)

    @property
    def has_some(self) -> bool:
        """Whether there are records to take."""
        return b"\n" in self._unread

    def take(self, limits: Limits) -> Batch | None:
        """Take records; None where they were deleted meanwhile, and the file was opened anew.
        OSError.
        """
        raise NotImplementedError

    def _end(self, last: int) -> int:
        """The position behind a record: behind what is no record, too, where nothing follows."""
        end = last + 1
        if self.at_end and not self._unread and self._stable is not None:
            end = max(end, self._stable)
        return end

    def rest(self) -> int | None:
        """The position at the end of what was read, where nothing is left to take."""
        if self.at_end and not self._unread and self._stable is not None:
            return max(self.position or 0, self._stable)
        return None


class TextReader(Reader):
    """See the module."""

    def __init__(
        self,
        partition: Partition,
        directory: TopicDirectory,
        position: int | None,
        point: str,
        view: str,
    ) -> None:
        super().__init__(partition, directory, position, point)
        self.view = view

    def is_full(self, limits: Limits) -> bool:
        return super().is_full(limits) and b"\n" in self._unread

    def take(self, limits: Limits) -> Batch | None:
        size = self._unread.rfind(b"\n") + 1
        if not size:
            return None
        data = bytes(memoryview(self._unread)[:size])
        del self._unread[:size]
        return Batch(self.partition, data)


class LinesReader(Reader):
    """See the module."""

    view = "jsonl"

    def __init__(
        self,
        partition: Partition,
        directory: TopicDirectory,
        position: int | None,
        point: str,
        shown: str,
    ) -> None:
        super().__init__(partition, directory, position, point)
        self._shown = shown
        self._text = None if shown == self.view else _as(shown)

    def is_full(self, limits: Limits) -> bool:
        unread = self._unread
        is_large = len(unread) >= max(limits.bytes, _READ_BYTES) and b"\n" in unread
        return is_large or unread.count(b"\n") >= limits.records

    def take(self, limits: Limits) -> Batch | None:
        size = _of_lines(self._unread, limits.records)
        if self._shown == self.view and size > limits.bytes:
            size = _within(self._unread, limits.bytes)
        while size:
            lines = bytes(memoryview(self._unread)[:size])
            records = lines.count(b"\n")
            first, last = _offset_at(lines, 0), _offset_at(lines, lines.rfind(b"\n", 0, -1) + 1)
            data = lines if self._text is None else self._text(lines)
            if data is None:
                data = self._read(self._shown, first, last)
            if data is None:
                self.open()
                return None
            if len(data) > limits.bytes and records > 1:
                if data.count(b"\n") == records:
                    fewer = data.count(b"\n", 0, limits.bytes)
                else:  # a value has several lines
                    fewer = records * limits.bytes // len(data)
                size = _of_lines(lines, min(max(fewer, 1), records - 1))
                continue
            del self._unread[:size]
            self.position = self._end(last)
            return Batch(self.partition, data, records, first, last, self.position, lines)
        return None


class BatchesReader(Reader):
    """See the module. It ends at the last stable offset, as the other views do: of an open
    transaction it reads so much that it is full, and no more.
    """

    view = "batches"

    def fill(self, limits: Limits) -> None:
        super().fill(limits)
        if not self.at_end:
            self._stable = self._fact("last_stable")

    @property
    def has_some(self) -> bool:
        size = _batch_size(self._unread, 0)
        return 0 < size <= len(self._unread) and self._is_stable(_batch_end(self._unread, 0)[0])

    def _is_stable(self, offset: int) -> bool:
        return self._stable is not None and offset < self._stable

    def is_full(self, limits: Limits) -> bool:
        first = _batch_size(self._unread, 0)
        return len(self._unread) >= max(limits.bytes, _READ_BYTES, first)

    def _size(self, limits: Limits) -> int:
        """The bytes of the batches that are taken together."""
        at = records = 0
        while (size := _batch_size(self._unread, at)) and at + size <= len(self._unread):
            _, count = _batch_end(self._unread, at)
            if at and (at + size > limits.bytes or records + count > limits.records):
                break
            at += size
            records += count
        return at

    def take(self, limits: Limits) -> Batch | None:
        at = records = 0
        first = last = -1
        end = self._size(limits)
        while at < end:
            until, count = _batch_end(self._unread, at)
            if not self._is_stable(until):
                break
            if not at:
                (first, _) = _HEAD.unpack_from(self._unread, 0)
            last, records = until, records + count
            at += _batch_size(self._unread, at)
        if not at:
            return None
        data = bytes(memoryview(self._unread)[:at])
        del self._unread[:at]
        self.position = self._end(last)
        return Batch(self.partition, data, records, first, last, self.position)


def reader_of(
    view: str,
    partition: Partition,
    directory: TopicDirectory,
    position: int | None,
    point: str,
    *,
    with_offsets: bool,
) -> Reader:
    """A reader of this view that begins at a position, or where that is None at `point`."""
    if view == "batches":
        return BatchesReader(partition, directory, position, point)
    kind = LinesReader if with_offsets else TextReader
    return kind(partition, directory, position, point, view)


def _as(view: str) -> Callable[[bytes], bytes | None]:
    """Makes the text of a view of lines of `.jsonl`; None of a record that only a log can hold."""
    from kafkafs.cli.common.matching import text_of
    from kafkafs.views import json_lines_view, key_value_view, values_view
    from storage.errors import InvalidRecord

    parse = json_lines_view().parse
    shown = values_view() if view == "values" else key_value_view()

    def text(lines: bytes) -> bytes | None:
        try:
            batches, _ = parse(lines, 0, len(lines), 0, _ANY_SIZE)
        except InvalidRecord:
            return None
        return text_of(shown, batches)

    return text


def _offset_at(lines: bytes, at: int) -> int:
    """The offset of the record whose line begins there."""
    found = _OFFSET.match(lines, at)
    if found is None:
        raise OSError(errno.EIO, "a line of .jsonl has no offset")
    return int(found[1])


def _of_lines(lines: bytes | bytearray, count: int) -> int:
    """The size of the first `count` whole lines, or of fewer that are there."""
    if lines.count(b"\n") <= count:
        return lines.rfind(b"\n") + 1
    at = 0
    for _ in range(count):
        at = lines.index(b"\n", at) + 1
    return at


def _within(lines: bytes | bytearray, size: int) -> int:
    """The size of the whole lines in the first `size` bytes, or of the first line."""
    return lines.rfind(b"\n", 0, size) + 1 or lines.find(b"\n") + 1


def _batch_size(data: bytes | bytearray, at: int) -> int:
    """The size of the batch that begins there; 0: not known yet."""
    if len(data) < at + _HEAD.size:
        return 0
    _, size = _HEAD.unpack_from(data, at)
    return int(_HEAD.size + size)


def _batch_end(data: bytes | bytearray, at: int) -> tuple[int, int]:
    """The last offset of a batch, and how many records it has; 1 in formats before 2, whose offset
    is that of the last one.
    """
    (base, _) = _HEAD.unpack_from(data, at)
    if data[at + _MAGIC_AT] < 2:
        return base, 1
    (delta,) = _LAST.unpack_from(data, at + _LAST_AT)
    (count,) = _LAST.unpack_from(data, at + _COUNT_AT)
    return base + delta, count
