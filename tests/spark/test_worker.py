"""What a task costs a process of Python beside its rows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.spark.test_source_batch import two_topics
from tests.storage.logs import opened

TASKS = """
import gc, sys
from kafkafs.spark.source import rows
from kafkafs.spark.source.reader import BatchReader

reader = BatchReader({"path": sys.argv[1], "subscribe": "a"}, rows.full_schema(True))
first, second = reader.partitions()
before = len(gc.get_objects())
assert sum(batch.num_rows for batch in reader.read(first)) == 4
print(before > 10_000, len(gc.get_objects()) < 1_000, gc.get_freeze_count() > 10_000)
frozen = gc.get_freeze_count()
assert sum(batch.num_rows for batch in reader.read(second)) == 2
print(gc.get_freeze_count() <= frozen, "pandas" in sys.modules)
"""


def test_a_task_does_not_pay_for_what_is_loaded(tmp_path: Path) -> None:
    """Spark collects garbage after each task; and pandas takes longer to import than to read."""
    with opened(tmp_path) as manager:
        two_topics(manager)
    found = subprocess.run(
        [sys.executable, "-c", TASKS, tmp_path], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == ["True True True", "True False"]
