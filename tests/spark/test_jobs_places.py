"""The jobs where the data is: in an object store, mounted, and with nobody to wait for them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs import export, import_, stats, verify
from kafkafs.spark.jobs.import_records import ImportOptions
from kafkafs.spark.jobs.progress import working
from kafkafs.spark.jobs.selection import Selection
from storage import LogManager
from storage.errors import InvalidConfig
from storage.verify.verify import verify as verify_here
from tests.mount.mounting import mounted
from tests.spark.object_store import ObjectStore
from tests.storage.logs import values
from tests.storage.verify.test_verify import fill, patch, segments
from tests.waits import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


@pytest.mark.soak
def test_what_only_reads_takes_an_object_store(
    spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    fill(data)
    bucket = store.bucket()
    bucket.sync(data)
    report = verify.run(spark, bucket.uri)
    assert (report.faults, report.figures["records"]) == ([], 63)
    counted = stats.count(spark, bucket.uri, stats.StatsOptions())
    # One of them is of an aborted transaction.
    assert counted.partitions == stats.count(spark, str(data), stats.StatsOptions()).partitions
    assert counted.partitions[0].records == 62
    out = tmp_path / "out"
    assert export.run(spark, bucket.uri, str(out)).figures["records"] == 62
    patch(segments(data)[0], 80, b"?")
    bucket.sync(data)
    (fault,) = verify.run(spark, bucket.uri, Selection((("t", None),))).faults
    (expected,) = verify_here(str(data)).faults
    assert fault.partition(": ")[2] == str(expected).partition(": ")[2]
    with pytest.raises(InvalidConfig, match="not an object store"):
        import_.run(spark, bucket.uri, ImportOptions("t", ("x",)))


def test_a_daemon_that_has_it_mounted_imports(spark: SparkSession, tmp_path: Path) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_bytes(b"one\ntwo\nthree\n")
    with mounted(tmp_path) as mount:
        options = ImportOptions("t", (str(lines),), partition=2, partitions=3)
        for _ in range(2):
            import_.run(spark, str(mount.data), options)
        assert sorted(os.listdir(mount.path / "t")) == ["0", "1", "2"]
        assert (mount.path / "t" / "2").read_bytes() == lines.read_bytes()
        assert verify.run(spark, str(mount.data)).faults == []
        assert stats.count(spark, str(mount.data), stats.StatsOptions()).keys == {"t": 0}
    with LogManager.open(str(tmp_path / "data"), read_only=True) as manager:
        assert values(manager.log("t", 2)) == [b"one", b"two", b"three"]


def test_an_interrupt_cancels_what_runs(spark: SparkSession, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def wait(numbers: Iterable[int]) -> Iterator[int]:
        begun.touch()
        while True:
            time.sleep(0.1)
            yield from numbers

    def interrupt() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    context = spark.sparkContext
    group = context.getLocalProperty("spark.jobGroup.id")
    rows = context.parallelize(range(4), 4).mapPartitions(wait)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), working(spark, "waiting"):
        rows.count()
    thread.join()
    end = time.monotonic() + HANG_S
    while context.statusTracker().getActiveJobsIds():
        assert time.monotonic() < end
    assert context.getLocalProperty("spark.jobGroup.id") == group
    # The interrupt broke this thread's connection to the JVM. A new thread of the JVM serves the
    # new connection. It has no active session until this call.
    spark.createDataFrame([(1,)], "number int")


@pytest.mark.soak
def test_a_followed_export_ends_with_its_report(tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    fill(data)
    command = [sys.executable, "-m", "kafkafs", "spark", "export", str(data), str(out), "--follow"]
    process = subprocess.Popen(
        [*command, "--interval", "1 second", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    commits = out / "_kafkafs" / "checkpoint" / "commits"
    while not any(commits.glob("[0-9]*")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    told, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    assert json.loads(told)["result"]["figures"]["records"] == 62
