"""`.raw/N`: a partition's files as they are on the disk, byte for byte, read-only.

It has the segments' logs and indexes, the producer snapshots, and Kafka's two small files; for
Kafka 0.7 the `.kafka` files. It has neither files of kafkafs alone (line indexes, history, files
set aside) nor files that wait for deletion. A file that replaces another has another inode.

An open file has no descriptor of its own, so that nobody takes all that the daemon may have. It
reads its segment's log by the segment's descriptor. Any other file is in memory where it is small,
else each read opens it. An open file does not keep a deleted segment on the disk: once
file.delete.delay.ms is over, a read fails with ESTALE. The identity of its file tells a segment
from others, not the name: a segment that replaces it is in the log before its files have their
names.

The log of a sealed segment is *fixed*: neither its bytes nor its attributes change, so the page
cache serves it on every mount. Its inode number hashes the file's size and time, too: what was
cached of it before it was sealed, which may end in zeros, is of another inode, and so is what it
holds after a broker has cut the log down into it and let it grow again. A file that was opened
before that keeps the size and what the kernel has; other reads fail with ESTALE.

The active segment's log grows. Another process may cut a sealed index, and then writes it again in
place. An index is small. So like all files that may change, it is read past the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial

from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import KEEP_S, Attributes, Node, file_mode, inode_number
from kafkafs.tree.partition.partition import Partition
from storage import paths
from storage.descriptors import Descriptor
from storage.errors import SegmentGone, StorageError
from storage.files import Identity
from storage.log.append_queue import AppendQueue
from storage.log.flush import FlushPlan
from storage.log.log import Log
from storage.segment.reader import SegmentReader
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


def _segments_at(log: Log, base: int) -> tuple[Segment, ...]:
    """The log's first segment with this base offset or a later one, if there is one."""
    segments = log.segments
    at = bisect_left(segments, base, key=lambda each: each.base_offset)
    return segments[at : at + 1]


def _segment_of(partition: Partition, name: str, identity: Identity) -> Segment | None:
    """The segment that this file of a name is one of; the file may have that name a moment longer
    than the log has the segment.
    """
    base = paths.base_offset_of(name)
    if base is None:
        base = paths.old_base_offset_of(name)
    if base is None or name.endswith(paths.SNAPSHOT):
        return None
    # Before the retired ones: a segment is among those before it leaves these.
    current = _segments_at(partition.log, base)
    kind = paths.LOG if _is_log(name) else name[20:]
    retired = (segment for _, segment in partition.log.retired)
    for segment in (*current, *retired):
        if segment.base_offset == base and segment.identity_of(kind) == identity:
            return segment
    return None


def look(log: Log, name: str) -> tuple[Identity, os.stat_result]:
    """The identity and the stat of the file that has this name. FileNotFoundError.

    A replacement is in the log before it gets the name of what it replaces. If no file has the name
    in between, the replacement counts.
    """
    path = os.path.join(log.directory, name)
    try:
        return log.files.identity(path), log.files.file_stat(path)
    except FileNotFoundError:
        replacement = _replacement(log, name)
    if replacement is not None:
        with contextlib.suppress(FileNotFoundError):
            return log.files.identity(replacement), log.files.file_stat(replacement)
    # The replacement may just have got the name.
    return log.files.identity(path), log.files.file_stat(path)


def _replacement(log: Log, name: str) -> str | None:
    """The path of the file that is about to get this name, if there is one."""
    base = paths.base_offset_of(name)
    for segment in () if base is None else _segments_at(log, base):
        if segment.base_offset == base and segment.suffix == paths.SWAP:
            return segment.file_path(name[20:])
    return None


def names(log: Log) -> list[str]:
    """The names of all files that `.raw/N` has."""
    found = set(log.files.names(log.directory))
    for segment in log.segments:
        if segment.suffix == paths.SWAP:
            ours = (paths.file_name(segment.base_offset, kind) for kind in _SHOWN)
            found |= {name for name in ours if name + paths.SWAP in found}
    return sorted(filter(is_shown, found))


