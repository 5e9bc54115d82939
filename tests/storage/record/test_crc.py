"""storage.record.crc: CRC-32C for Python code, by the package crc32c."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from storage.record.crc import crc32c
from tests import oracle

ROOT = Path(__file__).parents[3]


def test_check_value() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytearray()) == 0
    data = memoryview(os.urandom(10_000))
    assert crc32c(data) == oracle.crc32c(data)
    assert crc32c(data[1000:], crc32c(data[:1000])) == crc32c(data)


def loaded(*path: Path) -> str:
    """Return the output of a new process: a CRC and the modules that it has loaded for it."""
    script = (
        "import sys; from storage.record.crc import crc32c; "
        "print(crc32c(b'123456789'), *sorted({'argparse', 'crc32c'} & sys.modules.keys()))"
    )
    places = os.pathsep.join(map(str, path))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


def test_the_extension_module_alone_is_loaded() -> None:
    assert loaded() == f"{0xE3069283}\n"


def test_a_package_that_is_built_in_another_way(tmp_path: Path) -> None:
    package = tmp_path / "crc32c"
    package.mkdir()
    (package / "__init__.py").write_text("def crc32c(data, value=0): return len(data)\n")
    assert loaded(tmp_path) == "9 crc32c\n"
