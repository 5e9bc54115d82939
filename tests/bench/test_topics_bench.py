"""The benchmark of many topics runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_table_has_every_work(tmp_path: Path) -> None:
    command = [sys.executable, f"{BENCH}/topics.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in table[1:]] == [
        "mkdir", "chmod", "touch a partition", ".config", "rmdir of a new topic",
        "rest", "memory", "mount", "umount",
    ]  # fmt: skip
    assert all(float(row[3]) >= 0 for row in table[1:])
    assert list(tmp_path.iterdir()) == []
