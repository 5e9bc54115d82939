"""`.batches`: the record batches as stored, and appending ready ones."""

from __future__ import annotations

import concurrent.futures
import errno
import os
import random
from pathlib import Path

import pytest

from storage.record.header import parse_header
from storage.record.plain import recompress
from tests.mount.contract.writing import APPEND, append, offsets, opened
from tests.mount.mounting import Mount, fails
from tests.storage.logs import batch
from tests.storage.producers import Producer, sparse

LIMIT = 1048588
"""max.message.bytes"""


def batches(orders: Path) -> Path:
    return orders.parent / ".batches" / orders.name


def raw(orders: Path) -> bytes:
    directory = orders.parent / ".raw" / orders.name
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def payloads(data: bytes) -> list[bytes]:
    """Batches back to back, each without its base offset and leader epoch."""
    found = []
    while data:
        size = parse_header(data).size
        found.append(data[16:size])
        data = data[size:]
    return found


def workload(seed: int = 1, size: int = 3 << 20) -> list[bytes]:
    """Batches of every kind and codec, of producers that may follow each other."""
    draw = random.Random(seed)
    producers = [
        Producer(number, codec=number % 5, transactional=number % 2 == 0) for number in range(1, 7)
    ]
    made = [bytes(batch([b"x" * (LIMIT - 100)]))]
    left = size - len(made[0])
    while left > 0:
        producer = draw.choice(producers)
        choice = draw.randrange(12)
        if choice == 0:
            new = bytes(batch([draw.randbytes(draw.randrange(50_000)), None, b""]))
        elif choice == 1:
            new = producer.empty(draw.randrange(1, 5))
        elif choice < 6 and producer.transactional:
            new = draw.choice([producer.commit, producer.abort])()
        else:
            values = [draw.randbytes(draw.randrange(3000)) for _ in range(draw.randrange(1, 30))]
            new = producer.batch(*values)
            if choice == 6:
                new = sparse(new, len(values) + 2)
                producer.sequence += 3
        made.append(new)
        left -= len(new)
    return [*made, *(producer.commit() for producer in producers if producer.transactional)]


@pytest.fixture(scope="module")
def seg(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of batches, 3 MiB."""
    path = tmp_path_factory.mktemp("batches") / "seg.log"
    path.write_bytes(b"".join(workload()))
    return path


# -- appending -----------------------------------------------------------------------------------


def test_one_write_of_everything(orders: Path, seg: Path) -> None:
    """The kernel cuts it into pieces of 1 MiB, anywhere in a batch."""
    data = seg.read_bytes()
    with opened(batches(orders)) as fd:
        assert os.write(fd, data) == len(data)
        assert os.writev(fd, [data[:0], bytes(batch([b"x"])), bytes(batch([b"y"]))]) > 0
    assert len(payloads(batches(orders).read_bytes())) == len(workload()) + 2


def test_a_batch_that_takes_long_delays_nobody_else(own: Mount) -> None:
    """A process that waits in FUSE cannot be killed: others are answered meanwhile."""
    orders = own.topic()
    own.run('echo compression.type=zstd >> "$T/.config"', T=orders.parent)
    one = recompress(batch([bytes(40 << 20)]), 4)
    with concurrent.futures.ThreadPoolExecutor() as pool, opened(batches(orders)) as fd:
        writing = pool.submit(os.write, fd, one * 3)
        answered = 0
        while not writing.done():
            (own / ".kafkafs" / "version").read_text()
            answered += 1
        assert writing.result() == 3 * len(one)
    # Without a thread of its own, one read would be answered before it, and one after it.
    assert answered > 10
    assert batches(orders).stat().st_size == 3 * len(one)


# -- what is not whole, and refusals -------------------------------------------------------------


def test_an_incomplete_batch_is_refused_at_flush_and_dropped_at_release(
    mount: Mount, orders: Path
) -> None:
    """… flush refuses an incomplete rest, at release it is dropped with a line in the log."""
    made = bytes(batch([b"value"]))
    fd = os.open(batches(orders), APPEND)
    os.write(fd, made + made[:-3])
    copy = os.dup(fd)
    fails(errno.EINVAL, os.close, copy)
    assert f"an incomplete batch, {len(made) - 3} of {len(made)} bytes" in mount.events()
    os.write(fd, made[-3:])
    os.close(fd)
    assert orders.read_bytes() == b"value\nvalue\n"
    part = mount.path.parent / "part"
    part.write_bytes(made * 2 + made[:40])
    refused = mount.sh('cat "$P" >> "$B"', P=part, B=batches(orders))
    assert b"Invalid argument" in refused.stderr
    assert refused.returncode != 0
    append(orders, b"line\n")
    assert orders.read_bytes() == b"value\n" * 4 + b"line\n", "never a record"
    assert f"an incomplete batch, 40 of {len(made)} bytes at the end; dropped" in mount.events()


@pytest.mark.parametrize("flag", [0, os.O_SYNC, os.O_DSYNC], ids=["", "O_SYNC", "O_DSYNC"])
def test_what_makes_it_survive_the_machine(mount: Mount, orders: Path, flag: int) -> None:
    """`fsync`, O_SYNC and O_DSYNC, `flush.messages` …: as for lines."""
    mount.run('echo flush.ms=9223372036854775807 >> "$T/.config"', T=orders.parent)
    with opened(batches(orders), APPEND | flag) as fd:
        os.write(fd, bytes(batch([b"a", b"b"])))
        assert offsets(orders)["recovery_point"] == (2 if flag else 0)
        os.fsync(fd)
        assert offsets(orders)["recovery_point"] == 2
        mount.run('echo flush.messages=3 >> "$T/.config"', T=orders.parent)
        os.write(fd, bytes(batch([b"a"] * 3)))
        assert offsets(orders)["recovery_point"] == 5
