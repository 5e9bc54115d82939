from collections.abc import Callable

from typing_extensions import Buffer

def route(
    data: Buffer,
    count: int,
    stuck_to: int,
    stays: int,
    next_partition: Callable[[int], int],
    stay_bytes: int,
    max_batch_bytes: int,
) -> tuple[dict[int, bytearray], int, int]: ...
