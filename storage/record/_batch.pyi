from typing import Final

from typing_extensions import Buffer

from storage.errors import StorageError

ATTRIBUTES: Final = 21
BATCH_LENGTH: Final = 8
CRC: Final = 17
HEADER_SIZE: Final = 61
LAST_OFFSET_DELTA: Final = 23
LEGACY_ATTRIBUTES: Final = 17
LOG_OVERHEAD: Final = 12
MAGIC: Final = 16
MAX_TIMESTAMP: Final = 35
PRODUCER_ID: Final = 43
RECORDS_COUNT: Final = 57
SMALLEST_ENTRY: Final = 14
SMALLEST_V1: Final = 22

APPEND_TIME_BIT: Final = 0x08
CODEC_BITS: Final = 0x07
CONTROL_BIT: Final = 0x20
HORIZON_BIT: Final = 0x40
TRANSACTIONAL_BIT: Final = 0x10

def refusal(fault: int, position: int, header: bytes = b"") -> StorageError: ...
def assign_offsets(
    data: bytearray, first_offset: int, leader_epoch: int
) -> list[tuple[int, int, int, int]]: ...
def walk_batches(
    data: Buffer, size: int, base_offset: int, next_offset: int, limit: int
) -> tuple[int, int, int, int, str, bool]: ...
def proven_size(data: Buffer, shortest: int) -> int: ...

class Rebuild:
    @property
    def base_offset(self) -> int: ...
    @property
    def index_interval(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def max_timestamp(self) -> int: ...
    @property
    def max_timestamp_offset(self) -> int: ...
    @property
    def first_max_timestamp(self) -> int: ...
    @property
    def last_batch_position(self) -> int: ...
    @property
    def offset_before_last(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def offset_entries(self) -> bytearray: ...
    @property
    def time_entries(self) -> bytearray: ...
    @property
    def epochs(self) -> list[tuple[int, int]]: ...
    @property
    def producers(
        self,
    ) -> list[tuple[int, int, int, int, int, int, int, int, int, int]]: ...
    @property
    def fault(self) -> str | None: ...
    @property
    def bytes_since(self) -> int: ...
    def __init__(
        self,
        base_offset: int,
        index_interval: int,
        *,
        position: int = 0,
        next_offset: int | None = None,
        indexed_position: int = 0,
        indexed_timestamp: int = -1,
        max_timestamp: int = -1,
        max_timestamp_offset: int | None = None,
        epoch: int = -1,
    ) -> None: ...
    def feed(
        self, data: Buffer, size: int, file_position: int, *, check_crc: bool = True
    ) -> int: ...
    def skip(self, end: int, next_offset: int) -> None: ...
