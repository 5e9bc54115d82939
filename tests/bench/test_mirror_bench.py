"""The benchmark of `kafkafs mirror` runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka_tools import jars
from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_table_has_both_topics(tmp_path: Path) -> None:
    jars()  # fetched where they are not there yet
    command = [sys.executable, f"{BENCH}/mirror.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in table[1:]] == ["| none", "| zstd"]
    assert {len(row) for row in table} == {7}
    assert list(tmp_path.iterdir()) == []
