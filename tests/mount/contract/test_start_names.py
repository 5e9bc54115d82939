"""Names that are not listed but can be looked up: files that start somewhere else."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, mounted


@pytest.mark.parametrize("zone", ["Pacific/Auckland", "America/New_York"])
def test_local_time_is_the_mounts_not_the_callers(tmp_path: Path, zone: str) -> None:
    with mounted(tmp_path) as own:
        own.stop()
        own.start(env={"TZ": zone})
        own.topic()
        # This morning may be still to come there.
        own.run("echo message.timestamp.after.max.ms=$((86400 * 1000)) >> orders/.config")
        now = datetime.now(ZoneInfo(zone))
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        for number, hours in enumerate((-1, 0, 8)):
            timestamp = int((midnight + timedelta(hours=hours)).timestamp() * 1000)
            record = {"timestamp": timestamp, "value": f"v{number}"}
            append(own / "orders/.jsonl/0", json.dumps(record).encode() + b"\n")
        today, yesterday = now.date(), now.date() - timedelta(days=1)
        for name, lines in (
            ("08:00", b"v2\n"),
            ("00:00..08:00", b"v1\n"),
            (f"{today}", b"v1\nv2\n"),
            (f"{yesterday}..{today}", b"v0\n"),
            (f"{today}T08:00:00", b"v2\n"),
        ):
            assert (own / f"orders/0@{name}").read_bytes() == lines, name
        caller = own.run("TZ=UTC cat orders/0@08:00; TZ=Asia/Tokyo cat orders/0@08:00")
        assert caller == b"v2\nv2\n"


# -- what else it is -----------------------------------------------------------------------------


def test_ever_new_names_cost_no_memory(own: Mount) -> None:
    """The daemon keeps few of those that are not open, and forgets none that is."""
    own.run("mkdir t; seq 100 >> t/0")
    topic = own / "t"
    with open(topic / "0@7", "rb", buffering=0) as file, open(topic / "0@8..12", "rb") as other:
        inode = os.fstat(file.fileno()).st_ino
        for number in range(1200):
            os.stat(topic / f"0@0..{number}")
            assert not (topic / f"0@no{number}").exists()
        assert own.run("cat t/0@98 t/0@0..1") == b"99\n100\n1\n"
        assert os.fstat(file.fileno()).st_ino == os.stat(topic / "0@7").st_ino == inode
        assert file.read(4) == b"8\n9\n"
        assert other.read() == b"9\n10\n11\n12\n"
        metrics = (own / ".kafkafs/metrics").read_text().splitlines()
        known = next(line for line in metrics if line.startswith("kafkafs_known_inodes "))
        assert float(known.split()[1]) < 1100
        for number in range(20):
            os.stat(topic / f"0@0..{number}")
    # The kernel forgets them all, those that the daemon has dropped, too.
    own.run("rmdir t; mkdir t; touch t/1")
    assert "forget of inode" not in own.events()
