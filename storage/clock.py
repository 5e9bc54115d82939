"""The two clocks of a machine.

The wall clock stamps records and decides what Kafka compares with record times: retention, lags,
delete horizons, the expiry of producers. It jumps when it is set, so it measures no interval and no
delay: the monotonic clock does, whose beginning means nothing.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Milliseconds since some moment."""
    return time.monotonic_ns() // 1_000_000
