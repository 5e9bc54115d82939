from collections.abc import Callable

from typing_extensions import Buffer

from kafkafs.views.json_records import JsonRecord

def encode_lines(
    decode: Callable[[bytes], JsonRecord],
    data: Buffer,
    start: int,
    end: int,
    timestamp_ms: int,
    max_batch_bytes: int,
    begun: bytes | bytearray = b"",
) -> tuple[bytearray, int]: ...
