"""`.append`, `.kv/append`, `.jsonl/append`: lines for a topic, each for one of its partitions.

Write-only, and always empty; the mode is what the topic and all of its partitions let through. A
line is a record as in the view of the file's directory; `log.partitioner` chooses its partition.
Each file has one partitioner for all its writers.
"""

from __future__ import annotations

import errno
import os

from kafkafs.tree.append.append_target import TopicTarget
from kafkafs.tree.append.lines_handle import LinesHandle
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Attributes, Change, Node, file_mode
from kafkafs.tree.partition.partitions import Partitions
from kafkafs.views import TextView
from storage.log.partitioner import Partitioner
from storage.manager import Topic
from storage.paths import check_takes_records


class TopicAppend(Node):
    """The file. `name` is its path in the topic, for the event log."""

    __slots__ = ("_name", "_partitioner", "_partitions", "_topic", "_view")

    def __init__(
        self, partitions: Partitions, topic: Topic, inode: int, name: str, view: TextView
    ) -> None:
        super().__init__(inode)
        self._partitions = partitions
        self._topic = topic
        self._name = name
        self._view = view
        self._partitioner = Partitioner()

    @property
    def path(self) -> str:
        return f"{self._topic.name}/{self._name}"

    def attributes(self) -> Attributes:
        mount = self._partitions.mount
        mode, uid, gid = mount.permissions.whole_topic(self._topic)
        return Attributes(
            self.inode,
            file_mode(mode & 0o222),
            0,
            self._topic.extended_ns,
            1,
            uid,
            gid,
            0,
            0.0,
            0.0,
        )

    def set_attributes(self, change: Change) -> None:
        """`>` cuts it to nothing first, which it is already; its mode is not its own."""
        if not change.is_content:
            super().set_attributes(change)

    def open(self, flags: int) -> Handle:
        if flags & os.O_ACCMODE != os.O_WRONLY:
            raise OSError(errno.EACCES, "this file is write-only")
        self._partitions.mount.manager.tiered.check_may_write(self._topic.name)
        check_takes_records(self._topic.name)
        target = TopicTarget(self._partitions, self._topic, self.path, self._partitioner)
        return LinesHandle(target, self._view, flags, None)
