"""The session that the tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_query_runs(spark: SparkSession) -> None:
    assert spark.range(3).selectExpr("sum(id)").collect()[0][0] == 3
