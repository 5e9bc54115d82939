"""Tells the kernel what it must forget: `kafkafs.tree.notices.Notices` on pyfuse3.

Nothing here waits, so both notices are safe in any thread and inside any handler. A thread that
waited in the kernel for a directory's lock (as FUSE_NOTIFY_INVAL_ENTRY does, while a lookup there
waits for us) would not die by kill -9, and the mount with it would hang for ever.

- Attributes of an inode: FUSE_NOTIFY_INVAL_INODE without a data range. (With one it would wait for
  pages that a READ has locked.)
- Names: FUSE_NOTIFY_INC_EPOCH (linux/fuse.h, protocol 7.44) has the kernel look up every name that
  it keeps again, at its next use. pyfuse3 does not know it, so it is written to the session's
  descriptor. A kernel that does not know it either answers EINVAL, and may then keep no name that
  can come to lead elsewhere: `drops_names`.

Invariant: after `stop` nothing reaches pyfuse3 any more, which must be so before its session is
closed.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Callable

import pyfuse3

_DEVICE = "/dev/fuse"
#: fuse_out_header: length, FUSE_NOTIFY_INC_EPOCH, 0 as nobody has asked.
_INC_EPOCH = struct.pack("=IiQ", 16, 8, 0)


class KernelNotices:
    """Both notices may come from any thread; neither waits, neither raises.

    `epochs`: whether to use FUSE_NOTIFY_INC_EPOCH where the kernel has it.
    """

    def __init__(self, say: Callable[[str], None], *, epochs: bool = True) -> None:
        self._say = say
        self._live = False
        self._epochs = epochs
        # The session's descriptor is the one that `start` finds besides these.
        self._foreign = _fuse_descriptors()
        self._session = -1
        self.drops_names = False
        """Whether the kernel can be told to forget names; known after `start`."""

    def start(self) -> None:
        """From now on there is a kernel to be told; call it once, when the mount is there."""
        self._live = True
        found = _fuse_descriptors() - self._foreign
        if self._epochs and len(found) == 1:
            self._session = found.pop()
            with contextlib.suppress(OSError):
                os.write(self._session, _INC_EPOCH)
                self.drops_names = True

    def stop(self) -> None:
        """No more of it."""
        self._live = False

    def attributes_changed(self, inode: int) -> None:
        """Drop the kernel's attributes of an inode; its pages stay."""
        if self._live:
            try:
                pyfuse3.invalidate_inode(inode, attr_only=True)
            except FileNotFoundError:
                pass  # the kernel has forgotten the inode by itself
            except OSError as error:
                self._failed(f"inode {inode}", error)

    def names_changed(self) -> None:
        """Have the kernel look up every name again."""
        if self._live and self.drops_names:
            try:
                os.write(self._session, _INC_EPOCH)
            except OSError as error:
                self._failed("names", error)

    def _failed(self, what: str, error: OSError) -> None:
        self._say(f"the kernel could not be told to forget {what}: {error}")


def _fuse_descriptors() -> set[int]:
    """This process's descriptors of the device through which sessions talk with the kernel."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the one of listdir itself
            if os.readlink(f"/proc/self/fd/{name}") == _DEVICE:
                found.add(int(name))
    return found
