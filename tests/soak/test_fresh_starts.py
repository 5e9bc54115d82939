"""Commands handle signals, terminals and limits if they start fresh, without the fork server.

In the gate, each command starts fresh once (tests/kafkafs/cli/test_fresh_starts.py), and
tests/test_fork_server.py compares both kinds of start.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLI = ROOT / "tests" / "kafkafs" / "cli"
FILES = ("mounting/test_mount.py", "test_data_commands.py", "test_other_commands.py")
KEYWORDS = "signal or stopped or terminal or background or limits or reader_that_has_gone or says"


@pytest.mark.soak
def test_commands_that_start_fresh(figures: Callable[[str, object], None]) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-m", "programs and not soak", "-k", KEYWORDS]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(CLI / name for name in FILES)],
        cwd=ROOT,
        env={**inherited, "KAFKAFS_TESTS_START": "fresh"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    figures("tests", done.stdout.splitlines()[-1])
