"""The benchmark of search and size runs, tiny: it must not rot. No time is judged."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.waits import HANG_S

BENCH = Path(__file__).parents[2] / "scripts" / "bench"


def printed_by(directory: Path, *options: str) -> str:
    command = [sys.executable, f"{BENCH}/search.py", "--tiny", "--directory", str(directory)]
    done = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(directory.iterdir()) == []
    return done.stdout


@pytest.mark.soak
def test_the_tables_have_every_search_of_a_repacked_log(tmp_path: Path) -> None:
    printed = printed_by(tmp_path, "--only", "json", "--repacked")
    tables = [line.strip("| ").split(" | ") for line in printed.splitlines() if line[:2] == "| "]
    sizes = dict(zip(*tables[:2], strict=True))
    assert float(sizes["text"]) > float(sizes["log"]) > 0
    head, *rows = tables[2:]
    assert [row[0] for row in rows] == [
        "a word that no line has",
        "a trace of one line",
        "an address of some 50 lines",
        "a word of many lines (`-c`)",
        "a part of a word",
        "the start",
    ]
    found = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["lines"] for row in found[:3]] == ["0", "1", "51"]
    for row in found:
        assert float(row["`kafkafs grep`"]) > 0
        assert float(row["`grep -F`"]) > 0
    for peer in ("ripgrep", "timberfs", "journald"):  # need not be installed
        assert peer in head or f"{peer} left out; not installed: " in printed
    assert "json: repack " in printed


def test_appends_are_compared(tmp_path: Path) -> None:
    (line,) = [
        line for line in printed_by(tmp_path, "--append").splitlines() if line[:7] == "append:"
    ]
    assert line.endswith(("met", "MISSED"))
