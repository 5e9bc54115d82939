"""What a process of Python does for Spark's next task, which it is used for again.

After each task `pyspark/daemon.py` collects garbage, and the collector goes through all objects of
all modules: 25 ms of processor time, as much as reading 60 MB of log takes.
"""

from __future__ import annotations

import gc

_is_spared = False


def spare_collector() -> None:
    """Leave what is loaded by now out of every later collection, once a process.

    For the end of a task, when all modules that it needs have been imported. What is no longer
    referred to is freed as before; only a cycle that was garbage at that moment stays.
    """
    global _is_spared
    if not _is_spared:
        gc.freeze()
        _is_spared = True
