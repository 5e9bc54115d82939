"""A data directory of very many partitions, beside as many directories that are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.mounting import Mount

COUNT = 50_000
#: Seconds of processor time until the mount answers.
MOST_S = 60


@pytest.mark.soak
def test_they_are_mounted_in_a_minute_of_processor_time(
    tmp_path: Path, figures: Callable[[str, object], None]
) -> None:
    mount = Mount(tmp_path, ())
    for number in range(COUNT):
        (mount.data / f"orders-{number}").mkdir()
        (mount.data / f"orders.{number}").mkdir()
    try:
        mount.start()
        fields = Path(f"/proc/{mount.pid}/stat").read_text().rpartition(")")[2].split()
        took_s = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        figures("processor time, s", took_s)
        assert sum("left alone" in line for line in mount.events().splitlines()) == 1
        assert len(os.listdir(mount / "orders")) == COUNT
        assert took_s < MOST_S
    finally:
        mount.end()
