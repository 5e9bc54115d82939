"""The logs of `search.py`: three kinds of lines, drawn from a seed, and topics of them.

======  =========================================================================
access  nginx, "combined" with request time and id: 12,000 clients, some of them busy
json    one object a line, with the id of a trace
system  rsyslog of 40 hosts: sshd, and programs of Hadoop and Spark as in LogHub's
        data sets
======  =========================================================================

In batches of 16 KiB with zstd level 3, each kind takes 28 to 32 % of its text. A service writes 100
lines a second, at random times. One line has the trace `TRACE`, and about 50 have the address
`ADDRESS`, whose numbers other lines have, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from storage import LogManager, Record, encode
from storage.compaction.repack import repack_all
from storage.paths import LOG, WORDS
from storage.record.compression import ZSTD
from storage.record.plain import recompress
from storage.task import Task
from storage.words.build import build

MIB = 1 << 20
BATCH_BYTES = 16 << 10  # Kafka's batch.size
SEGMENT_BYTES = 64 * MIB
START_MS = 1_764_547_200_000  # 2025-12-01
TRACE = "5f0c2d8a1b7e4936a1d4c07be82f6593"
ADDRESS = "198.51.100.23"
ADDRESS_LINES = 50
LINES_PER_SECOND = 100
ABSENT = "e7b1f0c4d29a4d518f36"

AGENTS = tuple(
    agent.format(platform=platform, version=version, build=6000 + 97 * version)
    for version in range(118, 146)
    for platform in (
        "Windows NT 10.0; Win64; x64",
        "X11; Linux x86_64",
        "Macintosh; Intel Mac OS X 10_15_7",
        "Linux; Android 10; K",
    )
    for agent in (
        "Mozilla/5.0 ({platform}) AppleWebKit/537.36 (KHTML, like Gecko)"
        " Chrome/{version}.0.{build}.{version} Safari/537.36",
        "Mozilla/5.0 ({platform}; rv:{version}.0) Gecko/20100101 Firefox/{version}.0",
        "Mozilla/5.0 (compatible; shopbot/1.{version}; +https://bot.example/{build})",
        "okhttp/4.{version}.0",
    )
)
STATUSES = ("200",) * 18 + ("301", "304", "304", "404", "500")
PAGES = (
    "/item/{item}",
    "/item/{item}?variant={small}&ref=mail-{small}",
    "/search?q={word}+{word2}&page={small}",
    "/api/v1/orders/{order}",
    "/api/v1/orders/{order}/lines?limit=50&after={item}",
    "/api/v1/cart/{hex}?token={token}",
    "/static/{word}.{small}.js",
    "/",
)
REFERRERS = ("-", "https://shop.example/item/{item}", "https://shop.example/search?q={word}")
CALL = "resourcemanager[911]: INFO ipc.Server: call {trace} from {address} took {item} us"
EVENTS = (
    CALL,
    "sshd[{pid}]: Failed password for invalid user {word} from {address} port {port} ssh2",
    "sshd[{pid}]: Connection closed by {address} port {port} [preauth]",
    "datanode[812]: INFO dfs.DataNode$PacketResponder: Received block blk_{block} of size"
    " 67108864 from /{address}",
    "datanode[812]: INFO dfs.DataNode$DataXceiver: Receiving block blk_{block} src:"
    " /{address}:{port} dest: /10.250.{small}.{number}:50010",
    "namenode[733]: INFO dfs.FSNamesystem: BLOCK* NameSystem.addStoredBlock: blockMap updated:"
    " 10.250.{small}.{number}:50010 is added to blk_{block} size 67108864",
    "executor[{pid}]: INFO storage.BlockManager: Found block rdd_{small}_{number} locally",
    "executor[{pid}]: INFO executor.Executor: Finished task {number}.0 in stage {small}.0 (TID"
    " {item}). {number} bytes result sent to driver",
    "kernel: [{item}.{order}] nf: IN=eth0 SRC={address} LEN={number} SPT={port} DPT=443 SYN",
    "api[{pid}]: WARN handler.{word}: 0x{hex} closed after {item} ms, {small} retries",
)
TERMS = tuple(
    first + second
    for first in ("re", "pro", "con", "sub", "trans", "inter", "per", "de", "ex", "in")
    for second in ("port", "form", "act", "fer", "mit", "tract", "ceive", "scribe", "pose", "vert")
)
SERVICES = ("billing", "catalogue", "checkout", "gateway", "mailer", "stock")
MESSAGES = (
    ("INFO", "order accepted"),
    ("INFO", "payment captured"),
    ("INFO", "cache refreshed"),
    ("WARN", "slow query, retry scheduled"),
    ("ERROR", "upstream timed out while reading response header"),
)

Draw = Callable[[random.Random, int, str, str], str]
"""Draws a line, given its time in milliseconds, an address and a trace."""


class Kind(NamedTuple):
    """`line_bytes`: about the mean. `common`: a word of many lines. `part`: a part of a word."""

    name: str
    draw: Draw
    line_bytes: int
    common: str
    part: str


@lru_cache(2)
def _time(layout: str, seconds: int) -> str:
    return time.strftime(layout, time.gmtime(seconds))


def _filled(rng: random.Random, template: str, address: str, trace: str) -> str:
    """Fill in random values. Small values of most fields are more frequent than large ones."""
    return template.format(
        address=address,
        trace=trace,
        item=int(90_000 * rng.random() ** 3),
        small=int(40 * rng.random() ** 2),
        number=int(255 * rng.random()),
        order=rng.getrandbits(27),
        block=rng.getrandbits(62),
        pid=900 + int(30_000 * rng.random() ** 3),
        port=1024 + int(60_000 * rng.random()),
        hex=f"{rng.getrandbits(48):012x}",
        token=f"{rng.getrandbits(64):016x}",
        word=TERMS[int(len(TERMS) * rng.random() ** 2)],
        word2=TERMS[int(len(TERMS) * rng.random() ** 2)],
    )


def _access(rng: random.Random, now_ms: int, address: str, trace: str) -> str:
    page = _filled(rng, PAGES[int(len(PAGES) * rng.random())], address, trace)
    referrer = _filled(rng, REFERRERS[int(3 * rng.random())], address, trace)
    agent = AGENTS[int(len(AGENTS) * rng.random() ** 3)]
    return (
        f"{address} - - [{_time('%d/%b/%Y:%H:%M:%S +0000', now_ms // 1000)}]"
        f' "GET {page} HTTP/1.1" {STATUSES[int(23 * rng.random())]} {int(40_000 * rng.random())}'
        f' "{referrer}" "{agent}" {rng.random() ** 3:.3f} {trace}'
    )


def _json(rng: random.Random, now_ms: int, address: str, trace: str) -> str:
    level, message = MESSAGES[int(5 * rng.random() ** 4)]
    stamp = f"{_time('%Y-%m-%dT%H:%M:%S', now_ms // 1000)}.{now_ms % 1000:03}Z"
    return (
        f'{{"time":"{stamp}","level":"{level}","service":"{SERVICES[int(6 * rng.random())]}",'
        f'"message":"{message}","trace":"{trace}","client":"{address}",'
        f'"user":{int(90_000 * rng.random() ** 2)},"took_ms":{int(900 * rng.random() ** 3)}}}'
    )


def _system(rng: random.Random, now_ms: int, address: str, trace: str) -> str:
    is_sought = trace == TRACE or address == ADDRESS
    event = CALL if is_sought else EVENTS[int(len(EVENTS) * rng.random())]
    stamp = f"{_time('%Y-%m-%dT%H:%M:%S', now_ms // 1000)}.{now_ms % 1000:03}"
    return f"{stamp}+00:00 node{int(40 * rng.random())} {_filled(rng, event, address, trace)}"


KINDS = {
    "access": Kind("access", _access, 242, "Firefox", "/item/8999"),
    "json": Kind("json", _json, 197, "retry", 'user":8999'),
    "system": Kind("system", _system, 141, "password", "blk_123456"),
}


def lines_of(kind: Kind, size: int) -> Iterator[tuple[int, bytes]]:
    """Draw about `size` bytes of lines; yield each line's time in milliseconds, and the line
    without its newline. The same arguments give the same lines.
    """
    rng = random.Random(1)
    clients = [".".join(str(rng.randrange(1, 255)) for _ in range(4)) for _ in range(12_000)]
    count = size // kind.line_bytes
    now_ms = START_MS
    for number in range(count):
        now_ms += int(rng.expovariate(LINES_PER_SECOND / 1000))
        address = clients[int(12_000 * rng.random() ** 3)]
        trace = f"{rng.getrandbits(128):032x}"
        if number == count // 2:
            trace = TRACE
        elif number % max(count // ADDRESS_LINES, 1) == 0:
            address = ADDRESS
        yield now_ms, kind.draw(rng, now_ms, address, trace).encode()


class Written(NamedTuple):
    """A topic and a file with the same lines. `repack_s`: processor time; 0: not repacked."""

    lines: int
    text_bytes: int
    log_bytes: int
    repack_s: float


def write_topic(
    kind: Kind, size: int, text: Path, data: Path, topic: str, *, repacked: bool, level: int
) -> Written:
    """Write a file of lines, and a topic of them, in zstd.

    The topic has the batches of a producer, 16 KiB each before the compression. `repacked`: it has
    a batch for each line, and is then repacked. All segments are closed but the last, empty one.
    """
    settings = {"segment.bytes": str(SEGMENT_BYTES), "compression.zstd.level": str(level)}
    if repacked:
        settings |= {"kafkafs.repack": "zstd"}
    lines = 0
    with open(text, "wb") as file, LogManager.open(str(data)) as manager:
        log = manager.create_topic(topic, 1, settings=settings).partitions[0]
        batch: list[Record] = []
        batches, batch_bytes = bytearray(), 0

        def end_batch() -> None:
            nonlocal batch, batch_bytes
            plain = bytearray(encode(batch))
            batches.extend(plain if repacked else recompress(plain, ZSTD, level))
            batch, batch_bytes = [], 0

        def append() -> None:
            nonlocal batches
            log.append(batches, now_ns=time.time_ns())
            batches = bytearray()

        for now_ms, line in lines_of(kind, size):
            file.write(line + b"\n")
            lines += 1
            if batch and (repacked or batch_bytes + len(line) > BATCH_BYTES):
                end_batch()
                if len(batches) > MIB:
                    append()
            batch.append(Record(len(batch), now_ms, 0, None, line))
            batch_bytes += len(line) + 10
        if batch:
            end_batch()
            append()
        log.roll(manager.clock_ms())
        begun = time.process_time()
        if repacked:
            repack_all(log, manager.clock_ms(), Task())
        repack_s = time.process_time() - begun if repacked else 0.0
        log_bytes = sum(segment.size for segment in log.segments)
    return Written(lines, text.stat().st_size, log_bytes, repack_s)


class Indexed(NamedTuple):
    """The bytes of the `.words` files of a topic, and the seconds of processor time for them."""

    words_bytes: int
    seconds: float


def index(data: Path, topic: str) -> Indexed:
    """Build the words of the closed segments of a topic."""
    words_bytes, begun = 0, time.process_time()
    with LogManager.open(str(data)) as manager:
        for segment in manager.log(topic, 0).segments[:-1]:
            segment.lease()
            path = segment.log_path.removesuffix(LOG) + WORDS
            words_bytes += build(segment, path, Task())
            segment.release()
    return Indexed(words_bytes, time.process_time() - begun)
