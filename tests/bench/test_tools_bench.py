"""The benchmark of tools over a partition runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
SLOW_TO_START = ["duckdb", "pandas"]
UNIX = ["wc", "grep", "md5sum", "cat", "python", "gawk", "mawk", "perl", "sed", "sort", "cp"]


def rows_of(directory: Path, *options: str, works: list[str]) -> list[dict[str, str]]:
    """The table's rows, by column."""
    command = [sys.executable, f"{BENCH}/tools.py", "--tiny", "--directory", str(directory)]
    command += [*options, *(f"--only={work}" for work in works)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(directory.iterdir()) == []
    lines = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    head, *rows = [line.strip("| ").split(" | ") for line in lines]
    assert len(rows) == len(works)
    return [dict(zip(head, row, strict=True)) for row in rows]


def check_goals(row: dict[str, str]) -> None:
    """Each goal has a ratio, and says whether it is met."""
    for verdict in list(row.values())[-3:]:
        ratio, said = verdict.split("** ")
        assert float(ratio.removeprefix("**")) > 0
        assert said in ("met", "MISSED")


@pytest.mark.soak
def test_the_table_has_every_tool_and_every_column(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, works=[*UNIX, "read-4k", "read-128k"])
    for row in rows[: len(UNIX)]:
        for column in ("plain file", "snapshot, cold", "snapshot, warm", "C cached, cold", "live"):
            assert float(row[column]) > 0, row
        check_goals(row)
    for row in rows[len(UNIX) :]:
        for column in ("live", "C direct", "C direct, threads"):
            assert float(row[column]) > 0, row
        assert row["snapshot, warm"] == "–"
        assert list(row.values())[-1].endswith(("met", "MISSED"))


def test_a_range_is_read_beside_an_appender(tmp_path: Path) -> None:
    (row,) = rows_of(tmp_path, "--beside", works=["wc"])
    assert float(row["range, warm"]) > 0
    check_goals(row)


@pytest.mark.soak
def test_tools_that_are_slow_to_start(tmp_path: Path) -> None:
    for row in rows_of(tmp_path, works=SLOW_TO_START):
        check_goals(row)
