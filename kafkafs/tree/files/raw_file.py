"""`.raw/N`: a partition's files as they are on the disk, byte for byte, read-only.

It has the segments' logs and indexes, the producer snapshots, and Kafka's two small files; for
Kafka 0.7 the `.kafka` files. It has neither files of kafkafs alone (line indexes, history, files
set aside) nor files that wait for deletion. A file that replaces another has another inode.
"""

from __future__ import annotations

import errno
import os

from kafkafs.tree.handles import FlushPlan, Handle
from kafkafs.tree.inodes import Attributes, Node, file_mode, inode_number
from kafkafs.tree.partition.partition import Partition
from storage import paths
from storage.files import Files
from storage.waiting import may_wait

_SHOWN = (paths.LOG, *paths.INDEX_SUFFIXES, paths.SNAPSHOT)
_WHOLE = frozenset({paths.LEADER_EPOCH_CHECKPOINT, paths.PARTITION_METADATA})


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

    def _path(self) -> str:
        return os.path.join(self.partition.log.directory, self._name)

    def attributes(self) -> Attributes:
        """The disk's attributes, with the last append's time where it may have changed the file."""
        try:
            found = self.partition.log.files.file_stat(self._path())
        except FileNotFoundError:
            raise self._stale() from None
        self._check(found)
        mode, uid, gid = self.partition.owner
        base = paths.base_offset_of(self._name)
        if base is None:
            base = paths.old_base_offset_of(self._name)
        active = base is None or base >= self.partition.log.active.base_offset
        mtime_ns = max(found.st_mtime_ns, self.partition.mtime_ns) if active else found.st_mtime_ns
        return Attributes(
            self.inode,
            file_mode(mode & 0o444),
            found.st_size,
            mtime_ns,
            1,
            uid,
            gid,
            found.st_blocks,
            self.partition.keep_s(self.inode),
            0.0,
        )

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
        files = self.partition.log.files
        try:
            fd = files.open(self._path(), os.O_RDONLY)
        except FileNotFoundError:
            raise self._stale() from None
        try:
            self._check(files.descriptor_stat(fd))
        except BaseException:
            files.close(fd)
            raise
        return RawHandle(self.partition, files, fd)

    def remembered(self) -> None:
        self.partition.known[self.inode] = self

    def forgotten(self) -> None:
        self.partition.known.pop(self.inode, None)


class RawHandle(Handle):
    """An open file, readable until release even when it is deleted."""

    __slots__ = ("_fd", "_files", "_partition", "direct_io", "keep_cache")

    def __init__(self, partition: Partition, files: Files, fd: int) -> None:
        self.direct_io = partition.mount.files_grow
        self.keep_cache = not self.direct_io
        self._partition = partition
        self._files = files
        self._fd = fd

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        read_some = self._files.preadv if may_wait() else self._files.preadv_nowait
        buffer = bytearray(size)
        done = 0
        while done < size:
            rest = memoryview(buffer)[done:]
            got = read_some(self._fd, rest, position + done)
            if got is None:
                raise BlockingIOError
            if not got:
                break
            done += got
        return buffer if done == size else memoryview(buffer)[:done]

    def release(self) -> None:
        self._files.close(self._fd)

    def sync_plan(self) -> FlushPlan | None:
        return self._partition.flush_plan()
