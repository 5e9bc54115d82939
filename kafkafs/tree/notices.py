"""Notices to the kernel: the protocol that `kafkafs.fuse.notify` implements.

The kernel keeps attributes and names for an hour, so a change sends a notice before it is answered.
A notice names only an inode that the kernel knows.
"""

from typing import Protocol


class Notices(Protocol):
    """No method waits, so any thread and any request may call it. None raises, since the kernel may
    have forgotten the inode.
    """

    def attributes_changed(self, inode: int) -> None:
        """Drop the kernel's attributes of an inode. Takes microseconds."""

    def names_changed(self) -> None:
        """Have the kernel look up every name again at its next use. Once per change is enough."""


class NoNotices:
    """For a tree without a kernel."""

    def attributes_changed(self, inode: int) -> None: ...

    def names_changed(self) -> None: ...
