"""`.raw/N`: a partition's files as they are on the disk, byte for byte, read-only.

It has the segments' logs and indexes, the producer snapshots, and Kafka's two small files; for
Kafka 0.7 the `.kafka` files. It has neither files of kafkafs alone (line indexes, history, files
set aside) nor files that wait for deletion. A file that replaces another has another inode.

An open file has no descriptor of its own, so that nobody takes all that the daemon may have. It
holds a lease on its segment, whose log it reads by the segment's descriptor. Any other file is in
memory where it is small, else each read opens it. A segment is told by its file's identity, not by
its name: what replaces it is in the log before its files have their names.

The log of a sealed segment is *fixed*: neither its bytes nor its attributes change until another
file replaces it, so the page cache serves it on every mount. The active segment's log grows. A
sealed index may be cut by another process and is then made anew in place; it is small, so like the
rest of what may change it is read past the page cache. What was cached of a log before its segment
was sealed may end in zeros: once it is sealed its name leads to another inode.
A broker may cut a log down into a sealed segment, which then grows again. Handles that were opened
before read no more of it: ESTALE. When it is sealed once more, the first open drops what was cached
before.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator

from kafkafs.tree.handles import FlushPlan, Handle
from kafkafs.tree.inodes import KEEP_S, Attributes, Node, file_mode, inode_number
from kafkafs.tree.partition.partition import Partition
from storage import paths
from storage.files import Identity
from storage.log.pace import Pace
from storage.segment.segment import Segment
from storage.waiting import may_wait

_SHOWN = (paths.LOG, *paths.INDEX_SUFFIXES, paths.SNAPSHOT)
_WHOLE = frozenset({paths.LEADER_EPOCH_CHECKPOINT, paths.PARTITION_METADATA})
# Bytes of a file that may be in memory for each handle.
_SMALL = 64 * 1024


def is_shown(name: str) -> bool:
    """Whether `.raw/N` has a file of this name."""
    if name in _WHOLE or paths.old_base_offset_of(name) is not None:
        return True
    return paths.base_offset_of(name) is not None and name[20:] in _SHOWN


def _segment_of(partition: Partition, name: str, identity: Identity) -> Segment | None:
    """The segment that this file of a name is one of; the file may have that name a moment longer
    than the log has the segment.
    """
    base = paths.base_offset_of(name)
    if base is None:
        base = paths.old_base_offset_of(name)
    if base is None or name.endswith(paths.SNAPSHOT):
        return None
    log = partition.log
    at = bisect_left(log.segments, base, key=lambda each: each.base_offset)
    kind = paths.LOG if _is_log(name) else name[20:]
    for segment in (*log.segments[at : at + 1], *(segment for _, segment in log.retired)):
        if segment.base_offset == base and segment.files.identity_of(kind) == identity:
            return segment
    return None


def _is_log(name: str) -> bool:
    return paths.old_base_offset_of(name) is not None or name.endswith(paths.LOG)


def _is_fixed(partition: Partition, name: str, segment: Segment | None) -> bool:
    """Whether a file of this segment changes no more."""
    # One that the log is just sealing may become active again, and is still the last one.
    is_sealed = (
        segment is not None and segment.files.sealed and segment is not partition.log.segments[-1]
    )
    return is_sealed and _is_log(name)


class RawFile(Node):
    """One file of the partition's directory."""

    __slots__ = (
        *("_cached", "_found", "_identity", "_is_fixed", "_name", "cached_readers"),
        "partition",
    )

    def __init__(
        self, inode: int, partition: Partition, name: str, identity: Identity, is_fixed: bool
    ) -> None:
        super().__init__(inode)
        self.partition = partition
        self._name = name
        self._identity = identity
        self._is_fixed = is_fixed
        # The sealed segment of which the kernel may have pages, and the file's stat then.
        self._cached: Segment | None = None
        self._found: os.stat_result | None = None
        # How many handles read through the page cache.
        self.cached_readers = 0

    @classmethod
    def named(cls, partition: Partition, name: str) -> RawFile:
        """The file that has this name now. ENOENT."""
        log = partition.log
        identity = log.files.identity(os.path.join(log.directory, name))
        is_fixed = _is_fixed(partition, name, _segment_of(partition, name, identity))
        where = (log.topic, log.topic_id, log.partition, ".raw", name)
        inode = inode_number(*where, *identity, "fixed" if is_fixed else "")
        found = partition.mount.inodes.find(inode)
        if found is None:
            return cls(inode, partition, name, identity, is_fixed)
        assert isinstance(found, cls)
        return found

    @property
    def path(self) -> str:
        log = self.partition.log
        return f"{log.topic}/.raw/{log.partition}/{self._name}"

    def _path(self) -> str:
        return os.path.join(self.partition.log.directory, self._name)

    @property
    def pace(self) -> Pace:
        return self.partition.log.pace

    def attributes(self) -> Attributes:
        """The disk's attributes; an index has the time of its log, as it changes with that.

        A read through the page cache may ask for them: while such a handle is open, a file that is
        fixed has them also when it has been deleted or replaced.
        """
        self._follow()
        found, links = self._stat(), 1
        if found is None and self.cached_readers:
            found, links = self._found, 0
        if found is None:
            raise self._stale()
        mode, uid, gid = self.partition.owner
        is_fixed = not links or self._is_fixed
        return Attributes(
            self.inode,
            file_mode(mode & 0o444),
            found.st_size,
            found.st_mtime_ns if is_fixed else self._mtime_ns(found),
            links,
            uid,
            gid,
            found.st_blocks,
            KEEP_S if is_fixed else self.partition.keep_s(self.inode),
            0.0,
        )

    def _stat(self) -> os.stat_result | None:
        """The disk's; None where its name leads to no file by now, or to another one."""
        files, path = self.partition.log.files, self._path()
        try:
            found = files.file_stat(path)
            return found if files.identity(path) == self._identity else None
        except FileNotFoundError:
            return None

    def _follow(self) -> None:
        if not may_wait():
            self.partition.follow()

    def _mtime_ns(self, found: os.stat_result) -> int:
        shown, log = self.partition.mtime_ns, self.partition.log
        base = paths.base_offset_of(self._name)
        if base is None or self._name[20:] not in (paths.LOG, *paths.INDEX_SUFFIXES):
            return found.st_mtime_ns
        if base == log.last_written.base_offset:
            return shown
        with contextlib.suppress(FileNotFoundError):
            path = os.path.join(log.directory, paths.file_name(base, paths.LOG))
            return log.files.file_stat(path).st_mtime_ns
        return found.st_mtime_ns

    @staticmethod
    def _stale() -> OSError:
        """ESTALE, so that the kernel looks the name up again."""
        return OSError(errno.ESTALE, "the file has been deleted or replaced")

    def open(self, flags: int) -> Handle:
        """EROFS for writing."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EROFS, "segment files can only be read here")
        self._follow()
        segment = _segment_of(self.partition, self._name, self._identity)
        if segment is not None:
            segment.files.lease()
        try:
            found = self._stat()
            is_fixed = _is_fixed(self.partition, self._name, segment)
            if found is None or (self._is_fixed and not is_fixed):
                raise self._stale()
            if segment is None or not self._is_fixed:
                return RawHandle(self, segment)
            was_cached, self._cached, self._found = self._cached, segment, found
            return FixedHandle(self, segment, found.st_size, keep_cache=segment is was_cached)
        except BaseException:
            if segment is not None:
                segment.files.release()
            raise

    @property
    def is_log(self) -> bool:
        return _is_log(self._name)

    @property
    def is_fixed(self) -> bool:
        return self._is_fixed

    def descriptor(self, segment: Segment | None) -> int:
        """Open the file, for the caller to close. ESTALE."""
        files = self.partition.log.files
        try:
            if segment is None:
                fd = files.open(self._path(), os.O_RDONLY)
            else:
                fd = segment.files.open_one(self._name[20:])
        except FileNotFoundError:
            raise self._stale() from None
        try:
            if files.identity(fd) != self._identity:
                raise self._stale()
        except BaseException:
            files.close(fd)
            raise
        return fd

    def remembered(self) -> None:
        self.partition.known[self.inode] = self

    def forgotten(self) -> None:
        self.partition.known.pop(self.inode, None)


class RawHandle(Handle):
    """An open file, readable until release even when it is deleted, as far as its lease keeps it:
    a checkpoint or a snapshot that is large, and a file that another process deletes, may be gone.
    """

    __slots__ = ("_content", "_log", "_node", "_segment", "direct_io", "keep_cache", "traffic")

    def __init__(self, node: RawFile, segment: Segment | None) -> None:
        """`segment`: with a lease, which `release` ends. OSError."""
        self.direct_io = node.partition.mount.files_grow
        self.keep_cache = not self.direct_io
        self.traffic = node.partition.raw_traffic
        self._node = node
        self._segment = segment
        self._log = segment if segment is not None and node.is_log else None
        self._content: bytes | None = None
        if segment is None:
            files = node.partition.log.files
            fd = node.descriptor(None)
            try:
                if (size := files.size(fd)) <= _SMALL:
                    self._content = files.pread(fd, size, 0)
            finally:
                files.close(fd)

    @property
    def pace(self) -> Pace:
        return self._node.partition.log.pace

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if self._content is not None:
            return self._content[position : position + size]
        buffer = bytearray(size)
        done = 0
        with self._opened() as read_some:
            while done < size:
                got = read_some(memoryview(buffer)[done:], position + done)
                if got is None:
                    raise BlockingIOError
                if not got:
                    break
                done += got
        return buffer if done == size else memoryview(buffer)[:done]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Callable[[memoryview, int], int | None]]:
        if self._log is not None:
            yield self._log.read_stored
            return
        files = self._node.partition.log.files
        read = files.preadv if may_wait() else files.preadv_nowait
        fd = self._node.descriptor(self._segment)
        try:
            yield lambda buffer, at: read(fd, buffer, at)
        finally:
            files.close(fd)

    def release(self) -> None:
        if self._segment is not None:
            self._segment.files.release()

    def sync_plan(self) -> FlushPlan | None:
        return self._node.partition.flush_plan()


class FixedHandle(RawHandle):
    """The log of a sealed segment, read through the page cache.

    A read that would end before the size that the kernel was told is ESTALE, never zeros.
    """

    __slots__ = ("_segment_size", "_size")

    def __init__(self, node: RawFile, segment: Segment, size: int, *, keep_cache: bool) -> None:
        """`segment`: with a lease. `size`: of the file. `keep_cache`: what the kernel has of the
        file is of this segment, from when it was sealed.
        """
        super().__init__(node, segment)
        self.direct_io = False
        self.keep_cache = keep_cache
        node.cached_readers += 1
        self._size = size
        # It falls where another process has cut the log.
        self._segment_size = segment.size

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        data = super().read(position, size)
        assert self._segment is not None
        is_short = len(data) < size and position + len(data) < self._size
        if is_short or self._segment.size < self._segment_size:
            raise OSError(errno.ESTALE, "another process has cut the file")
        return data

    def release(self) -> None:
        self._node.cached_readers -= 1
        super().release()
