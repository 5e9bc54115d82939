from typing_extensions import Buffer

from kafkafs.views._measure import Cursor, Measure

class WholeRecords:
    def render(
        self,
        data: Buffer,
        data_position: int,
        data_size: int,
        cursor: Cursor,
        out: bytearray | memoryview,
        out_start: int,
        out_end: int,
        skip: int,
    ) -> tuple[int, int]: ...
    def measure(self, data: Buffer, data_position: int, data_size: int, state: Measure) -> None: ...
