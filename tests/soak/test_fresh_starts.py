"""The tests of the commands hold if each command starts fresh, without the fork server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
def test_commands_that_start_fresh(figures: Callable[[str, object], None]) -> None:
    options = ["-n", "auto", "--dist", "loadfile", "-q", "-p", "no:cacheprovider"]
    options += ["-m", "programs and not soak"]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "tests/kafkafs/cli"],
        cwd=ROOT,
        env={**inherited, "KAFKAFS_TESTS_START": "fresh"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    figures("tests", done.stdout.splitlines()[-1])
