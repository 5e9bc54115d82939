"""A mount whose daemon takes commands: see `steered_daemon`."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mount.mounting import Mount, check_data

ROOT = Path(__file__).parents[2]


class SteeredMount(Mount):
    """A mount; a command is called as a method of `daemon`: `mount.daemon.roll("orders")`.

    `epochs`: whether the daemon uses FUSE_NOTIFY_INC_EPOCH; False: as on a kernel without it.
    `own_clock`: it measures appends by the clock of the real daemon, which no command advances.
    """

    def __init__(
        self,
        base: Path,
        options: Sequence[str] = (),
        *,
        epochs: bool = True,
        own_clock: bool = False,
    ) -> None:
        super().__init__(base, options)
        self.epochs = epochs
        self.own_clock = own_clock

    @property
    def daemon(self) -> Daemon:
        assert self.process is not None
        return Daemon(self.process)

    def _launch(self, options: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.mount.steered_daemon"),
                *(str(self.data), str(self.path), *options),
                *([] if self.epochs else ["--no-epochs"]),
                *(["--own-clock"] if self.own_clock else []),
            ],
            env=env,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @contextlib.contextmanager
    def held(self, operation: str, suffix: str, after: int = 0) -> Iterator[Hold]:
        """Block the daemon's next call of a method of its disk, on a path with this suffix, after
        `after` such calls.
        """
        with Hold(self.daemon, self.daemon.hold(operation, suffix, after)) as hold:
            yield hold


class Daemon:
    """The commands of a running daemon."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def begin(self, name: str, *arguments: object) -> None:
        """Give a command whose answer nobody waits for; it is the last one."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(json.dumps([name, arguments]).encode() + b"\n")
        stdin.flush()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> Any:
            self.begin(name, *arguments)
            stdout = self._process.stdout
            assert stdout is not None
            line = stdout.readline()
            assert line, "the daemon has ended"
            said = json.loads(line)
            assert "error" not in said, said["error"]
            return said["answer"]

        return call


class Hold:
    """A blocked disk operation. The end of the `with` block releases it, if nothing else has."""

    def __init__(self, daemon: Daemon, number: int) -> None:
        self._daemon = daemon
        self._number = number
        self._is_released = False

    def wait(self) -> None:
        """Wait until the daemon has called the operation."""
        assert self._daemon.reached(self._number), "what should be held was never called"

    def release(self) -> None:
        self._is_released = True
        assert self._daemon.release(self._number), "somebody else waited for what is held"

    def release_for_the_end(self) -> None:
        """Release it while the daemon is stopping: the daemon may end before it answers."""
        self._is_released = True
        self._daemon.begin("release", self._number)

    def abandon(self) -> None:
        """Do not release it: the daemon was killed."""
        self._is_released = True

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_released:
            self.release()


@contextlib.contextmanager
def steered(base: Path, *options: str, **how: bool) -> Iterator[SteeredMount]:
    """A started mount that takes commands; afterwards its data directory is checked."""
    mount = SteeredMount(base, options, **how)
    try:
        mount.start()
        yield mount
    finally:
        mount.end()
    check_data(mount.data)
