"""Files that take lines and act on them: `.config`.

A line acts inside the `write()` that carries its newline, which returns the errno; `>` and `>>` are
the same. What follows the last newline waits for the next write, and acts at release. All lines of
a write are looked at before the first one acts: a wrong one is EINVAL and changes nothing.

Reading gives the state as text, made at open as for any virtual file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Change
from kafkafs.tree.virtual_file import Content, Owner, VirtualFile
from storage.errors import InvalidConfig

LONGEST_LINE = 1 << 16

Act = Callable[[Sequence[str]], None]
"""Carries out lines, all of them or none. Raises StorageError or OSError."""


class ControlFile(VirtualFile):
    """`act` takes the complete lines of a write, without newlines."""

    __slots__ = ("_act",)

    def __init__(
        self,
        inode: int,
        make: Callable[[], Content],
        act: Act,
        owner: Callable[[], Owner],
        mtime_ns: Callable[[], int],
    ) -> None:
        super().__init__(inode, make, owner, mtime_ns)
        self._act = act

    def set_attributes(self, change: Change) -> None:
        """`>` cuts it to nothing first, which means nothing here."""
        if change.mode is not None or change.uid is not None or change.gid is not None:
            super().set_attributes(change)

    def open(self, flags: int, wait: bool) -> Handle:
        access = flags & os.O_ACCMODE
        if access == os.O_RDONLY:
            return self.open_content(wait)
        reader = self.open_content(wait) if access == os.O_RDWR else None
        return ControlHandle(self._act, reader)


class ControlHandle(Handle):
    """Collects lines and has them carried out."""

    __slots__ = ("_act", "_reader", "_rest")

    direct_io = True
    structural = True

    def __init__(self, act: Act, reader: Handle | None) -> None:
        self._act = act
        self._reader = reader
        self._rest = b""

    def read(self, position: int, size: int, wait: bool) -> bytes | bytearray | memoryview:
        if self._reader is None:
            return super().read(position, size, wait)
        return self._reader.read(position, size, wait)

    def write(self, position: int, data: bytes) -> int:
        *lines, rest = (self._rest + data).split(b"\n")
        # A refused write leaves nothing behind: the next one begins with a new line.
        self._rest = b""
        if len(rest) > LONGEST_LINE:
            raise InvalidConfig(f"a line of more than {LONGEST_LINE} bytes")
        self._carry_out(lines)
        self._rest = rest
        return len(data)

    def release(self) -> None:
        rest, self._rest = self._rest, b""
        if rest:
            self._carry_out([rest])

    def _carry_out(self, lines: Sequence[bytes]) -> None:
        if lines:
            try:
                text = [line.decode() for line in lines]
            except UnicodeDecodeError:
                raise InvalidConfig("a line is not UTF-8") from None
            self._act(text)
