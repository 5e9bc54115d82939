"""A real mount for tests: `kafkafs mount -f` as a process, on a directory of its own.

Whatever a test leaves behind is ended by the fixture, and the data directory is checked whole.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.in_memory import PLACE
from tests.log_check import check
from tests.waits import HANG_S

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def kafkafs(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, however long that takes, with these variables too."""
    return subprocess.run(
        [*KAFKAFS, *map(str, arguments)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


#: A daemon under test begins no retention by itself: records of old dates would go at any moment.
SETTINGS = "log.initial.task.delay.ms=86400000\n"

OFFSETS_PARTITIONS = 3


def few_directories(base: Path) -> Path:
    """Prepare a data directory in which the first commit makes few directories, not 50.

    Returns `base`.
    """
    (base / "data").mkdir()
    settings = f"{SETTINGS}offsets.topic.num.partitions={OFFSETS_PARTITIONS}\n"
    (base / "data/kafkafs.properties").write_text(settings)
    return base


class Mount:
    """One daemon and where it is mounted.  `data` and `path` stay over `stop` and `start`.

    A test that writes `kafkafs.properties` itself gets what that says, and Kafka's defaults.
    """

    def __init__(self, base: Path, options: Sequence[str] = ()) -> None:
        self.data = base / "data"
        self.path = base / "mnt"
        self.cache = base / "cache"
        self.data.mkdir(exist_ok=True)
        self.path.mkdir(exist_ok=True)
        self.options = list(options)
        self.process: subprocess.Popen[bytes] | None = None

    # -- the daemon ----------------------------------------------------------------------------

    def start(self, *options: str, env: Mapping[str, str] | None = None) -> Mount:
        """Start the daemon and wait until it says that it is mounted (sd_notify)."""
        settings = self.data / "kafkafs.properties"
        if not settings.exists() and "ro" not in (*self.options, *options):
            settings.write_text(SETTINGS)
        words = [word for option in (*self.options, *options) for word in ("-o", option)]
        directory = tempfile.mkdtemp()
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            address = os.path.join(directory, "notify")
            ready.bind(address)
            environment = {
                **os.environ,
                "XDG_CACHE_HOME": str(self.cache),
                **(env or {}),
                "NOTIFY_SOCKET": address,
            }
            self.process = self._launch(words, environment)
            self._wait_ready(ready)
        finally:
            ready.close()
            shutil.rmtree(directory)
        return self

    def _launch(self, options: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        command = [*KAFKAFS, "mount", str(self.data), str(self.path), "-f", *options]
        return subprocess.Popen(command, env=env)

    def _wait_ready(self, ready: socket.socket) -> None:
        assert self.process is not None
        deadline = time.monotonic() + HANG_S
        end = os.pidfd_open(self.process.pid)
        try:
            while True:
                left = deadline - time.monotonic()
                readable, _, _ = select.select([ready.fileno(), end], [], [], max(left, 0))
                if ready.fileno() in readable:
                    if b"READY=1" in ready.recv(4096):
                        return
                elif end in readable:
                    status = self.process.wait()
                    self._ended()
                    raise AssertionError(f"the daemon ended with {status}")
                else:
                    raise AssertionError("the daemon did not get ready")
        finally:
            os.close(end)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def stop(self) -> None:
        """SIGTERM; the daemon must end with 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        """It has been asked to end; it must end with 0."""
        assert self.process is not None
        assert self.process.wait(HANG_S) == 0
        self._ended()
        assert not os.path.ismount(self.path)

    def kill(self) -> None:
        """SIGKILL: the mount point is stale until the next start cleans it."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self._ended()

    def _ended(self) -> None:
        assert self.process is not None
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process = None

    def restart(self, *options: str) -> None:
        self.stop()
        self.start(*options)

    def end(self) -> None:
        """Whatever state it is in: no process and no mount are left."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process is not None:
            self._ended()
        subprocess.run(
            ["fusermount3", "-u", "-z", str(self.path)], stderr=subprocess.DEVNULL, check=False
        )

    # -- files ---------------------------------------------------------------------------------

    def __truediv__(self, name: str) -> Path:
        return self.path / name

    def topic(self, name: str = "orders", partitions: int = 1) -> Path:
        """Create a topic through the mount; returns its first partition's file."""
        (self.path / name).mkdir()
        for partition in range(1, partitions):
            (self.path / name / str(partition)).touch()
        return self.path / name / "0"

    def sh(self, script: str, **variables: object) -> subprocess.CompletedProcess[bytes]:
        """Run a shell script in the mount point; its output and exit status, whatever they are."""
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.path,
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )

    def run(self, script: str, **variables: object) -> bytes:
        """Run a shell script that must succeed and say nothing on standard error; its output."""
        done = self.sh(f"set -euo pipefail\n{script}", **variables)
        assert done.returncode == 0, done.stderr.decode()
        assert done.stderr == b"", done.stderr.decode()
        return done.stdout

    def events(self) -> str:
        """`.kafkafs/log`."""
        return (self.path / ".kafkafs" / "log").read_text()


@contextlib.contextmanager
def mounted(base: Path, *options: str) -> Iterator[Mount]:
    """A started mount; afterwards it is stopped and the whole data directory is checked."""
    mount = Mount(base, options)
    try:
        mount.start()
        yield mount
    finally:
        mount.end()
    check_data(mount.data)


def check_data(data: Path) -> None:
    """Every partition of a data directory is whole."""
    with LogManager.open(str(data), read_only=True) as manager:
        faults = check(manager)
    assert faults == [], faults


def let_others_in(path: Path) -> None:
    """Any user may go through all the directories that tests have made above ``path``."""
    places = {Path(place).resolve() for place in (tempfile.gettempdir(), PLACE) if place}
    for directory in (path, *path.parents):
        if directory in places or places.isdisjoint(directory.parents):
            break
        directory.chmod(0o755)


def fails(number: int, call: Callable[..., object], *arguments: object) -> None:
    """The call raises OSError with this errno."""
    found: object = 0
    try:
        call(*arguments)
    except OSError as error:
        found = error.errno
    assert found == number, f"errno {found}, not {errno.errorcode[number]}"
