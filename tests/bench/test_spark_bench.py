"""The benchmark of the Spark side runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interop.kafka_tools import CURRENT_POM, SPARK_POM, jars

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


@pytest.mark.soak
def test_the_table_has_every_work(tmp_path: Path) -> None:
    for pom in (CURRENT_POM, SPARK_POM):
        jars(pom)  # fetched where they are not there yet
    command = [sys.executable, f"{BENCH}/spark.py", "--tiny", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    for title in (
        "source to noop",
        "load(), grouped",
        "source to Parquet",
        "an hour by time",
        "by a part of the value",
        "sink",
        "compaction",
        "of three times that",
        "Parquet, two threads",
        "a task's Python, compacting",
    ):
        assert any(title in row[0] for row in table[1:]), title
    for row in table[1:]:
        assert float(row[2]) > 0
    assert any("Kafka source" in row[3] for row in table[1:])
    assert list(tmp_path.iterdir()) == []
