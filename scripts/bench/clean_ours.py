"""Cleans the partitions of a data directory until nothing is due, and prints the time and memory.

    clean_ours.py DATA        one line of JSON; sizes in bytes

It is a program of its own, so that its memory is the cleaner's. It has one thread.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

from storage import LogManager
from storage.compaction.log_cleaner import LogCleaner
from storage.task import Task


def memory(name: str) -> int:
    """Return VmRSS, or the peak VmHWM."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) << 10


def main() -> None:
    with LogManager.open(sys.argv[1]) as manager:
        cleaner = LogCleaner(manager)
        [log] = [log for log in manager.logs() if log.config.is_compacted]
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak
        before = memory("VmRSS")
        seconds, rounds, kept, largest = 0.0, 0, 0, 0
        begun = time.monotonic()
        while cleaner.plan(log, manager.clock_ms()).cleanable_bytes:
            cleaned = cleaner.clean(log, Task())
            assert cleaned is not None
            rounds += 1
            kept, largest = cleaned.records_kept, max(largest, cleaned.map_keys)
        seconds = time.monotonic() - begun
        figures = {
            "seconds": seconds,
            "rounds": rounds,
            "kept": kept,
            "keys": largest,
            "before": before,
            "peak": memory("VmHWM"),
            "after": memory("VmRSS"),
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
