"""Notices to the kernel: `kafkafs.fuse.notify` sends them.

The kernel keeps attributes and names for an hour, so a change sends a notice before it is answered.
A notice names only an inode that the kernel knows.
"""


class Notices:
    """For a tree without a kernel.

    No method waits, so any thread and any request may call it. None raises, since the kernel may
    have forgotten the inode.
    """

    def attributes_changed(self, inode: int) -> None:
        """Drop the kernel's attributes of an inode; its pages stay. Takes microseconds."""

    def names_changed(self) -> None:
        """Have the kernel look up every name again at its next use. Once per change is enough."""
