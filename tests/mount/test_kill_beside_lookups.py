"""The daemon is killed while it notifies the kernel of changed names: the mount can be unmounted.

The kernel holds a directory's lock during a lookup, until the daemon answers. The daemon must never
wait for that lock: a process that waits in the kernel does not die, and its FUSE connection does
not end.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

from tests.mount.mounting import SETTINGS, check_data
from tests.mount.steering import SteeredMount
from tests.waits import HANG_S

#: Opens a file, and says what came of it.
OPEN = """
import os, sys
try:
    os.open(sys.argv[1], os.O_RDONLY)
except OSError as error:
    print(error.errno)
"""


def test_a_kill_beside_a_lookup_and_a_new_history(tmp_path: Path) -> None:
    mount = SteeredMount(tmp_path)
    try:
        (mount.data / "kafkafs.properties").write_text(f"{SETTINGS}num.partitions=2\n")
        mount.start()
        orders = mount.topic()
        for number in range(3):
            with open(orders, "ab", buffering=0) as file:
                file.write(b"%d\n" % number * 10)
            mount.daemon.roll("orders")
        orders.stat()  # the kernel keeps its entry
        # The first look at the other partition waits for what it writes down.
        mount.daemon.hold("rename", "orders-1/kafkafs.history")
        opening = subprocess.Popen(
            [sys.executable, "-c", OPEN, f"{orders.parent}/1"], stdout=subprocess.PIPE
        )
        assert mount.daemon.reached(0)
        # Begun by command: nobody else gets past the lookup.
        mount.daemon.begin("remove_head", "orders", 1)
        while not any(name.endswith(".deleted") for name in os.listdir(mount.data / "orders-0")):
            assert mount.process is not None
            assert mount.process.poll() is None
        for _ in range(100):
            os.statvfs(mount.path)  # requests that all threads of the daemon get their turn beside
        mount.kill()
        said, _ = opening.communicate(timeout=HANG_S)
        assert int(said) in (errno.ENOTCONN, errno.ECONNABORTED)
        mount.start()
        assert orders.read_bytes() == b"1\n" * 10 + b"2\n" * 10
        mount.stop()
    finally:
        mount.end()
    check_data(mount.data)