def _is_log(name: str) -> bool:
    return paths.old_base_offset_of(name) is not None or name.endswith(paths.LOG)


def _is_fixed(partition: Partition, name: str, segment: Segment | None) -> bool:
    """Whether a file of this segment changes no more."""
    # One that the log is just sealing may become active again, and is still the last one.
    is_sealed = segment is not None and segment.sealed and segment is not partition.log.segments[-1]
    return is_sealed and _is_log(name)


def _follow(partition: Partition) -> None:
    """Look at what another process has written, on the owner's thread."""
    if not may_wait():
        partition.follow()


def _facts(found: os.stat_result) -> tuple[int, int]:
    """By which a file that is fixed is known to be the same: a write changes the time."""
    return found.st_size, found.st_mtime_ns


class RawFile(Node):
    """One file of the partition's directory."""

    __slots__ = ("_found", "_identity", "_is_fixed", "_name", "handles", "partition")

    def __init__(
        self,
        inode: int,
        partition: Partition,
        name: str,
        identity: Identity,
        found: os.stat_result,
        *,
        is_fixed: bool,
    ) -> None:
        """`found`: the stat of the file, which stays that of one that is fixed."""
        super().__init__(inode)
        self.partition = partition
        self._name = name
        self._identity = identity
        self._found = found
        self._is_fixed = is_fixed
        self.handles: set[RawHandle] = set()

    @classmethod
    def named(cls, partition: Partition, name: str) -> RawFile:
        """The file that has this name now. ENOENT."""
        _follow(partition)
        log = partition.log
        identity, found = look(log, name)
        is_fixed = _is_fixed(partition, name, _segment_of(partition, name, identity))
        state = ("fixed", *_facts(found)) if is_fixed else ("",)
        where = (log.topic, log.topic_id, log.partition, ".raw", name)
        inode = inode_number(*where, *identity, *state)
        known = partition.mount.inodes.find(inode)
        if known is None:
            return cls(inode, partition, name, identity, found, is_fixed=is_fixed)
        assert isinstance(known, cls)
        return known

    @property
    def path(self) -> str:
        log = self.partition.log
        return f"{log.topic}/.raw/{log.partition}/{self._name}"

    @property
    def is_replaced(self) -> bool:
        return self.partition.is_replaced

    def _path(self) -> str:
        return os.path.join(self.partition.log.directory, self._name)

    @property
    def append_queue(self) -> AppendQueue:
        return self.partition.log.append_queue

    def attributes(self) -> Attributes:
        """The disk's attributes; an index has the time of its log, as it changes with that.

        While it is open it has attributes also when it has been deleted, replaced, or cut.
        """
        _follow(self.partition)
        found, links = self._stat(), 1
        if found is None:
            found, links = self._nameless_stat(), 0
        mode, uid, gid = self.partition.owner
        is_constant = not links or self._is_fixed
        return Attributes(
            self.inode,
            file_mode(mode & 0o444),
            found.st_size,
            found.st_mtime_ns if is_constant else self._mtime_ns(found),
            links,
            uid,
            gid,
            found.st_blocks,
            KEEP_S if is_constant else self.partition.keep_s(self.inode),
            0.0,
        )

    def _stat(self) -> os.stat_result | None:
        """The disk's; None where its name leads to no file by now, to another one, or to one that
        is fixed and was cut.
        """
        try:
            identity, found = look(self.partition.log, self._name)
        except FileNotFoundError:
            return None
        if identity != self._identity or self._has_changed(found):
            return None
        self._found = found
        return found

    def _nameless_stat(self) -> os.stat_result:
        """Return the stat of an open file that has lost its name. ESTALE if none is open."""
        handle = next(iter(tuple(self.handles)), None)
        if handle is None:
            raise self.stale()
        if not self._is_fixed and handle.log is not None:
            # It may have grown since the last look.
            try:
                self._found = handle.log.log_stat()
            except SegmentGone:
                raise self.stale() from None
            except (StorageError, OSError):
                pass
        return self._found

    def _has_changed(self, found: os.stat_result) -> bool:
        return self._is_fixed and _facts(found) != _facts(self._found)

    def check_unchanged(self, segment: Segment) -> None:
        """ESTALE unless the segment's file is as it was: what was read before this is of it."""
        if self._has_changed(segment.log_stat()):
            raise OSError(errno.ESTALE, "another process has truncated the file")

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
    def stale() -> OSError:
        """ESTALE, so that the kernel looks the name up again."""
        return OSError(errno.ESTALE, "the file has been deleted or replaced")

    def open(self, flags: int) -> Handle:
        """EROFS for writing."""
        if flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC:
            raise OSError(errno.EROFS, "segment files are read-only here")
        _follow(self.partition)
        segment = _segment_of(self.partition, self._name, self._identity)
        is_fixed = _is_fixed(self.partition, self._name, segment)
        if self._stat() is None or (self._is_fixed and not is_fixed):
            raise self.stale()
        handle = RawHandle(self, segment)
        self.handles.add(handle)
        return handle

    @property
    def is_log(self) -> bool:
        return _is_log(self._name)

    @property
    def is_fixed(self) -> bool:
        return self._is_fixed

    def descriptor(self, segment: Segment | None) -> Descriptor:
        """Open the file, which closes itself after its last use. ESTALE."""
        files = self.partition.log.files
        try:
            if segment is None:
                fd = Descriptor(files, self._path(), os.O_RDONLY)
            else:
                fd = segment.open_file(self._name[20:])
        except FileNotFoundError:
            raise self.stale() from None
        if files.identity(fd) != self._identity:
            raise self.stale()
        return fd

    def remembered(self) -> None:
        self.partition.remember(self)

    def forgotten(self) -> None:
        self.partition.forget(self)


