"""The works of `codec.py`: their cases, their data, and the functions of kafkafs."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass

from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

from kafkafs.views._measure import Cursor
from kafkafs.views._parse import encode_lines
from kafkafs.views._render import LOOPS
from storage.record.columns._columns import decode_columns
from storage.record.compression import CODECS
from storage.record.plain import plain, recompress

MIB = 1 << 20
BATCH_BYTES = 128 * 1024  # 100 records a batch and more
ONE_BYTES = 250  # room for a record of 100 bytes, not for two
LOG_BYTES = MIB  # the part of a log that is read at once: the largest request of the kernel
REQUEST_BYTES = MIB  # the text that is appended at once
T = 1_700_000_000_000


@dataclass(frozen=True)
class Data:
    """Lines, and logs of them in pieces, as readers get them."""

    lines: list[bytes]
    text: bytes
    logs: list[bytes]
    out: bytearray  # room for a log's text


@dataclass(frozen=True)
class Case:
    """One row of the table. `goal` is against aiokafka."""

    work: str  # render, columns, encode
    values: str  # 10 B, 100 B, 1 KiB, mixed
    codec: int = 0
    one: bool = False  # one record a batch
    magic: int = 2
    goal: float | None = None

    @property
    def title(self) -> str:
        batches = ", one a batch" if self.one else ""
        format = f"v{self.magic} " if self.magic != 2 else ""
        return f"{self.work}, {self.values}, {format}{CODECS[self.codec]}{batches}"


CASES = [
    Case("render", "10 B", goal=12),
    Case("render", "100 B", goal=8),
    Case("render", "1 KiB", goal=3),
    Case("render", "mixed", goal=6),
    *(Case("render", "mixed", codec) for codec in (1, 2, 3, 4)),
    *(Case("render", "mixed", codec, magic=1) for codec in (0, 1, 2, 3)),
    *(Case("columns", values, goal=7) for values in ("10 B", "100 B", "1 KiB", "mixed")),
    *(Case("columns", "mixed", codec) for codec in (1, 2, 3, 4)),
    *(Case("encode", values, goal=7) for values in ("10 B", "100 B", "1 KiB", "mixed")),
    *(Case("encode", "mixed", codec) for codec in (1, 2, 3, 4)),
    Case("render", "100 B", one=True, goal=5),
    *(Case("render", "100 B", codec, one=True) for codec in (1, 2, 3, 4)),
    Case("columns", "100 B", one=True, goal=5),
    Case("encode", "100 B", one=True, goal=5),
    *(Case("encode", "100 B", codec, one=True) for codec in (1, 2, 3, 4)),
]


# -- data ----------------------------------------------------------------------------------------


@functools.cache
def words() -> bytes:
    """Return text that compresses like real text. Lines are pieces of it."""
    rng = random.Random(1)
    known = [b"%x" % rng.getrandbits(rng.choice((12, 24, 40))) for _ in range(3000)]
    return b" ".join(rng.choices(known, k=300_000))


def make_lines(values: str, size: int) -> list[bytes]:
    """Return lines of about `size` bytes together."""
    rng = random.Random(1)
    lengths = {"10 B": [10], "100 B": [100], "1 KiB": [1024]}.get(values, [10, 30, 100, 250, 1024])
    lines = []
    while size > 0:
        length = rng.choice(lengths)
        at = rng.randrange(len(words()) - length)
        lines.append(words()[at : at + length])
        size -= length + 1
    return lines


def make_logs(case: Case, lines: list[bytes]) -> list[bytes]:
    """Return the stored logs that a work reads, of LOG_BYTES of text each."""
    logs = []
    piece: list[bytes] = []
    size = 0
    for line in lines:
        piece.append(line)
        size += len(line) + 1
        if size >= LOG_BYTES:
            logs.append(make_log(case, piece))
            piece, size = [], 0
    return [*logs, make_log(case, piece)] if piece else logs


def make_log(case: Case, lines: list[bytes]) -> bytes:
    """Return a log. In v0 and v1 it has wrappers of 1000 messages, or messages."""
    if case.magic == 2:
        return b"".join(our_batches(case, b"\n".join(lines) + b"\n"))
    out = []
    for at in range(0, len(lines), 1000):
        builder = LegacyRecordBatchBuilder(
            magic=case.magic, compression_type=case.codec, batch_size=1 << 30
        )
        for number, line in enumerate(lines[at : at + 1000]):
            builder.append(number if case.codec else at + number, timestamp=T, key=None, value=line)
        out.append(bytes(builder.build()))
    return b"".join(out)


# -- the functions of kafkafs --------------------------------------------------------------------


def our_batches(case: Case, text: bytes) -> Iterator[bytes | bytearray]:
    """Return the batches that an append makes of the text, each compressed by itself."""
    at = 0
    while at < len(text):
        end = text.rfind(b"\n", at, at + REQUEST_BYTES) + 1 or len(text)
        log, _ = encode_lines(text, at, end, T, ONE_BYTES if case.one else BATCH_BYTES)
        yield from compressed(case, log)
        at = end


def compressed(case: Case, log: bytearray) -> Iterator[bytes | bytearray]:
    if case.codec == 0:
        yield log
        return
    view = memoryview(log)
    at = 0
    while at < len(log):
        size = int.from_bytes(view[at + 8 : at + 12], "big") + 12
        yield recompress(view[at : at + size], case.codec)
        at += size


def our_render(case: Case, log: bytes, out: bytearray) -> int:
    if case.codec == 0 and case.magic == 2:
        return LOOPS.render(log, 0, len(log), Cursor(0), out, 0, len(out), 0)[0]
    used = at = 0
    while at < len(log):
        made, size = plain(log, at, len(log))
        used, _ = LOOPS.render(made, 0, len(made), Cursor(0), out, used, len(out), 0)
        at += size
    return used


def our_work(case: Case, data: Data) -> object:
    if case.work == "render":
        return sum(our_render(case, log, data.out) for log in data.logs)
    if case.work == "columns":
        return sum(decode_columns(log, 0, len(log)).rows for log in data.logs)
    return sum(map(len, our_batches(case, data.text)))


def make_data(case: Case, size: int) -> Data:
    lines = make_lines(case.values, size)
    text = b"\n".join(lines) + b"\n"
    logs = [] if case.work == "encode" else make_logs(case, lines)
    return Data(lines, text, logs, bytearray(min(len(text), 2 * LOG_BYTES)))
