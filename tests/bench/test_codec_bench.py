"""The benchmark of the record codec runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_every_work_has_a_row() -> None:
    command = [sys.executable, f"{BENCH}/codec.py", "--tiny"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[1:4] for row in table[:1]] == [["kafkafs", "aiokafka", "kafka-python"]]
    for work in ("render", "columns", "encode"):
        for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
            assert any(work in row[0] and codec in row[0] for row in table), (work, codec)
    for row in table[1:]:
        assert all(float(cell) > 0 for cell in row[1:4]), row
