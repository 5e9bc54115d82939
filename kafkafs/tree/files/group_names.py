"""The names of consumer groups as names of files: below `.groups`, and in `N@group=G`.

Kafka takes any name but the empty one. These bytes are written `%` and two hexadecimal digits:

    %, /, and what controls a terminal     00 to 1F, 7F
    a dot                                  the first, the last, and each behind another dot

So nothing begins with a dot, and `..` ends the name in `N@group=G..END`. A name of more than
`LONGEST` bytes is written as its beginning, `%~` and a hash; it finds an existing group, and makes
none.

Each group has one spelling; another one names nothing. Pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Final

LONGEST: Final = 200
"""Bytes of a spelling: it fits into `N@group=G..END`."""
_KEPT: Final = 128
"""Bytes at the beginning of a spelling with a hash."""
_HASH: Final = re.compile("%~[0-9a-f]{32}")
_ESCAPED: Final = re.compile(b"%([0-9A-F]{2})")
_ANY_ESCAPED: Final = re.compile(b"%([0-9A-Fa-f]{2})")
_ESCAPES: Final = frozenset({*range(0x20), 0x7F, *b"%/"})


def file_name(group: str) -> str:
    """The spelling of a group's name."""
    parts = [_spelt(group, at) for at in range(len(group))]
    spelt = b"".join(parts)
    if len(spelt) > LONGEST:
        kept = b""
        for part in parts:
            if len(kept) + len(part) > _KEPT:
                break
            kept += part
        spelt = kept + b"%~" + blake2b(_bytes(group), digest_size=16).hexdigest().encode()
    return os.fsdecode(spelt)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _spelt(group: str, at: int) -> bytes:
    """The spelling of the character number `at`."""
    char = group[at]
    if char == ".":
        is_escaped = at in (0, len(group) - 1) or group[at - 1] == "."
    else:
        is_escaped = ord(char) in _ESCAPES
    return b"%%%02X" % ord(char) if is_escaped else _bytes(char)


def _unescaped(spelt: str, escaped: re.Pattern[bytes]) -> str:
    name = escaped.sub(lambda found: bytes.fromhex(found[1].decode()), os.fsencode(spelt))
    return name.decode("utf-8", "surrogateescape")


def group_name(spelt: str) -> str | None:
    """The group of a spelling; None where it is none, or one with a hash."""
    group = _unescaped(spelt, _ESCAPED)
    return group if group and file_name(group) == spelt else None


def right_spelling(given: str) -> str:
    """How the group is spelt that a wrong spelling means."""
    return file_name(_unescaped(given, _ANY_ESCAPED))


def spelt_group(spelt: str, groups: Callable[[], Iterable[str]]) -> str | None:
    """As `group_name`, also where the spelling has a hash: of one of these groups."""
    group = group_name(spelt)
    if group is None and _HASH.search(spelt) is not None:
        return next((each for each in groups() if file_name(each) == spelt), None)
    return group
