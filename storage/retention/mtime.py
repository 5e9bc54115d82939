"""The retention policy ``mtime:AGE``: log files that were last written more than AGE ago go.

Kafka 0.7's policy, which deletes any log whose modification time is more than N days ago.  AGE is a
whole number of days, or of seconds, minutes or hours: ``mtime:7``, ``mtime:7d``, ``mtime:36h``.

An example of a policy of one's own.  This in its package's ``pyproject.toml`` makes it one::

    [project.entry-points."kafkafs.retention"]
    mtime = "storage.retention.mtime:mtime"
"""

from __future__ import annotations

import re

from storage.plural import lasting
from storage.retention.retention import Doomed, LogFacts, Policy, SegmentFacts, oldest_while
from storage.settings.config import LogConfig

_AGE = re.compile(r"([0-9]{1,9})([smhd]?)")
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "": 86_400_000}


def mtime(argument: str) -> Policy:
    """ValueError where ``argument`` is no age."""
    match = _AGE.fullmatch(argument)
    if match is None:
        raise ValueError("a number of days, or of seconds, minutes or hours as in 36h")
    limit_ms = int(match[1]) * _UNITS_MS[match[2]]

    def policy(facts: LogFacts, config: LogConfig, now_ms: int) -> list[Doomed]:
        def why(segment: SegmentFacts) -> str | None:
            age_ms = now_ms - segment.mtime_ms
            if age_ms <= limit_ms:
                return None
            return f"its file was last written {lasting(age_ms)} ago, policy mtime:{argument}"

        return oldest_while(facts, why)

    return policy
