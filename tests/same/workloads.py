"""Runs seeded workloads and prints what each leaves on the disk, a line for each file.

`scripts/same` runs this file in two commits and compares what it prints. It therefore imports only
what both have: the log, the simulated disk of `tests/crash`, and the commands `cat` and `dump`.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

from kafkafs.cli import main as kafkafs
from storage import Log, LogManager, Record, encode
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.retain import delete_records, retain
from storage.files import Files
from storage.task import Task
from tests.crash.disk import Crashed, SimulatedDisk
from tests.in_memory import PLACE
from tests.storage.transactions import Client

NOW_MS = 1_700_000_000_000
STEPS = 24
#: By topic, what is set on it; a workload draws the rest.
TOPICS = {"deleted": {"cleanup.policy": "delete"}, "compacted": {"cleanup.policy": "compact"}}
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
STEP_WEIGHTS = {
    "append": 9, "send": 5, "roll": 2, "flush": 1, "checkpoint": 1, "delete_records": 1,
    "retain": 2, "clean": 2, "sweep": 1, "reopen": 2,
}  # fmt: skip
#: Files that are ours alone. They may change their form; what they say shows in the others.
OURS = re.compile(r"^(\.|kafkafs\.)")
DELETED = re.compile(r"\.[0-9a-f]{32}-delete$")
#: How the name of a file begins that was not renamed yet.
TEMPORARY = re.compile(r"^[0-9a-f]{16}-(?=.+\.tmp$)")


class _Ids:
    """Takes the place of `uuid.uuid4`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __call__(self) -> uuid.UUID:
        return uuid.UUID(int=self._random.getrandbits(128))


@contextlib.contextmanager
def fixed_ids(seed: int) -> Iterator[None]:
    """Draw the ids of topics and the names of temporary files from a seed. Fix the order of logs in
    a set.

    The outcome of a power cut depends on the names of files and on the order of changes.
    """
    with (
        mock.patch.object(uuid, "uuid4", new=_Ids(seed)),
        mock.patch.object(os, "urandom", new=random.Random(seed).randbytes),
        mock.patch.object(Log, "__hash__", new=lambda log: log.partition),
    ):
        yield


class Workload:
    """The steps of one seed. A run makes the same calls each time, up to where it is stopped."""

    def __init__(self, seed: int, data: Path, disk: SimulatedDisk) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._data = data
        self._disk = disk
        self._now_ms = NOW_MS

    def run(self) -> None:
        draw = self._random
        with fixed_ids(self._seed):
            self._manager = self._open()
            for topic, policy in TOPICS.items():
                self._manager.create_topic(topic, draw.randint(1, 2), settings=policy)
                self._manager.change_topic_settings(
                    topic,
                    {
                        "internal.segment.bytes": str(draw.choice([300, 700, 2000])),
                        "index.interval.bytes": str(draw.choice([1, 100, 4096])),
                        "compression.type": draw.choice(CODECS),
                        "retention.ms": "60000",
                        "file.delete.delay.ms": draw.choice(["0", "60000"]),
                        "min.cleanable.dirty.ratio": "0",
                    },
                )
            names, weights = list(STEP_WEIGHTS), list(STEP_WEIGHTS.values())
            for step in draw.choices(names, weights, k=STEPS):
                self._now_ms += draw.choice([1, 1000, 50_000])
                getattr(self, f"_{step}")()
            self._manager.close()

    def _open(self) -> LogManager:
        return LogManager.open(
            str(self._data),
            files=self._disk,
            clock_ms=lambda: self._now_ms,
            monotonic_ms=lambda: self._now_ms,
        )

    def _log(self, *topics: str) -> Log:
        """One of the logs, or of those of some topics."""
        logs = [log for log in self._manager.logs() if not topics or log.topic in topics]
        return self._random.choice(logs)

    def _append(self) -> None:
        draw = self._random
        records = [
            Record(
                n,
                self._now_ms - draw.choice([0, 0, 5_000]),
                0,
                draw.choice([None, b"a", b"b", b"c"]),
                draw.choice([None, draw.randbytes(draw.randint(0, 90))]),
                (("h", b"1"),) if draw.random() < 0.2 else (),
            )
            for n in range(draw.randint(1, 5))
        ]
        log = self._log()
        if log.topic == "compacted":
            records = [record._replace(key=record.key or b"d") for record in records]
        log.append(bytearray(encode(records)), now_ns=self._now_ms * 1_000_000)

    def _send(self) -> None:
        """A batch of a transaction, and perhaps its end."""
        draw = self._random
        log, number = self._log(), draw.choice([7, 8])
        client = Client(log, number)
        known = log.producers.by_id.get(number)
        if known is not None and known.batches:
            client.sequence = known.last_sequence + 1
        client.send(draw.randbytes(30), timestamp_ms=self._now_ms)
        end = draw.choice(["commit", "abort", None])
        if end is not None:
            getattr(client, end)()

    def _roll(self) -> None:
        self._log().roll(self._now_ms)

    def _flush(self) -> None:
        self._log().flush()

    def _checkpoint(self) -> None:
        self._manager.checkpoint()

    def _delete_records(self) -> None:
        log = self._log("deleted")
        offset = (log.log_start_offset + log.high_watermark + 1) // 2
        delete_records(self._manager, log, offset, Task())

    def _retain(self) -> None:
        retain(
            self._manager, [log for log in self._manager.logs() if log.topic == "deleted"], Task()
        )

    def _clean(self) -> None:
        for log in self._manager.logs():
            if log.topic == "compacted":
                LogCleaner(self._manager).clean(log, Task())

    def _sweep(self) -> None:
        remove = self._manager.sweep(self._now_ms)
        if remove is not None:
            remove()

    def _reopen(self) -> None:
        self._manager.close()
        self._manager = self._open()


