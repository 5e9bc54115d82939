"""What the tree tells the kernel: the protocol that `kafkafs.fuse.notify` implements.

The kernel caches attributes and entries for an hour, so whoever changes what they say tells it
before the change is answered. Only inodes that the kernel knows are named.
"""

from typing import Protocol


class Notices(Protocol):
    """Kernel invalidations. Neither method raises: that the kernel has forgotten is normal."""

    def attributes_changed(self, inode: int) -> None:
        """Drops the kernel's attributes of an inode. Takes microseconds; safe inside a handler."""

    def entry_changed(self, parent: int, name: str) -> None:
        """Drops the kernel's entry `name` of the directory `parent`.

        The kernel may hold the directory's lock, so this only hands it to another thread; who
        answers a request that publishes a new generation waits for that thread first.
        """


class NoNotices:
    """For a tree that no kernel looks at."""

    def attributes_changed(self, inode: int) -> None:
        """Nobody to tell."""

    def entry_changed(self, parent: int, name: str) -> None:
        """Nobody to tell."""
