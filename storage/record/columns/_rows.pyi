from collections.abc import Callable, Collection

from typing_extensions import Buffer

class NumbersColumn:
    def __init__(
        self,
        rows: int,
        data: Buffer,
        validity: Buffer | None = None,
        *,
        first: int = 0,
        wide: bool = False,
    ) -> None: ...

class BytesColumn:
    def __init__(
        self,
        rows: int,
        positions: Buffer,
        block: Buffer,
        validity: Buffer | None = None,
        *,
        first: int = 0,
        wide: bool = False,
    ) -> None: ...

class HeadersColumn:
    def __init__(
        self,
        rows: int,
        positions: Buffer,
        names: BytesColumn,
        values: BytesColumn,
        validity: Buffer | None = None,
        *,
        first: int = 0,
        wide: bool = False,
    ) -> None: ...

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
        least_count: int = 0,
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
