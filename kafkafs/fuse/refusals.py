"""The lines of `.kafkafs/log` about refused requests: what, why, and what to do instead.

The caller of a request sees an errno only. The node or the storage says why; what to do instead
says the table here, by the operation and the kind of node that it met (for a name: the directory).
What the kernel refuses by itself, such as what the modes forbid, never comes here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kafkafs.tree.inodes import Node
from storage.errors import ReadOnlyLog, refusal_of

NO_SUCH_FILES = "there are only topics and partitions here"
NO_LINKS = "there are no links here"
FACTS_ONLY = "extended attributes show facts, and there are no ACLs"

_COPY = "a program that writes a new file and renames it needs rsync --inplace, tar --overwrite, >>"
_MAKE = "mkdir TOPIC makes a topic, touch TOPIC/N its next partition"
_OWN = "chmod and chown TOPIC or TOPIC/N; settings: echo NAME=VALUE >> TOPIC/.config"
_DELETE = (
    "records go by echo N OFFSET > TOPIC/.control/delete-records (those of partition N below "
    "OFFSET) and by retention (TOPIC/.config), a topic by rmdir"
)
INSTEAD: dict[tuple[str, str], str] = {
    ("create", "mount"): _MAKE,
    ("create", "topic"): f"touch {{parent}}/N makes the next one; {_COPY}",
    ("create", "directory"): "touch TOPIC/N makes a partition, in all views",
    ("lookup", ""): "N@1234, N@-10, N@-15m, N@08:00, N@2026-11-21T08:00, N@start, N@end, N@group=G "
    "and N@START..END do: cat .kafkafs/help",
    ("link", ""): "a symbolic link elsewhere may point here",
    ("mkdir", "group"): "mkdir .groups/GROUP makes a group; what is below follows from topics",
    ("mkdir", "topic"): "touch {parent}/N makes the next partition",
    ("mkdir", "directory"): "mkdir at the top of the mount makes a topic",
    ("mknod", ""): _MAKE,
    ("open", "file"): ">> TOPIC/N appends, TOPIC/.config takes settings, TOPIC/.control commands",
    ("open", "partition"): f">> appends; {_DELETE}",
    ("removexattr", ""): _OWN,
    ("rename", "mount"): "mkdir {target}, for each partition touch {target}/N and "
    "cp {path}/.batches/N {target}/.batches/N, rmdir {path}",
    ("rename", "topic"): "cat {path} >> TOPIC/N copies the values, .batches/N whole records",
    ("rmdir", "topic"): "rmdir {parent} deletes the topic with everything in it",
    ("setattr", "partition"): _DELETE,
    ("setxattr", ""): _OWN,
    ("symlink", ""): "a link elsewhere may point here",
    ("unlink", "directory"): "rmdir at the top of the mount deletes a topic with everything in it",
}
"""What to do instead, by operation and the node's kind, or for all other kinds."""


class Refused(NamedTuple):
    """What a request was about. `node`: the directory of `name`, or the node itself; None where it
    is not known. `target`: the other name of a rename or a link.
    """

    operation: str
    node: Node | None
    name: str = ""
    target: str = ""

    @property
    def _parent(self) -> str:
        return self.node.path if self.node is not None else ""

    @property
    def _path(self) -> str:
        """The path in the mount, as far as it is known."""
        return "/".join(filter(None, (self._parent, self.name)))

    def __str__(self) -> str:
        path, to = self._path, f" to {_shown(self.target)}" if self.target else ""
        return f"{self.operation} of {_shown(path)}{to}" if path else self.operation

    def line(self, error: Exception) -> str:
        """The line for an error that the caller has brought about."""
        kind = self.node.kind if self.node is not None else ""
        instead = INSTEAD.get((self.operation, kind)) or INSTEAD.get((self.operation, ""))
        line = f"{self} refused: {refusal_of(error)}"
        if instead is None or isinstance(error, ReadOnlyLog):
            return line
        path, parent, target = map(_shown, (self._path, self._parent, self.target))
        return f"{line}; {instead.format(path=path, parent=parent, target=target)}"


_PLAIN = re.compile(r"[\w./@:+,=~…-]+", re.ASCII)


def _shown(path: str) -> str:
    """A path from outside in a line: quoted where it could be taken for something else."""
    return path if _PLAIN.fullmatch(path) else repr(path)
