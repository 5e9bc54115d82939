"""A user may read the data directory, but not its mount: commands that only read still work.

They read the data directory.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.mount.machine import Machine
from tests.mount.mounting import needs_root


@needs_root
def test_who_may_not_look_into_the_mount_has_the_data_directory() -> None:
    """The user may name the mount or the data directory."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-machine-") as directory:
        Path(directory).chmod(0o755)
        done = Machine(Path(directory)).run(
            """
            kafkafs mount data mnt > /dev/null
            mkdir mnt/orders
            echo one >> mnt/orders/0
            for words in "ls mnt" "cat data orders" "cat mnt/orders"; do
                as_nobody "$PYTHON" -c "$PROGRAM" $words | tail -n 1 | sed 's/ .*//'
            done
            as_nobody "$PYTHON" -c "$PROGRAM" create mnt other 2>&1 || true
            """
        )
        assert (done.returncode, done.stderr) == (0, "")
        *shown, refused = done.stdout.splitlines()
        assert shown == ["orders", "one", "one"]
        assert refused == (
            f"kafkafs: {directory}/mnt: only the user who mounted it may use it. Try: "
            "sudo kafkafs create mnt other"
        )
