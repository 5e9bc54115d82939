"""Decides which entries count at the top level of a data directory, by their owners.

If others may write the data directory (o+w), any user may put settings, checkpoints or partitions
there. So a process that writes the directory counts only the entries of root, of the directory's
owner and of its own user (`Files.top_owners`). There is one exception: if all partition directories
and `meta.properties` belong to one user, that user's entries count, too. The volume of a container
is such a directory: all users may write it, and it has the files of one broker.

A process that only reads counts all entries.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import stat

from storage import paths
from storage.directory.topics import TopicPartition
from storage.files import Files

# A detached directory was a broker's, too.
_BROKERS = (paths.META_PROPERTIES, paths.META_PROPERTIES + paths.DETACHED)
NAMED = 100
"""The number of ignored entries that get a line of their own."""


def others_may_write(files: Files, path: str) -> bool:
    """Return whether other users may write a data directory. Errors: OSError."""
    return bool(files.file_stat(path).st_mode & stat.S_IWOTH)


def closing_command(path: str) -> str:
    """Return the command that takes the write permission on a data directory from others."""
    return f"chmod o-w {shlex.quote(path)}"


def others_text(path: str) -> str:
    """Return a message about a data directory that others may write."""
    return f"{path}: every user can create files in the data directory and delete its files"


class Ignored(dict[str, int]):
    """The ignored entries of a data directory: the owner's uid, by name."""

    def __init__(self, files: Files, path: str) -> None:
        """Limit `files` to the entries that count, and note the others. Errors: OSError."""
        super().__init__()
        self._path = path
        if not others_may_write(files, path):
            return
        owners = dict[str, int]()
        for name in files.names(path):
            with contextlib.suppress(OSError):  # it was removed meanwhile
                owners[name] = files.file_stat(os.path.join(path, name)).st_uid
        counting = {0, files.file_stat(path).st_uid, os.geteuid()}
        brokers = {owners[name] for name in _BROKERS if name in owners}
        partitions = {owners[name] for name in owners if paths.is_partition_directory(name)}
        if brokers == partitions and len(brokers) == 1:
            counting |= brokers
        files.top_owners = frozenset(counting)
        self.update((name, uid) for name, uid in owners.items() if uid not in counting)

    def lines(self) -> list[str]:
        """Return a line for each ignored entry; one for all above `NAMED`."""
        why = (
            f"and other users can write to the directory. To use it: {closing_command(self._path)}"
        )
        found = [
            f"{os.path.join(self._path, name)}: ignored: it belongs to user {uid}, {why}"
            for name, uid in sorted(self.items())
        ]
        more = len(found) - NAMED
        return found if more <= 0 else [*found[:NAMED], f"{self._path}: {more} more are ignored"]

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions among the ignored entries."""
        return [each for name in self if (each := paths.parse_partition_directory(name))]
