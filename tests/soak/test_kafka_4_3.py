"""Kafka 4.3 writes, reads, cleans and deletes logs as Kafka 4.4, except for known differences.

The release of the broker does not matter for the other tests of tests/interop.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

INTEROP = Path(__file__).parents[2] / "tests" / "interop"
TESTS = (
    "test_broker_serves_ours.py",
    "test_cleaner_matches.py",
    "test_groups.py",
    "test_handover.py",
    "test_retention_matches.py",
    "test_taking_over.py",
)


@pytest.mark.soak
def test_beside_kafka_4_3() -> None:
    done = subprocess.run(
        # Also run the tests with the marker `soak`.
        [sys.executable, "-m", "pytest", "-q", "-m", "", *TESTS],
        cwd=INTEROP,
        env={**os.environ, "KAFKA_POM": "pom-4.3.xml"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
