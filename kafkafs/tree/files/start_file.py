"""`N@…` and `.snapshot/N`: a partition's file from a record on, and perhaps up to another one.

It shows the text of the partition's own file in that view from its first offset on, and grows with
it, or up to its end (exclusive). While the log has not reached that end, each request for the size
or for bytes looks for it; once found, the end does not change.

A view that ends at the last stable offset may not show the first record yet: then the file is
empty.

A lookup gives a name its meaning at that moment. But while a file is open, and all that it shows is
still in the log, the names that have led to it (the last `NAMES`) lead to it again, except for the
position of a group, which each lookup looks at. The kernel keeps no entries of these files and,
where the log can grow, no attributes: so an append sends no notice to any of them, and however many
are looked up, `InodeTable` has few.

A file whose end the log has reached never changes again, so the kernel may keep its attributes and
read it through the page cache. Older pages in the cache may be wrong, as reads of a file that grows
go there too (splice, private mappings). So a file that is made with its end reached has another
inode than one that has to grow up to the same end, and only that keeps its pages from one open to
the next.

A snapshot ends where the view ends when its name is looked up: `.snapshot/N`, which begins at the
log start, and each `N@START..end`. Its names lead to the open file no longer than
`recent_lookups.py` says.

Changes of the past are applied to its generation only while it is open.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections import OrderedDict

from kafkafs.tree.files.start_names import Edge, NoPoint, StartName, parse_start_name
from kafkafs.tree.files.start_points import (
    End,
    end_of,
    of_group,
    offset_of_time,
    start_offset,
    time_before,
)
from kafkafs.tree.files.view_file import MEASURE_S, ReadHandle, ViewFile, block_size
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import KEEP_S, Attributes, Change, Node, missing
from kafkafs.tree.partition.generations import Generation
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partition_text import PartitionText
from kafkafs.tree.partition.partitions import Partitions
from kafkafs.views import View
from storage.errors import StorageError
from storage.manager import Topic
from storage.waiting import before_waiting, may_wait

KEPT = 64
"""The most files that keep their generation before they are opened: those looked up last."""
NAMES = 16
"""The most names that have led to a file and that it remembers."""

_BLOCK = 512
_LOG_END = "user.kafkafs.log_end"

Name = tuple[int, str]
"""A directory's inode, and a name in it."""


