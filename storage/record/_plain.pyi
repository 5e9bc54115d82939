from collections.abc import Callable

from typing_extensions import Buffer

def plain_v2(
    data: Buffer,
    at: int,
    size: int,
    decompress: Callable[..., bytes | bytearray | memoryview],
    limit: int,
) -> bytearray: ...
def seal(batch: bytearray) -> None: ...
def convert_run(data: Buffer, start: int, end: int, most: int) -> tuple[bytearray, int]: ...
def convert_set(
    data: Buffer, magic: int, wrapper_offset: int, wrapper_timestamp: int, append_time: bool
) -> bytearray: ...
