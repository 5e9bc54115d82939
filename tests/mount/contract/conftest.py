"""Fixtures of the contract's tests: mounts that a module's tests share, each on topics of its own.

A test that restarts or kills the daemon has one of its own (`own`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, few_directories, mounted
from tests.mount.steering import SteeredMount, steered

_numbers = itertools.count()


def new_topic(mount: Mount, partitions: int = 1) -> Path:
    """Partition 0 of a topic that no other test has."""
    return mount.topic(f"topic{next(_numbers)}", partitions)


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount for all tests of a module."""
    with mounted(few_directories(tmp_path_factory.mktemp("mount"))) as started:
        yield started


@pytest.fixture
def orders(mount: Mount) -> Path:
    """Partition 0 of a new topic in the module's mount."""
    return new_topic(mount)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Mount]:
    """An empty data directory, mounted for one test."""
    with mounted(few_directories(tmp_path)) as started:
        yield started


@pytest.fixture(scope="module")
def steered_mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SteeredMount]:
    """A mount for all tests of a module, whose daemon takes commands."""
    with steered(tmp_path_factory.mktemp("steered")) as started:
        yield started


@pytest.fixture
def steered_orders(steered_mount: SteeredMount) -> Path:
    """Partition 0 of a new topic there."""
    return new_topic(steered_mount)


def flush_only_when_asked(mount: Mount, partition: Path) -> None:
    mount.run('echo flush.ms=9223372036854775807 >> "$T/.config"', T=partition.parent)


@pytest.fixture
def other(steered_mount: SteeredMount) -> Path:
    """Partition 0 of another one, with a line."""
    other = new_topic(steered_mount)
    flush_only_when_asked(steered_mount, other)
    append(other, b"first\n")
    return other
