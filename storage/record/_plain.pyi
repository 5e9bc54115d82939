from collections.abc import Callable

from typing_extensions import Buffer

def plain_v2(
    data: Buffer,
    at: int,
    size: int,
    decompress: Callable[[int, memoryview], bytes | bytearray | memoryview],
) -> bytearray: ...
def seal(batch: bytearray) -> None: ...
