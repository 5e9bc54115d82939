"""Java's properties files, as a broker's are (`Properties.load`).

`name=value`, `name:value` or `name value`; blank lines, and comments from `#` or `!` at a line's
start; a line that ends with an odd number of backslashes continues in the next one, without the
white space at that one's start; `\\t`, `\\n`, `\\r`, `\\f` and `\\uXXXX` stand for characters,
another backslash for what follows it. Of a name that is there twice the last one counts. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_BLANK = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
# A name ends at the first separator that is not escaped.
_NAME = re.compile(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), (" ", "\\ "))
_CHARACTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse(data: bytes) -> dict[str, str]:
    """Return the values by name. Bytes that are not UTF-8 are kept as surrogates."""
    found: dict[str, str] = {}
    for line in _logical_lines(data.decode(errors="surrogateescape")):
        match = _NAME.match(line)
        assert match is not None, "it matches nothing, too"
        found[_plain(match[1])] = _plain(line[match.end() :])
    return found


def line(name: str, value: str) -> str:
    """Return a line with its end; `name` has no special characters."""
    for character, escaped in _ESCAPED:
        value = value.replace(character, escaped)
    return f"{name}={value}\n"


def _logical_lines(text: str) -> Iterator[str]:
    whole, goes_on = "", False
    for line in _LINE_END.split(text):
        part = line.lstrip(_BLANK)
        if not goes_on and (not part or part[0] in "#!"):
            continue
        whole += part
        goes_on = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        if goes_on:
            whole = whole[:-1]
        else:
            yield whole
            whole = ""
    if whole:
        yield whole


def _plain(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escaped = match[1]
        if len(escaped) == 5:
            return chr(int(escaped[1:], 16))
        return _CHARACTERS.get(escaped, escaped)

    return _ESCAPE.sub(character, text)
