"""Each command works as a user starts it: by the installed program, which imports what it needs.

Most other tests start commands by fork, from a process that has imported everything
(`tests.fork_server`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.cli import main
from tests.kafkafs.cli.conftest import Place
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

PROGRAM = Path(sys.executable).parent / "kafkafs"
LOG = "data/orders-0/00000000000000000000.log"
#: The lines that a user types, one after the other, and a part of the output of each.
LINES = [
    ("create data orders cleanup.policy=compact", "created orders with 1 partition\n"),
    ("append data orders --view kv", ""),
    ("cat data orders --view kv", "k\told\nk\tnew\n"),
    ("grep -c old data", "1\n"),
    ("fetch data orders:0:earliest:1000", "2 messages, next offset 2\n"),
    ("ls data", "\norders           1        2 "),
    ("describe data orders", "orders          0          0        2 "),
    ("config data orders", "cleanup.policy=compact\n"),
    ("compact --dry-run data", "orders:0: nothing to clean\n"),
    ("prune --dry-run data", "would delete 0 segments (0B, 0 records)\n"),
    ("words data", "orders:0: built 0 files; 0 of 0 closed segments have one (0B)\n"),
    (f"dump {LOG}", "Log starting offset: 0\n"),
    ("verify data", "1 partition with 2 records, 83B: whole\n"),
    ("repair data", "nothing to repair\n"),
    ("convert --dry-run data", "0 files would be converted\n"),
    ("handover --dry-run data mnt", "mnt: "),
    ("detach --dry-run data", "not the directory of a broker\n"),
    ("mirror --once kafka://127.0.0.1:1 backup", "broker 127.0.0.1:1: Connection refused\n"),
    ("points data", "point  time  state"),
    ("spark stats --dry-run data", "partitions 1\n"),
    ("delete data orders", "deleted orders"),
    ("undelete data orders", "restored orders\n"),
    ("mount data mnt", "mounted data on mnt, 1 topic, read-write\n"),
    ("mounts", "serving"),
    ("doctor mnt", "ok     open-files\n"),
    ("top --once mnt", "1 topic, 1 partition"),
    ("consume mnt/orders --view kv", "k\told\nk\tnew\n"),
    ("wait mnt/orders/.control/compaction", "outcome none\n"),
    ("tail -n 1 mnt/orders/0", "new\n"),
    ("umount mnt", ""),
    ("groups reset -g report --to latest data", "orders:0: offset 2\n"),
    ("groups data", "report"),
    ("version", "kafkafs "),
]
FAIL = ("handover", "detach", "mirror")
"""No broker has written the directory, and none runs."""


def test_each_command(place: Place) -> None:
    assert {line.split()[0] for line, _ in LINES} == main.helps.keys()
    for line, output in LINES:
        command, *words = line.split()
        done = subprocess.run(
            [PROGRAM, command, *words],
            input=b"k\told\nk\tnew\n",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=place.data.parent,
            timeout=HANG_S,
        )
        assert done.returncode == 3 * (command in FAIL), (line, done.stdout)
        assert output.encode() in done.stdout, (line, done.stdout)
    assert place.was_closed_cleanly()
