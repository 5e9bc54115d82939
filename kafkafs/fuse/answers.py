"""The tree's answers and exceptions in FUSE's words; the only table of errno."""

from __future__ import annotations

import errno

import pyfuse3

from kafkafs.tree.files.start_names import NoPoint
from kafkafs.tree.inodes import FIRST_KEEP_S, Attributes, Directory, Node
from storage import errors

#: The errno of a StorageError; its closest base class counts.
ERRNO: dict[type[Exception], int] = {
    errors.StorageError: errno.EIO,
    errors.CorruptRecord: errno.EIO,
    errors.CorruptCheckpoint: errno.EIO,
    errors.OffsetOutOfRange: errno.ERANGE,
    errors.RecordTooLarge: errno.EMSGSIZE,
    errors.InvalidRecord: errno.EINVAL,
    errors.InvalidTopic: errno.EINVAL,
    errors.InvalidConfig: errno.EINVAL,
    errors.PolicyViolation: errno.EPERM,
    errors.FaultyPartition: errno.EIO,
    errors.TopicExists: errno.EEXIST,
    errors.HandoverRefused: errno.EIO,
    errors.UnknownTopicOrPartition: errno.ENOENT,
    errors.LogLocked: errno.EBUSY,
    errors.ReadOnlyLog: errno.EROFS,
    errors.ReadOnlyFormat: errno.EROFS,
    errors.SegmentGone: errno.ESTALE,
    errors.LogClosed: errno.ESHUTDOWN,
    errors.TaskCancelled: errno.ECANCELED,
    errors.Fenced: errno.EPERM,
    errors.BatchGap: errno.EINVAL,
    errors.SwapRefused: errno.EINVAL,
}

#: Errors that programs meet every day, and understand. The log of events has the reason of all
#: others, since the caller sees only a number. (EAGAIN: the file has said how far it is.)
EVERYDAY = frozenset(
    {
        errno.ENOENT,
        errno.EEXIST,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENODATA,
        errno.ENAMETOOLONG,
        errno.EBADF,
        errno.EAGAIN,
    }
)
#: What needs its reason even so.
UNCOMMON = NoPoint, errors.TopicExists, errors.IgnoredEntry


def errno_of(error: Exception) -> int | None:
    """The errno of an exception of the tree or the storage; None: a bug of ours."""
    if isinstance(error, OSError):
        # BlockingIOError may come bare: a wait that was given up.
        return error.errno or (errno.EAGAIN if isinstance(error, BlockingIOError) else None)
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    for kind in type(error).__mro__:
        if kind in ERRNO:
            return ERRNO[kind]
    return None


def first_entry_of(node: Node, attributes: Attributes) -> pyfuse3.EntryAttributes:
    """The entry that hands a node to the kernel, which may not know it yet."""
    entry = entry_of(attributes)
    if not node.lookups and not isinstance(node, Directory):
        entry.attr_timeout = min(attributes.attr_timeout, FIRST_KEEP_S)
    return entry


def entry_of(attributes: Attributes) -> pyfuse3.EntryAttributes:
    """Attributes in pyfuse3's form."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = attributes.inode
    entry.st_mode = attributes.mode
    entry.st_size = attributes.size
    entry.st_nlink = attributes.nlink
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_blocks = attributes.blocks
    entry.st_blksize = attributes.block_size
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = attributes.mtime_ns
    entry.attr_timeout = attributes.attr_timeout
    entry.entry_timeout = attributes.entry_timeout
    return entry
