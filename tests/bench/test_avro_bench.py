"""The benchmark of the Avro decoder runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def test_every_decoder_has_a_figure() -> None:
    command = [sys.executable, f"{BENCH}/avro.py", "--tiny"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()[1:]
    names = ["kafkafs", "fastavro", "fastavro and msgspec", "libavro"]
    assert [line[:22].rstrip() for line in lines] == names
    for line in lines[:3]:
        assert float(line[22:]) > 0
