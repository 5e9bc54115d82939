"""The tests of storage, views and mounts, run on file systems that a data directory may lie on.

Each is made here, as root, in a file that lies in the test's own directory: ext4 on a loop device,
tmpfs, and overlayfs over that ext4, as a container without a volume has it. The tests run in a
process of their own, with all their directories there. A sample runs those that go to the disk in
every way; `scripts/soak` runs all.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHOLE = ("tests/storage", "tests/kafkafs", "tests/mount")
SAMPLE = (
    "tests/storage/test_files.py",
    "tests/storage/test_log_checker.py",
    "tests/storage/test_medium.py",
    "tests/kafkafs/test_damaged.py",
    "tests/kafkafs/tree/test_view_file.py",
    "tests/mount/contract/test_appending.py",
)
IMAGE_BYTES = 4 << 30
"""A hole, of which only what the tests write takes up room."""


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def mounted(where: Path, *options: str) -> Iterator[Path]:
    where.mkdir()
    run("mount", *options, str(where))
    try:
        yield where
    finally:
        run("umount", str(where))


@contextlib.contextmanager
def ext4(base: Path) -> Iterator[Path]:
    image = base / "image"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    try:
        run("mkfs.ext4", "-q", "-F", str(image))
        device = run("losetup", "--find", "--show", str(image)).strip()
        try:
            with mounted(base / "ext4", device) as made:
                yield made
        finally:
            run("losetup", "--detach", device)
    finally:
        image.unlink()


@contextlib.contextmanager
def tmpfs(base: Path) -> Iterator[Path]:
    with mounted(base / "tmpfs", "-t", "tmpfs", "-o", f"size={IMAGE_BYTES}", "tmpfs") as made:
        yield made


@contextlib.contextmanager
def overlayfs(base: Path) -> Iterator[Path]:
    with ext4(base) as below:
        for name in ("lower", "upper", "work"):
            (below / name).mkdir()
        layers = f"lowerdir={below}/lower,upperdir={below}/upper,workdir={below}/work"
        with mounted(base / "overlay", "-t", "overlay", "-o", layers, "overlay") as made:
            yield made


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory of a short name, as sockets lie below it, which is empty again in the end."""
    with tempfile.TemporaryDirectory(prefix="fs-") as made:
        Path(made).chmod(0o755)  # an ordinary user mounts there, too
        yield Path(made)


@pytest.mark.soak
@pytest.mark.parametrize("make", [ext4, tmpfs, overlayfs])
def test_all_of_it_holds(
    make: Callable[[Path], contextlib.AbstractContextManager[Path]],
    base: Path,
    request: pytest.FixtureRequest,
    figures: Callable[[str, object], None],
) -> None:
    assert os.geteuid() == 0, "file systems are made and mounted by root only"
    tests = SAMPLE if request.config.getoption("--soak-hours") is None else WHOLE
    options = ("-n", "0", "-q", "-p", "no:cacheprovider", "-o", "tmp_path_retention_policy=failed")
    with make(base) as made:
        made.chmod(0o1777)
        # What runs these tests says nothing to those.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *tests],
            cwd=ROOT,
            env={**inherited, "TMPDIR": str(made)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    figures("tests", done.stdout.splitlines()[-1])
