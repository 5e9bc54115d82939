"""Text that is rendered ahead of programs that read in order.

Where the page cache is bypassed each read() is a request, and most programs read 4 to 64 KiB at a
time. For a program that reads in order, as much is rendered ahead as it has read so far, up to
`PIECE` bytes, and the next answers are slices of that. For one that jumps, or reads a few bytes,
nothing is rendered ahead.

A piece has only text from below the end of that moment, and text that is shown never changes. A
piece from before a change of the past is not used.

All pieces of a mount together are within a budget of bytes; those rendered longest ago are dropped.
A piece is dropped, too, when its file is closed, or was not read for a while (`age`).

On the owner's thread only.
"""

from __future__ import annotations

from collections import OrderedDict

from kafkafs.tree.handles import Handle

PIECE = 256 << 10
"""The most bytes of a piece."""


class Piece:
    """Text from position `start` of a file on, up to `end`, as it was after so many `rewrites` of
    the past.
    """

    __slots__ = ("end", "is_used", "rewrites", "start", "text")

    def __init__(self, rewrites: int, start: int, text: bytearray) -> None:
        self.rewrites = rewrites
        self.start = start
        self.end = start + len(text)
        self.text = memoryview(text)
        self.is_used = True


class ReadAhead:
    """The pieces of all open files, one of each at most."""

    def __init__(self, budget: int) -> None:
        self._room = max(budget // PIECE, 1)
        self._pieces: OrderedDict[Handle, Piece] = OrderedDict()
        self.find = self._pieces.get
        """The piece of an open file, or None."""

    @property
    def held_bytes(self) -> int:
        return sum(len(piece.text) for piece in self._pieces.values())

    def keep(self, handle: Handle, piece: Piece) -> None:
        """Keep it in the place of the one that the handle had."""
        self._pieces[handle] = piece
        self._pieces.move_to_end(handle)
        if len(self._pieces) > self._room:
            self._pieces.popitem(last=False)

    def drop(self, handle: Handle) -> None:
        """Drop its piece, if it has one."""
        self._pieces.pop(handle, None)

    def age(self) -> None:
        """Drop the pieces that were not used since the last call."""
        for handle, piece in list(self._pieces.items()):
            if piece.is_used:
                piece.is_used = False
            else:
                del self._pieces[handle]
