from typing import Any

from typing_extensions import Buffer

class Predicate:
    def __init__(self, part: tuple[Any, ...]) -> None: ...

def matches(part: tuple[Any, ...], key: Buffer | None) -> bool: ...
def kept(
    batch: Buffer,
    predicate: Predicate,
    from_offset: int,
    to_offset: int,
    without_times: bool = False,
    most: int = ...,
) -> bytearray | None: ...
def depth(part: tuple[Any, ...]) -> int: ...
