"""The one class of directories, and the rows of `kafkafs.tree.names`, the page of all names.

A `Page` lists the names of one kind of directory. A `Place` is the subject of one directory, such
as a topic; the page's functions take it. `text` and `directory` make the rows of files and of
directories.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from kafkafs.tree.context import MountContext
from kafkafs.tree.files.control_file import Commands, taking
from kafkafs.tree.files.text_file import Content, TextFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import (
    Attributes,
    Caller,
    Change,
    Directory,
    Node,
    directory_mode,
    inode_number,
    missing,
)
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.partitions import Partitions
from storage.modes import Ownership
from storage.waiting import may_wait

FOLLOW_S = 0.02
"""Seconds that the loop thread follows another process at most before a long text is made."""


class Place:
    """The subject of a directory. `path` is its path in the mount."""

    partition: Partition | None = None
    """The partition whose replacement replaces the directory."""

    def __init__(self, partitions: Partitions, path: str, inode: int) -> None:
        self.partitions = partitions
        self.mount: MountContext = partitions.mount
        self.path = path
        self.inode = inode

    def number(self, name: str) -> int:
        """The inode number of a name in the directory."""
        return inode_number(self.path, name)


S = TypeVar("S", bound=Place)
P = TypeVar("P", bound=Place)


class Listed(Enum):
    """Whether a listing has a name."""

    ALWAYS = 1
    WITH_SHOW_DOT = 2
    NEVER = 3


def while_notified(place: Place, inode: int) -> float:
    """The kernel keeps attributes and names until it gets a notice."""
    return place.mount.attr_timeout


def never(place: Place, inode: int) -> float:
    """Another process may make the change: the kernel keeps neither attributes nor names."""
    return 0.0


def until_appended(place: Place, inode: int) -> float:
    """An append changes the attributes."""
    assert place.partition is not None
    return place.partition.keep_s(inode)


@dataclass(frozen=True)
class Row(Generic[S]):
    """One name. `page`: a directory's own names. `exists`: whether this mount has the name."""

    node: Callable[[S, str], Node]
    """Makes the node of the name."""
    listed: Listed = Listed.ALWAYS
    exists: Callable[[S], bool] = lambda place: True
    page: Page[Any] | None = None


def refuse(why: str, number: int = errno.EPERM) -> Callable[..., NoReturn]:
    """A change that is refused."""

    def change(*request: object) -> NoReturn:
        raise OSError(number, why)

    return change


_NO_MKDIR = refuse("directories can be created only at the top of the mount, as topics")
_NO_RMDIR = refuse("only topics can be removed")
_NO_CREATE = refuse("files can be created only in a topic, as its next partition")
_NO_UNLINK = refuse("files here cannot be removed")


@dataclass(frozen=True, kw_only=True)
class Page(Generic[S]):
    """The names in one kind of directory, and what a user can do there."""

    access: Callable[[S], Ownership]
    rows: dict[str, Row[S]] = field(default_factory=dict)
    find: Callable[[S, str], Node | None] = lambda place, name: None
    """Returns the node of a name without a row; None: there is no such name."""
    others: Callable[[S], Sequence[str]] = lambda place: ()
    """Lists the names without a row."""
    refresh: Callable[[S], object] = lambda place: None
    """Takes over what another process has written, on the loop thread, before a lookup."""
    mtime_ns: Callable[[S], int] = lambda place: place.mount.manager.changed_ns
    """When a name was added or removed last; the same after a remount."""
    keep_s: Callable[[S, int], float] = while_notified
    """Seconds that the kernel may keep the attributes."""
    kind: str = "directory"
    """As `Node.kind`."""
    has_snapshots: bool = False
    appends: bool = False
    """As in `Directory`."""
    chmod: Callable[[S, Change], None] | None = None
    """Changes mode and owner, durably."""
    mkdir: Callable[[S, str, int, Caller], None] = _NO_MKDIR
    rmdir: Callable[[S, str, Caller], None] = _NO_RMDIR
    create: Callable[[S, str, int, int, Caller], tuple[Node, Handle]] = _NO_CREATE
    unlink: Callable[[S, str], None] = _NO_UNLINK
    """Runs on the loop thread. MustQueue."""

    def directories(self) -> Iterator[str]:
        """Yield the paths of the directories in this one that have rows."""
        for name, row in self.rows.items():
            if row.page is not None:
                yield name
                yield from (f"{name}/{below}" for below in row.page.directories())


