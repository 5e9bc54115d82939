"""scripts/lint_imports.py: the layers hold for compiled modules, too."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ("*.py", "*.pyx", "*.pxd")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The sources of both packages, and the contracts."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for package in ("kafkafs", "storage"):
        for kind in SOURCES:
            for source in (ROOT / package).rglob(kind):
                target = tmp_path / source.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, target)
    return tmp_path


def lint(directory: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/lint_imports.py")],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.soak
@pytest.mark.parametrize(
    ("file", "line", "contract", "what"),
    [
        (
            "storage/record/_seek.pyx",
            "from storage.compaction._offset_map cimport OffsetMap",
            "storage: a lower layer never imports an upper one",
            "storage.record._seek -> storage.compaction._offset_map",
        ),
        (
            "storage/record/_route.pxd",
            "from storage.compaction cimport (\n    _offset_map as offsets,\n)",
            "storage: a lower layer never imports an upper one",
            "storage.record._route -> storage.compaction._offset_map",
        ),
        (
            "storage/segment/segment.py",
            "from storage.compaction._keep import Keep",
            "storage: a lower layer never imports an upper one",
            "storage.segment.segment -> storage.compaction._keep",
        ),
        (
            "storage/index/_search.pyx",
            "cimport kafkafs.views._measure",
            "storage knows nothing of kafkafs",
            "storage.index._search -> kafkafs.views._measure",
        ),
        ("storage/record/_seek.pyx", "import os", "touch no file", "storage.record._seek -> os"),
        (
            "kafkafs/views/_measure.pxd",
            "from kafkafs.views._whole cimport WholeRecord",
            "No circle of imports",
            "kafkafs.views",
        ),
    ],
)
def test_a_wrong_import_is_found(
    copy: Path, file: str, line: str, contract: str, what: str
) -> None:
    path = copy / file
    path.write_text(f"{path.read_text()}\n{line}\n")
    code, output = lint(copy)
    assert code == 1, output
    broken = output[output.index("Broken contracts") :]
    assert contract in broken, output
    assert what in broken, output
