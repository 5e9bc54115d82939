"""The files of a mount, also where there is none.

Without a mount they are those of the tree that a mount would show (`kafkafs.tree`), so that text,
places and errors are the same. The directory is open read-only then, without a lock.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from kafkafs.cli.common.addresses import (
    Address,
    Place,
    check_no_address,
    check_paths,
    mount_to_read,
    resolve,
)
from kafkafs.cli.common.mounts import mount_around, mount_that_writes
from kafkafs.cli.common.progress import opened
from kafkafs.cli.common.serving import check_served
from storage.paths import ABOUT, GROUPS

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.tree.inodes import Node
    from storage.manager import LogManager

_READ_BYTES = 1 << 20
_PARTITION = re.compile("0|[1-9][0-9]{0,9}")
READ_COMMITTED = "read_committed"

Read = Callable[[int, int], bytes]
"""Return bytes from a position, at most the given number; none at the end."""
Opened = Callable[..., AbstractContextManager[Read]]
"""Opens a file by the names in its path."""


def tree_of(manager: LogManager, isolation: str = READ_COMMITTED) -> FileSystem:
    """The tree that a mount of a directory would show."""
    from kafkafs.mount_options import MountOptions
    from kafkafs.tree.context import MountContext
    from kafkafs.tree.filesystem import FileSystem

    return FileSystem(MountContext(manager, MountOptions(isolation=isolation)))


def find(tree: FileSystem, *names: str) -> Node:
    """The node of a path. OSError, StorageError."""
    from kafkafs.tree.inodes import Directory

    node: Node = tree.root
    for name in names:
        assert isinstance(node, Directory)
        node = node.lookup(name)
    return node


@contextmanager
def opened_tree(
    data_dir: str, isolation: str = READ_COMMITTED, topics: Container[str] | None = None
) -> Iterator[FileSystem]:
    """The tree of a directory that may be in use. `topics`: open only these; None: all."""
    wanted = None if topics is None else topics.__contains__
    with opened(data_dir, read_only=True, keeps_faulty=True, wanted=wanted) as manager:
        yield tree_of(manager, isolation)


class MountFiles:
    """Small files and directories by their paths. The methods raise OSError and StorageError."""

    def __init__(self, root: str | FileSystem) -> None:
        self._root = root

    @contextmanager
    def opened(self, *names: str) -> Iterator[Read]:
        """Open a file."""
        if isinstance(self._root, str):
            path = os.path.join(self._root, *names)
            fd = patiently(lambda: os.open(path, os.O_RDONLY))
            try:
                yield lambda position, size: os.pread(fd, size, position)
            finally:
                os.close(fd)
        else:
            root = self._root
            handle = patiently(lambda: find(root, *names).open(os.O_RDONLY))
            yield lambda position, size: bytes(handle.read(position, size))

    def read(self, *names: str) -> str:
        """The text of a file."""
        data = b""
        with self.opened(*names) as read:
            while more := read(len(data), _READ_BYTES):
                data += more
        return data.decode(errors="surrogateescape")

    def table(self, *names: str) -> tuple[list[dict[str, str]], list[str]]:
        """(the rows of a file that is a table, by the names of its columns; its lines with #)."""
        # A name may have other blanks and ends of lines.
        header, *lines = self.read(*names).rstrip("\n").split("\n")
        columns = header.split()
        rows = [list(filter(None, line.split(" "))) for line in lines if line[:1] != "#"]
        notes = [line.removeprefix("# ") for line in lines if line[:1] == "#"]
        return [dict(zip(columns, row, strict=True)) for row in rows], notes

    def names(self, *names: str) -> list[str]:
        """The names in a directory."""
        from kafkafs.tree.inodes import Directory

        if isinstance(self._root, str):
            return patiently(partial(os.listdir, os.path.join(self._root, *names)))
        node = find(self._root, *names)
        assert isinstance(node, Directory)
        return list(node.names())


@contextmanager
def opened_files(
    address: Address, needed: str = "", isolation: str | None = None
) -> Iterator[MountFiles]:
    """The files of the mount, or of the tree. `needed`: see `mount_to_read`. `isolation`: use the
    mount only if it has this one; None: any.
    """
    mount = mount_to_read(address, needed)
    if mount is not None:
        files = MountFiles(mount)
        if isolation in (None, _isolation_of(files)):
            yield files
            return
    with opened_tree(address.data_dir, isolation or READ_COMMITTED) as tree:
        yield MountFiles(tree)


def _isolation_of(files: MountFiles) -> str:
    """The isolation of a mount; the default one if only other users may read its options."""
    with suppress(PermissionError):
        for line in files.read(".kafkafs", "config").splitlines():
            name, _, value = line.partition("=")
            if name == "isolation":
                return value
    return READ_COMMITTED


def resolve_mounted(words: Sequence[str]) -> Address | None:
    """Return the logs that the words name by `addresses`; None: they are not mounted.

    Errors: ClickException if the mount does not answer, or for wrong words.
    """
    check_paths(words)
    mounted, path = mount_around(words[0])
    if mounted is None and mount_that_writes(os.path.realpath(path)) is None:
        check_no_address(words[0])
        return None
    address = resolve(words, needs="files", only_mount=True)
    if mounted is None and address.mount is not None:
        check_served(address.mount)
    return address


def mounted_places(address: Address) -> Sequence[Place]:
    """Return the places of an address; without places, all topics of its mount. Errors: OSError."""
    if address.places:
        return address.places
    topics = set(MountFiles(str(address.mount)).names()) - {ABOUT, GROUPS}
    return [(topic, None) for topic in sorted(topics)]


def path_of(mount: str, topic: str, number: int | None) -> str:
    """Return the path of a topic or, with a number, of its partition."""
    return os.path.join(mount, topic, *([] if number is None else [str(number)]))


def partitions_among(names: Iterable[str]) -> list[int]:
    """Return the partitions that the names in a topic's directory are of, ascending."""
    return sorted(int(name) for name in names if _PARTITION.fullmatch(name))


_AGAIN_S = 0.1

_T = TypeVar("_T")


def patiently(call: Callable[[], _T]) -> _T:
    """Call again while a partition is measured."""
    while True:
        try:
            return call()
        except BlockingIOError:
            time.sleep(_AGAIN_S)
