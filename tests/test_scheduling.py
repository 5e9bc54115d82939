"""Which process of pytest-xdist runs which files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.times import RUN

ROOT = Path(__file__).parents[1]
TEST = """
import os


def test_it():
    with open("ran", "a") as file:
        file.write(f"{kind} {{os.environ['PYTEST_XDIST_WORKER']}}\\n")
"""


@pytest.mark.soak
def test_one_process_has_the_files_that_ask_for_the_spark_session(tmp_path: Path) -> None:
    folder = tmp_path / "tests/spark"
    folder.mkdir(parents=True)
    for n in range(8):
        (folder / f"test_session_{n}.py").write_text(
            TEST.format(kind="session") + "# spark: SparkSession\n"
        )
        (folder / f"test_other_{n}.py").write_text(TEST.format(kind="other"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider"),
            *("-n", "4", "--dist", "loadfile", "--no-loadscope-reorder"),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), RUN: "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert len(ran) == 16
    assert len({worker for kind, worker in ran if kind == "session"}) == 1
    assert len({worker for _, worker in ran}) == 4
