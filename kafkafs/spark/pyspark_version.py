"""Refuses a PySpark that lacks the methods of data sources that kafkafs uses."""

from __future__ import annotations

import re

LEAST = "4.2"


def check_pyspark() -> None:
    """Raise ImportError if PySpark is older than `LEAST`."""
    import pyspark

    found = re.match(r"(\d+)\.(\d+)", pyspark.__version__)
    major, minor = map(int, LEAST.split("."))
    if found is not None and (int(found[1]), int(found[2])) < (major, minor):
        raise ImportError(
            f"kafkafs needs PySpark {LEAST} or later; this is {pyspark.__version__}",
            name="pyspark",
        )
