"""Lists the faults of ``catalogue``, puts them into the code, and runs the tests that are to see
them: ``scripts/faults`` says how it is called.

Each fault is put into a copy of the working tree, so that nothing is left of it here, however the
run ends.  Seen is a fault by which a test *fails* that passes without it: not one that cannot be
collected, and not one whose fixtures fail.

Why not a tool that makes the faults: mutmut and cosmic-ray change any operator and any number and
run the suite for each.  Most of what they make here changes a message or a limit that nobody
promises, none leaves out one fsync of three, and a suite that mounts file systems takes minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults.catalogue import FAULTS
from tests.faults.fault import ROOT, Fault, Misfit

# Beyond that a test hangs, which is no failure.
TIMEOUT_S = 600


class Copy:
    """The working tree once more, with its compiled modules."""

    def __init__(self, root: Path) -> None:
        self.root = root / "tree"
        self._temporary = root / "tmp"
        self._running: subprocess.Popen[str] | None = None
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout
        compiled = [path for part in ("kafkafs", "storage") for path in (ROOT / part).rglob("*.so")]
        for path in [*(ROOT / name for name in names.split("\0") if name), *compiled]:
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
            yield
        finally:
            fault.undo(self.root)
            self._forget_compiled(fault)

    def _forget_compiled(self, fault: Fault) -> None:
        """Python knows a compiled file by its source's second and size, which may be the same."""
        source = str(self.root / fault.file)
        Path(importlib.util.cache_from_source(source)).unlink(missing_ok=True)

    def test(self, tests: Sequence[str], *options: str) -> tuple[int | None, str]:
        """pytest's exit code, None where it hangs, and its output."""
        command = [
            *(sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"),
            *(f"--basetemp={self._temporary}", "--all-stops", "-m", "", *options, *tests),
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
                output, _ = self._running.communicate(timeout=TIMEOUT_S)
                return self._running.returncode, output
            except subprocess.TimeoutExpired:
                return None, f"not done after {TIMEOUT_S} s"
            finally:
                self.stop()

    def stop(self) -> None:
        """End the tests that run."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGKILL)
        self._unmount()

    def _unmount(self) -> None:
        """What a test that was killed has mounted; its daemon ends by that."""
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


def see(fault: Fault, copy: Copy, tests: Sequence[str]) -> str | None:
    """The test that fails with it and passes without it, and how; None where there is none."""
    with copy.having(fault):
        code, output = copy.test(tests or fault.tests, "-x", "-n", "0")
    failed = [line for line in output.splitlines() if line.startswith("FAILED ")]
    if code == 1 and failed:
        test, _, how = failed[0].removeprefix("FAILED ").partition(" - ")
        code, output = copy.test([test], "-n", "0")
        if code == 0:
            return f"{test} ({how})"
        print(f"{test} fails without {fault.name}, too:\n{output}", flush=True)
    elif code != 0:
        print(f"{fault.name}: its tests do not run with it:\n{output}", flush=True)
    return None


def run(faults: Sequence[Fault], jobs: int, tests: Sequence[str]) -> int:
    """Say of each fault whether it is seen; 1 where one is not that should be."""
    with copies(jobs) as made, ThreadPoolExecutor(jobs) as pool:
        free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for copy in made:
            free.put(copy)

        def one(fault: Fault) -> bool:
            copy = free.get()
            try:
                by = see(fault, copy, tests)
            finally:
                free.put(copy)
            print(
                f"{fault.name}: {f'seen by {by}' if by else fault.unseen or 'NOT SEEN'}", flush=True
            )
            return by is not None

        try:
            seen = list(pool.map(one, faults))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for copy in made:
                copy.stop()
            raise
    missing = [fault for fault, is_seen in zip(faults, seen, strict=True) if not is_seen]
    unexplained = [fault.name for fault in missing if not fault.unseen]
    print(f"{len(faults)} faults: {sum(seen)} seen, {len(missing) - len(unexplained)} explained")
    for name in unexplained:
        print(f"not seen: {name}")
    return int(bool(unexplained))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/faults", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="the faults, what each breaks, and what is to see it")
    for command, text in (("apply", "put a fault into the code here"), ("undo", "take it back")):
        commands.add_parser(command, help=text).add_argument("name")
    runs = commands.add_parser("run", help="put faults into a copy, and run the tests")
    runs.add_argument("names", nargs="*", metavar="NAME", help="all without any")
    runs.add_argument("--jobs", type=int, default=1, help="how many at once")
    runs.add_argument("--tests", nargs="+", default=[], help="these instead of each fault's own")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    by_name = {fault.name: fault for fault in FAULTS}
    names = getattr(given, "names", None) or [getattr(given, "name", None)]
    unknown = [name for name in names if name is not None and name not in by_name]
    if unknown:
        parser.error(f"no such fault: {', '.join(unknown)}")
    try:
        if given.command == "apply":
            by_name[given.name].apply()
        elif given.command == "undo":
            by_name[given.name].undo()
        elif given.command == "run":
            chosen = [by_name[name] for name in given.names] or FAULTS
            return run(chosen, given.jobs, given.tests)
        else:
            for fault in FAULTS:
                print(f"{fault.name} ({fault.file}): {fault.breaks}")
                print(f"    {fault.unseen or ' '.join(fault.tests)}")
    except Misfit as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
