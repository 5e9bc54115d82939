"""`kafkafs spark`: what of it works without pyspark, without Java, and without a topic."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from kafkafs.spark.jobs.session import how_to_install
from tests.storage.logs import append, opened

JOBS = ("verify", "stats", "export", "import", "compact")

# As where the extra is not installed.
BLOCKED = """
import json, os, sys
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
from kafkafs.spark.jobs import selection
from kafkafs.spark.location import location
for number, words in enumerate(json.loads(sys.argv[1])):
    if not os.fork():
        for stream, name in (1, "stdout"), (2, "stderr"):
            os.dup2(os.open(f"{{number}}.{{name}}", os.O_CREAT | os.O_WRONLY), stream)
        main(["spark", *words], prog_name="kafkafs")
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
ROOT = Path(__file__).parents[4]
INSTALL = how_to_install("pyspark", "pyarrow", "pandas")
STREAMS = ("stdout", "stderr")
EXTRA = ("pyspark", "pyarrow", "pandas", "numpy", "matplotlib")


class Told(NamedTuple):
    """The exit status and the output of a command."""

    returncode: int
    stdout: str
    stderr: str


def run_all(
    *lines: Sequence[object], without: tuple[str, ...] = EXTRA, **environment: str
) -> list[Told]:
    """Run lines of `kafkafs spark`, each in a fork of a process that cannot import these."""
    script = BLOCKED.format(modules=without)
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [sys.executable, "-c", script, json.dumps([[*map(str, line)] for line in lines])],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
            cwd=directory,
            check=True,
        )
        return [
            Told(int(status), *(Path(directory, f"{n}.{name}").read_text() for name in STREAMS))
            for n, status in enumerate(done.stdout.split())
        ]


def run(*words: object, without: tuple[str, ...] = EXTRA, **environment: str) -> Told:
    (told,) = run_all(words, without=without, **environment)
    return told


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a topic `t` of two partitions, and a record in partition 0."""
    path = tmp_path / "data"
    path.mkdir()
    with opened(path) as manager:
        append(manager.create_topic("t", 2).partitions[0], b"value")
    return path


@pytest.mark.programs
def test_help_needs_nothing() -> None:
    of_all, *of_jobs = run_all(["--help"], *([job, "--help"] for job in JOBS))
    assert of_all.returncode == 0, of_all.stderr
    assert "need PySpark" in of_all.stdout
    for job, told in zip(JOBS, of_jobs, strict=True):
        assert job in of_all.stdout
        assert told.returncode == 0, told.stderr
        for option in ("--dry-run", "--json", "--master"):
            assert option in told.stdout


@pytest.mark.programs
def test_without_the_extra_a_job_says_what_to_install(data: Path) -> None:
    for told in run_all(["verify", data], ["stats", data], ["export", data, data / "out"]):
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
    out = data.parent / "out"
    verified, counted, in_bytes, exported = run_all(
        ["verify", data, "--dry-run", "--json"],
        ["stats", data, "t:0", "--dry-run"],
        ["stats", data, "t:0", "--dry-run", "--bytes"],
        ["export", data, out, "--dry-run"],
        without=without,
    )
    assert verified.returncode == 0, verified.stderr
    report = json.loads(verified.stdout)
    assert (report["result"]["dry_run"], report["problems"]) == (True, [])
    assert report["result"]["figures"]["segments"] == 2
    *counts, size = counted.stdout.splitlines()
    assert counts == ["partitions 1", "offsets 1"]
    assert re.fullmatch("bytes [0-9]+B", size), "as other commands print sizes"
    assert in_bytes.stdout.splitlines()[2] == size.removesuffix("B")
    assert exported.stdout.splitlines()[-1] == "offsets 1"
    assert not out.exists()


@pytest.mark.programs
def test_what_cannot_be_is_said_before_spark_starts(data: Path) -> None:
    cases: list[tuple[list[object], str]] = [
        (["verify", data, "--dry-run", "nothing"], "there is no topic 'nothing'"),
        (["verify", data, "--dry-run", "t:2"], "no partition 2 of topic 't'"),
        (["stats", data / "nothing", "--dry-run"], "no such data directory"),
        (["export", data, data, "--dry-run"], "is neither empty nor an export"),
    ]
    found = run_all(*(words for words, _ in cases), without=("pyspark",))
    for told, (_, reason) in zip(found, cases, strict=True):
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
    found = run_all(*wrong, without=("pyspark",))
    assert [told.returncode for told in found] == [2] * len(wrong)


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
    found = run_all(*(words for words, _ in cases), without=(), JAVA_HOME=str(tmp_path))
    for told, (_, reason) in zip(found, cases, strict=True):
        assert (told.returncode, told.stdout) == (3, ""), told.stderr
        assert reason in told.stderr
    assert not (tmp_path / "started").exists()
