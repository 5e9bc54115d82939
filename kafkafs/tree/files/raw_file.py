"""`.raw/N`: a partition's files as they are on the disk, byte for byte, read-only.

It has the segments' logs and indexes, the producer snapshots, and Kafka's two small files; for
Kafka 0.7 the `.kafka` files. It has neither files of kafkafs alone (line indexes, history, files
set aside) nor files that wait for deletion. A file that replaces another has another inode.

An open file has no descriptor of its own, so that nobody takes all that the daemon may have. It
holds a lease on its segment, whose log it reads by the segment's descriptor. Any other file is in
memory where it is small, else each read opens it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator

from kafkafs.tree.handles import FlushPlan, Handle
from kafkafs.tree.inodes import Attributes, Node, file_mode, inode_number
from kafkafs.tree.partition.partition import Partition
from storage import paths
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


def _number(partition: Partition, name: str, found: os.stat_result) -> int:
    log = partition.log
    where = (log.topic, log.topic_id, log.partition)
    return inode_number(*where, ".raw", name, found.st_dev, found.st_ino)


class RawFile(Node):
    """One file of the partition's directory."""

    __slots__ = ("_name", "partition")

    def __init__(self, inode: int, partition: Partition, name: str) -> None:
        super().__init__(inode)
        self.partition = partition
        self._name = name

    @staticmethod
    def number(partition: Partition, name: str) -> int:
        """The inode number of the file that has this name now. ENOENT."""
        log = partition.log
        found = log.files.file_stat(os.path.join(log.directory, name))
        return _number(partition, name, found)

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
        """The disk's attributes; an index has the time of its log, as it changes with that."""
        try:
            found = self.partition.log.files.file_stat(self._path())
        except FileNotFoundError:
            raise self._stale() from None
        self._check(found)
        mode, uid, gid = self.partition.owner
        return Attributes(
            self.inode,
            file_mode(mode & 0o444),
            found.st_size,
            self._mtime_ns(found),
            1,
            uid,
            gid,
            found.st_blocks,
            self.partition.keep_s(self.inode),
            0.0,
        )

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

    def _check(self, found: os.stat_result) -> None:
        """ESTALE where another file has the name."""
        if _number(self.partition, self._name, found) != self.inode:
            raise self._stale()

    @staticmethod
    def _stale() -> OSError:
        """ESTALE, so that the kernel looks the name up again."""
        return OSError(errno.ESTALE, "the file has been deleted or replaced")

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EACCES, "segment files can only be read here")
        segment = self._leased_segment()
        try:
            self._check(self.partition.log.files.file_stat(self._path()))
            return RawHandle(self, segment)
        except BaseException as error:
            if segment is not None:
                segment.files.release()
            if isinstance(error, FileNotFoundError):
                raise self._stale() from None
            raise

    @property
    def is_log(self) -> bool:
        is_old = paths.old_base_offset_of(self._name) is not None
        return is_old or self._name.endswith(paths.LOG)

    def _leased_segment(self) -> Segment | None:
        """The segment that this is a file of, with a lease."""
        base = paths.base_offset_of(self._name)
        if base is None:
            base = paths.old_base_offset_of(self._name)
        segments = self.partition.log.segments
        if base is None or self._name.endswith(paths.SNAPSHOT):
            return None
        at = bisect_left(segments, base, key=lambda each: each.base_offset)
        if at == len(segments) or segments[at].base_offset != base:
            return None
        segments[at].files.lease()
        return segments[at]

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
            self._check(files.descriptor_stat(fd))
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

    __slots__ = ("_content", "_log", "_node", "_segment", "direct_io", "keep_cache")

    def __init__(self, node: RawFile, segment: Segment | None) -> None:
        """`segment`: with a lease, which `release` ends. OSError."""
        self.direct_io = node.partition.mount.files_grow
        self.keep_cache = not self.direct_io
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
