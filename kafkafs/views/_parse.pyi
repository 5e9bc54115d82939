from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

def encode_lines(
    data: Buffer, start: int, end: int, timestamp_ms: int, max_batch_bytes: int
) -> tuple[bytearray, int]: ...
def last_newline(data: Buffer) -> int: ...