class RawHandle(Handle):
    """An open file. A deleted one can be read until its segment's files are removed, then ESTALE; a
    checkpoint or a snapshot that is large, and a file that another process deletes, may be gone
    before.
    """

    __slots__ = ("_content", "_node", "_segment", "direct_io", "keep_cache", "log", "traffic")

    def __init__(self, node: RawFile, segment: Segment | None) -> None:
        """`segment`: the one whose file it is, or None. OSError."""
        self.direct_io = node.partition.mount.files_grow and not node.is_fixed
        self.keep_cache = not self.direct_io
        self.traffic = node.partition.raw_traffic
        self._node = node
        self._segment = segment
        self.log = segment if segment is not None and node.is_log else None
        self._content: bytes | None = None
        if segment is None:
            files = node.partition.log.files
            fd = node.descriptor(None)
            if (size := files.size(fd)) <= _SMALL:
                self._content = files.pread(fd, size, 0)

    @property
    def append_queue(self) -> AppendQueue:
        return self._node.partition.log.append_queue

    @property
    def text_bytes(self) -> int:
        return 0 if self._content is None else len(self._content)

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        """As `Handle.read`; ESTALE where a file that is fixed was cut."""
        if self._node.is_replaced:
            raise self._node.stale()
        if self._content is not None:
            return self._content[position : position + size]
        buffer = bytearray(size)
        done = 0
        read_some = self._opened()
        while done < size:
            got = read_some(memoryview(buffer)[done:], position + done)
            if got is None:
                raise BlockingIOError
            if not got:
                break
            done += got
        if self._node.is_fixed:
            assert self.log is not None
            self._node.check_unchanged(self.log)
        return buffer if done == size else memoryview(buffer)[:done]

    def _opened(self) -> Callable[[memoryview, int], int | None]:
        if self.log is not None:
            return SegmentReader(self.log).raw
        files = self._node.partition.log.files
        read = files.preadv if may_wait() else files.preadv_nowait
        return partial(read, self._node.descriptor(self._segment))

    def release(self) -> None:
        self._node.handles.discard(self)

    def sync_plans(self) -> Sequence[FlushPlan]:
        return self._node.partition.flush_plans()