def described(data: Path) -> Iterator[str]:
    """Every file of Kafka's, and what `cat` and `dump` print of the logs."""
    logs = []
    for path in sorted(data.rglob("*")):
        name = DELETED.sub(".ID-delete", str(path.parent.relative_to(data)))
        if path.is_file() and not OURS.match(path.name):
            content = path.read_bytes()
            if path.name.endswith("-offset-checkpoint"):
                # The order of its lines has no meaning.
                content = b"".join(sorted(content.splitlines(keepends=True)))
            yield f"{name}/{TEMPORARY.sub('', path.name)} {_digest(content)}"
            if path.suffix == ".log" and "delete" not in name:
                logs.append(path)
    for topic in TOPICS:
        if (data / f"{topic}-0").exists():
            yield f"cat {topic} {_printed(data, 'cat', str(data), topic, '--view', 'jsonl')}"
    for path in logs:
        yield f"dump {path.parent.name}/{path.name} {_printed(data, 'dump', '--files', str(path))}"


def _printed(data: Path, *arguments: str) -> str:
    """How a command ends, and what it prints."""
    with tempfile.TemporaryFile() as out:
        sys.stdout.flush()
        saved = [(number, os.dup(number)) for number in (1, 2)]
        for number, _ in saved:
            os.dup2(out.fileno(), number)
        try:
            kafkafs.main(list(arguments))
        except SystemExit as ended:
            status = ended.code
        finally:
            for number, copy in saved:
                os.dup2(copy, number)
                os.close(copy)
        out.seek(0)
        text = out.read()
    text = text.replace(os.fsencode(data), b"DATA")
    return f"{status} {len(text)} {_digest(text)}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def opened(data: Path, seed: int) -> Iterator[str]:
    """Open a stopped directory, close it, and describe it."""
    logger, said = logging.getLogger("storage"), io.StringIO()
    handler = logging.StreamHandler(said)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        with fixed_ids(seed):
            LogManager.open(str(data), files=Files(), clock_ms=lambda: NOW_MS).close()
    except Exception as error:
        said.write(f"{error!r}\n")
    logger.removeHandler(handler)
    # Several threads load partitions.
    for line in sorted(said.getvalue().splitlines()):
        yield f"open {line.replace(str(data), 'DATA')}"
    yield from described(data)


def lines(seed: int, every: int) -> list[str]:
    """All that one workload leaves: at its end, after a kill and after a power cut at each stop."""
    found = []
    with tempfile.TemporaryDirectory(prefix="kafkafs-same-", dir=PLACE) as base:
        data = Path(base, "data")

        def run(crash_at: int | None) -> SimulatedDisk:
            shutil.rmtree(data, ignore_errors=True)
            data.mkdir()
            disk = SimulatedDisk(str(data), crash_at=crash_at)
            with contextlib.suppress(Crashed):
                Workload(seed, data, disk).run()
            return disk

        stops = run(None).operations
        found += [f"{seed} end {line}" for line in described(data)]
        for stop in range(1 + seed % every, stops + 1, every):
            disk = run(stop)
            disk.kill()
            copy = Path(base, "copy")
            for how in ("kill", stop % 7):
                if how != "kill":
                    disk.materialise(stop % 7)
                shutil.copytree(data, copy)
                found += [f"{seed} stop {stop} {how} {line}" for line in opened(copy, seed)]
                shutil.rmtree(copy)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first workload")
    parser.add_argument("--every", type=int, default=3, help="stop at every N-th operation")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    given = parser.parse_args()
    seeds = range(given.seed, given.seed + given.workloads)
    with ProcessPoolExecutor(given.jobs) as pool:
        for some in pool.map(lines, seeds, [given.every] * len(seeds)):
            sys.stdout.write("".join(f"{line}\n" for line in some))


if __name__ == "__main__":
    main()
