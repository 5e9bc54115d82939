"""Fixtures of the crash tests.

They make thousands of small directories, in memory: the simulated disk knows what is durable, so
the real disk does not matter. A test judges every Nth stop (`--stops N`). The number of the first
one depends on the test and on `--hypothesis-seed`, so that each run of the soak part judges others.
"""

from __future__ import annotations

import zlib

import pytest

from tests.conftest import GATE_STOPS
from tests.crash import moments
from tests.in_memory import tmp_path

__all__ = ["tmp_path"]

#: Of the power cuts that only the soak part makes. The seeds before it are those of the gate.
FIRST_SEED = 4
MORE_POWER_CUTS = 3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        # Other modules judge no stops: in the soak part their tests would repeat the gate.
        judges_stops = moments.Found in vars(getattr(item, "module", item)).values()
        if judges_stops and "chosen_stops" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.stops)


@pytest.fixture(autouse=True)
def chosen_stops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    options = request.config.option
    start = zlib.crc32(f"{request.node.nodeid} {options.hypothesis_seed}".encode())
    first = FIRST_SEED + int(options.hypothesis_seed or 0)
    more = 0 if options.stops == GATE_STOPS else MORE_POWER_CUTS
    choice = moments.Choice(options.stops, start, range(first, first + more))
    monkeypatch.setattr(moments, "choice", choice)
