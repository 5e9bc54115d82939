"""What the tree tells the kernel: the protocol that `kafkafs.fuse.notify` implements.

The kernel keeps attributes and names for an hour, so whoever changes what they say tells it before
the change is answered. Only inodes that the kernel knows are named.
"""

from typing import Protocol


class Notices(Protocol):
    """Neither waits, so both may come in any thread and inside a handler; neither raises: that the
    kernel has forgotten is normal.
    """

    def attributes_changed(self, inode: int) -> None:
        """Drops the kernel's attributes of an inode. Takes microseconds."""

    def names_changed(self) -> None:
        """Names lead elsewhere: has the kernel look up every one that it keeps at its next use.

        Once per change is enough, however many names it concerns.
        """


class NoNotices:
    """For a tree that no kernel looks at."""

    def attributes_changed(self, inode: int) -> None:
        """Nobody to tell."""

    def names_changed(self) -> None:
        """Nobody to tell."""
