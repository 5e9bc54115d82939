"""A partition's file in a view: the node, and its handle for reading.

A node shows one generation: the current one at the lookup of its name, known by the nonce. Its
positions are known once the partition is measured. `append` has the handles that write.
"""

from __future__ import annotations

import errno
import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from kafkafs.line_index import Damaged, Reader, TextChanged
from kafkafs.tree.append.append_target import NewPartitionTarget, PartitionTarget
from kafkafs.tree.append.batches_handle import BatchesHandle
from kafkafs.tree.append.lines_handle import LinesHandle
from kafkafs.tree.handles import READY, Handle
from kafkafs.tree.inodes import BLOCK_SIZE, Attributes, Change, Node, inode_number
from kafkafs.tree.notices import Waiter
from kafkafs.tree.partition.generations import Generation
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_text import PartitionText, render_text
from kafkafs.tree.read_ahead import PIECE, Piece
from kafkafs.views import View
from kafkafs.views._measure import unfilled
from storage import descriptors
from storage.errors import CorruptRecord, SegmentGone, StorageError
from storage.log.append_queue import AppendQueue
from storage.log.flush import FlushPlan
from storage.paths import check_takes_records
from storage.waiting import at_once, may_wait

MEASURE_S = 10.0
"""Seconds that stat and open wait for a partition's measurement."""

MEASURED_WHEN_LISTED = 64 << 10
"""Bytes of the largest log that listing a directory measures; stat and open measure any."""
LISTED_S = 0.01
"""Seconds that listing waits at most for another thread that is measuring."""

HELD = 4
"""The part of the descriptors' budget that opening one file takes at most."""

LARGEST_READ = 1 << 20
"""Bytes that one read() can have. Where each is a request, programs should read as much at once."""

CACHED_READ = 128 << 10
"""Bytes that programs should read at once of what the page cache has: a buffer that the processor's
caches hold. With a megabyte wc and cat take a third longer.
"""

_PREFIX = "user.kafkafs."
_FACTS = (
    "log_start",
    "log_end",
    "last_stable",
    "records",
    "bytes",
    "segments",
    "first_timestamp",
    "last_timestamp",
    "generation",
)


def block_size(size: int, *, is_cached: bool) -> int:
    """Return how many bytes programs should read of a file at once.

    GNU tail and head distrust the size of a file that is no larger than that, and read all of it
    even for its last bytes.
    """
    wanted = CACHED_READ if is_cached else LARGEST_READ
    return wanted if size > wanted else BLOCK_SIZE


