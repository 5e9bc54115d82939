"""The benchmark of retention runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_the_table(tmp_path: Path) -> None:
    command = [sys.executable, f"{BENCH}/clean_retention.py", "--segments", "30"]
    command += ["--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows[2:]] == ["| delete", "| remove", "| decide"]
    assert all(float(row[1]) > 0 for row in rows[2:])
    assert list(tmp_path.iterdir()) == []
