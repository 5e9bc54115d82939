"""An ordinary user mounts, appends and reads: through fusermount3, with no privilege of its own.

Run as root, the tests become the user `nobody`, in a mount namespace of their own. /dev/fuse, which
is root's alone on a machine without udev, is there as udev makes it; and since
the interpreter or the clone may lie where others cannot look, they may read, not write, all files.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.log_check import check
from tests.mount.programs import LET_GO, program
from tests.waits import HANG_S

ROOT = Path(__file__).resolve().parents[2]
AS_USER = os.geteuid() != 0

# Of a mount namespace: /dev/fuse for everybody, and fusectl if $FUSECTL says so.
NAMESPACE = (
    LET_GO
    + """
mount -t tmpfs -o mode=755 tmpfs "$1"
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
umount --lazy "$1"
umount /sys/fs/fuse/connections 2> /dev/null || true
[ -z "$FUSECTL" ] || mount -t fusectl fusectl /sys/fs/fuse/connections
shift
exec "$@"
"""
)

KEPT_MOUNTED = """
set -euo pipefail
trap 'fusermount3 -u -z "$BASE/mnt" 2> /dev/null || true' EXIT
kafkafs() { "$PYTHON" -c "$PROGRAM" "$@"; }
cd "$BASE"
mkdir --parents data mnt
"""

# Unmounts while the daemon is stopped, without root: `{end}` has to use the kernel's fusectl file.
# CLEANED does not find the daemon, as after a kill that did not free the mount.
UNANSWERED = """
kafkafs mount data mnt > /dev/null
daemon=$("$PYTHON" -c 'import os; print(os.getxattr("mnt", "user.kafkafs.pid").decode())')
kill -STOP "$daemon"
while ! grep --quiet '^State:.T' "/proc/$daemon/status"; do :; done
{end}
grep --count " $BASE/mnt fuse" /proc/self/mounts || true
kill -CONT "$daemon"
"$PYTHON" -c 'import os, select, sys; select.select([os.pidfd_open(int(sys.argv[1]))], [], [])' \
    "$daemon" 2> /dev/null || true
ls data/.kafka_cleanshutdown
"""
CLEANED = """"$PYTHON" -c '
from kafkafs.fuse import mount_point
mount_point.ANSWER_S = 0.2
mount_point.find_daemon = lambda mounted: (None, True)
mount_point.clean(mount_point.resolve("mnt"))
' 2>&1 | tail --lines=1"""

# Kills the daemon and waits for its end.
KILL = """
import os, select, signal
daemon = int(os.getxattr("mnt", "user.kafkafs.pid"))
end = os.pidfd_open(daemon)
signal.pidfd_send_signal(end, signal.SIGKILL)
select.select([end], [], [])
"""


