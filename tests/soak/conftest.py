"""Fixtures of the judges, the tests that run for long: their time, and the figures that they count.

A judge runs for `soak_s` seconds. In the test suite these are SAMPLE_S. `scripts/soak --hours N`
runs all judges one after the other, and each gets an equal share of the time. The judges of the
page cache and of mirrors run until they have counted enough. A judge passes its counts to
`figures`, which are printed at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SAMPLE_S = 10.0
ONLY_WHEN_ASKED_FOR = ("test_package.py", "test_many_directories.py", "test_mirror_storm.py")
"""Fresh roots, 100,000 directories, and kills of three brokers: no sample can be taken of them."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked_for = config.getoption("--soak-hours") is not None
    return True if collection_path.name in ONLY_WHEN_ASKED_FOR and not asked_for else None


@pytest.fixture
def soak_s(request: pytest.FixtureRequest) -> float:
    """How many seconds this judge runs."""
    hours: float | None = request.config.getoption("--soak-hours")
    if hours is None:
        return SAMPLE_S
    judges = sum("soak_s" in getattr(item, "fixturenames", ()) for item in request.session.items)
    return hours * 3600 / judges


@pytest.fixture
def growths(request: pytest.FixtureRequest) -> int:
    """How many growths the judge of the page cache sees, however long that takes."""
    wanted: int = request.config.getoption("--growths")
    return wanted


@pytest.fixture
def figures(record_property: Callable[[str, object], None]) -> Callable[[str, object], None]:
    """`figures(name, value)` is printed when all judges have ended."""

    def record(name: str, value: object) -> None:
        record_property(f"figure {name}", value)

    return record
