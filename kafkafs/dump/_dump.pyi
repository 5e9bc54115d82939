from collections.abc import Callable
from typing import Any

from typing_extensions import Buffer

class Walk:
    @property
    def position(self) -> int: ...
    @property
    def gaps(self) -> dict[int, int]: ...
    def __init__(
        self,
        decompress: Callable[..., Buffer],
        control: Callable[[bytes | None, bytes | None], bytes] | None = None,
        decode: Callable[[int, bytes | None, bytes | None], tuple[bytes | None, bytes | None]]
        | None = None,
        *,
        position: int = 0,
        deep: bool = True,
        contents: bool = True,
        metadata: bool = True,
        rows: bool = False,
    ) -> None: ...
    def take(self, write: Callable[[memoryview], object]) -> None: ...
    def take_rows(self) -> list[dict[str, Any]]: ...
    def step(self, data: Buffer, start: int, size: int, end: int, file: int) -> int: ...

def java_text(data: Buffer) -> bytes: ...
