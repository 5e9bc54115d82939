"""The benchmark of the mount runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import HANG_S

pytestmark = pytest.mark.soak

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_the_table_has_every_work(tmp_path: Path) -> None:
    command = [sys.executable, f"{BENCH}/mount.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    titles = [row[0] for row in table]
    for title in (
        "`cat big",
        "one-line",
        "`echo",
        "cold `cat`",
        "second",
        "`stat`",
        "4 KiB",
        "start",
    ):
        assert any(title in found for found in titles), title
    assert table[0][2] == "kafkafs"
    for row in table[1:]:
        assert float(row[2]) > 0
    assert "daemon memory after all this: RSS" in done.stdout
    assert list(tmp_path.iterdir()) == []
