"""A segment's file is deleted while its writer runs: reads fail with EIO exactly there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from tests.mount.mounting import Mount, fails, kafkafs

LINES = b"".join(b"%d\n" % number for number in range(8))


def test_a_read_only_mount_beside_the_writer(tmp_path: Path) -> None:
    for name in ("writer", "reader"):
        (tmp_path / name).mkdir()
    writer, reader = Mount(tmp_path / "writer"), Mount(tmp_path / "reader", ["ro"])
    reader.data = writer.data
    try:
        writer.start()
        path = writer.topic()
        for number in range(8):
            with path.open("ab", buffering=0) as file:
                file.write(b"%d\n" % number)
            if number % 2:
                (writer / "orders/.control/roll").write_text("run\n")
        writer.restart()
        reader.start()
        shown = reader / "orders/0"
        assert shown.read_bytes() == LINES
        with shown.open("rb", buffering=0) as file:
            (writer.data / "orders-0" / f"{2:020d}.log").unlink()
            # The names are looked at when they are no longer being changed.
            while (done := reader.sh("cat orders/0")).stdout == LINES:
                pass
            assert done.returncode == 1
            assert done.stdout == b"0\n1\n"
            assert b"Input/output error" in done.stderr
            assert reader.run("cat orders/0@4") == b"4\n5\n6\n7\n"
            assert os.pread(file.fileno(), 4, 0) == b"0\n1\n"
            assert os.pread(file.fileno(), 8, 8) == b"4\n5\n6\n7\n"
            # The open file keeps its size.
            assert os.fstat(file.fileno()).st_size == 16
        fails(errno.EIO, shown.read_bytes)
        assert "offsets 2 to 3 are damaged: the file is missing" in reader.events()
        assert f"{2:020d}.log" in (reader / ".kafkafs/topics").read_text()
        reader.stop()
        assert writer.process is not None
        assert writer.process.poll() is None
    finally:
        reader.end()
        writer.end()
    assert kafkafs("verify", writer.data).returncode == 1
