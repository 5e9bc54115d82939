"""A machine's own places for a test: /sbin with kafkafs' helpers, /etc/fstab, /run.

`Machine.run` runs a shell script as root in a mount namespace and a process namespace that end with
it: nothing of them is seen outside, and nothing is left behind, also not after a kill.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.fork_server import KAFKAFS
from tests.mount.programs import LET_GO, program
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]

#: The programs that an installation links into /sbin.
HELPERS = ("mount.kafkafs", "mount.fuse.kafkafs", "umount.fuse.kafkafs")

# Other users get to the interpreter and to the clone, which may lie in a directory of root's alone.
NAMESPACE = (
    LET_GO
    + """
mount -t overlay overlay -o "lowerdir=$BASE/sbin:$(readlink -f /sbin)" "$(readlink -f /sbin)"
mount -t tmpfs -o mode=755 tmpfs /run
mount --bind "$BASE/fstab" /etc/fstab
mount --bind "$BASE/fuse.conf" /etc/fuse.conf
mount -t tmpfs -o mode=755 tmpfs "$BASE/device"
mknod -m 666 "$BASE/device/fuse" c 10 229
mount --bind "$BASE/device/fuse" /dev/fuse
for path in $CLOSED; do
    mkdir "$BASE/device/closed"
    mount --bind "$path" "$BASE/device/closed"
    mount -t tmpfs -o mode=755 tmpfs "$path"
    for name in $(ls -A "$BASE/device/closed"); do
        [ -d "$BASE/device/closed/$name" ] || continue
        mkdir "$path/$name"
        mount --bind "$BASE/device/closed/$name" "$path/$name"
    done
done
kafkafs() { "$PYTHON" -c "$PROGRAM" "$@"; }
as_nobody() { setpriv --reuid=nobody --regid=nogroup --clear-groups "$@"; }
cd "$BASE"
"""
)


class Machine:
    """`base`, which all users can enter, has `data`, `mnt`, `fstab` and `fuse.conf`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.data = base / "data"
        self.mount = base / "mnt"
        for directory in (self.data, self.mount, base / "sbin", base / "device"):
            directory.mkdir()
        self.fstab = base / "fstab"
        self.fstab.touch()
        (base / "fuse.conf").write_text("user_allow_other\n")
        for name in HELPERS:
            (base / "sbin" / name).symlink_to(Path(sys.executable).parent / name)

    def run(self, script: str, **variables: object) -> subprocess.CompletedProcess[str]:
        """Run a script in `base`, with the commands `kafkafs` and `as_nobody`, $DATA and $MNT."""
        environment = {
            "BASE": self.base,
            "DATA": self.data,
            "MNT": self.mount,
            "LC_ALL": "C",
            "PATH": os.environ["PATH"],
            "CLOSED": " ".join(map(str, _closed(Path(sys.base_prefix), ROOT))),
            "PROGRAM": KAFKAFS[-1],
            "PYTHON": sys.executable,
            "PYTHONPATH": ROOT,
            "PYTHONSAFEPATH": "1",
            **variables,
        }
        return subprocess.run(
            [
                *(program("unshare"), "--mount", "--pid", "--fork", "--kill-child"),
                *("--mount-proc", "bash", "-euo", "pipefail", "-c", NAMESPACE + script),
            ],
            env={name: str(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )

    def lines(self, script: str, **variables: object) -> list[str]:
        """The lines that a script prints, which succeeds and says nothing on standard error."""
        done = self.run(script, **variables)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()


def _closed(*paths: Path) -> list[Path]:
    """The topmost directories above these paths that others cannot enter."""
    found = {
        next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
        for path in paths
    }
    return [path for path in found if path is not None]
