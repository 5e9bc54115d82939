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
