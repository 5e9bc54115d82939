"""`.follow/N` and `.ship/N`: the values, for programs that remember an inode and a position.

Its positions are the absolute positions of the partition's history: byte 0 is the first record at
the time when counting began, and the size counts every byte since. Bytes below the log start, and
those that compaction has replaced, are *gone*: they read as newlines, which cost no look at a disk,
or with `follow_gaps=error` as ESTALE. ESTALE is also, once, the answer to a reader that has been
overtaken: the bytes after those that its open file has shown are deleted.

The inode number is made from the history's follow nonce. That changes if a crash may have lost
bytes that were shown, if a broker has cut the log, or if another program has rewritten the log or
records of it that nobody had read. Before it shows what is not flushed, it has the history say so
(`History.note_shown`).

An open handle reads on in deleted segments while their files are on the disk
(file.delete.delay.ms), as any reader does; a later open begins after them.

The kernel caches nothing of it, since a page may reach below a change.

`.ship/N` is the same after a first line that never changes (`head_line`), for programs that know a
file by its first bytes. Its positions are those of `.follow/N` and the length of that line.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from bisect import bisect_right
from collections.abc import Sequence

from kafkafs.line_index import SegmentLines
from kafkafs.line_index.records import offset_at
from kafkafs.tree.events import mark_logged
from kafkafs.tree.files.view_file import MEASURE_S, ReadHandle, ViewFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Attributes, Node, inode_number, missing
from kafkafs.tree.partition.generations import Generation
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_text import PartitionText
from kafkafs.tree.partition.partitions import Partitions
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.log.log import Log
from storage.manager import Topic
from storage.waiting import before_waiting, may_wait

FOLLOW = ".follow"
SHIP = ".ship"
FIRST_POSITION = "user.kafkafs.first_position"

_FINGERPRINT = 512
"""Bytes that rsyslog's imfile reads at a file's start to tell files with one inode number apart.

Once those bytes are deleted it would take the file for another and begin at 0. For a shorter file
it trusts the inode number: so this very read returns a byte less.
"""


HEAD_BYTES = 1100
"""Of the first line of `.ship/N`: more than any program reads to know a file by its first bytes
(Filebeat 1,024, the OpenTelemetry Collector 1,000).
"""


def head_line(log: Log, nonce: int) -> bytes:
    """The first line of `.ship/N`. No other partition has it, and it changes with the inode."""
    words = f"#kafkafs {nonce:016x} {log.topic_id} {log.topic} {log.partition}"
    return words.encode().ljust(HEAD_BYTES - 1) + b"\n"


class FollowFile(ViewFile):
    """See the module. `head`: the first line of `.ship/N`; empty in `.follow/N`."""

    __slots__ = ("_directory", "_origin", "_size", "head")

    def __init__(
        self, inode: int, partition: Partition, text: PartitionText, nonce: int, directory: str
    ) -> None:
        """`nonce`: the history's follow nonce. `directory`: FOLLOW or SHIP."""
        super().__init__(inode, partition, text, nonce)
        self._directory = directory
        self.head = head_line(partition.log, nonce) if directory == SHIP else b""
        # The timeline's position of its byte 0; None: not known yet.
        self._origin: int | None = None
        # The last size that stat has shown.
        self._size = 0

    @property
    def path(self) -> str:
        return f"{self.partition.log.topic}/{self._directory}/{self.partition.log.partition}"

    def generation_now(self) -> Generation:
        """The generation that an open now shows.

        BlockingIOError, StorageError, OSError; ESTALE where positions have restarted.
        """
        until = time.monotonic() + MEASURE_S
        generation = self._within(lambda: self.text.lasting_generation(until))
        if self.partition.log.history.follow_nonce != self._nonce:
            raise OSError(errno.ESTALE, "positions have restarted, in a new inode")
        self._origin = generation.origin
        return generation

    def _known_attributes(self) -> Attributes:
        origin = self._origin
        if origin is None:
            origin = self.generation_now().origin
        self.text.find_end(time.monotonic() + MEASURE_S)
        size = len(self.head) + self.text.timeline.end - origin
        self.partition.showing_followed()
        self._size = size
        return self._attributes(size)

    def _shown_size(self) -> int:
        return self._size

    def has_lost_name(self) -> bool:
        return self.partition.log.history.follow_nonce != self._nonce

    def xattr_names(self) -> Sequence[str]:
        return [*super().xattr_names(), FIRST_POSITION]

    def xattr(self, name: str) -> bytes:
        if name != FIRST_POSITION:
            return super().xattr(name)
        return b"%d" % self.first_position(self.generation_now())

    def first_position(self, generation: Generation) -> int:
        """Where its text can be read from."""
        return len(self.head) + generation.first_valid - generation.origin

    def open(self, flags: int) -> Handle:
        """EPERM for writing."""
        partition = self.partition
        log = partition.log
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EPERM, f"this file is read-only; write to {log.name}")
        while True:
            generation = self.generation_now()
            if not log.history.is_durable(self.text.view.name):
                # A reader may come back with its position after a kill.
                before_waiting()
                partition.save_history()
            if self.text.attach(generation):
                break
        handle = FollowHandle(self, generation)
        partition.add_follow_reader(handle, handle.note_offset)
        return handle


