"""A module of the user's with the name of our package `storage` hides it, or is not in the way.

Python looks first beside the script, or in the working directory: so do the programs that Spark
starts, in which the source runs. kafkafs lies here as an installation has it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kafkafs
import storage
from storage import LogManager
from tests.spark.installation import java_options, spark_home
from tests.storage.logs import append

# Reads with the source as a user does; `storage` is the user's or ours.
JOB = """
import sys
from pyspark.sql import SparkSession

settings = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
spark = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    rows = spark.read.format("kafkafs").option("subscribe", "t").load(sys.argv[1])
    print("read", rows.count())
except Exception as error:
    print(error)
"""
COMMAND = "from kafkafs.cli import main; main()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the packages, which is the last on Python's path."""
    path = tmp_path_factory.mktemp("installed")
    sources = shutil.ignore_patterns("__pycache__", "*.c", "*.cpp", "*.pyx")
    for package in (kafkafs, storage):
        shutil.copytree(package.__path__[0], path / package.__name__, ignore=sources)
    shutil.copytree(path / "kafkafs/spark/pyspark_kafkafs", path / "pyspark_kafkafs")
    (path / "bin").mkdir()
    (path / "bin/kafkafs").write_text(COMMAND)
    return path


@pytest.fixture
def user(tmp_path: Path) -> Path:
    path = tmp_path / "user"
    path.mkdir()
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    with LogManager.open(str(path)) as manager:
        append(manager.create_topic("t", 1).partitions[0], b"a")
    return path


def run(
    installed: Path, where: Path, *arguments: object, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(installed),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": spark_home(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(where.parent / "local"),
        "JDK_JAVA_OPTIONS": java_options(),
        **more,
    }
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=where,
        env=environment,
        capture_output=True,
        text=True,
    )


def hide(directory: Path, kind: str) -> Path:
    """Make a module of that name; the file that hides ours."""
    if kind == "file":
        path = directory / "storage.py"
        path.write_text("mine = True\n")
        return path
    path = directory / "storage"
    path.mkdir()
    if kind == "namespace":
        (path / "cold.py").touch()
        return path
    (path / "__init__.py").write_text("mine = True\n")
    return path / "__init__.py"


def line(hiding: Path) -> str:
    return f"{hiding} hides the package storage of kafkafs: rename it, or start elsewhere"


@pytest.mark.parametrize("place", ["working directory", "beside the script"])
@pytest.mark.parametrize("kind", ["file", "package", "namespace"])
def test_importing_kafkafs_says_what_hides_it(
    installed: Path, user: Path, tmp_path: Path, kind: str, place: str
) -> None:
    hiding = hide(user, kind)
    (user / "job.py").write_text("import kafkafs.spark.location.owner_client")
    if place == "working directory":
        found = run(installed, user, "-c", "import kafkafs.spark.location.owner_client")
    else:
        found = run(installed, tmp_path, user / "job.py")
    if kind == "namespace":
        assert found.returncode == 0, found.stderr
    else:
        assert found.stderr.splitlines()[-1] == f"ImportError: {line(hiding)}"


def test_a_module_that_the_user_has_imported_before_is_named_and_stays(
    installed: Path, user: Path
) -> None:
    hiding = hide(user, "file")
    script = "import storage\ntry: import kafkafs\nexcept ImportError as e: print(e, storage.mine)"
    assert run(installed, user, "-c", script).stdout == f"{line(hiding)} True\n"
    (user / "storage.py").unlink()
    script = "import sys, kafkafs; print('storage' in sys.modules)"
    assert run(installed, user, "-c", script).stdout == "False\n"


def test_the_command_is_not_touched_by_the_working_directory(
    installed: Path, user: Path, data: Path
) -> None:
    hiding = hide(user, "file")
    found = run(installed, user, installed / "bin/kafkafs", "ls", data)
    assert "t" in found.stdout.split(), found.stderr
    found = run(installed, user, "-m", "kafkafs", "ls", data)
    assert found.stderr.splitlines()[-1] == f"ImportError: {line(hiding)}"


@pytest.mark.soak
def test_spark_says_what_hides_the_source(installed: Path, user: Path, data: Path) -> None:
    hiding = hide(user, "file")
    (user.parent / "job.py").write_text(JOB)
    assert line(hiding) in run(installed, user, user.parent / "job.py", data).stdout


@pytest.mark.soak
def test_a_module_beside_the_script_is_not_in_the_way_of_spark(
    installed: Path, user: Path, data: Path
) -> None:
    hide(user, "package")
    (user / "job.py").write_text(f"import storage\nassert storage.mine\n{JOB}")
    found = run(installed, user.parent, user / "job.py", data)
    assert found.stdout == "read 1\n", found.stderr
