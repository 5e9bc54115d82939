"""Programs that mount a file system for a test, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.file_systems import unmount
from tests.waits import HANG_S

ROOT = Path(__file__).parents[3]


@dataclass
class RunningMount:
    """A program that serves a mount."""

    path: Path
    process: subprocess.Popen[str]

    def unmounted(self) -> str:
        """Unmount it, wait until the program has exited with status 0, and return its output."""
        unmount(self.path)
        return self.ended()

    def ended(self) -> str:
        """Wait until the program has exited with status 0, and return its output."""
        output, _ = self.process.communicate(timeout=HANG_S)
        assert self.process.returncode == 0
        return output


@dataclass
class BareMount:
    """A running bare file system; `ended` says what it saw."""

    running: RunningMount

    @property
    def path(self) -> Path:
        return self.running.path

    @property
    def process(self) -> subprocess.Popen[str]:
        return self.running.process

    def unmounted(self) -> dict[str, Any]:
        unmount(self.path)
        return self.ended()

    def ended(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.running.ended())
        return facts


@contextlib.contextmanager
def serving(
    directory: Path, module: str, *before: str, options: Sequence[str] = ()
) -> Iterator[RunningMount]:
    """Run a module with `before`, a mount point in `directory` and `options` as its arguments.

    Whatever is left of it at the end is killed.
    """
    path = directory / "mount"
    path.mkdir()
    program = [sys.executable, "-m", module, *before, str(path), *options]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            yield RunningMount(path, process)
        finally:
            if process.poll() is None:
                process.kill()
                subprocess.run(["fusermount3", "-uz", str(path)], check=False)


@pytest.fixture
def bare_mount(tmp_path: Path) -> Iterator[Callable[..., BareMount]]:
    with contextlib.ExitStack() as stack:

        def mount(*options: str) -> BareMount:
            module = "tests.kafkafs.fuse.bare_file_system"
            return BareMount(stack.enter_context(serving(tmp_path, module, options=options)))

        yield mount


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep all tests of this folder out of the unit lane."""
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.programs)
