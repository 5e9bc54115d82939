"""The examples of the reference that are programs, run as a new user runs them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

import kafkafs.spark
from storage import LogManager
from tests.spark.installation import java_options, spark_home
from tests.spark.test_readme import blocks
from tests.storage.logs import append
from tests.waits import until

BIN = Path(sys.executable).parent


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory to work in; what was started there is stopped."""
    yield tmp_path
    pid = tmp_path / "pid"
    if pid.exists():
        stop(int(pid.read_text()))
    if (tmp_path / "mnt").is_mount():
        subprocess.run([BIN / "kafkafs", "umount", tmp_path / "mnt"], check=True)


def environment(scratch: Path) -> dict[str, str]:
    """That of a user who has installed it, whatever way it is here."""
    packages = scratch / "packages"
    packages.mkdir(exist_ok=True)
    link = packages / "pyspark_kafkafs"
    if not link.exists():
        link.symlink_to(Path(kafkafs.spark.__file__).parent / "pyspark_kafkafs")
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {
        **os.environ,
        "PATH": path,
        "PYTHONPATH": str(packages),
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": java_options(),
    }


def run(scratch: Path, script: str) -> str:
    """Run a block; its standard output."""
    with (scratch / "errors").open("ab") as errors:
        found = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=scratch,
            env=environment(scratch),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            check=False,
        )
    assert found.returncode == 0, (scratch / "errors").read_text()
    return found.stdout


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{pid}").exists())


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_the_example_works_as_it_is_written(scratch: Path) -> None:
    printing, example, shown = blocks("An example", "sh")
    lake = scratch / "lake"
    begun = example.replace("python orders.py &", "python orders.py >log 2>&1 & echo $! >pid")
    assert begun != example
    told = run(scratch, printing)
    assert ("three apples" in told, "one pear" in told) == (True, True)
    run(scratch, begun)
    # A batch is done when its file is in here.
    until(lambda: any((lake / "checkpoint" / "commits").glob("[0-9]*")))
    told = run(scratch, shown)
    assert ("three apples" in told, "one pear" in told) == (True, True)
    stop(int((scratch / "pid").read_text()))
    done = len(list((lake / "checkpoint" / "commits").glob("[0-9]*")))
    run(scratch, "echo 'and again' >> mnt/orders/0; python orders.py >log 2>&1 & echo $! >pid")
    until(lambda: len(list((lake / "checkpoint" / "commits").glob("[0-9]*"))) > done)
    told = run(scratch, shown)
    assert [told.count(line) for line in ("three apples", "one pear", "and again")] == [1, 1, 1]


def lines(table: Path) -> list[tuple[int, int, str]]:
    rows = pyarrow.parquet.read_table(table).to_pylist()
    return sorted((row["partition"], row["offset"], row["line"]) for row in rows)


@pytest.mark.soak
def test_a_topic_to_parquet_run_by_cron(scratch: Path) -> None:
    """The program of the example, with the two changes that its chapter names."""
    _, example, _ = blocks("An example", "sh")
    program = example.partition("<<'END'\n")[2].partition("END\n")[0]
    once = program.replace('.trigger(processingTime="2 seconds")', ".trigger(availableNow=True)")
    source = 'subscribe="orders", '
    assert (program.count(source), once != program) == (1, True)
    (scratch / "tail.py").write_text(once.replace(source, f'{source}group="lake", '))
    (scratch / "data").mkdir()
    with LogManager.open(str(scratch / "data")) as manager:
        first, second = manager.create_topic("orders", 2).partitions.values()
        append(first, b"a", b"b")
        append(second, b"c")
    run(scratch, "python tail.py")
    with LogManager.open(str(scratch / "data")) as manager:
        found = manager.groups.find("lake")
        assert found is not None
        assert {item: each.position for item, each in found.committed.items()} == {
            ("orders", 0): 2,
            ("orders", 1): 1,
        }
        append(manager.log("orders", 1), b"d")
        append(manager.create_partition("orders", 2), b"e")
    expected = [(0, 0, "a"), (0, 1, "b"), (1, 0, "c")]
    assert lines(scratch / "lake/orders") == expected
    run(scratch, "python tail.py")
    assert lines(scratch / "lake/orders") == [*expected, (1, 1, "d"), (2, 0, "e")]
