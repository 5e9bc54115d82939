"""The sink where tasks fail and are tried again: every record once, in order.

In a session of its own, as one whose tasks may fail is another one than the other tests'.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import LogManager
from tests.mount.mounting import check_data

ROOT = Path(__file__).parents[2]
ROWS = 200_000
SCRIPT = f"""
import sys
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from kafkafs.spark.data_source import KafkafsDataSource

data, where = sys.argv[1:]
session = SparkSession.builder.master("local[2,3]")
for name, value in {{
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.warehouse.dir": where + "/warehouse",
    "spark.local.dir": where + "/local",
}}.items():
    session = session.config(name, value)
spark = session.getOrCreate()
spark.dataSource.register(KafkafsDataSource)

@udf("long")
def fails(number):
    tries = TaskContext.get().attemptNumber()
    if tries < 2 and number % {ROWS // 2} == 30_000 * (tries + 1):
        raise RuntimeError("this attempt fails")
    return number

frame = spark.range(0, {ROWS}, 1, 4).withColumn("id", fails("id")).selectExpr(
    "cast(0 as int) partition", "cast(id as string) key", "repeat(cast(id as string), 20) value"
)
frame.write.format("kafkafs").mode("append").option("topic", "orders").save(data)
spark.stop()
"""


@pytest.mark.soak
def test_tasks_that_fail_are_tried_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        manager.create_topic("orders", 2)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(data), str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "this attempt fails" in done.stderr
    with LogManager.open(str(data), read_only=True) as manager:
        keys = [int(row.key or b"") for row in manager.log("orders", 0).records()]
    assert keys == list(range(ROWS))
    assert list(data.rglob("*.staged")) == []
    check_data(data)
