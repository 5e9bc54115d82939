"""A test of the unit lane that starts a program fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests import fork_server
from tests.programs import pytest_runtest_setup, pytest_runtest_teardown

def pytest_configure(config):
    config.addinivalue_line("markers", "programs: …")
    fork_server.install()
"""
TESTS = """
import os, subprocess, sys
import pytest

from tests.fork_server import KAFKAFS

@pytest.fixture(scope="module")
def server():
    with subprocess.Popen(["sleep", "0"]):
        yield

def test_passes_without_programs():
    pass

def test_passes_with_python():
    subprocess.run([sys.executable, "-c", ""], check=True)

@pytest.mark.programs
def test_passes_marked():
    subprocess.run(["true"], check=True)
    subprocess.run("true", shell=True, check=True)

def test_fails_with_run():
    try:
        subprocess.run(["true"])
    except Exception:
        pass

def test_fails_with_shell():
    subprocess.run("true", shell=True)

def test_fails_with_kafkafs():
    subprocess.run([*KAFKAFS, "version"])

def test_fails_with_fresh_kafkafs():
    subprocess.run([sys.executable, "-m", "kafkafs", "version"])

def test_fails_with_system():
    os.system("true")

def test_fails_with_posix_spawn():
    os.waitpid(os.posix_spawn("/bin/true", ["/bin/true"], {}), 0)

def test_fails_with_exec():
    pid = os.fork()
    if pid == 0:
        os.execv("/bin/true", ["/bin/true"])
    assert os.waitpid(pid, 0)[1] == 0

def test_fails_with_fixture(server):
    pass
"""


def test_only_marked_tests_may_start_programs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_programs.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--tb=line", "--show-capture=no"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    results = {
        line.partition("::")[2].split()[0]: line.split()[1]
        for line in done.stdout.splitlines()
        if line.startswith("test_programs.py::")
    }
    assert len(results) == TESTS.count("def test_")
    for test, result in results.items():
        wanted = "PASSED" if test.startswith("test_passes") else ("FAILED", "ERROR")
        assert result in wanted, done.stdout
    assert "a test of the unit lane starts ['true']: mark it pytest.mark.programs" in done.stdout
