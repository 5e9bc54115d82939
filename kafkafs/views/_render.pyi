from typing_extensions import Buffer

MIN_WINDOW: int
ENTRY_SIZE: int

class Cursor:
    position: int
    batch_end: int
    record_end: int
    value_left: int
    def __init__(self, position: int, batch_end: int = 0) -> None: ...
    def copy(self) -> Cursor: ...

class Measure:
    @property
    def granularity(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def text_length(self) -> int: ...
    @property
    def records(self) -> int: ...
    @property
    def entries(self) -> bytearray: ...
    @property
    def batch_end(self) -> int: ...
    def __init__(self, granularity: int = 4096) -> None: ...

def render(
    data: Buffer,
    data_position: int,
    data_size: int,
    cursor: Cursor,
    out: bytearray | memoryview,
    out_start: int,
    out_end: int,
    skip: int,
) -> tuple[int, int]: ...
def measure(data: Buffer, data_position: int, data_size: int, state: Measure) -> None: ...
def find_entry(entries: Buffer, count: int, text: int) -> tuple[int, int, int, int, int]: ...
