"""The table of processor times that a run of pytest writes."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.times import RUN

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "tests.times"]
ALONE = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
USED_S = 0.2
EXPENSIVE = f"""
import os, subprocess, sys, time, pytest

PROGRAM = "import time\\nwhile time.process_time() < {USED_S}: pass\\n"
THEN_WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

def use_processor():
    end = time.process_time() + {USED_S}
    while time.process_time() < end:
        pass

def start():
    program = [sys.executable, "-c", PROGRAM + THEN_WAIT]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline()

@pytest.fixture(scope="module")
def fixture():
    use_processor()

def test_first_with_fixture(fixture):
    pass

def test_second_with_fixture(fixture):
    pass

def test_own():
    use_processor()

def test_child():
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)

started = []

def test_start():
    started.append(start()[0])

def test_between():
    pass

def test_end():
    started[0].kill()
    started[0].communicate()

def test_daemon():
    if os.fork() == 0:
        _, pid = start()
        with open(os.environ["DAEMON"], "w") as file:
            file.write(pid)
        os._exit(0)
    os.wait()
"""


@pytest.mark.parametrize(
    "processes", [[], ["-n", "1", "--dist", "loadfile"]], ids=["alone", "xdist"]
)
def test_table(tmp_path: Path, processes: list[str]) -> None:
    """Each test has the time that it has caused, and the most expensive file comes first."""
    (tmp_path / "test_a_cheap.py").write_text("def test_cheap():\n    pass\n")
    (tmp_path / "test_expensive.py").write_text(EXPENSIVE)
    daemon = tmp_path / "daemon"
    # As a user starts it, not a test.
    variables = {
        name: value
        for name, value in os.environ.items()
        if name != RUN and not name.startswith("PYTEST_")
    }
    try:
        done = subprocess.run(
            [*PYTEST, *processes],
            cwd=tmp_path,
            env=variables | ALONE | {"DAEMON": str(daemon)},
            capture_output=True,
            text=True,
        )
    finally:
        if daemon.exists():
            os.kill(int(daemon.read_text()), signal.SIGKILL)
    assert done.returncode == 0, done.stdout + done.stderr
    with (tmp_path / "build/test-times.csv").open(newline="") as table:
        rows = list(csv.DictReader(table))
    own = {row["test"].partition("::")[2]: float(row["own_s"]) for row in rows}
    children = {row["test"].partition("::")[2]: float(row["children_s"]) for row in rows}
    assert {name for name, seconds in own.items() if name and seconds >= USED_S} == {
        "test_first_with_fixture",
        "test_own",
    }
    # The time of a child in /proc is in ticks.
    expensive = {name for name, seconds in children.items() if name and seconds > USED_S / 2}
    assert {name.partition(": ")[0] for name in expensive} == {
        "test_child",
        "test_start",
        "test_daemon (still runs",
    }
    files = [row["file"] for row in rows if row["test"] == ""]
    assert files.index("test_expensive.py") < files.index("test_a_cheap.py")
    [total] = [row for row in rows if row["file"] == "test_expensive.py" and not row["test"]]
    tests = [row for row in rows if row["file"] == "test_expensive.py" and row["test"]]
    for column in ("own_s", "children_s", "wall_s"):
        assert float(total[column]) == pytest.approx(
            sum(float(row[column]) for row in tests), abs=0.01
        )
    assert f"processor time, of each test in {tmp_path}/build/test-times.csv" in done.stdout
    assert "s of wall time: test_expensive.py\n" in done.stdout


def test_pytest_in_a_test_writes_no_table(tmp_path: Path) -> None:
    (tmp_path / "test_cheap.py").write_text("def test_cheap():\n    pass\n")
    done = subprocess.run(
        PYTEST,
        cwd=tmp_path,
        env=os.environ | ALONE | {RUN: "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "build").exists()
