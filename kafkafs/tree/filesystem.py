"""The root object of the tree, which `kafkafs.fuse.operations` calls.

It has the tables of inodes and open files, and builds the parts of a mount. A node or a handle
answers most requests; this object answers statfs, and shuts down.
"""

from __future__ import annotations

import errno
import os
from collections import Counter

from kafkafs.tree.append.append_handle import AppendHandle
from kafkafs.tree.context import MountContext
from kafkafs.tree.directories.about import AboutPlace
from kafkafs.tree.directories.directory import PageDirectory
from kafkafs.tree.directories.group_directories import GroupsPlace
from kafkafs.tree.directories.topics import RootPlace
from kafkafs.tree.errnos import errno_of
from kafkafs.tree.events import FAULTS
from kafkafs.tree.files.start_file import StartNames
from kafkafs.tree.files.start_names import is_snapshot_name
from kafkafs.tree.groups.claims import Claims
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Directory, Node
from kafkafs.tree.names import ROOT
from kafkafs.tree.open_files import OpenTable
from kafkafs.tree.owner.owner_requests import OwnerRequests
from kafkafs.tree.partition.partitions import Partitions
from storage import paths
from storage.errors import StorageError
from storage.plain_forms import plain_forms


class FileSystem:
    """See the module."""

    def __init__(self, mount: MountContext) -> None:
        self.mount = mount
        self.inodes = self.mount.inodes
        self.open_files = OpenTable(self.mount.open_texts)
        self.partitions = Partitions(self.mount)
        self.owner_requests = OwnerRequests(self.mount)
        self.claims = Claims(self.mount)
        self.start_names = StartNames(self.partitions)
        about = AboutPlace(self.partitions, self.open_files, self.owner_requests)
        groups = GroupsPlace(self.partitions, self.claims, Counter())
        self.root = PageDirectory(ROOT, RootPlace(about, self.start_names, groups))
        self.inodes.remember(self.root)
        self.is_stopped = False
        # Whether a fault of the disk has kept an unfinished line from becoming a record at the end.
        self.has_lost_lines = False

    def lookup(self, parent: int, name: str, process: int = 0) -> Node:
        """ENOENT, ENOTDIR. The caller asks for `attributes`, then calls `answered`.

        `process`: as `asking` has told.
        """
        directory = self.inodes.directory(parent)
        if process:
            known = self.mount.recent.find((process, parent, name))
            if known is not None:
                return self.inodes.find(known.inode) or known
        if len(os.fsencode(name)) > paths.MAX_NAME_LENGTH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return directory.lookup(name)

    def asking(self, parent: int, name: str, thread: int) -> int:
        """The process of a thread that looks up a name, or in a listing all names (""), where it
        counts who asks; else 0.
        """
        directory = self.inodes.find(parent)
        has_snapshots = isinstance(directory, Directory) and directory.has_snapshots
        if has_snapshots or is_snapshot_name(name):
            return self.mount.recent.process_of(thread)
        return 0

    def answered(self, parent: int, name: str, process: int, node: Node) -> None:
        """Note the node of the next answer to the kernel. No await comes before the answer."""
        known = self.inodes.remember(node)
        if process and known.is_passing:
            self.mount.recent.note((process, parent, name), known)

    def opened(self, node: Node, flags: int, thread: int) -> None:
        """A thread has opened what it has looked up."""
        recent = self.mount.recent
        if node.is_passing and node.is_fixed:
            recent.opened(recent.process_of(thread), node)
        elif flags & os.O_ACCMODE != os.O_RDONLY and len(recent):
            recent.writes(recent.process_of(thread))

    def statfs(self) -> os.statvfs_result:
        """The disk's figures (statvfs of the data directory)."""
        manager = self.mount.manager
        return manager.files.space(manager.path)

    def stop(self) -> None:
        """Orderly shutdown: unfinished lines become records, view indexes are saved.

        Writes are ESHUTDOWN from now on; reading goes on. Nobody may queue for a turn.
        """
        self.mount.stopping = self.is_stopped = True
        self.mount.manager.end_turns()
        for file in list(self.open_files.files.values()):
            if isinstance(file.handle, AppendHandle):
                self._release(file.handle)
        self.partitions.stop()
        plain_forms.clear()

    def release_all(self) -> None:
        """Release what is still open: the session has ended, and nobody else will."""
        for number in list(self.open_files.files):
            self._release(self.open_files.remove(number))

    def _release(self, handle: Handle) -> None:
        """Release a handle at the end. The event log has a line of its error already."""
        try:
            handle.release()
        except (StorageError, OSError) as error:
            self.has_lost_lines |= errno_of(error) in FAULTS