class PageDirectory(Directory, Generic[S]):
    """The directory of `place`, with the names of `page`."""

    __slots__ = ("appends", "has_snapshots", "kind", "page", "place")

    def __init__(self, page: Page[S], place: S) -> None:
        super().__init__(place.inode)
        self.page = page
        self.place = place
        self.kind = page.kind
        self.has_snapshots = page.has_snapshots
        self.appends = page.appends

    @property
    def path(self) -> str:
        return self.place.path

    @property
    def is_replaced(self) -> bool:
        partition = self.place.partition
        return partition is not None and partition.is_replaced

    def remembered(self) -> None:
        partition = self.place.partition
        if partition is not None:
            partition.remember(self, grows=self.page.keep_s is until_appended)

    def forgotten(self) -> None:
        partition = self.place.partition
        if partition is not None:
            partition.forget(self)

    # -- names ---------------------------------------------------------------------------------

    def lookup(self, name: str) -> Node:
        page, place = self.page, self.place
        if not may_wait():
            page.refresh(place)
        row = page.rows.get(name)
        if row is not None and row.exists(place):
            return row.node(place, name)
        found = page.find(place, name)
        if found is None:
            raise missing(name)
        return found

    def names(self) -> list[str]:
        listed = [Listed.ALWAYS]
        if self.place.mount.options.show_dot:
            listed.append(Listed.WITH_SHOW_DOT)
        rows = self.page.rows.items()
        return [
            *(name for name, row in rows if row.listed in listed and row.exists(self.place)),
            *self.page.others(self.place),
        ]

    # -- attributes ----------------------------------------------------------------------------

    def attributes(self) -> Attributes:
        page, place, mount = self.page, self.place, self.place.mount
        mode, uid, gid = page.access(place)
        # On a writable mount only requests remove directories, and the kernel sees those.
        name_timeout = mount.name_timeout if mount.manager.read_only else mount.attr_timeout
        return Attributes(
            self.inode,
            directory_mode(mode),
            0,
            page.mtime_ns(place),
            2,
            uid,
            gid,
            0,
            page.keep_s(place, self.inode),
            0.0 if page.keep_s is never else name_timeout,
        )

    def set_attributes(self, change: Change) -> None:
        """chmod and chown. Elsewhere touch, and a mode and an owner that the directory has already
        (`cp -a`, tar), change nothing.
        """
        if self.page.chmod is not None:
            if change.size is not None:
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            if not change.is_touch:
                self.page.chmod(self.place, change)
                self._drop_attributes_below()
            return
        shown = self.attributes()
        has_them = (
            change.size is None
            and (change.mode is None or stat.S_IMODE(change.mode) == stat.S_IMODE(shown.mode))
            and change.uid in (None, shown.uid)
            and change.gid in (None, shown.gid)
        )
        if not has_them:
            super().set_attributes(change)

    def _drop_attributes_below(self) -> None:
        """Have the kernel drop the attributes of the directories that follow this one."""
        for path in self.page.directories():
            self.place.mount.notices.attributes_changed(self.place.number(path))

    # -- changes -------------------------------------------------------------------------------

    def mkdir(self, name: str, mode: int, caller: Caller) -> Node:
        self.page.mkdir(self.place, name, mode, caller)
        return self.lookup(name)

    def rmdir(self, name: str, caller: Caller) -> None:
        self.page.rmdir(self.place, name, caller)

    def create(self, name: str, mode: int, flags: int, caller: Caller) -> tuple[Node, Handle]:
        made = self.page.create(self.place, name, mode, flags, caller)
        self._drop_attributes_below()
        return made

    def unlink(self, name: str) -> None:
        self.page.unlink(self.place, name)


# -- rows ------------------------------------------------------------------------------------------


def directory_of(page: Page[P], place: P) -> Node:
    """The directory that shows a place."""
    return place.mount.inodes.find(place.inode) or PageDirectory(page, place)


def directory(
    page: Page[P], place: Callable[[S, str], P], listed: Listed = Listed.WITH_SHOW_DOT
) -> Row[S]:
    """A directory; `place` makes what it shows."""
    return Row(lambda above, name: directory_of(page, place(above, name)), listed, page=page)


def now_ns(place: Place) -> int:
    """The text is as it is now."""
    return place.mount.clock_ns()


def text(
    make: Callable[[S], str | Content],
    access: Callable[[S], Ownership],
    *,
    takes: Callable[[S, str], Commands[Any]] | None = None,
    writable: Callable[[S], bool] = lambda place: True,
    is_long: bool = False,
    mtime_ns: Callable[[S], int] = now_ns,
    listed: Listed = Listed.ALWAYS,
    exists: Callable[[S], bool] = lambda place: True,
) -> Row[S]:
    """A file whose text `make` makes at each open; of a long one in a worker thread.

    `takes` makes the rules of an open file that takes lines, from its path too; only if it is
    `writable`.
    """

    def node(place: S, name: str) -> Node:
        inode, path = place.number(name), f"{place.path}/{name}"
        take = None
        if takes is not None and writable(place):
            take = taking(partial(takes, place, path))
        follow = place.partitions.follow_all
        return place.mount.inodes.find(inode) or TextFile(
            inode,
            partial(make, place),
            partial(access, place),
            partial(mtime_ns, place),
            prepare=(lambda: follow(time.monotonic() + FOLLOW_S)) if is_long else None,
            take=take,
            path=path,
            of=place.partition,
        )

    return Row(node, listed, exists)
