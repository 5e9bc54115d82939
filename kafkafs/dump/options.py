"""The options of a dump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

#: Java's largest int: the largest size of a log file.
LARGEST_FILE: Final = 2**31 - 1

#: Takes a record's offset, key and value; returns the text of key and value, None for null.
Decode: TypeAlias = Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes are in bytes. `decode` None: UTF-8 text. `contents` needs `deep`."""

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = 5 * 1024 * 1024
    max_bytes: int = LARGEST_FILE
    decode: Decode | None = None
