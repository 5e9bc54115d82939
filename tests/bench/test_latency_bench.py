"""The benchmark of followers runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka_tools import jars
from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_tables_have_every_follower(tmp_path: Path) -> None:
    jars()  # fetched where they are not there yet
    command = [sys.executable, f"{BENCH}/latency.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    tables = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    assert [row[0].removeprefix("| ") for row in tables] == [
        "follower", "kafkafs tail -f", "kafkafs consume --follow", "kafkafs consume --follow -g",
        "tail -f", "tail -F", "kcat on a broker",
        "who waits", "nobody", "5 open files in epoll", "tail -f of 5 files",
    ]  # fmt: skip
    assert all(float(row[2]) >= 0 for row in tables[1:7])
    assert list(tmp_path.iterdir()) == []
