"""The command line as processes, on a data directory of the test's own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kafkafs import mount_table
from kafkafs.fuse import mount_point
from kafkafs.mount_options import PID_ATTRIBUTE
from tests.fork_server import KAFKAFS
from tests.waits import HANG_S

ROOT = Path(__file__).parents[3]


def kafkafs(
    *arguments: object, python_path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; ``python_path`` is where there are packages besides."""
    more = {} if python_path is None else {"PYTHONPATH": str(python_path)}
    return subprocess.run(
        [*KAFKAFS, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **more},
        timeout=HANG_S,
    )


class Place:
    """A data directory and a mount point; whatever is left mounted is taken down at the end."""

    def __init__(self, base: Path) -> None:
        self.data = base / "data"
        self.path = base / "mnt"
        self.data.mkdir()
        self.path.mkdir()

    def mount(self, *options: str) -> None:
        """In the background."""
        done = kafkafs("mount", self.data, self.path, *options)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"mounted {self.data} on {self.path}, ")
        assert done.stdout.count("\n") == 1

    def umount(self) -> None:
        # A daemon that needs longer on a busy machine is waited for, which umount says.
        slow = rf"kafkafs: {re.escape(str(self.path))}: unmounted; the daemon \(process \d+\) .*\n"
        done = kafkafs("umount", self.path)
        assert (done.returncode, done.stdout) == (0, "")
        assert re.fullmatch(f"({slow})?", done.stderr)

    @contextlib.contextmanager
    def foreground(
        self, *options: str, under: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[str]]:
        """A daemon in the foreground, ready; killed at the end if it still runs."""
        address = f"\0kafkafs-test-{os.getpid()}"
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices,
            _bound(notices, address),
            subprocess.Popen(
                [*under, *KAFKAFS, "mount", "-f", str(self.data), str(self.path), *options],
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                env={**os.environ, "NOTIFY_SOCKET": "@" + address[1:]},
            ) as process,
        ):
            try:
                notices.settimeout(HANG_S)
                while not notices.recv(4096).startswith(b"READY=1\n"):
                    pass
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    @property
    def pid(self) -> int:
        """The daemon's."""
        return int(os.getxattr(self.path, PID_ATTRIBUTE))

    def was_closed_cleanly(self) -> bool:
        return (self.data / ".kafka_cleanshutdown").exists()

    def end(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            os.kill(self.pid, signal.SIGKILL)
        mount_point.clean(str(self.path))
        assert mount_table.find(str(self.path)) is None


@contextlib.contextmanager
def _bound(notices: socket.socket, address: str) -> Iterator[None]:
    notices.bind(address)
    yield


@contextlib.contextmanager
def ending(pid: int) -> Iterator[None]:
    """The process must have ended, or end soon, after the block."""
    process = os.pidfd_open(pid)
    try:
        yield
        ended, _, _ = select.select([process], [], [], HANG_S)
        assert ended
    finally:
        os.close(process)


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory on a disk, where users keep their data. `doctor` warns about data on tmpfs."""
    return tmp_path_factory.mktemp("test")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.end()
