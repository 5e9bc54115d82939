"""The lines of `.kafkafs/log` about refused requests: what, why, and what to do instead.

The caller of a request sees an errno only. The node or the storage says why; what to do instead
says the table here, by the operation and the kind of node that it met (for a name: the directory).
Requests that the kernel refuses by itself, such as by the modes, never come here.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kafkafs.tree.inodes import Node
from storage.errors import ReadOnlyLog, refusal_of

NO_SUCH_FILES = "only topics and partitions can be created here"
NO_LINKS = "links are not supported"
FACTS_ONLY = "extended attributes are read-only, and ACLs are not supported"

_COPY = (
    "programs that write a new file and rename it need an option (rsync --inplace, tar --overwrite)"
)
_MAKE = "to create a topic: mkdir TOPIC; its next partition: touch TOPIC/N"
_OWN = "use chmod and chown on TOPIC or TOPIC/N; for settings: echo NAME=VALUE >> TOPIC/.config"
_DELETE = (
    "to delete the records of partition N below OFFSET: echo N OFFSET > "
    "TOPIC/.control/delete-records; by age or size: TOPIC/.config; the topic: rmdir"
)
INSTEAD: dict[tuple[str, str], str] = {
    ("create", "mount"): _MAKE,
    ("create", "topic"): f"to create the next one: touch {{parent}}/N; {_COPY}",
    ("create", "directory"): "to create a partition in all views: touch TOPIC/N",
    ("lookup", ""): "valid names: N@1234, N@-10, N@-15m, N@08:00, N@2026-11-21T08:00, N@start, "
    "N@end, N@group=G and N@START..END; see .kafkafs/help",
    ("link", ""): "create the link outside of the mount, as a symbolic link",
    (
        "mkdir",
        "group",
    ): "to create a group: mkdir .groups/GROUP; its files are created with the topics",
    ("mkdir", "topic"): "to create the next partition: touch {parent}/N",
    ("mkdir", "directory"): "to create a topic: mkdir at the top of the mount",
    ("mknod", ""): _MAKE,
    (
        "open",
        "file",
    ): "to append: >> TOPIC/N; to change settings: >> TOPIC/.config; commands: TOPIC/.control",
    ("open", "partition"): f"to append: >>; {_DELETE}",
    ("removexattr", ""): _OWN,
    ("rename", "mount"): "to copy the topic instead: mkdir {target}; for each partition "
    "touch {target}/N and cp {path}/.batches/N {target}/.batches/N; rmdir {path}",
    ("rename", "topic"): "to copy the values: cat {path} >> TOPIC/N; whole records: .batches/N",
    ("rmdir", "topic"): "to delete the topic with all its records: rmdir {parent}",
    ("setattr", "partition"): _DELETE,
    ("setxattr", ""): _OWN,
    ("symlink", ""): "create the link outside of the mount",
    (
        "unlink",
        "directory",
    ): "to delete a topic with all its records: rmdir at the top of the mount",
}
"""What to do instead, by operation and the node's kind, or for all other kinds."""


class Refused(NamedTuple):
    """The subject of a request. `node`: the directory of `name`, or the node itself; None where it
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
    """A path of a request in a line; quoted if a reader could misread it."""
    return path if _PLAIN.fullmatch(path) else repr(path)
