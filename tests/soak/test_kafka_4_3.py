"""What the test suite compares with Kafka 4.4 holds beside 4.3, too.

The files of tests/interop run in three processes of their own, with the jars of the other pom. Left
out are the dump, which prints what DumpLogSegments of 4.4 prints, old brokers, and files in which
the release of the broker does not matter.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTEROP = ROOT / "tests" / "interop"
LEFT_OUT = {
    *("test_dump_matches.py", "test_dump_log_segments.py", "test_data_tools.py", "test_meta.py"),
    *("test_old_brokers.py", "test_cleaner_matches_old.py"),
    *("test_detach.py", "test_partitioner.py", "test_topic_file.py", "test_client_schemas.py"),
    *("test_killed_controller.py", "test_avro_serializer.py"),
    *("test_client_leaders.py", "test_client_security.py", "test_mirror_leaders.py"),
    *("test_mirror_groups.py", "test_mirror_old.py", "test_mirror_points.py"),
    "test_restore_points.py",
}
FILES = sorted(file for file in INTEROP.glob("test_*.py") if file.name not in LEFT_OUT)
PARTS = 3
"""A process for each file would spend seconds on its start."""


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_beside_kafka_4_3(part: int) -> None:
    done = subprocess.run(
        # Those of the soak part, too.
        [sys.executable, "-m", "pytest", "-q", "-m", "", *FILES[part::PARTS]],
        cwd=ROOT,
        env={**os.environ, "KAFKA_POM": "pom-4.3.xml"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
