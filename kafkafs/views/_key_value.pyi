from typing_extensions import Buffer

from kafkafs.views._whole import WholeRecords

class KeyValueLoops(WholeRecords): ...

def parse_lines(
    data: Buffer, start: int, end: int, timestamp_ms: int, max_batch_bytes: int
) -> tuple[bytearray, int]: ...
