"""Sends notices to the kernel: `kafkafs.tree.notices.Notices` on pyfuse3. They drop attributes and
names from its cache, and wake processes in poll(2).

No notice waits, so all are safe in any thread and inside any handler. FUSE_NOTIFY_INVAL_ENTRY
would wait in the kernel for a directory's lock while a lookup there waits for us; kill -9 does not
end such a thread, and the mount would hang for ever.

- Attributes of an inode: FUSE_NOTIFY_INVAL_INODE without a data range. (With one it would wait for
  pages that a READ has locked.)
- Names: FUSE_NOTIFY_INC_EPOCH (linux/fuse.h, protocol 7.44) makes the kernel look up each cached
  name again at its next use. pyfuse3 does not know it, so this module writes it to the session's
  descriptor. An older kernel answers EINVAL (`drops_names` is then False), and must not cache names
  that may lead elsewhere later.
- Who waits in poll(2): FUSE_NOTIFY_POLL, to which the kernel answers nothing where the file is
  closed by now.

Invariant: after `stop` nothing calls pyfuse3 any more; call `stop` before its session closes.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable

import pyfuse3

from kafkafs.tree.notices import Notices, Waiter

_DEVICE = "/dev/fuse"
#: fuse_out_header: length, FUSE_NOTIFY_INC_EPOCH, 0 for no request.
_INC_EPOCH = struct.pack("=IiQ", 16, 8, 0)


class KernelNotices(Notices):
    """`epochs`: whether to use FUSE_NOTIFY_INC_EPOCH where the kernel has it."""

    def __init__(self, say: Callable[[str], None], *, epochs: bool = True) -> None:
        self._say = say
        self._live = False
        self._epochs = epochs
        # `start` takes the descriptor that is not among these for the session's.
        self._foreign = _fuse_descriptors()
        self._session = -1
        self.drops_names = False
        """Whether the kernel forgets names on a notice; known after `start`."""

    def start(self) -> None:
        """Begin to send notices; call it once, after the mount."""
        self._live = True
        found = _fuse_descriptors() - self._foreign
        if self._epochs and len(found) == 1:
            self._session = found.pop()
            with contextlib.suppress(OSError):
                os.write(self._session, _INC_EPOCH)
                self.drops_names = True

    def stop(self) -> None:
        """Send no more notices."""
        self._live = False

    def attributes_changed(self, inode: int) -> None:
        if self._live:
            try:
                pyfuse3.invalidate_inode(inode, attr_only=True)
            except FileNotFoundError:
                pass  # the kernel has forgotten the inode already
            except OSError as error:
                self._failed(f"inode {inode}", error)

    def names_changed(self) -> None:
        if self._live and self.drops_names:
            try:
                os.write(self._session, _INC_EPOCH)
            except OSError as error:
                self._failed("names", error)

    def wake(self, waiter: Waiter) -> None:
        if self._live:
            try:
                waiter.notify()
            except OSError as error:
                self._say(f"cannot wake processes that wait for a file: {error}")

    def _failed(self, what: str, error: OSError) -> None:
        self._say(f"cannot tell the kernel to forget {what}: {error}")


def _fuse_descriptors() -> set[int]:
    """This process's descriptors of /dev/fuse."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of listdir itself
            if os.readlink(f"/proc/self/fd/{name}") == _DEVICE:
                found.add(int(name))
    return found
