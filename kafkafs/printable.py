"""Text that came from outside (names, paths, what a file holds), as people and programs may read
it.

A newline in a name would forge a line of a log, an escape sequence would write over a terminal, and
bytes that are no UTF-8 cannot be written at all. All text for people passes through here once,
where it is written: the log of events, the files that show facts, metrics, and what commands print.
Data stays as it is: the views, and ``dump``.

Pure.
"""

from __future__ import annotations

_PLAIN = bytes([*b"\n", *range(ord(" "), 0x7F)])
"""The newline, and ASCII's characters that can be printed."""


def one_line(text: str) -> str:
    """The text as one line, in which everything that cannot be printed is escaped as in Python
    (``\\n``, ``\\x1b``, ``\\u202e``; ``\\udcff`` for the byte FF that is no UTF-8).
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def lines(text: str) -> str:
    """Escape a text as ``one_line`` does, except for newlines, which the program has written."""
    if text.isascii() and not text.encode().translate(None, _PLAIN):
        # Nearly all are so, and some have megabytes.
        return text
    return "\n".join(map(one_line, text.split("\n")))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode()
