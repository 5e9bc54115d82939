"""A handle for appending, in any view.

A write appends all whole lines or batches, or none; only in a new partition may it append the first
batches alone (`batches_handle.py`). The handle keeps the bytes after them (`_kept`)
and joins them with the next write; at release `lines_handle.py` appends the rest, and
`batches_handle.py` drops it. The target appends to one partition, or to those of a topic that the
partitioner chooses (`append_target.py`).

After a disk error the handle is as before, and the writer may try again. After a refusal of the
content (EMSGSIZE, EINVAL, ENOMEM for what is unfinished) the handle drops the rest, which may be
part of the refused content. The kernel reports a refused piece of a large write() as a short count,
and the writer goes on from there: the handle then treats the same bytes as it did before.
"""

from __future__ import annotations

import errno
import os
from array import array
from collections.abc import Sequence
from typing import Generic, NoReturn, TypeVar

from kafkafs.metrics import Traffic
from kafkafs.tree.append.append_target import (
    AppendTarget,
    NewPartitionTarget,
    TopicTarget,
)
from kafkafs.tree.errnos import errno_of
from kafkafs.tree.events import mark_logged
from kafkafs.tree.handles import Handle, Opener
from kafkafs.tree.unfinished import CountedRest, UnfinishedError
from storage.errors import InvalidRecord, RecordTooLarge, StorageError, refusal_of
from storage.log.flush import FlushPlan

_PAGE = 4096
"""No piece of a large write() but the last is smaller."""
_SYNC = os.O_SYNC | os.O_DSYNC

T = TypeVar("T", bound=AppendTarget)


class _Written:
    """Recognizes written bytes, by the hash of each page: many files would hold many bytes."""

    __slots__ = ("_pages", "_size")

    def __init__(self, data: bytes) -> None:
        self._size = len(data)
        self._pages = _hashes(data)

    def begins(self, data: bytes) -> bool:
        """Whether `data` begins with these bytes."""
        return len(data) >= self._size and _hashes(data[: self._size]) == self._pages

    def begins_with(self, data: bytes) -> bool:
        """Whether these bytes begin with the pages of `data`, at least one."""
        pages = len(data) // _PAGE
        if not pages or len(data) > self._size:
            return False
        return _hashes(data[: pages * _PAGE]) == self._pages[:pages]


def _hashes(data: bytes) -> array[int]:
    """The hash of each page of some bytes."""
    view = memoryview(data)
    return array("q", (hash(view[at : at + _PAGE]) for at in range(0, len(data), _PAGE)))


class AppendHandle(Handle, Generic[T]):
    """See the module. `reader` answers reads where the file is open for both."""

    __slots__ = (
        *("_flags", "_kept", "_refused", "_target", "asks_groups", "reader", "sync_due"),
        "traffic",
    )

    direct_io = True

    def __init__(self, target: T, flags: int, reader: Handle | None) -> None:
        self._target = target
        self._flags = flags
        self.reader = reader
        self.traffic: Traffic | None = None
        self._kept = CountedRest(target.mount.unfinished)
        # The last refused write, and its error where it had begun inside of a line or batch.
        self._refused: tuple[_Written, StorageError | OSError | None] | None = None
        self.asks_groups = isinstance(target, TopicTarget)
        self.sync_due = False

    def opened_by(self, opener: Opener) -> None:
        self._kept.uid = opener.uid
        if isinstance(self._target, TopicTarget):
            self._target.opener = opener

    # -- for subclasses ------------------------------------------------------------------------

    def _take(self, data: bytes) -> tuple[int, bool]:
        """Append what `data` completes, and keep the rest; or raise, with nothing changed.

        Returns how many bytes of it were taken, and whether anything was appended.
        """
        raise NotImplementedError

    def _check_rest(self) -> None:
        """Raise where closing the file would refuse the rest."""
        raise NotImplementedError

    def _drop_rest(self, data: bytes) -> None:
        """Drop the rest: the content of the write `data` was refused."""
        raise NotImplementedError

    def _is_inside(self) -> bool:
        """Whether the next write begins inside of a line or batch."""
        return bool(self._kept)

    def _begin_again(self) -> None:
        """The writer repeats a refused write, from the beginning of its line or batch."""

    # -- writing -------------------------------------------------------------------------------

    def write(self, position: int, data: bytes) -> int:
        """Append what `data` completes, and keep the rest. MustQueue: nothing has changed."""
        if not data:
            return 0
        self._target.check_may_append()
        if self._refused is not None:
            self._look_again(data)
        try:
            self._check_stopping()
            if not self._flags & os.O_APPEND:
                assert isinstance(self._target, NewPartitionTarget | TopicTarget)
                self._target.check_order(position)
            size, has_appended = self._take(data)
            if has_appended:
                self.sync_due = self._target.flush_due or self._flags & _SYNC != 0
        except (StorageError, OSError) as error:
            self._refuse(error, data)
        self._target.written(position + size)
        return size

    def _check_stopping(self) -> None:
        if self._target.mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")

    def _look_again(self, data: bytes) -> None:
        """Handle refused bytes that come again, perhaps in smaller pieces.

        Where they began a line or batch they are parsed again; where its beginning was dropped they
        are refused again, with the same error: without its traceback, which would grow, and keep
        what each write wrote.
        """
        assert self._refused is not None
        refused, error = self._refused
        if error is None:
            if refused.begins(data):
                self._begin_again()
        elif refused.begins(data) or refused.begins_with(data):
            raise error.with_traceback(None)
        self._refused = None

    def _refuse(self, error: StorageError | OSError, data: bytes) -> NoReturn:
        """Log the error, drop refused content, and raise it."""
        if isinstance(error, (RecordTooLarge, InvalidRecord, UnfinishedError)):
            self._refused = (_Written(data), error if self._is_inside() else None)
            self._drop_rest(data)
        self._log_refusal(error)
        raise error

    def _log_refusal(self, error: StorageError | OSError) -> None:
        """Log and count a refused append."""
        if isinstance(error, StorageError):
            kind = type(error).__name__
        else:
            kind = errno.errorcode.get(error.errno or 0, "EIO")
        self._target.mount.counters.refused_appends[kind] += 1
        self._say_refused(error)

    def _say_refused(self, error: StorageError | OSError) -> None:
        self._say(f"append refused: {refusal_of(error)}", errno_of(error))
        mark_logged(error)

    def _say(self, what: str, number: int | None = None) -> None:
        self._target.mount.events.of_request(f"{self._target.name}: {what}", number)

    # -- the end -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Raise where the rest would be refused; appends nothing."""
        if not self._kept:
            return
        try:
            self._check_stopping()
            self._check_rest()
        except (StorageError, OSError) as error:
            # The append at release counts it.
            self._say_refused(error)
            raise

    def release(self) -> None:
        self._target.released()
        super().release()

    def sync_plans(self) -> Sequence[FlushPlan]:
        self.sync_due = False
        return self._target.flush_plans()
