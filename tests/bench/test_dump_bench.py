"""The benchmark of `kafkafs dump` runs, tiny: it must not rot. No time is judged."""

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
    command = [sys.executable, f"{BENCH}/dump.py", "--tiny", "--directory", str(tmp_path)]
    command += ["--only", "contents", "--only", "v1", "--only", "timeindex"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in table[1:]] == [
        "| records and contents", "| the same, format v1", "| `.timeindex`",
    ]  # fmt: skip
    for row in table[1:]:
        assert float(row[2]) > 0
    assert list(tmp_path.iterdir()) == []
