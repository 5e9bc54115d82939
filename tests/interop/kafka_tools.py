"""Apache Kafka's own tools, run from its jars.

Maven downloads the jars of a pom once, to a directory under `.cache/` at the project's root. The
directory is named after the pom's content, so a changed pom causes a new download.
This module does not start brokers; `brokers` does.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

# The release that the tests run: that of pom.xml, unless the environment names another pom.
CURRENT_POM = Path(__file__).with_name(os.environ.get("KAFKA_POM", "pom.xml"))
V0_POM = CURRENT_POM.with_name("pom-0.8.xml")
V1_POM = CURRENT_POM.with_name("pom-0.10.xml")
POM_2_4 = CURRENT_POM.with_name("pom-2.4.xml")
SPARK_POM = CURRENT_POM.with_name("pom-spark.xml")
TIERED_POM = CURRENT_POM.with_name("pom-tiered.xml")
MIRROR_MAKER_POM = CURRENT_POM.with_name("pom-mirror-maker.xml")
CACHE = CURRENT_POM.parents[2] / ".cache" / "kafka-jars"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
POM_4_3 = CURRENT_POM.with_name("pom-4.3.xml")
IS_4_3 = CURRENT_POM == POM_4_3
EXIT = f"org.apache.kafka.common.utils.{'' if IS_4_3 else 'internals.'}Exit"
CONFIGS = "kafka.admin.ConfigCommand" if IS_4_3 else "org.apache.kafka.tools.ConfigCommand"
# A JVM of the tests lives for seconds only.
QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A JVM does not say which classes it leaves out of an archive, or that it cannot use one.
SILENT = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
# slf4j-simple writes to standard error, by default all from INFO on.
_LOGGER = tuple(
    f"-Dorg.slf4j.simpleLogger.{setting}"
    for setting in ("defaultLogLevel=warn", "showThreadName=false", "showShortLogName=true")
)

_BATCH = re.compile(r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isvalid: (\w+)")
_RECORD = re.compile(
    r"\| offset: (\d+) CreateTime: (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r" sequence: -?\d+ headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?"
)
_MARKER = re.compile(r"\| offset: .* endTxnMarker: (?:COMMIT|ABORT) coordinatorEpoch: \d+")


class Dumped(NamedTuple):
    """A record as DumpLogSegments prints it. Key and value are None where it prints none."""

    offset: int
    timestamp: int
    key: str | None
    value: str | None
    header_keys: tuple[str, ...]


def require(command: str, package: str) -> str:
    """The path of a program; the test fails with what to install where it is missing."""
    found = shutil.which(command)
    if found is None:
        pytest.fail(f"no {command} here; run: apt-get install {package}", pytrace=False)
    return found


@functools.cache
def jars(pom: Path = CURRENT_POM) -> Path:
    """The directory that holds the pom's jars."""
    kept = CACHE / hashlib.sha256(pom.read_bytes()).hexdigest()[:16]
    if not kept.exists():
        maven = require("mvn", "maven")
        CACHE.mkdir(parents=True, exist_ok=True)
        # Tests run in several processes: one fetches, and the others find what it has fetched.
        with open(CACHE / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                _fetch(maven, pom, kept)
    return kept


def _fetch(maven: str, pom: Path, kept: Path) -> None:
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        fetched = Path(scratch, "jars")
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={fetched}"]
        environment = {**os.environ, "MAVEN_OPTS": " ".join(QUICK)}
        command = [maven, "-q", "-B", "-f", str(pom), *goal]
        done = subprocess.run(command, check=False, env=environment)
        if done.returncode:
            again = f"{maven} -f {pom} dependency:copy-dependencies"
            pytest.fail(f"Maven has not got what {pom.name} names; run: {again}", pytrace=False)
        os.rename(fetched, kept)


def prepared(pom: Path = CURRENT_POM) -> Path:
    """Where the first broker's start leaves what the other brokers and the tools start from.

    `classes.jsa` has the classes of the pom's jars as a JVM has them in memory: with it, a process
    starts for half of the work. `formatted` is a data directory with the metadata of a cluster.
    """
    # A JVM wants the very files that the archive was made from: in a copy of the project it is of
    # no use.
    place = hashlib.sha256(bytes(jars(pom))).hexdigest()[:16]
    return jars(pom).with_suffix(f".{place}")


@contextlib.contextmanager
def preparing(pom: Path) -> Iterator[Path | None]:
    """Yield a directory that becomes `prepared(pom)`, or None if it is there already.

    Tests run in several processes: one prepares, and the others wait.
    """
    with (
        open(jars(pom).with_suffix(".lock"), "w") as lock,
        tempfile.TemporaryDirectory(dir=CACHE) as scratch,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        if prepared(pom).exists():
            yield None
            return
        made = Path(scratch, "made")
        made.mkdir()
        yield made
        made.rename(prepared(pom))


def java_command(
    main: str, *arguments: str, pom: Path = CURRENT_POM, options: Sequence[str] = ()
) -> list[str]:
    """The command that runs one of Kafka's classes."""
    java = require("java", "default-jre-headless")
    quick = [*QUICK, *_LOGGER, *options]
    if (archive := prepared(pom) / "classes.jsa").exists():
        quick += [f"-XX:SharedArchiveFile={archive}", *SILENT]
    return [java, *quick, "-cp", f"{jars(pom)}/*", main, *arguments]


@functools.cache
def _tool_server() -> subprocess.Popen[str]:
    """Return the JVM in which this process runs Kafka's tools."""
    server = subprocess.Popen(
        java_command(str(CURRENT_POM.with_name("ToolServer.java")), EXIT),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        encoding="utf-8",
    )
    atexit.register(server.communicate)
    return server


def run_tool(main: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's classes to its end, with this standard input."""
    server = _tool_server()
    assert server.stdin is not None
    assert server.stdout is not None
    print(json.dumps([main, given, *arguments]), file=server.stdin, flush=True)
    status, output, errors = json.loads(server.stdout.readline())
    return subprocess.CompletedProcess([main, *arguments], status, output, errors)


def dump_log_segments(files: Iterable[Path], *arguments: str) -> tuple[str, str]:
    """Run DumpLogSegments on these files. Return its standard output and standard error."""
    names = ",".join(str(file) for file in files)
    done = run_tool(DUMP, "--files", names, *arguments)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    return done.stdout, done.stderr


def records(printed: str) -> Iterator[Dumped]:
    """The records in the output of ``--print-data-log``, without transactions' markers."""
    for line in printed.splitlines():
        if not line.startswith("|") or _MARKER.fullmatch(line):
            continue
        match = _RECORD.fullmatch(line)
        assert match, line
        offset, timestamp, key_size, value_size, headers, key, value = match.groups()
        # An empty key or value and none at all differ in their printed sizes only.
        yield Dumped(
            int(offset),
            int(timestamp),
            None if int(key_size) < 0 else key or "",
            None if int(value_size) < 0 else value or "",
            tuple(headers.split(",")) if headers else (),
        )


def batches(printed: str) -> Iterator[tuple[int, int, int]]:
    """Base offset, last offset and count of each batch of records; every one must be valid."""
    for line in printed.splitlines():
        if line.startswith("baseOffset:") and "isControl: true" not in line:
            match = _BATCH.fullmatch(line)
            assert match, line
            assert match[4] == "true", line
            yield int(match[1]), int(match[2]), int(match[3])


def complaints(errors: str) -> list[str]:
    """Return the errors that DumpLogSegments has printed, except one false error.

    Since Kafka 4.3, the tool takes -1 as the offset before each file. So it calls the first record
    of every segment after the first one non-consecutive.
    """
    left: list[str] = []
    for line in errors.splitlines():
        if re.fullmatch(r"  -1 is followed by \d+", line):
            assert left, errors
            assert left.pop().startswith("Non-consecutive offsets in "), errors
        else:
            left.append(line)
    return left
