from typing_extensions import Buffer

def entries_up_to(
    entries: Buffer, size: int, at: int, width: int, count: int, target: int
) -> int: ...
