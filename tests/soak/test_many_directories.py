"""A data directory of very many partitions, beside as many directories that are none."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.mounting import Mount

COUNT = 50_000
#: Seconds of processor time until the mount answers.
MOST_S = 60


class BusyMount(Mount):
    """Its daemon gets ready within MOST_S of processor time, on however busy a machine."""

    took_s = 0.0

    def _wait_ready(self, ready: socket.socket) -> None:
        stat = Path(f"/proc/{self.pid}/stat")
        is_ready = False
        while not is_ready:
            if select.select([ready], [], [], 1)[0]:
                is_ready = b"READY=1" in ready.recv(4096)
            fields = stat.read_text().rpartition(")")[2].split()
            self.took_s = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
            assert self.took_s < MOST_S


@pytest.mark.soak
def test_they_are_mounted_in_a_minute_of_processor_time(
    tmp_path: Path, figures: Callable[[str, object], None]
) -> None:
    mount = BusyMount(tmp_path, ())
    for number in range(COUNT):
        (mount.data / f"orders-{number}").mkdir()
        (mount.data / f"orders.{number}").mkdir()
    try:
        mount.start()
        figures("processor time, s", mount.took_s)
        assert mount.events().count("not partition directories, ignored") == 1
        assert len(os.listdir(mount / "orders")) == COUNT
    finally:
        mount.end()
