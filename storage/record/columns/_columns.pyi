from collections.abc import Iterable

from typing_extensions import Buffer

from storage.record.columns._predicate import Predicate

class AbortedSpans:
    def __init__(self, spans: Iterable[tuple[int, int, int]]) -> None: ...
    def __len__(self) -> int: ...

class VariableColumn:
    @property
    def positions(self) -> bytearray: ...
    @property
    def block(self) -> bytearray: ...
    @property
    def validity(self) -> bytearray | None: ...
    @property
    def nulls(self) -> int: ...

class Columns:
    @property
    def rows(self) -> int: ...
    @property
    def judged(self) -> int: ...
    @property
    def consumed(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    @property
    def ended(self) -> bool: ...
    @property
    def offsets(self) -> bytearray: ...
    @property
    def timestamps(self) -> bytearray: ...
    @property
    def timestamp_types(self) -> bytearray | None: ...
    @property
    def keys(self) -> VariableColumn | None: ...
    @property
    def values(self) -> VariableColumn | None: ...
    @property
    def headers(self) -> VariableColumn | None: ...
    @property
    def header_count(self) -> int: ...
    @property
    def header_names(self) -> VariableColumn | None: ...
    @property
    def header_values(self) -> VariableColumn | None: ...

def decode_columns(
    data: Buffer,
    position: int,
    size: int,
    *,
    from_offset: int = 0,
    to_offset: int = ...,
    keys: bool = True,
    values: bool = True,
    headers: bool = False,
    offsets: bool = True,
    timestamps: bool = True,
    timestamp_types: bool = False,
    timestamps_us: bool = False,
    without_times: bool = False,
    aborted: AbortedSpans | None = None,
    predicate: Predicate | None = None,
    check_crc: bool = False,
    stop: bool = False,
    plain_bytes: int = ...,
) -> Columns: ...
