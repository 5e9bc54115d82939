"""What crash tests share: directories in memory, since they make thousands of small ones."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Instead of pytest's: in memory where there is such a place. What is durable the simulated
    disk knows by itself, so the real one does not matter.
    """
    memory = _MEMORY if os.path.isdir(_MEMORY) and os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="kafkafs-crash-", dir=memory) as directory:
        yield Path(directory)
