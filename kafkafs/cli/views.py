"""What `kafkafs cat` and `kafkafs append` share: the files of a mount, also where there is none.

Without a mount they are those of the tree that a mount would show (`kafkafs.tree`), so that text,
places and errors are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from kafkafs.tree.inodes import Node
    from storage.directory.manager import LogManager

_F = TypeVar("_F", bound=Callable[..., Any])


def view_option(views: Sequence[str]) -> Callable[[_F], _F]:
    """The option `--view`, of which the first one is the default; the parameter is `view`."""

    def decorate(function: _F) -> _F:
        return click.option(
            "--view",
            type=click.Choice(views),
            default=views[0],
            show_default=True,
            help="How records are written: their values, or as in .VIEW of a mount.",
        )(function)

    return decorate


def path_in_topic(view: str, name: str) -> tuple[str, ...]:
    """Where in its topic a file of this view is."""
    return (name,) if view == "values" else (f".{view}", name)


def tree_of(manager: LogManager) -> FileSystem:
    """The tree that a mount of a directory would show."""
    from kafkafs.mount_options import MountOptions
    from kafkafs.tree.context import MountContext
    from kafkafs.tree.filesystem import FileSystem

    return FileSystem(MountContext(manager, MountOptions()))


def find(tree: FileSystem, *names: str) -> Node:
    """The node of a path. OSError, StorageError."""
    from kafkafs.tree.inodes import Directory

    node: Node = tree.root
    for name in names:
        assert isinstance(node, Directory)
        node = node.lookup(name)
    return node
