"""A temporary directory in memory, for tests to which the disk does not matter.

On a real disk these tests would spend most of their time waiting for the fsync of small files.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"
_ROOM = 1 << 30


def _is_usable() -> bool:
    """Return whether /dev/shm exists, has room and allows programs to be run from it."""
    if not os.access(_MEMORY, os.R_OK | os.W_OK | os.X_OK):
        return False
    found = os.statvfs(_MEMORY)
    return found.f_bavail * found.f_frsize >= _ROOM and not found.f_flag & os.ST_NOEXEC


#: For tempfile; None is tempfile's own choice.
PLACE = _MEMORY if _is_usable() else None


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory in memory, instead of pytest's; it is removed, and so is what lies beside it."""
    with tempfile.TemporaryDirectory(prefix="kafkafs-test-", dir=PLACE) as base:
        directory = Path(base, "files")
        directory.mkdir()
        yield directory
