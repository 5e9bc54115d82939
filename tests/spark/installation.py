"""The Spark installation of the tests: as pip made it, but JVMs and Python workers start sooner."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.interop.kafka_tools import CACHE, QUICK, SILENT

# Loads the classes that each session needs, and waits for the JVM, which archives them. An archive
# with the classes of a query takes 16 s more to make, and saves 1.5 s in a session with queries.
_SESSION = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.config("spark.driver.extraJavaOptions", sys.argv[1])
session = builder.config("spark.ui.enabled", "false").getOrCreate()
jvm = session.sparkContext._gateway.proc
session.stop()
jvm.stdin.close()
jvm.wait()
"""


@functools.cache
def spark_home() -> str:
    """Return the directory of the installation; make it when it is missing.

    The one of pip also has `pyspark.zip`, from which Spark's workers import PySpark first. Python
    keeps no bytecode of a ZIP file, so each worker compiles PySpark: 1.1 s of processor time, not
    0.4 s. The worker of a streaming query has 10 s to connect to Spark, which no setting changes.
    On a busy machine it needs more, and the query fails: "Python worker failed to connect back".

    `classes.jsa` has Spark's classes as a JVM has them in memory. With it, a session takes half of
    the processor time to start. A JVM uses it only with the same JAR files, in the same place.
    """
    import pyspark

    pip = Path(pyspark.__file__).parent
    version = hashlib.sha256(f"{pip} {pyspark.__version__}".encode()).hexdigest()[:16]
    home = CACHE.with_name("spark") / version
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "classes.jsa").exists():
            for name in ("bin", "jars"):
                (home / name).unlink(missing_ok=True)
                (home / name).symlink_to(pip / name)
            _archive_classes(home)
    return str(home)


def _archive_classes(home: Path) -> None:
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        made = Path(scratch, "classes.jsa")
        options = " ".join([*QUICK, f"-XX:ArchiveClassesAtExit={made}", *SILENT])
        subprocess.run(
            [sys.executable, "-c", _SESSION, options],
            cwd=scratch,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
        os.rename(made, home / "classes.jsa")


def java_options() -> str:
    """Return the options of the installation's JVMs."""
    return " ".join([*QUICK, f"-XX:SharedArchiveFile={spark_home()}/classes.jsa", *SILENT])
