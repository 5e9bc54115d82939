from collections.abc import Sequence
from typing import Final

from typing_extensions import Buffer

KINDS: Final[dict[str, int]]

class Avro:
    def __init__(
        self, nodes: Sequence[tuple[int, int, int, int]], edges: Sequence[tuple[int, bytes]]
    ) -> None: ...
    def decode(self, data: Buffer, start: int = 0, whole: bool = False) -> tuple[bytes, int]: ...
