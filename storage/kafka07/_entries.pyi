from typing_extensions import Buffer

WHOLE: int
CUT_OFF: int
COMPRESSED: int
BAD_CRC: int
REASONS: dict[int, str]

def walk(data: Buffer, at: int, end: int, until: int, *, check_crc: bool) -> tuple[int, int]: ...
def head(data: Buffer, at: int, end: int, *, check_crc: bool) -> tuple[int, int, int, int]: ...
def append_records(
    out: bytearray, data: Buffer, at: int, end: int, limit: int, numbered: bool
) -> tuple[int, int, int, int]: ...
def complete(batch: bytearray, base_offset: int, last_delta: int, count: int) -> None: ...
