"""Fixtures of the tests that go through the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, mounted


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """An empty data directory, mounted."""
    with mounted(tmp_path) as started:
        yield started


@pytest.fixture
def orders(mount: Mount) -> Path:
    """Partition 0 of a new topic `orders`."""
    return mount.topic("orders")
