"""`kafkafs dump` prints what DumpLogSegments prints, line for line and on the same stream."""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from storage.record.batch import Record
from storage.settings import message_schemas as schemas
from tests.fork_server import KAFKAFS, ROOT
from tests.interop.dump_samples import (
    Generator,
    Samples,
    T,
    control,
    message,
    name,
    special_batches,
    v2,
)
from tests.interop.kafka_tools import DUMP, run_tool
from tests.interop.message_samples import metadata_records, records
from tests.waits import HANG_S

pytestmark = pytest.mark.soak

SEED = 4
UTF8 = {**os.environ, "LC_ALL": "C.UTF-8"}


class Said(NamedTuple):
    status: int
    output: list[bytes]
    errors: list[bytes]


def ours_says(*arguments: str) -> Said:
    command = [*KAFKAFS, "dump", *arguments]
    done = subprocess.run(
        command, capture_output=True, cwd=ROOT, env=UTF8, timeout=HANG_S, check=False
    )
    return Said(done.returncode, done.stdout.split(b"\n"), done.stderr.split(b"\n"))


def theirs_says(*arguments: str) -> Said:
    done = run_tool(DUMP, *arguments)
    return Said(
        done.returncode, done.stdout.encode().split(b"\n"), done.stderr.encode().split(b"\n")
    )


def both(files: Iterable[Path], options: tuple[str, ...]) -> tuple[Said, Said]:
    """Ours and Kafka's. Ours first: DumpLogSegments itself trims an index of an odd length."""
    arguments = ["--files", ",".join(map(str, files)), *options]
    return ours_says(*arguments), theirs_says(*arguments)


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("samples"), SEED)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--deep-iteration",),
        ("--print-data-log",),
        ("--print-data-log", "--skip-record-metadata"),
        ("--deep-iteration", "--skip-record-metadata", "--verify-index-only"),
        ("--value-decoder-class", "--max-bytes", "3000"),
        ("--index-sanity-check",),
    ],
    ids=" ".join,
)
def test_files_of_every_kind(samples: Samples, options: tuple[str, ...]) -> None:
    files = samples.good if "--index-sanity-check" in options else samples.good + samples.indexes
    # The faults of a file that is given twice.
    ours, theirs = both([*files, samples.root / "wrong" / name(1000, ".timeindex")], options)
    assert ours == theirs
    assert ours.status == 0


@pytest.mark.parametrize(
    ("decoder", "schema"),
    [
        ("--offsets-decoder", schemas.OFFSETS),
        ("--transaction-log-decoder", schemas.TRANSACTIONS),
        ("--share-group-state-decoder", schemas.SHARES),
    ],
)
def test_topics_of_coordinators(tmp_path: Path, decoder: str, schema: str) -> None:
    path = tmp_path / name(0, ".log")
    log = v2(records(random.Random(SEED), schema, 600))
    path.write_bytes(log + control(600, 1, struct.pack(">hi", 0, 3)))
    ours, theirs = both([path], (decoder,))
    assert ours == theirs
    assert ours.status == 0


def test_cluster_metadata(tmp_path: Path) -> None:
    path = tmp_path / f"{5:020}-{3:010}.checkpoint"
    path.write_bytes(v2(metadata_records(random.Random(SEED), 600)) + special_batches())
    ours, theirs = both([path], ("--cluster-metadata-decoder",))
    assert ours == theirs
    assert ours.status == 0


def test_numbers(tmp_path: Path) -> None:
    path = tmp_path / name(0, ".log")
    numbers = [(struct.pack(">i", n), struct.pack(">q", n << 32) + b"rest") for n in (-1, 0, 5)]
    path.write_bytes(v2([Record(n, T, 0, *pair) for n, pair in enumerate(numbers)]))
    package = "org.apache.kafka.tools.api."
    ours, theirs = both(
        [path],
        (
            *("--key-decoder-class", f"{package}IntegerDecoder"),
            *("--value-decoder-class", f"{package}LongDecoder"),
        ),
    )
    assert ours == theirs
    assert ours.status == 0


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--files", "x.log", "--no-such-option"),
        ("--files", "x.log", "--max-bytes", "many"),
        ("--files", "x.log", "--key-decoder-class", "no.such.Class"),
    ],
    ids=" ".join,
)
def test_a_wrong_command_line(options: tuple[str, ...]) -> None:
    """The words differ, the exit status does not, and nothing is printed as if it were a dump."""
    ours = ours_says(*options)
    assert (ours.status, theirs_says(*options).status) == (1, 1)
    assert ours.output == [b""]
    assert ours.errors != [b""]


