from typing_extensions import Buffer

def encode_lines(
    data: Buffer,
    start: int,
    end: int,
    timestamp_ms: int,
    max_batch_bytes: int,
    begun: bytes | bytearray = b"",
) -> tuple[bytearray, int]: ...