class ViewFile(Node):
    __slots__ = ("_generation", "_nonce", "partition", "text")

    kind = "partition"

    def __init__(self, inode: int, partition: Partition, text: PartitionText, nonce: int) -> None:
        super().__init__(inode)
        self.partition = partition
        self.text = text
        self._nonce = nonce
        self._generation: Generation | None = None

    @property
    def append_queue(self) -> AppendQueue:
        return self.partition.log.append_queue

    @property
    def is_replaced(self) -> bool:
        return self.partition.is_replaced

    @staticmethod
    def number(partition: Partition, view: View, nonce: int, start: str = "", end: str = "") -> int:
        """The inode number of a generation: all of it, or from a start to an end."""
        log = partition.log
        isolation = partition.mount.options.isolation
        where = (log.topic, log.topic_id, log.partition)
        return inode_number(*where, view.name, isolation, start, end, nonce)

    @property
    def path(self) -> str:
        log, shown = self.partition.log, self.text.view
        views = self.partition.mount.dot_views.items()
        where = "".join(f"{name}/" for name, view in views if view is shown)
        return f"{log.topic}/{where}{log.partition}"

    def generation(self) -> Generation:
        """Its generation. ESTALE where the past has changed before the first request for it."""
        generation = self._generation
        if generation is not None:
            return generation
        until = time.monotonic() + MEASURE_S
        generation = self._within(lambda: self.text.generation(until))
        if generation.nonce != self._nonce or (self.lookups and not self.text.attach(generation)):
            raise self._stale()
        self._generation = generation
        return generation

    def shown(self) -> Generation | None:
        """Its generation; None where the view does not show its first record yet. Errors as
        `generation`.
        """
        return self.generation()

    @property
    def is_ranged(self) -> bool:
        """Whether it has an end of its own."""
        return False

    @property
    def has_ended(self) -> bool:
        """Whether it is known that the file will not grow any more."""
        return False

    def text_end(self, generation: Generation) -> int:
        """The absolute position where it ends now. BlockingIOError, StorageError, OSError."""
        return generation.timeline.end

    def closed(self, handle: ReadHandle) -> None:
        """An open file is released."""

    def _stale(self) -> OSError:
        """ESTALE, after which the kernel looks the name up again: that lookup measures first, so
        that it is not too late again.
        """
        self.text.overtaken()
        return OSError(errno.ESTALE, "the history of the partition was rewritten")

    def _within(self, measure: Callable[[], Generation], *, is_logged: bool = True) -> Generation:
        """The result of `measure`. `is_logged`: write a line when it takes too long."""
        try:
            return measure()
        except BlockingIOError as error:
            if is_logged and may_wait():
                events = self.partition.mount.events
                events.of_request(f"{self.partition.log.name}: {error.strerror}")
            raise

    # -- stat ----------------------------------------------------------------------------------

    def attributes(self) -> Attributes:
        if not may_wait():
            self.partition.follow()
        return self._known_attributes()

    def _known_attributes(self) -> Attributes:
        """The attributes without following the process that writes the log."""
        generation = self._generation
        if generation is None:
            generation = self.generation()
        text = self.text
        if text.end_unknown or not text.timeline.positioned[1]:
            text.find_end(time.monotonic() + MEASURE_S)
        return self._attributes(generation.size)

    def _attributes(
        self, size: int, blocks: int | None = None, time_ns: int | None = None
    ) -> Attributes:
        """`blocks`, `time_ns`: those of the log by default; the blocks may have to wait."""
        partition = self.partition
        partition.showing_size()
        mode, uid, gid = partition.owner
        return Attributes(
            self.inode,
            mode,
            size,
            partition.mtime_ns if time_ns is None else time_ns,
            0 if self.has_lost_name() else 1,
            uid,
            gid,
            partition.blocks() if blocks is None else blocks,
            partition.keep_s(self.inode),
            partition.mount.name_timeout,
            self._block_size(size),
        )

    def _block_size(self, size: int) -> int:
        return block_size(size, is_cached=not self.partition.mount.files_grow)

    def listed_attributes(self) -> Attributes:
        try:
            # The lookup has just followed; if the past has changed since, this is another file.
            return at_once(self._known_attributes)
        except BlockingIOError:
            shown = at_once(ViewFile._attributes, self, self._shown_size(), 0)
            return shown._replace(attr_timeout=0.0, entry_timeout=0.0)

    def _shown_size(self) -> int:
        """The last size that stat has shown: a size never shrinks."""
        return self._generation.size if self._generation is not None else 0

    @property
    def is_measured(self) -> bool:
        return self.text.has_generation

    def measure(self, patience_s: float | None = None) -> bool:
        """Load the saved line indexes, or measure a small log: then listing shows the size, and a
        stat or open of every file of a topic waits for none.

        `patience_s`: the longest to take, in seconds; None: it depends on the log's size.
        """
        small = self.partition.log.size <= MEASURED_WHEN_LISTED
        if patience_s is None:
            patience = LISTED_S if small else 0.0
        else:
            patience = MEASURE_S if self.text.is_overtaken else patience_s
        try:
            self._measure_ahead(time.monotonic() + patience)
            self.partition.blocks()
        except (StorageError, OSError) as error:
            is_rewritten = isinstance(error, SegmentGone) or (
                isinstance(error, OSError) and error.errno == errno.ESTALE
            )
            if is_rewritten and patience_s is not None:
                raise
            # The next request gets the error.
            return False
        return True

    def _measure_ahead(self, until: float) -> None:
        self.text.generation(until)

    def set_attributes(self, change: Change) -> None:
        """Carry out chmod, chown and touch, which changes nothing; truncate is EPERM where it would
        change something, and EROFS for a tiered topic.
        """
        if change.size is not None:
            self._check_not_tiered()
        if change.size is not None and not self._is_new_of(change.size):
            raise OSError(errno.EPERM, "a partition cannot be truncated")
        self.partition.change_owner(change)

    def _is_new_of(self, size: int) -> bool:
        """Whether the partition is new, or being written through this file, and has this size."""
        first = self.partition.first_writer
        if first is not None and first.inode == self.inode:
            return size == first.position
        return size == 0 and self.partition.log.is_new

    def has_lost_name(self) -> bool:
        return self.text.nonce != self._nonce

    def remembered(self) -> None:
        self.partition.remember(self)
        if self._generation is not None and not self.text.attach(self._generation):
            # Superseded since the lookup: the next request gets ESTALE.
            self._generation = None

    def forgotten(self) -> None:
        self.partition.forget(self)
        if self._generation is not None:
            self._generation.detach()

    # -- extended attributes -------------------------------------------------------------------

    def xattr_names(self) -> Sequence[str]:
        return [_PREFIX + fact for fact in _FACTS]

    def xattr(self, name: str) -> bytes:
        fact = name.removeprefix(_PREFIX)
        if fact == name or fact not in _FACTS:
            raise OSError(errno.ENODATA, "no such attribute")
        log = self.partition.log
        if fact == "generation":
            return b"%016x" % self._nonce
        if fact == "records":
            # A view of bytes counts no records: use the topic's own view.
            text = self.partition.text(self.partition.mount.views[0])
            text.generation(time.monotonic() + MEASURE_S)
            text.catch_up(time.monotonic() + MEASURE_S)
            return b"%d" % text.records()
        timestamps = [segment.max_timestamp for segment in log.segments if segment.size]
        facts = {
            "log_start": log.log_start_offset,
            "log_end": log.log_end_offset,
            "last_stable": log.last_stable_offset,
            "bytes": log.size,
            "segments": len(log.segments),
            "first_timestamp": log.segments[0].first_timestamp,
            "last_timestamp": timestamps[-1] if timestamps else -1,
        }
        return b"%d" % facts[fact]

    # -- opening -------------------------------------------------------------------------------

    @property
    def is_direct(self) -> bool:
        """Whether it is read past the page cache: bytes may come behind its end, or are damaged, as
        the cache cannot return the part of a page before the damage.
        """
        return self.partition.mount.files_grow or self.text.is_damaged

    @property
    def keeps_pages(self) -> bool:
        """Whether it never could grow: then what the page cache has of it is right."""
        return not self.partition.mount.files_grow

    def open(self, flags: int) -> Handle:
        """EPERM for O_TRUNC, and for writing without O_APPEND: as a file under `chattr +a`.

        Both are allowed while the partition is new and nobody has begun to write it.  EROFS for
        writing to a tiered topic.
        """
        partition = self.partition
        is_read = flags & os.O_ACCMODE == os.O_RDONLY
        if not is_read or flags & os.O_TRUNC:
            self._check_not_tiered()
        if flags & os.O_TRUNC and not self._is_new_of(0):
            raise OSError(errno.EPERM, "the partition has records and cannot be truncated")
        if is_read:
            self._hold(self.generation())
            return ReadHandle(self)
        check_takes_records(partition.log.topic)
        if not flags & os.O_APPEND and (partition.first_writer or not partition.log.is_new):
            raise OSError(errno.EPERM, "the partition has records: open it with O_APPEND (>>)")
        return self.open_for_writing(flags)

    def _check_not_tiered(self) -> None:
        self.partition.mount.manager.tiered.check_may_write(self.partition.log.topic)

    def _hold(self, generation: Generation) -> None:
        """Open the logs that another process's cleaner may replace before they are read.

        It renames them, and has then deleted those that it renamed before. A log that is not read
        within seconds is closed again. ESTALE where the name leads to another file now.
        """
        partition = self.partition
        if not partition.mount.follows or not partition.log.config.is_compacted:
            return
        try:
            for extent in generation.extents()[: descriptors.budget() // HELD]:
                if extent.segment.fd < 0:
                    extent.segment.open_log()
        except SegmentGone:
            if not may_wait():
                partition.follow()
            if not generation.is_current:
                raise self._stale() from None
        except OSError:
            pass  # a reader of these bytes gets the same error

    def open_for_writing(self, flags: int) -> Handle:
        """Open for appending, or without O_APPEND for writing a new partition from its beginning.

        Where it is not new any more, such a write is EPERM.
        """
        generation = self.generation()
        reader = None
        if flags & os.O_ACCMODE == os.O_RDWR:
            reader = ReadHandle(self)
        view = self.text.view
        kind = PartitionTarget if flags & os.O_APPEND else NewPartitionTarget
        target = kind(self.partition, self.inode, generation)
        handle: LinesHandle | BatchesHandle
        if view.is_text:
            handle = LinesHandle(target, view, flags, reader)
        else:
            handle = BatchesHandle(target, flags, reader)
        handle.traffic = self.text.traffic
        return handle


class ReadHandle(Handle):
    """Reading. A read that begins where the last one ended looks nothing up, and where the page
    cache is bypassed, the text may be there already (`read_ahead`).
    """

    __slots__ = (
        *("_ahead", "_began", "_file", "_generation", "_last", "_partition", "_reached"),
        *("_read_to", "_text", "_turn", "direct_io", "keep_cache", "traffic"),
    )

    def __init__(self, file: ViewFile) -> None:
        self.direct_io = file.is_direct
        self.keep_cache = file.keeps_pages and not self.direct_io
        self.traffic = file.text.traffic
        self._file = file
        self._partition = file.partition
        self._text = file.text
        self._generation: Generation | None = None
        self._ahead = file.partition.mount.read_ahead
        # Where the reads in order have begun, and where the last one has ended.
        self._began = self._reached = -1
        # (position, reader), replaced as a whole: two threads may read at once.
        self._last: tuple[int, Reader | None] = (-1, None)
        self._turn = threading.Lock()
        # For poll(2): where the last read has ended.
        self._read_to = 0

    @property
    def append_queue(self) -> AppendQueue:
        return self._partition.log.append_queue

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if self._partition.log.closed and self._partition.is_replaced:
            reason = "the topic was deleted and restored: open the file again"
            raise SegmentGone(reason, path=self._partition.log.name)
        follows = self._partition.mount.follows
        data = (self._read_of_another if follows else self._read)(position, size)
        self._read_to = position + len(data)
        return data

    def _read_of_another(self, position: int, size: int) -> bytes | bytearray | memoryview:
        """Read a log that another process writes, and may cut before the bytes that are read."""
        partition = self._partition
        try:
            data = self._read(position, size)
            if partition.intact():
                return data
        except (BlockingIOError, CorruptRecord, SegmentGone) as error:
            # (The segment may have been repacked: the next look finds the new file.)
            is_over = not isinstance(error, SegmentGone) or may_wait()
            if is_over and partition.intact():
                raise
        if may_wait():
            # Only the owner's thread follows: the next request reads what is left.
            raise SegmentGone("the log was truncated while it was read")
        partition.follow()
        return self._read(position, size)

    def _shown(self) -> Generation | None:
        """Its generation; None while it shows nothing. Once known it does not change."""
        generation = self._generation
        if generation is None:
            generation = self._generation = self._file.shown()
        return generation

    def _read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        generation = self._shown()
        if generation is None:
            return b""
        if self._file.is_ranged:
            size = min(size, self._size(generation) - position)
            if size <= 0:
                return b""
        piece = self._ahead.find(self) if self.direct_io and not may_wait() else None
        if piece is not None:
            if not self._holds(piece, generation, position):
                self._ahead.drop(self)
                piece = None
            elif position + size <= piece.end:
                return self._slice(piece, position, size)
        return self._read_on(generation, position, size, piece)

    @staticmethod
    def _holds(piece: Piece, generation: Generation, position: int) -> bool:
        """Whether a piece has the text at `position`, and the past is what it was."""
        return (
            piece.start <= position < piece.end
            and piece.rewrites == generation.timeline.rewrites
            and position + generation.origin >= generation.first_valid
        )

    def _slice(self, piece: Piece, position: int, size: int) -> memoryview:
        """Text of the piece of this handle."""
        if self._partition.writing is not None:
            self._partition.showing_size()
        piece.is_used = True
        self._reached = position + size
        at = position - piece.start
        return piece.text[at : at + size]

    def _read_on(
        self, generation: Generation, position: int, size: int, piece: Piece | None
    ) -> bytes | bytearray | memoryview:
        """Read what `piece`, the one of this handle, does not hold, or not all of it."""
        absolute = position + generation.origin
        left = generation.timeline.end - absolute
        if left < size:
            if self._text.end_unknown or not generation.timeline.positioned[1]:
                self._text.find_end(time.monotonic() + MEASURE_S)
                left = generation.timeline.end - absolute
            if left <= 0:
                if position != self._reached:
                    self._began = self._reached = position
                return b""
            size = min(left, size)
            if piece is not None and position + size <= piece.end:
                return self._slice(piece, position, size)
        if self._partition.writing is not None:
            self._partition.showing_size()
        if generation.lost:
            size = self._before_what_is_lost(generation, absolute, size)
        if position != self._reached:
            self._began = position
        if absolute < generation.first_valid:
            out = bytearray(size)
            self._read_below(generation, absolute, out)
            self._reached = position + size
            return out
        # Whole reads of this size, so that the next ones find theirs, or the rest of the file.
        reads = min(size + position - self._began, PIECE) // max(size, 1)
        ahead = min(reads * size, left)
        if ahead > size and self.direct_io and not generation.lost and not may_wait():
            made = self._read_ahead(generation, position, ahead, piece)
            if made is not None:
                return self._slice(made, position, size)
        out = unfilled(size)
        done = 0
        if piece is not None:
            # The last reader stands at the end of the piece.
            done = piece.end - position
            out[:done] = piece.text[position - piece.start :]
        done = self._render(generation, position, out, done)
        self._reached = position + done
        return out if done == size else out[:done]

    def _read_ahead(
        self, generation: Generation, position: int, size: int, before: Piece | None
    ) -> Piece | None:
        """Render the text ahead; None where anything is wrong with it, or not in the page cache:
        that is for the read that asks for it. `before`: a piece that has the first bytes.
        """
        out = unfilled(size)
        done = 0
        if before is not None:
            done = before.end - position
            out[:done] = before.text[position - before.start :]
        last, reader = self._last
        if last != position + done:
            reader = None
        try:
            reached = render_text(
                generation, position + generation.origin + done, out, done, reader
            )
        except (StorageError, OSError):
            self._began = position
            self._ahead.drop(self)
            return None
        self._last = (position + size, reached)
        piece = Piece(generation.timeline.rewrites, position, out)
        self._ahead.keep(self, piece)
        return piece

    def _render(self, generation: Generation, position: int, out: bytearray, done: int) -> int:
        """Fill `out`, whose first `done` bytes are there, with the text at `position`.

        Returns how much there is before damage.

        Worker threads take turns: the kernel sends parts of one read() side by side, and each part
        continues where the one before ended.
        """
        if not may_wait():
            return self._render_now(generation, position, out, done)
        with self._turn:
            return self._render_now(generation, position, out, done)

    def _render_now(self, generation: Generation, position: int, out: bytearray, done: int) -> int:
        absolute = position + generation.origin
        last, reader = self._last
        if last != position + done:
            reader = None
        while True:
            try:
                reached = render_text(generation, absolute + done, out, done, reader)
                break
            except TextChanged:
                # The bytes of this handle's last reads were wrong: no other read may hide it.
                self._last = (-1, None)
                raise
            except CorruptRecord as error:
                self._last = (-1, None)
                before, done = done, error.done if isinstance(error, Damaged) else done
                if done > before or reader is not None:
                    # Damage that showed no text: go on after it.
                    reader = None
                elif done and self.direct_io:
                    # Return the text before the damage; the next read gets the error.
                    return done
                else:
                    raise
        self._last = (position + len(out), reached)
        return len(out)

    def _before_what_is_lost(self, generation: Generation, absolute: int, size: int) -> int:
        """Bytes that can be read before the next text that another process has cut off. SegmentGone
        where there are none, or the page cache would fill them up with zeros.
        """
        wanted = size
        for start, end in generation.lost:
            if start <= absolute < end:
                raise SegmentGone("the log was truncated before these bytes")
            if absolute == end:
                # This text is not the next one in the segment that was read before.
                self._last = (-1, None)
            elif absolute < start:
                size = min(size, start - absolute)
        if size < wanted and not self.direct_io:
            raise SegmentGone("the log was truncated within these bytes")
        return size

    @staticmethod
    def _read_below(generation: Generation, absolute: int, out: bytearray) -> None:
        """Read below `first_valid`: from the text that is in memory before a change."""
        kept = generation.kept(absolute, len(out))
        out[: len(kept)] = kept
        if len(kept) < len(out):
            render_text(generation, absolute + len(kept), out, len(kept), None)

    # -- poll(2) -------------------------------------------------------------------------------

    def poll(self, waiter: Waiter | None) -> int:
        """POLLPRI: there is something behind what was read last, if only an error. POLLHUP: the
        file will not grow any more; with POLLERR: its topic was deleted.

        Reads from the kernel's page cache do not all reach the daemon: of such a file it reports
        POLLPRI once for each size.
        """
        partition = self._partition
        if waiter is not None:
            # First: what comes from now on wakes it.
            partition.polled(self, waiter)
        partition.follow()
        try:
            generation = at_once(self._shown)
            end = 0 if generation is None else at_once(self._size, generation)
            is_behind = end > self._read_to
            if not self.direct_io:
                self._read_to = end
        except (StorageError, OSError):
            # It is not measured, or damaged: a read waits for that, or gets the error.
            is_behind = True
        if is_behind and partition.writing is not None:
            partition.showing_size()
        events = READY | (select.POLLPRI if is_behind else 0)
        if partition.log.closed:
            return events | select.POLLHUP | select.POLLERR
        return events | (select.POLLHUP if self._file.has_ended else 0)

    def _size(self, generation: Generation) -> int:
        """The file's size; errors as `read`."""
        if not self._file.has_ended:
            self._text.find_end(time.monotonic() + MEASURE_S)
        return max(self._file.text_end(generation) - generation.origin, 0)

    def release(self) -> None:
        self._ahead.drop(self)
        self._partition.file_closed(self)
        self._file.closed(self)

    def sync_plans(self) -> Sequence[FlushPlan]:
        return self._partition.flush_plans()
