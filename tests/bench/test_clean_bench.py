"""The benchmark of the cleaners runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka_tools import jars
from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_table_has_every_work(tmp_path: Path) -> None:
    jars()  # fetched where they are not there yet
    command = [sys.executable, f"{BENCH}/clean.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    for title in (
        "10 % distinct keys",
        "all keys distinct",
        "4 KiB reads",
        "one-line appends",
        "deleted segment",
    ):
        assert any(title in row[0] for row in table[1:]), title
    for row in table[1:]:
        assert float(row[2]) >= 0
    assert "rounds" in done.stdout
    assert list(tmp_path.iterdir()) == []
