"""Notices to the kernel: `kafkafs.fuse.notify` sends them.

The kernel keeps attributes and names for an hour, so a change sends a notice before it is answered.
A notice names only an inode that the kernel knows.
"""

from typing import Protocol


class Waiter(Protocol):
    """The processes that wait in poll(2) for one open file; the kernel has named them."""

    def notify(self) -> None:
        """Have them poll again; once. OSError."""


class Notices:
    """For a tree without a kernel.

    No method waits, so any thread and any request may call it. None raises, since the kernel may
    have forgotten the inode.
    """

    def attributes_changed(self, inode: int) -> None:
        """Drop the kernel's attributes of an inode; its pages stay. Takes microseconds."""

    def names_changed(self) -> None:
        """Have the kernel look up every name again at its next use. Once per change is enough."""

    def wake(self, waiter: Waiter) -> None:
        """Have those who wait in poll(2) for an open file poll it again."""
