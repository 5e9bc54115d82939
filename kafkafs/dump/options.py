"""How to dump."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

#: Java's largest int: no file of a log is longer.
LARGEST_FILE: Final = 2**31 - 1

#: The text of a record's key and value, each None for none; given its offset, key and value.
Decode: TypeAlias = Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes in bytes; `decode` None is UTF-8 text. `contents` wants `deep`."""

    deep: bool = False
    contents: bool = False
    metadata: bool = True
    verify_index_only: bool = False
    index_sanity_check: bool = False
    max_message_size: int = 5 * 1024 * 1024
    max_bytes: int = LARGEST_FILE
    decode: Decode | None = None
