"""The benchmark of consumers runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka_tools import jars
from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_table_has_every_consumer(tmp_path: Path) -> None:
    jars()  # fetched where they are not there yet
    command = [sys.executable, f"{BENCH}/consume.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line[2:].split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0] for row in rows] == [
        "program", "kafkafs consume", "kafkafs consume -g", "kafkafs consume -g --exec cat",
        "kcat -C", "console consumer", "kcat -G", "console consumer --group",
    ]  # fmt: skip
    assert all(float(row[2]) > 0 for row in rows[1:])
    assert list(tmp_path.iterdir()) == []
