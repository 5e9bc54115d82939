"""A Spark session, one for all tests of a process, and where Spark finds `format("kafkafs")`."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kafkafs.spark
from tests.spark.installation import java_options, spark_home
from tests.waits import HANG_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let pyspark and py4j warn: what they do with sockets and threads is theirs."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.filterwarnings("default::ResourceWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("default::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two threads, nothing outside of this machine and of a temporary directory."""
    root = tmp_path_factory.mktemp("spark")
    packages = root / "packages"
    packages.mkdir()
    # As an installation has it; an editable one has no directory that Spark would find.
    installed = Path(kafkafs.spark.__file__).parent / "pyspark_kafkafs"
    (packages / "pyspark_kafkafs").symlink_to(installed)
    environment = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(packages), *filter(None, sys.path)]),
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
        "SPARK_LOCAL_DIRS": str(root / "local"),
        "TZ": "UTC",
    }
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        for name, value in environment.items():
            patch.setenv(name, value)
        session = _session(root)
    try:
        yield session
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            _stop(session)


def _session(root: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": f"{java_options()} -Dderby.system.home={root / 'derby'}",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(root / "warehouse"),
        "spark.local.dir": str(root / "local"),
        "spark.python.worker.reuse": "true",
        "spark.sql.streaming.metricsEnabled": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("kafkafs tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def _stop(session: SparkSession) -> None:
    """Stop the session and the JVM, which would live as long as this process."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    session.stop()
    if gateway is None:
        return
    gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()
        process.wait(HANG_S)
    SparkContext._gateway = None
    SparkContext._jvm = None
