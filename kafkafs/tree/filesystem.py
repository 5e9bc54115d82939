"""The root object of the tree: what `kafkafs.fuse.operations` talks to.

It holds the tables of inodes and handles, the partitions with their views, and what is recent
(`events`). A request is answered by the node or handle that its number leads to; this object adds
what belongs to none of them: statfs, shutdown, periodic work.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kafkafs.tree.events import Events
from kafkafs.tree.handles import HandleTable
from kafkafs.tree.inodes import Directory, InodeTable, Node
from kafkafs.tree.notices import NoNotices, Notices

if TYPE_CHECKING:
    from storage.manager import LogManager


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Mount options that change what the tree shows."""

    read_only: bool = False
    show_dot: bool = False
    """readdir lists the dot names too."""
    uid: int | None = None
    gid: int | None = None
    """Shown as everything's owner, whatever chown has set."""
    umask: int = 0
    """Permission bits that nothing shows."""
    isolation: str = "read_committed"


class FileSystem:
    """See the module. `notices` is replaced by the mount when the kernel is there to be told."""

    inodes: InodeTable
    handles: HandleTable
    events: Events
    notices: Notices
    stopping: bool
    """Set at shutdown: writes are ESHUTDOWN from then on."""

    def __init__(
        self,
        manager: "LogManager",
        options: TreeOptions | None = None,
        *,
        clock_ms: Callable[[], int],
        notices: Notices | None = None,
        events: Events | None = None,
    ) -> None:
        self.manager = manager
        self.options = options or TreeOptions()
        self.inodes = InodeTable()
        self.handles = HandleTable()
        self.events = events or Events(clock_ms)
        self.notices = notices or NoNotices()
        self.stopping = False

    def lookup(self, parent: int, name: str, wait: bool) -> Node:
        """ENOENT, ENOTDIR. The caller asks for `attributes`, then `inodes.remember(node)`."""
        node = self.inodes.get(parent)
        assert isinstance(node, Directory)
        return node.lookup(name, wait)

    def statfs(self) -> os.statvfs_result:
        """The disk's figures (statvfs of the data directory)."""
        return os.statvfs(self.manager.path)

    def tick(self) -> None:
        """Periodic work on the owner's thread, once a second or so: view indexes are saved."""

    def housekeeping(self) -> None:
        """Periodic work that may wait for a disk: the daemon runs it in a worker thread."""

    def stop(self) -> None:
        """Orderly shutdown: unfinished lines become records, view indexes are saved."""
        self.stopping = True
