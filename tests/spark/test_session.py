"""The session that the tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyspark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_do_not_import_pyspark_from_its_zip_file(spark: SparkSession) -> None:
    """They would compile it each time, and connect to Spark too late on a busy machine."""
    [place] = spark.sparkContext.parallelize([0], 1).map(_place_of_pyspark).collect()
    assert place == pyspark.__file__


def _place_of_pyspark(_: int) -> str:
    return pyspark.__file__
