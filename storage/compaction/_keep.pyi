from collections.abc import Sequence

from typing_extensions import Buffer

from storage.compaction._offset_map import OffsetMap

def map_batches(
    map: OffsetMap, data: Buffer, at: int, end: int, first_offset: int
) -> tuple[int, bool]: ...
def map_batch(map: OffsetMap, batch: Buffer, first_offset: int) -> bool: ...

class Keeper:
    records_read: int
    records_kept: int
    records_invalid: int
    legacy_tombstones: bool
    tombstones_kept: int
    @property
    def pending(self) -> int: ...
    def __init__(
        self,
        map: OffsetMap,
        *,
        now_ms: int,
        horizon_ms: int,
        special: Sequence[int] = (),
        legacy_tombstones: bool = True,
    ) -> None: ...
    def keep_batches(self, data: Buffer, at: int, end: int) -> int: ...
    def keep_one(
        self, batch: Buffer, *, legacy: bool = False
    ) -> tuple[int, int, bytearray | None]: ...
    def append(self, batch: Buffer) -> None: ...
    def take(self) -> tuple[memoryview, list[tuple[int, int, int, int]]]: ...