class FollowHandle(ReadHandle):
    """Reading. The first read of what its reader has missed writes a line into the event log.

    The positions that it keeps are those of `.follow`, without the head. `_reached`: up to where
    the last read has shown text; -1: it has shown newlines, or none was.
    """

    __slots__ = ("_is_logged", "_noted")

    _file: FollowFile

    def __init__(self, file: FollowFile, generation: Generation) -> None:
        super().__init__(file)
        self._generation = generation
        self.direct_io = True
        self.keep_cache = False
        self._is_logged = False
        # (position, offset of the record there) in a segment that is deleted by now.
        self._noted: tuple[int, int] | None = None

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        head = self._file.head
        if position >= len(head):
            if not head and position == 0 and size == _FINGERPRINT:
                size -= 1
            return self._read_text(position - len(head), size)
        start = head[position : position + size]
        if len(start) < size:
            # The next read gets what is wrong there.
            with contextlib.suppress(CorruptRecord, SegmentGone):
                return start + self._read_text(0, size - len(start))
        return start

    def _read_text(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if not self._partition.log.closed:
            # Before it reads: the log's thread may not wait, and another one repeats all of it.
            self._partition.showing_followed()
        try:
            data = super().read(position, size)
        except SegmentGone as error:
            data = self._read_gone(position, size, error)
        if may_wait():
            # Not on the log's thread: the log may have grown meanwhile.
            self._partition.showing_followed()
        return data

    def _read_gone(self, position: int, size: int, error: SegmentGone) -> bytes:
        """Read where bytes are deleted: newlines, and the text after them; or ESTALE."""
        generation = self._generation
        assert generation is not None
        gone = generation.first_valid - generation.origin - position
        has_newlines = gone > 0 and self._partition.mount.options.follow_gaps == "newlines"
        is_overtaken = position == self._reached
        # A reader that begins at a position has been there; one that begins at 0 has not.
        has_missed = is_overtaken or (self._read_to == 0 and position > 0)
        if not self._is_logged and (has_missed or not has_newlines):
            if not may_wait():
                raise BlockingIOError from error
            self._is_logged = True
            self._log_missed(position)
        self._reached = -1
        if is_overtaken or not has_newlines:
            mark_logged(error)
            raise error
        newlines = b"\n" * min(gone, size)
        self._read_to = position + len(newlines)
        if gone < size:
            # The next read gets what is wrong there.
            with contextlib.suppress(CorruptRecord, SegmentGone):
                return newlines + super().read(position + gone, size - gone)
        return newlines

    def release(self) -> None:
        super().release()
        generation = self._generation
        assert generation is not None
        generation.detach()

    def note_offset(self, end: int) -> None:
        """Note the offset of the next record to read, if it is before `end`: it is about to be
        deleted. In any thread; if it would have to wait and may not, it notes nothing.
        """
        generation, position = self._generation, self._reached
        assert generation is not None
        absolute = position + generation.origin
        if not generation.first_valid <= absolute < generation.timeline.end:
            return
        with contextlib.suppress(StorageError, OSError):
            extent, start = generation.locate(absolute)
            assert isinstance(extent, SegmentLines)
            if extent.segment.base_offset < end:
                self._noted = (position, offset_at(extent, absolute - start))

    def _log_missed(self, position: int) -> None:
        """Write the offsets that its reader has missed into the event log."""
        file = self._file
        file.partition.mount.events.of_request(
            f"{file.path}: the reader at position {len(file.head) + position} missed "
            f"{self._missed(position)}",
            errno.ESTALE,
        )

    def _missed(self, position: int) -> str:
        """Say which records a reader at `position` has missed, and where it can continue."""
        file, log = self._file, self._file.partition.log
        if log.closed:
            return "the next records: the partition was deleted"
        try:
            generation = file.generation_now()
        except (StorageError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            return f"the next records: {reason}"
        base = file.text.base
        first = max(log.log_start_offset, base[0] if base is not None else 0)
        passed = log.history.now.passed.get(file.text.view.name, ())
        places = [(at, offset) for offset, at in passed]
        if self._noted is not None:
            places = sorted([*places, self._noted])
        number = bisect_right(places, position, key=lambda place: place[0]) - 1
        if number < 0:
            missed = f"the records before offset {first}"
        elif places[number][0] == position:
            missed = f"offsets {places[number][1]} to {first - 1}"
        else:
            missed = f"offsets up to {first - 1}, possibly from {places[number][1]} on"
        go_on = file.first_position(generation)
        return f"{missed}, which were deleted or rewritten; it can continue at position {go_on}"


def look_up_follow(partitions: Partitions, topic: Topic, name: str, directory: str) -> Node:
    """The node of a partition's name in the directory FOLLOW or SHIP. ENOENT."""
    partition = partitions.find(topic, name)
    if partition is None:
        raise missing(name)
    if not may_wait():
        partition.follow()
    mount = partitions.mount
    text = partition.text(mount.views[0])
    partition.nonce()
    log = partition.log
    nonce = log.history.follow_nonce
    where = (log.topic, log.topic_id, log.partition)
    inode = inode_number(*where, directory[1:], mount.options.isolation, nonce)
    return mount.inodes.find(inode) or FollowFile(inode, partition, text, nonce, directory)
