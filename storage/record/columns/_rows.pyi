from collections.abc import Callable, Collection

from typing_extensions import Buffer

from storage.record.columns._cells import BytesColumn, HeadersColumn, NumbersColumn

class RowEncoder:
    @property
    def row(self) -> int: ...
    @property
    def held(self) -> int: ...
    def __init__(
        self,
        partitions: Collection[int],
        write: Callable[[int, memoryview], None],
        another: Callable[[int], int],
        *,
        batch_bytes: int,
        max_batch_bytes: int,
        stay_bytes: int,
        keys_required: bool = False,
        before_ms: int = ...,
        after_ms: int = ...,
    ) -> None: ...
    def records(self, partition: int) -> int: ...
    def add(
        self,
        now_ms: int,
        keys: BytesColumn | None,
        values: BytesColumn,
        *,
        headers: HeadersColumn | None = None,
        timestamps: NumbersColumn | None = None,
        partitions: NumbersColumn | None = None,
        selection: Buffer | None = None,
    ) -> None: ...
    def flush(self, partition: int) -> None: ...