class User:
    """Runs shell scripts as an ordinary user, in a directory `base` of its own."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.uid = os.geteuid()
        self._command: list[str] = []
        if not AS_USER:
            nobody = pwd.getpwnam("nobody")
            self.uid = nobody.pw_uid
            os.chown(base, nobody.pw_uid, nobody.pw_gid)
            self._command = self._become(nobody)

    def _become(self, user: pwd.struct_passwd) -> list[str]:
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        capabilities = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        become = [program("setpriv"), *ids, *capabilities, "--bounding-set=+all"]
        place = self.base / "device"
        place.mkdir()
        namespace = [program("unshare"), "--mount", "--propagation=private"]
        return [*namespace, "sh", "-euc", NAMESPACE, "sh", str(place), *become]

    def run(self, script: str, **variables: object) -> subprocess.CompletedProcess[str]:
        """`kafkafs` is a command; `data` and `mnt` are there; mnt is unmounted at the end."""
        environment = {
            "BASE": self.base,
            "FUSECTL": "",
            "HOME": self.base,
            "LC_ALL": "C",
            "PATH": os.environ["PATH"],
            "PROGRAM": KAFKAFS[-1],
            "PYTHON": sys.executable,
            "PYTHONPATH": ROOT,
            "PYTHONSAFEPATH": "1",
            **variables,
        }
        return subprocess.run(
            [*self._command, "bash", "-c", KEPT_MOUNTED + script],
            cwd="/",
            env={name: str(value) for name, value in environment.items()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )


@pytest.fixture
def user() -> Iterator[User]:
    # Not tmp_path: that lies in a directory that is open to root alone.
    with tempfile.TemporaryDirectory(prefix="kafkafs-user-") as directory:
        os.chmod(directory, 0o755)
        yield User(Path(directory))


def test_an_ordinary_user_mounts_appends_and_reads(user: User) -> None:
    done = user.run(
        """
        id --user
        kafkafs mount data mnt
        grep " $BASE/mnt fuse" /proc/self/mounts | tr , '\\n' | grep user_id
        mkdir mnt/orders
        stat --format='%u %n' mnt mnt/orders mnt/orders/0
        seq 100000 >> mnt/orders/0
        echo one more >> mnt/orders/0
        seq 100000 | cat - <(echo one more) | cmp - mnt/orders/0
        tail --lines=1 mnt/orders/0
        (rm mnt/orders/0 || true) 2>&1
        kafkafs umount mnt
        ls mnt
        kafkafs mount data mnt
        wc --lines < mnt/orders/0
        kafkafs umount mnt
        """
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{user.uid}",
        "mounted data on mnt, 0 topics, read-write",
        f"user_id={user.uid}",
        f"{user.uid} mnt",
        f"{user.uid} mnt/orders",
        f"{user.uid} mnt/orders/0",
        "one more",
        "rm: cannot remove 'mnt/orders/0': Operation not permitted",
        "mounted data on mnt, 1 topic, read-write",
        "100001",
    ]
    assert done.returncode == 0
    for path in (user.base / "data").rglob("*"):
        assert path.stat().st_uid == user.uid
    with LogManager.open(str(user.base / "data"), read_only=True) as manager:
        assert manager.clean
        assert check(manager) == []


def test_a_stale_mount_of_an_ordinary_user_is_cleaned(user: User) -> None:
    done = user.run(
        """
        kafkafs mount data mnt > /dev/null
        mkdir mnt/orders
        echo kept >> mnt/orders/0
        "$PYTHON" -c "$KILL"
        (cat mnt/orders/0 || true) 2>&1
        kafkafs mount data mnt > /dev/null
        cat mnt/orders/0
        kafkafs umount mnt
        """,
        KILL=KILL,
    )
    assert done.stderr == ""
    gone, kept = done.stdout.splitlines()
    assert gone.startswith("cat: mnt/orders/0: ")
    assert kept == "kept"
    assert done.returncode == 0


@pytest.mark.skipif(AS_USER, reason="mounts fusectl")
@pytest.mark.parametrize("end", ["kafkafs umount --force mnt 2>&1 || true", CLEANED])
def test_a_mount_that_does_not_answer_is_ended_by_fusectl(user: User, end: str) -> None:
    done = user.run(UNANSWERED.format(end=end), FUSECTL="yes")
    assert done.stderr == ""
    *said, mounts, marker = done.stdout.splitlines()
    assert (mounts, marker) == ("0", "data/.kafka_cleanshutdown")
    if end is CLEANED:
        assert said == []
    else:
        assert len(said) == 1
        assert "unmounted, but the daemon" in said[0]


@pytest.mark.skipif(AS_USER, reason="whether fusectl is mounted is not ours to say")
def test_without_fusectl_it_says_what_root_can_do(user: User) -> None:
    end = (
        CLEANED
        + """ || true
kill -CONT "$daemon"
kafkafs umount mnt
exit"""
    )
    done = user.run(UNANSWERED.format(end=end))
    assert done.stderr == ""
    assert done.returncode == 0
    (said,) = done.stdout.splitlines()
    assert said.endswith(
        f"{user.base}/mnt: cannot abort its connection, because fusectl is not mounted at "
        f"/sys/fs/fuse/connections. As root: umount -f {user.base}/mnt"
    )
