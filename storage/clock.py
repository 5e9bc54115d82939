"""The wall clock and the monotonic clock.

The wall clock stamps records and decides what Kafka compares with record times: retention, lags,
delete horizons and the expiry of producers. It jumps when it is set. So intervals and delays are
measured by the monotonic clock, whose zero has no meaning.
"""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Return milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds since an arbitrary moment."""
    return time.monotonic_ns() // 1_000_000
