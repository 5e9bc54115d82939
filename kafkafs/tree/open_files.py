"""The open files: the kernel's number of each, with its node and its handle."""

from __future__ import annotations

import errno
import itertools
from typing import NamedTuple

from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Node
from kafkafs.tree.unfinished import OpenTexts


class OpenFile(NamedTuple):
    """One open(2): `handle` answers the requests, and `node` names the file in messages."""

    node: Node
    handle: Handle
    uid: int


class OpenTable:
    """Number -> open file. No number is used twice. Counts the texts that the files hold."""

    __slots__ = ("_numbers", "_texts", "files")

    def __init__(self, texts: OpenTexts) -> None:
        self._texts = texts
        self.files: dict[int, OpenFile] = {}
        self._numbers = itertools.count(1)

    def add(self, node: Node, handle: Handle, uid: int) -> int:
        """Add a file that a user opens, and return its number.

        ENOMEM if the user holds too much text; the handle is released.
        """
        if handle.text_bytes:
            try:
                self._texts.check(uid, handle.text_bytes)
            except OSError:
                handle.release()
                raise
            self._texts.add(uid, handle.text_bytes)
        number = next(self._numbers)
        self.files[number] = OpenFile(node, handle, uid)
        return number

    def get(self, number: int) -> Handle:
        """The handle of a number that the kernel sent. EBADF."""
        found = self.files.get(number)
        if found is None:
            raise OSError(errno.EBADF, "no such handle")
        return found.handle

    def node(self, number: int) -> Node | None:
        """The node of an open file, for messages; None where no file has this number."""
        found = self.files.get(number)
        return None if found is None else found.node

    def remove(self, number: int) -> Handle:
        """Remove an open file, and return its handle. EBADF."""
        handle = self.get(number)
        file = self.files.pop(number)
        if handle.text_bytes:
            self._texts.add(file.uid, -handle.text_bytes)
        return handle
