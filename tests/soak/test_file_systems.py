"""The tests of storage, views and mounts, run on file systems that a data directory may lie on.

Each is made for that, overlayfs over ext4, as a container without a volume has it. The tests run in
a process of their own, with all their directories there. A sample runs those that go to the disk in
every way; `scripts/soak` runs all.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.file_systems import file_system

ROOT = Path(__file__).parents[2]
WHOLE = ("tests/storage", "tests/kafkafs", "tests/mount")
SAMPLE = (
    "tests/storage/test_files.py",
    "tests/storage/segment/test_direct_io.py",
    "tests/kafkafs/tree/files/test_view_file.py",
    "tests/mount/contract/test_appending.py",
)
IMAGE_BYTES = 4 << 30
"""The image is a sparse file: only data that the tests write takes up room."""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory of a short name, as sockets lie below it, which is empty again in the end."""
    with tempfile.TemporaryDirectory(prefix="fs-") as made:
        Path(made).chmod(0o755)  # an ordinary user mounts there, too
        yield Path(made)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "overlay"])
def test_all_of_it_holds(
    kind: str,
    base: Path,
    request: pytest.FixtureRequest,
    figures: Callable[[str, object], None],
) -> None:
    # The sample is over before more processes of tests have been worth their start.
    is_sample = request.config.getoption("--soak-hours") is None
    tests, processes = (SAMPLE, "0") if is_sample else (WHOLE, "auto")
    options = ["-n", processes, "--dist", "loadfile", "-q", "-p", "no:cacheprovider"]
    options += ["-o", "tmp_path_retention_policy=failed"]
    with file_system(kind, base, IMAGE_BYTES) as made:
        made.chmod(0o1777)
        # The inner pytest must not inherit settings of this one.
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
