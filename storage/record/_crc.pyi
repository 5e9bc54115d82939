from typing_extensions import Buffer

WAYS: tuple[str, ...]

def crc32c(data: Buffer, *, way: str = "") -> int: ...
