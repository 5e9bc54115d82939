"""Fixtures of the crash tests.

They make thousands of small directories, in memory: the simulated disk knows what is durable, so
the real disk does not matter. In the gate a test judges every third stop, and the number of the
first one depends on the test. In the soak part, with `--all-stops`, it judges all of them.

Tests of many power cuts use other seeds in each run of the soak part (`--hypothesis-seed`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from tests.crash import moments
from tests.in_memory import tmp_path

__all__ = ["tmp_path"]

#: The seeds before it are those of the gate.
FIRST_SEED = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Other modules judge no stops: in the soak part their tests would repeat the gate.
        judges_stops = moments.Found in vars(getattr(item, "module", item)).values()
        if judges_stops and "chosen_stops" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.stops)


@pytest.fixture(autouse=True)
def chosen_stops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    node = request.node
    if not request.config.getoption("--all-stops") and node.get_closest_marker("soak") is None:
        start = zlib.crc32(node.nodeid.encode()) % moments.EVERY
        monkeypatch.setattr(moments, "choice", moments.Choice(moments.EVERY, start))


@pytest.fixture
def random_seeds(request: pytest.FixtureRequest) -> Callable[[int], range]:
    """Return a function that gives COUNT seeds of power cuts, derived from the seed of the run."""
    first = FIRST_SEED + int(request.config.getoption("--hypothesis-seed") or 0)
    return lambda count: range(first, first + count)
