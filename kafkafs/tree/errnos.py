"""The errno of each error of the tree and the storage: the only table."""

from __future__ import annotations

import errno

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