class StartFile(ViewFile):
    """See the module. `start` is its first offset; `_end` the absolute position where it ends."""

    __slots__ = (
        *("_end", "_handles", "_is_kept", "_is_reached", "_last_ns", "_led", "_looked", "_names"),
        *("_size", "_until", "start"),
    )

    is_passing = True

    def __init__(
        self,
        inode: int,
        partition: Partition,
        text: PartitionText,
        nonce: int,
        start: int,
        until: End,
        looked: int,
        is_reached: bool,
        names: StartNames,
    ) -> None:
        """`looked`: the bound of the view before its end was looked for. `is_reached`: whether the
        log has reached its end by now.
        """
        super().__init__(inode, partition, text, nonce)
        self._names = names
        # The names that have led to it, the latest last. Under the partition's lock.
        self._led: dict[Name, None] = {}
        self.start = start
        self._until = until
        self._end: int | None = None
        self._is_reached = is_reached
        # The time of the last record of a file with an end, in ns.
        self._last_ns: int | None = None
        # No record before this offset has the time of its end.
        self._looked = looked
        # The largest size that stat has shown.
        self._size = 0
        self._handles: set[ReadHandle] = set()
        # Whether changes are applied to its generation though it is not open.
        self._is_kept = False

    @property
    def is_ranged(self) -> bool:
        return self._until != End()

    @property
    def is_fixed(self) -> bool:
        return self._is_reached

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    @property
    def is_held(self) -> bool:
        """Whether its names still lead to it: it is open, and the log still has all that it shows.

        A new lookup of such a name might find another start or end.
        """
        generation, log = self._generation, self.partition.log
        exists = not log.closed and self.start >= log.log_start_offset
        return bool(self._handles) and exists and (generation is None or generation.is_whole)

    @property
    def is_open(self) -> bool:
        return bool(self._handles)

    def led_by(self, name: Name) -> None:
        """A lookup of this name leads to it. Under the partition's lock."""
        self._led.pop(name, None)
        self._led[name] = None
        if self._handles:
            self._names.hold(name, self)
        if len(self._led) > NAMES:
            oldest = next(iter(self._led))
            del self._led[oldest]
            self._names.let_go(oldest, self)

    # -- what it shows -------------------------------------------------------------------------

    def shown(self, until: float | None = None) -> Generation | None:
        """As in `ViewFile`. `until`: when to stop measuring (time.monotonic)."""
        generation = self._generation
        is_open = self._handles or self._is_kept
        if generation is not None and not is_open and not generation.is_current:
            if generation.nonce != self.text.nonce:
                raise self._stale()
            # Only text that it did not show has left the log.
            generation = self._generation = None
        if generation is not None:
            return generation
        if self.text.is_before(self.start):
            return None
        end = time.monotonic() + MEASURE_S if until is None else until
        while generation is None:
            # A lookup, which passes `until`, leaves the rest of the measurement to others.
            made = self._within(
                lambda: self.text.generation_from(self.start, end), is_logged=until is None
            )
            if not self._handles and made.nonce != self._nonce:
                raise self._stale()
            with self.partition.lock:
                if self._generation is None and (not self._handles or self.text.attach(made)):
                    self._generation = made
                generation = self._generation
        return generation

    def text_end(self, generation: Generation, limit: int | None = None) -> int:
        """As in `ViewFile`. `limit`: the records from this offset on do not count."""
        if self._end is not None:
            return self._end
        shown = generation.timeline.end
        offset = self._end_offset()
        # Read after `shown`: a later append is not in that.
        bound = self.text.bound if limit is None else min(limit, self.text.bound)
        if offset is None or offset > bound:
            return shown
        if offset <= self.start:
            end = generation.origin
        elif offset == bound and self._is_settled:
            end = shown
        else:
            before_waiting()
            # A size that was shown never shrinks.
            least = generation.origin + self._size
            end = max(self.text.position_behind(offset), least)
        # First: who finds an end takes this for the size.
        self._size = end - generation.origin
        self._end = end
        return end

    @property
    def _is_settled(self) -> bool:
        """Whether the text that is shown now ends with the last record of the view.

        Only on the owner's thread: no append comes between a look at one and at the other.
        """
        return not (may_wait() or self.text.end_unknown or self.text.is_damaged)

    def _end_offset(self) -> int | None:
        """The offset of its end; None where it has none, or no record has reached its time."""
        offset, timestamp_ms = self._until
        if timestamp_ms is None:
            return offset
        bound = self.text.bound
        if bound == self._looked or not self._may_have_reached(timestamp_ms):
            return None
        before_waiting()
        found = offset_of_time(self.text, timestamp_ms)
        if found is None:
            self._looked = bound
            return None
        offset = max(found, self._looked)
        self._until = End(offset)
        return offset

    def _may_have_reached(self, timestamp_ms: int) -> bool:
        """Whether a segment that is new or has grown since the last look has this time."""
        for segment in reversed(self.text.log.segments):
            if segment.next_offset <= self._looked:
                return False
            if segment.largest_timestamp >= timestamp_ms:
                return True
        return False

    def fix_end(self, limit: int | None = None) -> None:
        """Find its end, if the log has reached it: the past is about to change. Waits.

        Its start, too: text that the view has just begun to show may go before the next request.
        """
        if self._generation is None and limit is None:
            with contextlib.suppress(StorageError, OSError):
                self.shown()
        generation = self._generation
        if generation is not None:
            # The reader gets the error.
            with contextlib.suppress(StorageError, OSError):
                self.text_end(generation, limit)

    # -- attributes ----------------------------------------------------------------------------

    def _known_attributes(self) -> Attributes:
        if self._last_ns is not None and (self.is_open or self._nonce == self.text.nonce):
            return self._constant_attributes(self._size)
        generation = self.shown()
        if generation is not None:
            if self._end is None:
                self.text.find_end(time.monotonic() + MEASURE_S)
            size = self.text_end(generation) - generation.origin
            self._size = max(self._size, size)
        return self._attributes(self._size)

    def _attributes(
        self, size: int, blocks: int | None = None, time_ns: int | None = None
    ) -> Attributes:
        if self._end is not None:
            return self._constant_attributes(size)
        attributes = super()._attributes(size, blocks, time_ns)
        timeout = 0.0 if self.partition.mount.files_grow else attributes.attr_timeout
        return attributes._replace(attr_timeout=timeout, entry_timeout=0.0)

    def _constant_attributes(self, size: int) -> Attributes:
        """The attributes that only chmod and chown of the partition change. The kernel drops all
        pages of a file with another time or size, even if this node was dropped in between.
        """
        attributes = super()._attributes(size, -(-size // _BLOCK), self._time_ns())
        block = block_size(size, is_cached=True)
        return attributes._replace(attr_timeout=KEEP_S, entry_timeout=0.0, block_size=block)

    def _time_ns(self) -> int:
        """The time of the last record that it shows, in ns. Waits."""
        if self._last_ns is None:
            assert self._until.offset is not None
            self._last_ns = time_before(self.partition.log, self.start, self._until.offset)
        return self._last_ns

    def listed_attributes(self) -> Attributes:
        attributes = super().listed_attributes()
        self._keep()
        return attributes._replace(entry_timeout=0.0)

    def _shown_size(self) -> int:
        return self._size

    @property
    def path(self) -> str:
        return f"{super().path}@…"

    def set_attributes(self, change: Change) -> None:
        """EROFS for truncate, EPERM for chmod and chown."""
        if change.size is not None:
            raise self._read_only()
        if not change.is_touch:
            reason = (
                f"this name is read-only; change the mode and owner of {self.partition.log.name}"
            )
            raise OSError(errno.EPERM, reason)

    def has_lost_name(self) -> bool:
        return False

    @property
    def is_measured(self) -> bool:
        known = self._last_ns if self._is_reached else self._generation
        return known is not None or self.text.is_before(self.start)

    def _measure_ahead(self, until: float) -> None:
        generation = self.shown(until)
        if generation is not None and self._is_reached:
            self.text_end(generation)
            self._time_ns()

    def remembered(self) -> None:
        """It gets notices of chmod and chown only."""
        self.partition.remember(self, grows=False)

    def _keep(self) -> None:
        """Keep its generation for a while, where another process may rewrite the log at any moment:
        a stat or open follows the lookup.
        """
        generation = self._generation
        if self.partition.mount.follows and generation is not None:
            with self.partition.lock:
                self._is_kept = self._is_kept or self.text.attach(generation)
            if self._is_kept:
                self._names.keep(self)

    def forgotten(self) -> None:
        self.partition.forget(self)
        self.keep_no_longer()

    def keep_no_longer(self) -> None:
        """Stop keeping its generation, unless the file is open.

        Too many other files were looked up since, or the kernel has forgotten this one.
        """
        with self.partition.lock:
            self._is_kept = False
            self._detach()

    def xattr(self, name: str) -> bytes:
        """As the partition's; the log of a file whose end is reached ends there."""
        if name == _LOG_END and self._is_reached:
            return b"%d" % (self._until.offset or 0)
        return super().xattr(name)

    # -- opening -------------------------------------------------------------------------------

    def open(self, flags: int) -> Handle:
        """EROFS for writing."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise self._read_only()
        shown = self.shown()
        if shown is not None:
            self._hold(shown)
            if self.is_ranged:
                # Where its end is reached it is read through the page cache.
                self.text_end(shown)
        handle = ReadHandle(self)
        with self.partition.lock:
            self._handles.add(handle)
            for led_by in self._led:
                self._names.hold(led_by, self)
            generation = self._generation
            if self.is_ranged or generation is None:
                self.partition.add_range(self, self.text, self.fix_end)
            if generation is not None and not self.text.attach(generation):
                self.closed(handle)
                raise self._stale()
        return handle

    def _read_only(self) -> OSError:
        reason = f"this name is read-only; write to {self.partition.log.name}"
        return OSError(errno.EROFS, reason)

    @property
    def is_direct(self) -> bool:
        """Not where its end is reached, even with damage: what is mapped or sent goes through the
        page cache in any case, and the answer to a direct read, which may end before damage, would
        become a page with zeros.
        """
        return self._end is None and super().is_direct

    @property
    def keeps_pages(self) -> bool:
        return self._is_reached or super().keeps_pages

    def is_current(self) -> bool:
        if not may_wait():
            self.partition.follow()
        return not self.partition.log.closed and self._nonce == self.text.nonce

    def closed(self, handle: ReadHandle) -> None:
        with self.partition.lock:
            self._handles.discard(handle)
            if not self._handles:
                self.partition.file_closed(self)
                for name in self._led:
                    self._names.let_go(name, self)
                self.partition.mount.inodes.closed(self)
            self._detach()

    def _detach(self) -> None:
        if self._generation is not None and not self._handles and not self._is_kept:
            self._generation.detach()


class StartNames:
    """Looks names with an `@` up, and remembers the open files that they led to."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._inode_table = partitions.mount.inodes
        self._kept: OrderedDict[StartFile, None] = OrderedDict()
        # The open files that each name has led to, the latest last. Under the lock of the
        # partition that the name begins with.
        self.held: dict[Name, dict[StartFile, None]] = {}

    def look_up(self, topic: Topic, parent: int, name: str, view: View) -> Node:
        """The node of a name with an `@` in a view's directory. NoPoint where it has no meaning.

        BlockingIOError, StorageError, OSError; OffsetOutOfRange with `out_of_range=error`.
        """
        parsed = parse_start_name(name, self._partitions.mount.clock_ns() // 1_000_000)
        if parsed is None:
            raise NoPoint(errno.ENOENT, "not a valid start or range after the @")
        partition = self._followed(topic, parsed.partition)
        if parsed.is_snapshot or parsed.has_group:
            return self._find(partition, parsed, view, name)
        for held in reversed(tuple(self.held.get((parent, name), ()))):
            if held.is_held:
                return held
        found = self._find(partition, parsed, view, name)
        with partition.lock:
            found.led_by((parent, name))
        return found

    def snapshot(self, topic: Topic, name: str, view: View) -> Node:
        """The node of a partition's name in `.snapshot`; errors as `look_up`."""
        parsed = StartName(name, Edge.START, Edge.END)
        return self._find(self._followed(topic, name), parsed, view, name)

    def _followed(self, topic: Topic, number: str) -> Partition:
        """The partition of this number, as it is now. ENOENT."""
        partition = self._partitions.find(topic, number)
        if partition is None:
            raise missing(number)
        if not may_wait():
            partition.follow()
            # A count needs this view, which only the owner's thread makes.
            partition.text(self._partitions.mount.views[0])
        return partition

    def _find(self, partition: Partition, parsed: StartName, view: View, name: str) -> StartFile:
        """The node of what a parsed name means now."""
        mount = self._partitions.mount
        text = partition.text(view)
        partition.nonce()
        nonce = text.nonce
        strict = mount.options.out_of_range == "error"
        try:
            first = of_group(self._partitions, partition, parsed.start)
            last = of_group(self._partitions, partition, parsed.end)
            assert first is not None
            start = start_offset(partition, text, first, strict=strict)
            looked = text.bound
            until = end_of(partition, text, last)
        except BlockingIOError as error:
            if may_wait():
                mount.events.of_request(f"lookup of {partition.log.topic}/{name}: {error.strerror}")
            raise
        # Read again: another thread may append, and the end may be the log's.
        is_reached = until.is_reached(text.bound)
        end = str(until) if is_reached else f"{until} ahead"
        inode = StartFile.number(partition, view, nonce, str(start), end)
        found = self._inode_table.find(inode) or StartFile(
            inode, partition, text, nonce, start, until, looked, is_reached, self
        )
        assert isinstance(found, StartFile)
        return found

    def hold(self, name: Name, file: StartFile) -> None:
        """While it is open, a name leads to a file again. Under the partition's lock."""
        files = self.held.setdefault(name, {})
        files.pop(file, None)
        files[file] = None

    def let_go(self, name: Name, file: StartFile) -> None:
        """The opposite of `hold`."""
        files = self.held.get(name, {})
        files.pop(file, None)
        if not files:
            self.held.pop(name, None)

    def keep(self, file: StartFile) -> None:
        """Keep `file` in the list; the one looked up longest ago drops its generation."""
        self._kept[file] = None
        self._kept.move_to_end(file)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)[0].keep_no_longer()
