"""Copies of the working tree, into which faults are put."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults.fault import ROOT, Fault, Misfit
from tests.faults.functions import is_compiled

# Beyond that a test hangs, which is no failure.
TIMEOUT_S = 600


def compiled(root: Path) -> list[Path]:
    """Return the compiled modules of Cython, and the C files from which they are compiled."""
    folders = ("kafkafs", "storage", "build")
    names = (f"{folder}/**/*.{ending}" for folder in folders for ending in ("so", "c", "h"))
    return [path for name in names for path in sorted(root.glob(name))]


class Copy:
    """The working tree once more, with its compiled modules."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        self._temporary = root / "tmp"
        self._running: subprocess.Popen[str] | None = None
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        for path in [*(ROOT / name for name in names.split("\0") if name), *compiled(ROOT)]:
            if path.is_file():
                target = self.root / path.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
        for name in (".venv", ".cache"):
            if (ROOT / name).exists():
                (self.root / name).symlink_to(ROOT / name)

    @contextlib.contextmanager
    def having(self, fault: Fault) -> Iterator[None]:
        """The fault is in the copy's code for as long as the block takes."""
        fault.apply(self.root)
        self._forget_compiled(fault)
        try:
            if is_compiled(fault.file):
                self.compile()
            yield
        finally:
            fault.undo(self.root)
            self._forget_compiled(fault)
            if is_compiled(fault.file):
                self._restore_compiled(fault)

    def compile(self) -> None:
        """Compile the modules of Cython whose sources have changed."""
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        built = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise Misfit(built.stderr[-3000:])

    def _restore_compiled(self, fault: Fault) -> None:
        """Put back the modules without a fault, so that nothing has to be compiled."""
        shutil.copystat(ROOT / fault.file, self.root / fault.file)
        for path in compiled(ROOT):
            target = self.root / path.relative_to(ROOT)
            if not target.exists() or target.stat().st_mtime_ns != path.stat().st_mtime_ns:
                shutil.copy2(path, target)

    def _forget_compiled(self, fault: Fault) -> None:
        """Python knows a compiled file by its source's second and size, which may be the same."""
        source = str(self.root / fault.file)
        Path(importlib.util.cache_from_source(source)).unlink(missing_ok=True)

    def test(
        self, tests: Sequence[str], *options: str, timeout_s: float = TIMEOUT_S
    ) -> tuple[int | None, str]:
        """Run tests; return pytest's exit code, None if they take too long, and its output."""
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
            *(f"--basetemp={self._temporary}", *options, *tests),
        ]
        with subprocess.Popen(
            command,
            cwd=self.root,
            # The daemons that tests start shall run the copy's code, too.
            env={**os.environ, "PYTHONPATH": str(self.root), "COLUMNS": "200"},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as self._running:
            try:
                output, _ = self._running.communicate(timeout=timeout_s)
                return self._running.returncode, output
            except subprocess.TimeoutExpired:
                return None, f"not done after {timeout_s} s"
            finally:
                self.stop()

    def stop(self) -> None:
        """End the tests that run."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
        self._unmount()

    def _unmount(self) -> None:
        """Unmount what a killed test has mounted, so that its daemon ends."""
        mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for path in mounted:
            if path.startswith(f"{self._temporary}/"):
                subprocess.run(["fusermount3", "-u", "-z", path], check=False)


@contextlib.contextmanager
def copies(count: int) -> Iterator[list[Copy]]:
    with tempfile.TemporaryDirectory(prefix="kafkafs-faults-", ignore_cleanup_errors=True) as root:
        made = []
        for number in range(count):
            (Path(root) / str(number)).mkdir()
            made.append(Copy(Path(root) / str(number)))
        yield made
