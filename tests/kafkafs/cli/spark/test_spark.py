"""`kafkafs spark`: what of it works without pyspark, without Java, and without a topic."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kafkafs.spark.jobs.session import how_to_install
from tests.storage.logs import append, opened

JOBS = ("verify", "stats", "export", "import", "compact")

# As where the extra is not installed.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {modules!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
from importlib import util
found = util.find_spec
util.find_spec = lambda name, package=None: (
    None if name.split(".")[0] in {modules!r} else found(name, package)
)
from kafkafs.cli import main
main()
"""
ROOT = Path(__file__).parents[4]
INSTALL = how_to_install("pyspark", "pyarrow", "pandas")
EXTRA = ("pyspark", "pyarrow", "pandas", "numpy", "matplotlib")


def run(
    *arguments: object, without: tuple[str, ...] = EXTRA, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`kafkafs spark` in a process that cannot import these."""
    script = BLOCKED.format(modules=without)
    return subprocess.run(
        [sys.executable, "-c", script, "spark", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic `t` of two partitions, of which one has a record."""
    path = tmp_path / "data"
    path.mkdir()
    with opened(path) as manager:
        append(manager.create_topic("t", 2).partitions[0], b"value")
    return path


@pytest.mark.programs
def test_help_needs_nothing() -> None:
    told = run("--help")
    assert told.returncode == 0, told.stderr
    assert "need PySpark" in told.stdout
    for job in JOBS:
        assert job in told.stdout


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.programs
def test_help_of_a_job_needs_nothing(job: str) -> None:
    told = run(job, "--help")
    assert told.returncode == 0, told.stderr
    for option in ("--dry-run", "--json", "--master"):
        assert option in told.stdout


@pytest.mark.programs
def test_without_the_extra_a_job_says_what_to_install(data: Path) -> None:
    for arguments in (["verify", data], ["stats", data], ["export", data, data / "out"]):
        told = run(*arguments)
        assert told.returncode == 3
        assert (
            told.stderr
            == f"kafkafs: not installed: pyspark, pyarrow, pandas. To install: {INSTALL}\n"
        )


def test_what_a_job_says_to_install_has_the_versions_of_the_extras() -> None:
    """Only what is missing, word for word what pip takes."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    asked = [Requirement(word) for extra in extras.values() for word in extra]
    for missing in (("pandas", "pyarrow"), ("pyspark", "pandas", "pyarrow"), ("matplotlib",)):
        program, *words = shlex.split(how_to_install(*missing))
        assert (program, words[:3]) == (sys.executable, ["-m", "pip", "install"])
        told = {Requirement(word) for word in words[3:]}
        assert told == {each for each in asked if each.name in missing}


@pytest.mark.programs
def test_where_no_package_can_be_added_a_job_says_where_it_can(data: Path) -> None:
    """An environment without pip, such as that of the Debian package."""
    told = run("verify", data, without=(*EXTRA, "pip"))
    assert told.returncode == 3
    assert told.stderr.endswith(
        "To install: pip install '.[spark-local,charts]' in a virtual environment and a clone of "
        "kafkafs, because this installation cannot add packages\n"
    )


@pytest.mark.programs
def test_without_java_a_job_says_what_to_install(data: Path) -> None:
    told = run("verify", data, without=(), PATH="/nothing", JAVA_HOME="")
    assert told.returncode == 3
    assert told.stderr.startswith("kafkafs: Spark needs Java 17 or later")
    assert told.stderr.count("\n") == 1


@pytest.mark.programs
def test_dry_runs_need_no_spark(data: Path) -> None:
    without = ("pyspark", "pandas", "matplotlib")
    told = run("verify", data, "--dry-run", "--json", without=without)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert (report["result"]["dry_run"], report["problems"]) == (True, [])
    assert report["result"]["figures"]["segments"] == 2
    told = run("stats", data, "t:0", "--dry-run", without=without)
    *counts, size = told.stdout.splitlines()
    assert counts == ["partitions 1", "offsets 1"]
    assert re.fullmatch("bytes [0-9]+B", size), "as other commands print sizes"
    told = run("stats", data, "t:0", "--dry-run", "--bytes", without=without)
    assert told.stdout.splitlines()[2] == size.removesuffix("B")
    out = data.parent / "out"
    told = run("export", data, out, "--dry-run", without=without)
    assert told.stdout.splitlines()[-1] == "offsets 1"
    assert not out.exists()


@pytest.mark.programs
def test_what_cannot_be_is_said_before_spark_starts(data: Path) -> None:
    for arguments, reason in (
        (["verify", data, "--dry-run", "nothing"], "there is no topic 'nothing'"),
        (["verify", data, "--dry-run", "t:2"], "no partition 2 of topic 't'"),
        (["stats", data / "nothing", "--dry-run"], "no such data directory"),
        (["export", data, data, "--dry-run"], "is neither empty nor an export"),
    ):
        told = run(*arguments, without=("pyspark",))
        assert (told.returncode, told.stdout) == (3, "")
        assert told.stderr.startswith("kafkafs: ")
        assert reason in told.stderr
    wrong: list[list[object]] = [
        ["stats", data, "--gap", "soon"],
        ["verify", data, "--conf", "x"],
        ["verify", data, "t:x"],
        ["export", data, "x", "--follow", "--snapshot"],
        ["import", data, "t"],
        ["nothing"],
    ]
    for arguments in wrong:
        assert run(*arguments, without=("pyspark",)).returncode == 2


@pytest.mark.programs
def test_no_java_is_started_for_what_cannot_be(data: Path, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "file.txt").touch()
    cases: tuple[tuple[list[object], str], ...] = (
        (["verify", data / "nothing"], "no such data directory"),
        (["verify", data, "t:2"], "no partition 2 of topic 't'"),
        (["stats", data, "--chart", "chart.pdf"], ".png or .svg"),
        (["export", data, data], "is neither empty nor an export"),
        (["export", data, tmp_path, "--snapshot"], "already exists"),
        (["import", data, "t", tmp_path / "nothing"], "No such file"),
        (["import", data, "nothing", tmp_path / "file.txt"], "To create it: --partitions N"),
        (["compact", data, "nothing"], "there is no topic 'nothing'"),
    )
    for arguments, reason in cases:
        told = run(*arguments, without=(), JAVA_HOME=str(tmp_path))
        assert (told.returncode, told.stdout) == (3, ""), told.stderr
        assert reason in told.stderr
    assert not (tmp_path / "started").exists()
