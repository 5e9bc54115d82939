#!/usr/bin/env python3
"""Measures record batches to text, to columns and back, beside aiokafka and kafka-python.

    scripts/bench/codec.py [--runs N] [--size MIB] [--only WORK] [--tiny]

Needs scripts/setup test. No file and no mount: logs lie in memory. Works are `render` (batches to
the text of the `values` view), `columns` (offsets, timestamps, keys, values), `encode` (lines to
batches, compressed where there is a codec), and each with one record a batch. The peers iterate
over their records and join the values, or collect them in four lists; they append line by line to
their builders. Neither side checks a CRC where it need not: of a compressed or older batch we do.

How: each run does each work once with every peer in turn, and a figure is megabytes of text a
second; medians over the runs, a ratio the median of the runs' ratios. Of what kafka-python does
only a part is done. The peers' text is compared with ours before.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import aiokafka.record.default_records as aiokafka_default
import aiokafka.record.legacy_records as aiokafka_legacy
import aiokafka.record.memory_records as aiokafka_memory

from kafkafs.views._parse import encode_lines
from kafkafs.views._render import Cursor, render
from storage.record._columns import decode_columns
from storage.record.compression import CODECS
from storage.record.plain import plain, recompress

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # the whole client is imported with it
    import kafka.record.default_records as kafka_default
    import kafka.record.memory_records as kafka_memory

MIB = 1 << 20
BATCH_BYTES = 128 * 1024  # 100 records a batch and more
ONE_BYTES = 250  # room for a record of 100 bytes, not for two
LEAST_SECONDS = 0.1  # a work that takes less is done again and again
T = 1_700_000_000_000
KAFKA_PYTHON_SHARE = 16  # it does so small a part of each work


@dataclass(frozen=True)
class Data:
    """Lines, and logs of them."""

    lines: list[bytes]
    text: bytes
    log: bytes  # in the codec asked for
    out: bytearray  # room for the text


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
    """Text that compresses as text does; lines are pieces of it."""
    rng = random.Random(1)
    known = [b"%x" % rng.getrandbits(rng.choice((12, 24, 40))) for _ in range(3000)]
    return b" ".join(rng.choices(known, k=300_000))


def make_lines(values: str, size: int) -> list[bytes]:
    """Lines of about `size` bytes together."""
    rng = random.Random(1)
    lengths = {"10 B": [10], "100 B": [100], "1 KiB": [1024]}.get(values, [10, 30, 100, 250, 1024])
    lines = []
    while size > 0:
        length = rng.choice(lengths)
        at = rng.randrange(len(words()) - length)
        lines.append(words()[at : at + length])
        size -= length + 1
    return lines


def make_log(case: Case, lines: list[bytes], text: bytes) -> bytes:
    """The stored log that a work reads; what it writes is not looked at."""
    if case.magic < 2:
        return make_old_log(case, lines)
    return b"".join(our_batches(case, text))


def make_old_log(case: Case, lines: list[bytes]) -> bytes:
    """Wrappers of 1000 messages, or messages."""
    out = []
    for at in range(0, len(lines), 1000):
        builder = aiokafka_legacy.LegacyRecordBatchBuilder(
            magic=case.magic, compression_type=case.codec, batch_size=1 << 30
        )
        for number, line in enumerate(lines[at : at + 1000]):
            builder.append(number if case.codec else at + number, timestamp=T, key=None, value=line)
        out.append(bytes(builder.build()))
    return b"".join(out)


# -- what is measured: kafkafs -------------------------------------------------------------------


def our_batches(case: Case, text: bytes) -> Iterator[bytes | bytearray]:
    """What an append makes of the text; a batch is compressed by itself."""
    log, _ = encode_lines(text, 0, len(text), T, ONE_BYTES if case.one else BATCH_BYTES)
    yield from compressed(case, log)


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


def our_render(case: Case, data: Data) -> object:
    log, out = data.log, data.out
    if case.codec == 0 and case.magic == 2:
        return render(log, 0, len(log), Cursor(0), out, 0, len(out), 0)[0]
    used = at = 0
    while at < len(log):
        made, size = plain(log, at, len(log))
        used, _ = render(made, 0, len(made), Cursor(0), out, used, len(out), 0)
        at += size
    return used


def our_columns(case: Case, data: Data) -> object:
    return decode_columns(data.log, 0, len(data.log)).rows


def our_encode(case: Case, data: Data) -> object:
    return sum(map(len, our_batches(case, data.text)))


# -- the peers -----------------------------------------------------------------------------------


def their_render(records: Callable[[bytes], object], log: bytes) -> bytes:
    values = []
    found = records(log)
    while (batch := found.next_batch()) is not None:  # type: ignore[attr-defined]
        values += [record.value for record in batch]
    values.append(b"")
    return b"\n".join(values)


def their_columns(records: Callable[[bytes], object], log: bytes) -> int:
    offsets, timestamps, keys, values = [], [], [], []
    found = records(log)
    while (batch := found.next_batch()) is not None:  # type: ignore[attr-defined]
        for record in batch:
            offsets.append(record.offset)
            timestamps.append(record.timestamp)
            keys.append(record.key)
            values.append(record.value)
    return len(offsets)


def their_encode(build: Callable[..., object], case: Case, text: bytes) -> int:
    """A batch is full at the same size as ours."""
    lines = text.split(b"\n")
    lines.pop()
    size = at = 0
    count = len(lines)
    while at < count:
        builder = build(
            magic=2,
            compression_type=case.codec,
            is_transactional=0,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            batch_size=BATCH_BYTES,
        )
        append = builder.append  # type: ignore[attr-defined]
        number = 0
        stop = at + 1 if case.one else count
        while at < stop:
            # Its headers are a list; None is returned when the batch is full.
            if append(number, T, None, lines[at], []) is None:
                break
            number += 1
            at += 1
        size += len(builder.build())  # type: ignore[attr-defined]
    return size


@dataclass(frozen=True)
class Peer:
    """How a peer does each work; `share` is how small a part of it it does."""

    name: str
    records: Callable[[bytes], object]
    build: Callable[..., object]
    share: int = 1

    def work(self, case: Case, data: Data) -> Callable[[], object]:
        if case.work == "render":
            return lambda: their_render(self.records, data.log)
        if case.work == "columns":
            return lambda: their_columns(self.records, data.log)
        return lambda: their_encode(self.build, case, data.text)


PEERS = [
    Peer("aiokafka", aiokafka_memory.MemoryRecords, aiokafka_default.DefaultRecordBatchBuilder),
    Peer(
        "kafka-python",
        kafka_memory.MemoryRecords,
        kafka_default.DefaultRecordBatchBuilder,
        KAFKA_PYTHON_SHARE,
    ),
]
NAMES = ["kafkafs", *(peer.name for peer in PEERS)]


# -- measuring -----------------------------------------------------------------------------------


def make_data(case: Case, size: int) -> Data:
    lines = make_lines(case.values, size)
    text = b"\n".join(lines) + b"\n"
    log = b"" if case.work == "encode" else make_log(case, lines, text)
    return Data(lines, text, log, bytearray(len(text)))


def compare(case: Case, data: Data) -> None:
    """Who does not do the work is not measured."""
    if case.work == "render":
        assert our_render(case, data) == len(data.text)
        assert data.out == data.text
        for peer in PEERS:
            assert their_render(peer.records, data.log) == data.text, peer.name
    elif case.work == "columns":
        for peer in PEERS:
            assert (
                their_columns(peer.records, data.log) == len(data.lines) == our_columns(case, data)
            )


def seconds(work: Callable[[], object], least: float) -> float:
    """How long it takes, on the average of as many times as take the `least` seconds."""
    start = time.perf_counter()
    times = 0
    while True:
        work()
        times += 1
        took = time.perf_counter() - start
        if took >= least:
            return took / times


def measure(case: Case, size: int, runs: int, least: float) -> dict[str, list[float]]:
    """Megabytes of text a second by peer, one figure a run."""
    compare(case, make_data(case, size // KAFKA_PYTHON_SHARE))
    shares = {1: make_data(case, size)}
    ours: dict[str, Callable[[Case, Data], object]] = {
        "render": our_render,
        "columns": our_columns,
        "encode": our_encode,
    }
    works: dict[str, tuple[Callable[[], object], int]] = {
        "kafkafs": (lambda: ours[case.work](case, shares[1]), len(shares[1].text))
    }
    for peer in PEERS:
        if peer.share not in shares:
            shares[peer.share] = make_data(case, size // peer.share)
        data = shares[peer.share]
        works[peer.name] = (peer.work(case, data), len(data.text))
    figures: dict[str, list[float]] = {name: [] for name in works}
    for run in range(runs + 1):
        for name, (work, text) in works.items():
            took = seconds(work, least)
            if run:
                figures[name].append(text / took / 1e6)
    return figures


def verdict(case: Case, figures: dict[str, list[float]]) -> str:
    pairs = zip(figures["kafkafs"], figures["aiokafka"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    if case.goal is None:
        return f"{ratio:.3g}"
    return f"**{ratio:.3g}** ≥ {case.goal:g} {'met' if ratio >= case.goal else 'MISSED'}"


def row(case: Case, figures: dict[str, list[float]]) -> str:
    cells = [f"{statistics.median(figures[name]):.3g}" for name in NAMES]
    return f"| {case.title} | {' | '.join(cells)} | {verdict(case, figures)} |"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures the record codec beside its peers.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--size", type=int, default=32, metavar="MIB", help="of the text")
    parser.add_argument("--only", action="append", choices=["render", "columns", "encode"])
    parser.add_argument("--tiny", action="store_true", help="seconds: shows that it works")
    return parser.parse_args()


def main() -> None:
    given = arguments()
    runs, size = (1, MIB // 4) if given.tiny else (given.runs, given.size * MIB)
    least = 0 if given.tiny else LEAST_SECONDS
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    print(f"{platform.platform()}, {cpus}; medians of {runs} runs; MB of text a second\n")
    print(f"| work | {' | '.join(NAMES)} | times aiokafka |")
    print(f"|---|{'---:|' * len(NAMES)}---|")
    for case in CASES:
        if not given.only or case.work in given.only:
            # A record alone in its batch costs much more than its bytes.
            part = size // 8 if case.one and not given.tiny else size
            print(row(case, measure(case, part, runs, least)))
            sys.stdout.flush()


if __name__ == "__main__":
    main()
