from typing_extensions import Buffer

def find_record(
    batch: Buffer, *, offset: int = ..., timestamp: int = ..., number: int = 0
) -> tuple[int, int, int] | None: ...
