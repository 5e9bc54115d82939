from typing_extensions import Buffer

from kafkafs.views._measure import Cursor, Measure

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
