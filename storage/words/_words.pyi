from typing import Final

from storage.record.header import Buffer

MOST_BLOCKS: Final = 256
PAGE_BUCKETS: Final = 512
BUCKET_BYTES: Final = 8
ANY_BLOCK: Final = 0xFF
BITS_SIZE: Final = 32
MOST_ENTRIES: Final = 2500000

def hash_of(data: Buffer, secret: int, secret_2: int, is_key: bool) -> int: ...
def checksum(data: Buffer, secret: int, position: int) -> int: ...

class PartBuilder:
    count: int
    next_offset: int

    def __init__(self, secret: int, secret_2: int, next_offset: int) -> None: ...
    @property
    def block_count(self) -> int | None: ...
    def read(self, batches: Buffer) -> None: ...
    def end_block(self, block: int) -> None: ...
    def end(self, position: int) -> tuple[bytearray, bytearray, int]: ...
