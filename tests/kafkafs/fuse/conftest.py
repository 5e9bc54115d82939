"""A bare file system, mounted, for the tests of the session loop."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PATIENCE_S = 30


@dataclass
class BareMount:
    """A running bare file system; ``ended`` unmounts it and says what it saw."""

    path: Path
    process: subprocess.Popen[str]

    def ended(self, *unmount: str) -> dict[str, Any]:
        if unmount:
            subprocess.run([*unmount, str(self.path)], check=True)
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0
        facts: dict[str, Any] = json.loads(output)
        return facts


@pytest.fixture
def bare_mount(tmp_path: Path) -> Iterator[Callable[..., BareMount]]:
    with contextlib.ExitStack() as stack:

        def mount(*arguments: str) -> BareMount:
            path = tmp_path / "mount"
            path.mkdir()
            program = [sys.executable, "-m", "tests.kafkafs.fuse.bare_file_system"]
            process = stack.enter_context(
                subprocess.Popen(
                    [*program, str(path), *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT
                )
            )

            def end() -> None:
                if process.poll() is None:
                    process.kill()
                    subprocess.run(["fusermount3", "-uz", str(path)], check=False)

            stack.callback(end)
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n"
            return BareMount(path, process)

        yield mount
