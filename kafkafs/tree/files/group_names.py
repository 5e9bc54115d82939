"""The names of consumer groups as names of files: below `.groups`, and in `N@group=G`.

Kafka takes any name but the empty one. These bytes are written `%` and two hexadecimal digits:

    %, /, and what controls a terminal     00 to 1F, 7F
    a dot                                  the first, the last, and each behind another dot

So nothing begins with a dot, and `..` ends the name in `N@group=G..END`. A group whose spelling has
more than `LONGEST` bytes is not shown.

Each group has one spelling; another one names nothing. Pure.
"""

from __future__ import annotations

import os
import re
from typing import Final

LONGEST: Final = 200
"""Bytes of a spelling: it fits into `N@group=G..END`."""
NOT_SHOWN: Final = f"groups with names of more than {LONGEST} bytes are not supported"
_ESCAPED: Final = re.compile(b"%([0-9A-F]{2})")
_ANY_ESCAPED: Final = re.compile(b"%([0-9A-Fa-f]{2})")
_ESCAPES: Final = frozenset({*range(0x20), 0x7F, *b"%/"})


def file_name(group: str) -> str:
    """The spelling of a group's name."""
    return os.fsdecode(b"".join(_spelt(group, at) for at in range(len(group))))


def is_shown(group: str) -> bool:
    """Whether the group has a name in the mount."""
    return len(os.fsencode(file_name(group))) <= LONGEST


def _spelt(group: str, at: int) -> bytes:
    """The spelling of the character number `at`."""
    char = group[at]
    if char == ".":
        is_escaped = at in (0, len(group) - 1) or group[at - 1] == "."
    else:
        is_escaped = ord(char) in _ESCAPES
    return b"%%%02X" % ord(char) if is_escaped else char.encode("utf-8", "surrogateescape")


def _unescaped(spelt: str, escaped: re.Pattern[bytes]) -> str:
    name = escaped.sub(lambda found: bytes.fromhex(found[1].decode()), os.fsencode(spelt))
    return name.decode("utf-8", "surrogateescape")


def group_name(spelt: str) -> str | None:
    """The group of a spelling; None: no group has it."""
    group = _unescaped(spelt, _ESCAPED)
    return group if group and file_name(group) == spelt and is_shown(group) else None


def why_no_group(spelt: str) -> str:
    """The reason why no group has this spelling."""
    meant = _unescaped(spelt, _ANY_ESCAPED)
    if not is_shown(meant):
        return NOT_SHOWN
    return f"no group has the file name {spelt!r}; use {file_name(meant)}"
