from collections.abc import Sequence

from typing_extensions import Buffer

from kafkafs.views.json_records import JsonRecord

def encode_records(
    records: Sequence[JsonRecord], text_size: int, timestamp_ms: int, max_batch_bytes: int
) -> tuple[bytearray, int]: ...
def count_lines(data: Buffer, start: int, end: int) -> int: ...
