"""The file systems that `mount.py` measures, all with the same methods.

A peer can be mounted and unmounted, and returns the paths of its files. All peers are mounted at
once; an idle one costs nothing. This module measures only the time to mount.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parents[1] / ".venv" / "bin"
READY_SECONDS = 60


class Peer(ABC):
    """One file system. `name`: its column. `home`: a directory of its own on the disk."""

    name: str
    reads = True  # whether to do the works that read

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()

    @abstractmethod
    def start(self) -> float:
        """Mount; return the seconds until the root answered."""

    @abstractmethod
    def stop(self) -> None:
        """Unmount, and wait for the daemon's end."""

    @abstractmethod
    def served(self, name: str) -> list[Path]:
        """Return the files with the text `name`."""

    @property
    @abstractmethod
    def appended(self) -> Path:
        """The file to append to."""

    @abstractmethod
    def set_read_ahead(self, kib: int) -> None:
        """Set the kernel's read-ahead for this mount."""

    @abstractmethod
    def forget(self, name: str, client: Path) -> None:
        """Drop the page cache of the mount's files, but not of the peer's own files."""


class PlainFile(Peer):
    """A file on the same disk, in the page cache, without FUSE."""

    name = "plain file"

    def __init__(self, home: Path, texts: dict[str, list[Path]]) -> None:
        super().__init__(home)
        self.texts = texts

    def start(self) -> float:
        self.appended.touch()
        return 0.0

    def stop(self) -> None:
        pass

    def served(self, name: str) -> list[Path]:
        return self.texts[name]

    @property
    def appended(self) -> Path:
        return self.home / "appended"

    def set_read_ahead(self, kib: int) -> None:
        pass

    def forget(self, name: str, client: Path) -> None:
        pass


class Daemon(Peer):
    """A peer that is a process in the foreground."""

    daemon: subprocess.Popen[bytes] | None = None

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.mount_point = home / "mnt"
        self.mount_point.mkdir()

    @abstractmethod
    def command(self) -> list[str | Path]:
        """Return the command that mounts at `mount_point` and stays in the foreground."""

    def start(self) -> float:
        outside = os.stat(self.home).st_dev
        with open(self.home / "daemon.log", "ab") as log:
            begun = time.monotonic()
            self.daemon = subprocess.Popen(self.command(), stdout=log, stderr=log)
        while os.stat(self.mount_point).st_dev == outside:
            seconds = time.monotonic() - begun
            if self.daemon.poll() is not None or seconds > READY_SECONDS:
                log_text = (self.home / "daemon.log").read_text()
                raise RuntimeError(f"{self.name} did not mount:\n{log_text}")
            time.sleep(0.001)
        return time.monotonic() - begun

    def stop(self) -> None:
        if self.daemon is None:
            return
        self.end()
        try:
            self.daemon.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.daemon.wait()
        if f" {self.mount_point} " in Path("/proc/self/mountinfo").read_text():
            subprocess.run(["fusermount3", "-u", "-z", self.mount_point], check=True)
        self.daemon = None

    def end(self) -> None:
        """Ask the daemon to unmount and end."""
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGTERM)

    def set_read_ahead(self, kib: int) -> None:
        device = os.stat(self.mount_point).st_dev
        bdi = f"{os.major(device)}:{os.minor(device)}"
        Path(f"/sys/class/bdi/{bdi}/read_ahead_kb").write_text(str(kib))

    def forget(self, name: str, client: Path) -> None:
        subprocess.run([client, "drop", *self.served(name)], check=True)

    def memory(self) -> tuple[int, int]:
        """Return the process's RSS, and the anonymous part of it, in bytes."""
        assert self.daemon is not None
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        fields = dict(re.findall(r"^(VmRSS|RssAnon):\s+(\d+) kB", status, re.MULTILINE))
        return int(fields["VmRSS"]) << 10, int(fields["RssAnon"]) << 10


class SmallDaemon(Daemon):
    """`limit.c` or its twin: one directory with the files of its command line."""

    def __init__(self, home: Path, texts: dict[str, list[Path]]) -> None:
        super().__init__(home)
        self.texts = texts

    def files(self) -> list[str]:
        served = [f"{name}={','.join(map(str, paths))}" for name, paths in self.texts.items()]
        return [*served, f"+appended={self.home / 'appended'}"]

    def served(self, name: str) -> list[Path]:
        return [self.mount_point / name]

    @property
    def appended(self) -> Path:
        return self.mount_point / "appended"


class Limit(SmallDaemon):
    """The limit. `options`: those of `limit.c`."""

    name = "limit (C)"

    def __init__(
        self, home: Path, texts: dict[str, list[Path]], program: Path, *options: str
    ) -> None:
        super().__init__(home, texts)
        self.program = program
        self.options = options

    def command(self) -> list[str | Path]:
        return [self.program, *self.options, self.mount_point, *self.files()]


class StockPyfuse3(SmallDaemon):
    name = "stock pyfuse3"

    def command(self) -> list[str | Path]:
        return [VENV / "python", HERE / "stock_peer.py", self.mount_point, *self.files()]


class Kafkafs(Daemon):
    name = "kafkafs"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.data = home / "data"
        self.data.mkdir()

    def command(self) -> list[str | Path]:
        return [VENV / "kafkafs", "mount", self.data, self.mount_point, "-f"]

    def served(self, name: str) -> list[Path]:
        return [self.mount_point / name / "0"]

    @property
    def appended(self) -> Path:
        return self.mount_point / "appended" / "0"

    def segments(self, name: str) -> list[Path]:
        """Return the files that hold a topic's records."""
        return sorted((self.data / f"{name}-0").glob("*.log"))


class Timberfs(Daemon):
    """timberfs, if it is installed. It compresses, and keeps appended bytes in memory for 5 s.

    With its write-ahead log it writes all bytes twice.
    """

    def __init__(self, home: Path, *, wal: bool) -> None:
        super().__init__(home)
        self.name = "timberfs, WAL" if wal else "timberfs"
        self.reads = not wal  # both read in the same way
        (home / "backing").mkdir()
        options = ["--wal"] if wal else []
        for name in ("text", "appended"):
            store = home / "backing" / f"{name}.log"
            subprocess.run(["timberfs", "--quiet", "create", *options, store], check=True)

    @staticmethod
    def installed() -> bool:
        return shutil.which("timberfs") is not None

    def command(self) -> list[str | Path]:
        return ["timberfs", "--quiet", "mount", self.home / "backing", self.mount_point]

    def end(self) -> None:
        # timberfs does not unmount at SIGTERM.
        subprocess.run(["timberfs", "--quiet", "umount", self.mount_point], check=True)

    def served(self, name: str) -> list[Path]:
        return [self.mount_point / f"{name}.log"]

    @property
    def appended(self) -> Path:
        return self.mount_point / "appended.log"
