"""Fixtures of the tests that go through the kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.beside import Beside
from tests.mount.mounting import Mount, mounted


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """An empty data directory, mounted."""
    with mounted(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def module_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount for all tests of a module."""
    with mounted(tmp_path_factory.mktemp("mount")) as started:
        yield started


@pytest.fixture
def shared_mount(module_mount: Mount) -> Iterator[Mount]:
    """The mount of the module. After each test its topics are deleted."""
    yield module_mount
    for topic in module_mount.path.iterdir():
        topic.rmdir()


@pytest.fixture
def orders(mount: Mount) -> Path:
    """Partition 0 of a new topic `orders`."""
    return mount.topic("orders")


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    """A broker's directory, whose lock we hold, and a read-only mount of it, not yet started."""
    mount = Beside(tmp_path)
    mount.broker.hold_lock()
    try:
        yield mount
    finally:
        mount.end()
        mount.broker.release_lock()
