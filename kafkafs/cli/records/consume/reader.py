"""Reads a partition batch by batch, from the files of a mount.

A reader opens a file that begins at a position, and reads it to its end and beyond. The format of
the file shows where records end and which offsets they have:

    LinesReader      reads `.jsonl`, a record a line, and makes the lines of another view from it
    BatchesReader    reads `.batches`, whole batches of the log

An open file shows all later appends, even if older records of the partition are deleted or
compacted. If the next bytes were deleted (ESTALE), the reader opens the file again, after the last
record that was taken.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cached_property
from typing import Final, NamedTuple

from kafkafs.cli.common.ending import warn
from kafkafs.cli.common.mount_files import patiently
from kafkafs.cli.common.views import path_in_topic
from kafkafs.cli.records.consume.sources import Partition, TopicDirectory
from storage.record.header import LOG_OVERHEAD, BatchHeader, parse_header, size_at

_READ_BYTES: Final = 1 << 20
_ANY_SIZE: Final = (1 << 31) - 1
_OFFSET: Final = re.compile(rb'\{"offset":(-?[0-9]+)[,}]')


class Limits(NamedTuple):
    """The largest size of a batch. A batch always has at least one record."""

    records: int
    bytes: int


class Batch(NamedTuple):
    """Records of a partition.

    `first` and `last`: the offsets of the first and the last record. `end`: the position after
    them. `lines`: the records in the format of `.jsonl`, if they were read in it.
    """

    partition: Partition
    data: bytes
    records: int
    first: int
    last: int
    end: int
    lines: bytes | None = None


class Reader:
    """Reads one partition.

    `position`: the offset of the next record to take; None: `point`, a word of `N@POINT`, says
    where to begin. `shown`: the view of the batches.
    """

    view: str
    """The view of the file."""

    def __init__(
        self,
        partition: Partition,
        directory: TopicDirectory,
        position: int | None,
        point: str,
        shown: str,
    ) -> None:
        self._shown = shown
        self.partition = partition
        self.position = position
        self.fd = -1
        self.at_end = False
        """Whether the end of the file was reached."""
        self.is_gone = False
        """Whether the topic was deleted, so that the file cannot grow any more."""
        self._directory = directory
        self._point = point
        self._unread = bytearray()
        # The last stable offset before the last read.
        self._stable: int | None = None

    # -- the file ------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file at the position. Errors: OSError."""
        self.close()
        self._unread.clear()
        self._stable = None
        self.at_end = False
        if self._point == "latest" and self.position is None:
            self.position = self._fact("last_stable")
        while self.fd < 0:
            # Check before the open, as the name of a deleted position may not exist
            # (`out_of_range`). Check again afterwards, as more may be deleted meanwhile.
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
        """Move a position that is outside of the log into it, and print a line about that."""
        if self.position is None:
            return
        start, end = self._fact("log_start"), self._fact("log_end")
        name = self.partition.name
        if self.position < start:
            warn(f"{name}: {self.position}..{start} were deleted before they were read")
            self.position = start
        elif self.position > end:
            warn(f"{name}: offset {self.position} is beyond the end of the log ({end})")
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
        """Return the records of a batch in the format of `.jsonl`; None: some were deleted.

        Errors: OSError.
        """
        return self._read("jsonl", batch.first, batch.last) if batch.lines is None else batch.lines

    def _read(self, view: str, first: int, last: int) -> bytes | None:
        """Return the records with offsets `first` to `last` in a view; None: some were deleted.

        Errors: OSError.
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
            with suppress(OSError):  # close(2) fails on a dead mount, but closes the file
                os.close(fd)

    def fill(self, limits: Limits) -> None:
        """Read until there is a whole batch, or to the end or damage.

        Errors: OSError if no records are there to take.
        """
        if self.fd < 0:
            self.open()
        while not (self.at_end or self.is_full(limits)):
            # Get the last stable offset before the read. If the read then returns nothing, all
            # records before that offset have been read.
            self._stable = self._fact("last_stable")
            try:
                data = patiently(lambda: os.read(self.fd, _READ_BYTES))
            except OSError as error:
                if error.errno == errno.ESTALE:
                    self.open()
                    continue
                if error.errno == errno.EIO and self.has_some:
                    # These records come first. The next read fails again.
                    return
                raise
            self._unread += data
            self.at_end = not data

    # -- batches -------------------------------------------------------------------------------

    def is_full(self, limits: Limits) -> bool:
        """Return whether enough bytes for a full batch have been read."""
        return len(self._unread) >= max(limits.bytes, _READ_BYTES)

    @property
    def has_some(self) -> bool:
        """Return whether there are records to take."""
        return b"\n" in self._unread

    def take(self, limits: Limits) -> Batch | None:
        """Take the next batch of records.

        Return None if there is none, or if the records were deleted meanwhile and the file was
        opened again. Errors: OSError.
        """
        raise NotImplementedError

    def _end(self, last: int) -> int:
        """Return the position after a record.

        If no record follows, also skip the offsets that have no record.
        """
        end = last + 1
        if self.at_end and not self._unread and self._stable is not None:
            end = max(end, self._stable)
        return end

    def rest(self) -> int | None:
        """Return the position at the end of the file; None: there are still records to take."""
        if self.at_end and not self._unread and self._stable is not None:
            return max(self.position or 0, self._stable)
        return None


class LinesReader(Reader):
    """See the module."""

    view = "jsonl"

    @cached_property
    def _text(self) -> Callable[[bytes], bytes | None] | None:
        return None if self._shown == self.view else _as(self._shown)

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
    """See the module. Like the other views, it takes records only up to the last stable offset.

    It reads batches of an open transaction until `is_full`, and then reads no more.
    """

    view = "batches"

    def fill(self, limits: Limits) -> None:
        super().fill(limits)
        if not self.at_end:
            self._stable = self._fact("last_stable")

    @property
    def has_some(self) -> bool:
        return next(self._batches(), None) is not None

    def is_full(self, limits: Limits) -> bool:
        unread = self._unread
        first = size_at(unread, 0) if len(unread) >= LOG_OVERHEAD else 0
        return len(unread) >= max(limits.bytes, _READ_BYTES, first)

    def _batches(self) -> Iterator[BatchHeader]:
        """Yield the headers of the batches that can be taken."""
        unread, at = self._unread, 0
        while len(unread) - at >= LOG_OVERHEAD and at + size_at(unread, at) <= len(unread):
            header = parse_header(unread, at)
            if self._stable is None or header.last_offset >= self._stable:
                return
            yield header
            at += header.size

    def take(self, limits: Limits) -> Batch | None:
        taken: list[BatchHeader] = []
        size = records = 0
        for header in self._batches():
            # A wrapper of an old format has no count: -1.
            count = abs(header.records_count)
            if taken and (size + header.size > limits.bytes or records + count > limits.records):
                break
            taken.append(header)
            size += header.size
            records += count
        if not taken:
            return None
        data = bytes(memoryview(self._unread)[:size])
        del self._unread[:size]
        first, last = taken[0].base_offset, taken[-1].last_offset
        self.position = self._end(last)
        return Batch(self.partition, data, records, first, last, self.position)


def _as(view: str) -> Callable[[bytes], bytes | None]:
    """Return a function that converts lines of `.jsonl` to the text of a view.

    The function returns None if only a log can hold one of the records.
    """
    from kafkafs.cli.common.matching import text_of
    from kafkafs.views import TEXT_VIEWS, json_lines_view
    from storage.errors import InvalidRecord

    parse = json_lines_view().parse
    shown = TEXT_VIEWS[view]()

    def text(lines: bytes) -> bytes | None:
        try:
            batches, _ = parse(lines, 0, len(lines), 0, _ANY_SIZE)
        except InvalidRecord:
            return None
        return text_of(shown, batches)

    return text


def _offset_at(lines: bytes, at: int) -> int:
    """Return the offset of the record whose line begins at `at`."""
    found = _OFFSET.match(lines, at)
    if found is None:
        raise OSError(errno.EIO, "a line of .jsonl has no offset")
    return int(found[1])


def _of_lines(lines: bytes | bytearray, count: int) -> int:
    """Return the size of the first `count` whole lines, or of all if there are fewer."""
    if lines.count(b"\n") <= count:
        return lines.rfind(b"\n") + 1
    at = 0
    for _ in range(count):
        at = lines.index(b"\n", at) + 1
    return at


def _within(lines: bytes | bytearray, size: int) -> int:
    """Return the size of the whole lines in the first `size` bytes, else of the first line."""
    return lines.rfind(b"\n", 0, size) + 1 or lines.find(b"\n") + 1
