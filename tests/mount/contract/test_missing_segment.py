"""A sealed segment whose file is gone: EIO exactly there, and all else as it was."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.control import do
from tests.mount.mounting import mounted

PER_SEGMENT = 5
LINES = [b"%02d" % number + b"x" * 600 + b"\n" for number in range(4 * PER_SEGMENT)]


@pytest.mark.parametrize("how", ["mount", "kill"])
@pytest.mark.parametrize("number", [0, 1])
def test_the_rest_is_read_and_appended_to(tmp_path: Path, number: int, how: str) -> None:
    (tmp_path / "data").mkdir()
    first, behind = number * PER_SEGMENT, (number + 1) * PER_SEGMENT
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        for at, line in enumerate(LINES):
            if at and at % PER_SEGMENT == 0:
                do(orders, "roll", "run")
            append(orders, line)
        size = int(mount.run("stat -c %s $orders", orders=orders))
        mount.stop()
        path = mount.data / "orders-0" / f"{first:020d}.log"
        whole = path.read_bytes()
        path.unlink()
        mount.start()
        if how == "kill":
            mount.kill()
            mount.start()
        assert int(mount.run("stat -c %s $orders", orders=orders)) == size == len(b"".join(LINES))
        shown = mount.sh("cat $orders", orders=orders)
        assert shown.returncode == 1
        assert shown.stdout == b"".join(LINES[:first])
        assert os.strerror(errno.EIO).encode() in shown.stderr
        rest = b"".join(LINES[behind:])
        assert mount.run("cat $orders@$behind", orders=orders, behind=behind) == rest
        assert mount.run("tail -c $count $orders", orders=orders, count=len(rest)) == rest
        assert mount.run("tail -n 3 $orders", orders=orders) == b"".join(LINES[-3:])
        found = mount.run("grep -c x $orders@$behind", orders=orders, behind=behind)
        assert int(found) == len(LINES) - behind
        assert mount.sh("cat $orders@$first", orders=orders, first=first).returncode == 1
        for name in ("log", "topics"):
            said = (mount.path / ".kafkafs" / name).read_text()
            assert f"offsets {first} to {behind - 1}" in said
            assert str(path) in said
        mount.run("echo more >> $orders", orders=orders)
        assert mount.run("tail -n 1 $orders", orders=orders) == b"more\n"
        # Whoever has the file puts it back.
        mount.stop()
        path.write_bytes(whole)
        mount.start()
        assert mount.run("cat $orders", orders=orders) == b"".join(LINES) + b"more\n"
        assert "#" not in (mount.path / ".kafkafs" / "topics").read_text()
