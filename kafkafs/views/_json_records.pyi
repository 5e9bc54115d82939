from collections.abc import Callable

from typing_extensions import Buffer

from kafkafs.views.json_records import JsonRecord

class LineEncoder:
    @property
    def lines(self) -> int: ...
    @property
    def line(self) -> bytes: ...
    def __init__(
        self, decode: Callable[[bytes], JsonRecord], timestamp_ms: int, max_batch_bytes: int
    ) -> None: ...
    def encode(self, data: Buffer, start: int, end: int) -> tuple[bytearray, int]: ...
