"""The compiled loops under AddressSanitizer and UBSan: their tests, and crafted bytes.

The loops are compiled once more, in a copy of the sources: nothing of it is ever loaded beside the
other build. One loop more is compiled there, with two faults that have no consequence otherwise: it
shows that what is looked for is found.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache/sanitized"
"""The compiled loops, for as long as the sources are the same."""
INSTALL = "apt-get install gcc libc6-dev"
SANITIZE = "-fsanitize=address,undefined"
# Most builds of Python pass -fwrapv, with which overflow is not an error.
FLAGS = ("-O0", "-g1", "-fno-omit-frame-pointer", "-fno-wrapv", "-fno-sanitize-recover=undefined")
FOUND = 99
"""The exit status of a process in which a sanitizer found something."""
SOURCES = ("kafka_client", "kafkafs", "storage", "tests")
TESTS = ("tests/storage/record", "tests/fuzz")
# Tests of memory, many records and other formats take long, and reach no other loops.
OTHERS = "not (memory or many or levels or directories or kafka_python or across)"
INPUTS = 1 << 40

LOOP, PLANTED = "storage/record/_seek.pyx", "storage/record/_seek_planted.pyx"
# The first loop's: another one reads as this one does.
_READ = "fault = read_head(batch + found.position, left, left, &head)"
_THEN = "        if fault != NO_FAULT:\n            return fault\n"
_SUM = "found.offset = sum_of(base_offset, head.offset_delta)"
FAULTS = (
    (
        f"{_READ}\n{_THEN}        {_SUM}",
        f"left += 1\n        {_READ}\n{_THEN}        {_SUM}",
    ),
    (_SUM, "found.offset = base_offset + head.offset_delta"),
)
SEARCH = """
import ctypes, importlib, struct, sys
from storage.record.batch import Record, encode

base, number, loop = sys.argv[1:]
batch = bytearray(encode([Record(n, 0, 0, b"k", b"v") for n in range(20)]))
batch[:8] = struct.pack(">q", int(base))
# Memory of just this size; a bytes object has a byte more.
exact = (ctypes.c_char * len(batch)).from_buffer_copy(batch)
found = importlib.import_module(loop).find_record(memoryview(exact).cast("B"), number=int(number))
assert (found is None) == (int(number) > 19), found
"""


def library() -> str:
    """AddressSanitizer's library, which a process loads before all others."""
    if shutil.which("gcc") is None:
        pytest.fail(f"no gcc here: {INSTALL}")
    found = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    if not all(os.path.isabs(path) for path in found):
        pytest.fail(f"gcc has no sanitizers here: {INSTALL}")
    return found[0]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources, with loops that the sanitizers watch."""
    library()
    tree = tmp_path_factory.mktemp("sanitized")
    for name in SOURCES:
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    if (translated := ROOT / "build/cython").exists():  # Cython translates only what is older
        shutil.copytree(translated, tree / "build/cython")
    made = CACHE / _key_of_build()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of tests want it
        if not made.exists():
            _compile(tree)
            for before in CACHE.glob("*/"):
                shutil.rmtree(before)
            for path in tree.rglob("*.so"):
                kept = CACHE / "part" / path.relative_to(tree)
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept)
            (CACHE / "part").rename(made)
    shutil.copytree(made, tree, dirs_exist_ok=True)
    return tree


def _key_of_build() -> str:
    """Return a hash of all inputs of the build of the compiled loops."""
    sources = [ROOT / "setup.py"]
    for package in ("kafkafs", "storage"):
        for suffix in ("pyx", "pxd", "h"):
            sources += (ROOT / package).rglob(f"*.{suffix}")
    key = hashlib.sha256(repr((sys.version, FLAGS, SANITIZE, FAULTS)).encode())
    key.update(subprocess.check_output(["gcc", "--version"]))
    for path in sorted(sources):
        key.update(path.read_bytes())
    return key.hexdigest()[:16]


def _compile(tree: Path) -> None:
    planted = _replaced((tree / LOOP).read_text(), *FAULTS)
    (tree / PLANTED).write_text(planted)
    flags = ", ".join(f'"{flag}"' for flag in (*FLAGS, SANITIZE))
    setup = _replaced((tree / "setup.py").read_text(), ('["-O3", "-g0"]', f"[{flags}]"))
    (tree / "setup.py").write_text(setup)
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace", f"-j{os.cpu_count()}"],
        cwd=tree,
        env={**os.environ, "CC": "gcc", "LDFLAGS": SANITIZE},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n(needs: {INSTALL})"


def _replaced(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


class Watched:
    """A Python program with the loops of the tree: what a sanitizer finds ends it with FOUND."""

    def __init__(self, tree: Path, *arguments: str) -> None:
        self._said = os.memfd_create("said")
        options = f"exitcode={FOUND}:halt_on_error=1"
        environment = {
            "LD_PRELOAD": library(),
            "ASAN_OPTIONS": f"{options}:detect_leaks=0",
            "UBSAN_OPTIONS": f"{options}:print_stacktrace=1",
            # Each object gets its own block of memory, and a guard zone after the block.
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(tree),
        }
        self._process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=tree,
            env={**os.environ, **environment},
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        """With the processes that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._said)

    def end(self) -> tuple[int, str]:
        """Its exit status, and what it said: of a report, its beginning."""
        status = self._process.wait()
        said = os.pread(self._said, os.fstat(self._said).st_size, 0).decode(errors="replace")
        found = re.search(r"ERROR: AddressSanitizer|runtime error:", said)
        return status, said[max(found.start() - 200, 0) :][:3000] if found else said[-3000:]


def watched(tree: Path, *arguments: str) -> tuple[int, str]:
    with Watched(tree, *arguments) as program:
        return program.end()


@pytest.mark.soak
@pytest.mark.parametrize(("base", "number"), [(0, 99), (2**63 - 1, 1)], ids=["read", "sum"])
def test_a_planted_fault_is_found(tree: Path, base: int, number: int) -> None:
    """A read of one byte too many, and a sum that is too large: only a sanitizer sees them."""
    ask = ("-c", SEARCH, str(base), str(number))
    assert watched(tree, *ask, "storage.record._seek") == (0, "")
    status, said = watched(tree, *ask, "storage.record._seek_planted")
    assert status == FOUND, said
    assert ("signed integer overflow" if base else "heap-buffer-overflow") in said


@pytest.mark.soak
def test_nothing_is_found(
    tree: Path, soak_s: float, figures: Callable[[str, object], None], tmp_path: Path
) -> None:
    """The tests of what reads foreign bytes, and beside them crafted inputs."""
    until = time.monotonic() + soak_s
    with Watched(
        tree, "-m", "tests.fuzz.campaign", f"--inputs={INPUTS}", f"--seconds={soak_s}",
        f"--found={tmp_path}",
    ) as campaign:  # fmt: skip
        runs, profile = 0, "few"
        while not runs or time.monotonic() < until:
            status, said = watched(
                tree, "-m", "pytest", "-q", "-x", "-n0", f"--hypothesis-profile={profile}",
                "--capture=sys", "-pno:faulthandler", "-pno:cacheprovider", "-k", OTHERS, *TESTS,
            )  # fmt: skip
            assert status == 0, said
            runs, profile = runs + 1, "random"
        status, said = campaign.end()
        assert status == 0, said
    figures("runs of the tests", runs)
    figures("crafted", said.splitlines()[-1])
