"""A handle for appending: what those of all views share.

A write is appended as far as it is whole, or none of it; what is not whole stays with the handle
(`_rest`) and is joined with the next write. What becomes of it at release says the kind of handle:
`lines_handle.py`, `batches_handle.py`. Where records go, to one partition or to any of a topic,
says its target: `append_target.py`, `topic_append.py`.

What a refused write leaves: after a disk error the handle is as before, and the same write can be
tried again. After a refusal of the content (EMSGSIZE, EINVAL) the rest, which may be part of what
was refused, is dropped. Of a large write() the kernel reports a piece that is refused as a short
count, and the writer goes on from there: the same bytes once more are looked at as they were the
first time.

Everything here runs on the owner's thread.
"""

from __future__ import annotations

import errno
import os
from typing import Generic, NoReturn, TypeVar

from kafkafs.tree.append.append_target import AppendTarget
from kafkafs.tree.handles import FlushPlan, Handle, WritingHandle
from storage.errors import InvalidRecord, RecordTooLarge, StorageError

_PAGE = 4096
"""No piece of a large write() but the last is smaller."""
_SYNC = os.O_SYNC | os.O_DSYNC

T = TypeVar("T", bound=AppendTarget)


class AppendHandle(WritingHandle, Generic[T]):
    """See the module. `reader` answers reads where the file is open for both."""

    __slots__ = ("_flags", "_refused", "_target", "sync_due")

    def __init__(self, target: T, flags: int, reader: Handle | None) -> None:
        super().__init__(reader)
        self._target = target
        self._flags = flags
        # The last write where its content was refused, and its error where that write had begun
        # inside of something.
        self._refused: tuple[bytes, StorageError | None] | None = None
        self.sync_due = False

    # -- what the kinds of handles do ----------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Append what is whole with `data`, and keep the rest; or raise, and be as before."""
        raise NotImplementedError

    def _put(self, data: bytes | bytearray, start: int, end: int, now_ns: int) -> None:
        """Have the target append `data[start:end]`."""
        raise NotImplementedError

    def _check_rest(self) -> None:
        """Whether what is left would be accepted if the file were closed now."""
        raise NotImplementedError

    def _drop_rest(self, data: bytes) -> None:
        """The content of the write `data` was refused."""
        raise NotImplementedError

    def _is_inside(self) -> bool:
        """Whether the next write does not begin where something may begin."""
        return bool(self._rest)

    def _begin_again(self) -> None:
        """A refused write comes again that had begun where something may begin."""

    # -- writing -------------------------------------------------------------------------------

    def write(self, position: int, data: bytes) -> int:
        """Append what is whole of `data`, and keep the rest."""
        size = len(data)
        if not size:
            return 0
        if self._refused is not None:
            self._look_again(data)
        try:
            self._check_stopping()
            if not self._flags & os.O_APPEND:
                raise OSError(errno.EPERM, "a partition is written with O_APPEND only")
            self._take(data)
        except BlockingIOError:
            raise
        except (StorageError, OSError) as error:
            self._refuse(error, data)
        self._target.written(position + size)
        return size

    def _append(self, data: bytes | bytearray, start: int, end: int) -> None:
        target = self._target
        self._put(data, start, end, target.mount.clock_ns())
        self.sync_due = target.flush_due or self._flags & _SYNC != 0

    def _check_stopping(self) -> None:
        if self._target.mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")

    def _look_again(self, data: bytes) -> None:
        """After a refusal: whether the refused bytes come again, perhaps in smaller pieces.

        Where they began something, they are looked at anew; where they belonged to something
        whose beginning has been dropped, they are refused again.
        """
        assert self._refused is not None
        refused, error = self._refused
        if error is None:
            if data.startswith(refused):
                self._begin_again()
        elif data.startswith(refused) or (len(data) >= _PAGE and refused.startswith(data)):
            raise error
        self._refused = None

    def _refuse(self, error: StorageError | OSError, data: bytes) -> NoReturn:
        """Name the error in the log, leave the handle in order, and raise it on."""
        if isinstance(error, (RecordTooLarge, InvalidRecord)):
            self._refused = (data, error if self._is_inside() else None)
            self._drop_rest(data)
        self._tell(error)
        raise error

    def _tell(self, error: StorageError | OSError) -> None:
        """Name an append that was refused in the log, and count it."""
        if isinstance(error, StorageError):
            kind = type(error).__name__
        else:
            kind = errno.errorcode.get(error.errno or 0, "EIO")
        self._target.mount.counters.refused_appends[kind] += 1
        self._say(f"append refused: {_reason(error)}")

    def _say(self, what: str) -> None:
        self._target.mount.events(f"{self._target.name}: {what}")

    # -- the end -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Whether what is left would be accepted; nothing is appended."""
        if not self._rest:
            return
        try:
            self._check_stopping()
            self._check_rest()
        except (StorageError, OSError) as error:
            # Counted when it comes to appending it.
            self._say(f"append refused: {_reason(error)}")
            raise

    def release(self) -> None:
        self._target.released()

    def sync_plan(self) -> FlushPlan | None:
        self.sync_due = False
        return self._target.flush_plan()


def _reason(error: StorageError | OSError) -> str:
    return str(error) if isinstance(error, StorageError) else str(error.strerror)