# -- where DumpLogSegments ends in a stack trace ---------------------------------------------------


def good_batch(offset: int = 0) -> bytes:
    return v2([Record(offset + n, T, 0, b"k", b"v" * 50) for n in range(3)])


def malformed(codec: int) -> bytes:
    """Its second record says that it is longer than it is."""
    records = [Record(3 + n, T, 0, None, b"%d" % n, (("odd1", None),)) for n in range(3)]
    whole = bytearray(v2(records))
    if not codec:
        at = 61 + (len(whole) - 61) // 3
        whole[at] += 2
        return bytes(whole)
    return v2([*records, records[0]], attributes=codec)[:-3] + b"xyz"


def unknown_codec(magic: int) -> bytes:
    if magic < 2:
        return message(magic, 3, b"k", b"v", attributes=5)
    batch = bytearray(good_batch(3))
    batch[22] = 6
    return bytes(batch)


BROKEN = {
    "size field": (good_batch() + bytes(40), ()),
    "malformed record": (good_batch() + malformed(0), ("--print-data-log",)),
    "malformed compressed": (good_batch() + malformed(4), ("--deep-iteration",)),
    "codec": (good_batch() + unknown_codec(2), ()),
    "codec of v1": (good_batch() + unknown_codec(1), ()),
    "magic": (good_batch() + message(-3, 3, b"k", b"v"), ()),
    "control key": (
        good_batch() + v2([Record(3, T, 0, b"k", b"v")], attributes=0x30),
        ("--deep-iteration",),
    ),
    "short number": (
        good_batch(),
        ("--key-decoder-class", "org.apache.kafka.tools.api.LongDecoder"),
    ),
    "short header": (good_batch() + struct.pack(">qiib", 3, 14, 0, 3) + bytes(9), ()),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_log_ends_the_dump(tmp_path: Path, kind: str) -> None:
    log, options = BROKEN[kind]
    path = tmp_path / name(0, ".log")
    path.write_bytes(log)
    ours, theirs = both([path, path], options)
    assert ours.output == theirs.output  # up to the middle of a line
    assert (ours.status, theirs.status) == (1, 1)
    assert len(ours.errors) == 2, ours.errors  # one line
    assert ours.errors[0].startswith(b"kafkafs: " + str(path).encode())
    assert b"Exception" in theirs.errors[0]


@pytest.mark.parametrize(
    "kind", ["insane", "no log", "no batch there", "later version", "negative version"]
)
def test_a_broken_file_beside_a_log_ends_the_dump(tmp_path: Path, kind: str) -> None:
    options: tuple[str, ...] = ()
    path = tmp_path / name(0, ".index")
    tmp_path.joinpath(name(0, ".log")).write_bytes(Generator(SEED).log())
    path.write_bytes(struct.pack(">ii", 5, 1 << 30))
    if kind == "insane":
        path = tmp_path / name(0, ".timeindex")
        path.write_bytes(struct.pack(">qi", T, 1) + b"odd")
        options = ("--index-sanity-check",)
    elif kind == "no log":
        tmp_path.joinpath(name(0, ".log")).unlink()
    elif kind.endswith("version"):
        path = tmp_path / name(0, ".txnindex")
        path.write_bytes(struct.pack(">h", 1 if kind == "later version" else -1) + bytes(32))
    ours, theirs = both([path], options)
    assert ours.output == theirs.output
    assert (ours.status, theirs.status) == (1, 1)
    assert len(ours.errors) == 2, ours.errors
