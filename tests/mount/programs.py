"""Programs that the tests of the mount run: where they are, and what they say while they run."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.fork_server import KAFKAFS
from tests.waits import HANG_S

_PACKAGES = {
    "awk": "mawk",
    "inotifywait": "inotify-tools",
    "jq": "jq",
    "less": "less",
    "lnav": "lnav",
    "logtail": "logtail",
    "logtail2": "logtail",
    "node": "nodejs",
    "restic": "restic",
    "rsync": "rsync",
    "rsyslogd": "rsyslog",
    "nginx": "nginx-light",
    "apache2": "apache2-bin",
    "svlogd": "runit",
    "setpriv": "util-linux",
    "setsid": "util-linux",
    "sqlite3": "sqlite3",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "systemd-analyze": "systemd",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}


#: For the first line of a mount namespace: what else is mounted with FUSE must be able to end while
#: it is unmounted outside.
LET_GO = """
awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r umount -iln 2> /dev/null || true
"""


def program(name: str) -> str:
    """The path of a program; where it is missing, what installs it."""
    path = shutil.which(name)
    assert path is not None, f"{name} is missing: apt-get install {_PACKAGES.get(name, name)}"
    return path


def inotify_left() -> None:
    """Check that the user may create one more inotify(7) instance: watching files needs one."""
    descriptor = ctypes.CDLL(None).inotify_init1(0)
    assert descriptor >= 0, "none is left: sysctl fs.inotify.max_user_instances=1024"
    os.close(descriptor)


class Output:
    """The output on a descriptor. A thread reads it at once, so that the writer never blocks.

    EIO also ends the output: the master side of a terminal ends with it. `close` waits for the
    thread, which runs until the other side is closed.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self._ended = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._fd, 1 << 20)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = b""
            with self._changed:
                self._data += data
                self._ended = not data
                self._changed.notify_all()
            if not data:
                return

    def close(self) -> None:
        self._thread.join()

    @property
    def size(self) -> int:
        return len(self._data)

    def wait(self, done: Callable[[bytearray], bool], seconds: float = HANG_S) -> bytes:
        """All of it from the start, as soon as it is as wanted."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or done(self._data), seconds)
            assert done(self._data), f"{len(self._data)} bytes came: …{bytes(self._data[-200:])!r}"
            return bytes(self._data)


class Running:
    """A program whose output is read as it comes. A context manager, which ends the program."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed in __exit__
        words = [str(word) for word in command]
        # kafkafs speaks one language, and starts by fork only with the usual environment.
        language = {} if words[: len(KAFKAFS)] == KAFKAFS else {"LC_ALL": "C"}
        self._process = subprocess.Popen(
            words,
            env={**os.environ, **language},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        assert self._process.stdout is not None
        self._output = Output(self._process.stdout.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def wait(self, done: Callable[[bytearray], bool]) -> bytes:
        """All output from the start, as soon as it is as wanted."""
        return self._output.wait(done)

    def read_until(self, ending: bytes) -> bytes:
        """All output from the start, as soon as it ends with `ending`."""
        return self._output.wait(lambda data: data.endswith(ending))

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_running(self) -> bool:
        return self._process.poll() is None

    def status(self) -> int:
        """The exit status, as soon as it has ended."""
        return self._process.wait(HANG_S)

    @property
    def size(self) -> int:
        """Bytes of output so far."""
        return self._output.size

    def errors(self) -> str:
        """Return its standard error so far."""
        return os.pread(self._errors.fileno(), 1 << 16, 0).decode()


class Less:
    """`less` on a terminal of 24 lines: what it has drawn, and keys for it."""

    def __init__(self, arguments: list[str], path: Path) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {"LESS": "", "LESSHISTFILE": "-", "LESSOPEN": "", "TERM": "xterm"}
        self._process = subprocess.Popen(
            [program("setsid"), "--ctty", program("less"), *arguments, str(path)],
            env={**os.environ, **environment},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._output = Output(self._master)
        self._seen = 0

    def wait_for(self, text: bytes) -> bytes:
        """Wait for `text`. Return everything that was drawn since the last call."""
        drawn = self._output.wait(lambda data: text in data[self._seen :])
        fresh = drawn[self._seen :]
        self._seen = len(drawn)
        return fresh

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self) -> int:
        return self._process.wait(HANG_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._output.close()
        os.close(self._master)


@contextmanager
def less(path: Path, *arguments: str) -> Iterator[Less]:
    running = Less(list(arguments), path)
    try:
        yield running
    finally:
        running.close()
