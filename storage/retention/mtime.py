"""The retention policy `mtime:AGE`: deletes log files that were last written more than AGE ago.

Kafka 0.7's policy, which deletes any log whose modification time is more than N days ago. AGE is a
number of days, or a duration (`storage.units`): `mtime:7`, `mtime:7d`, `mtime:36h`.

An example of an installed policy. This in its package's `pyproject.toml` makes it one::

    [project.entry-points."kafkafs.retention"]
    mtime = "storage.retention.mtime:mtime"
"""

from __future__ import annotations

from storage import units
from storage.retention.retention import Doomed, LogFacts, Policy, SegmentFacts, oldest_while
from storage.settings.config import LogConfig
from storage.units import duration_in_words


def mtime(argument: str) -> Policy:
    """Return the policy for an age. Errors: ValueError."""
    limit_ms = units.duration_ms(argument, "d")

    def policy(facts: LogFacts, config: LogConfig, now_ms: int) -> list[Doomed]:
        def why(segment: SegmentFacts) -> str | None:
            age_ms = now_ms - segment.mtime_ms
            if age_ms <= limit_ms:
                return None
            age = duration_in_words(age_ms)
            return f"its file was last written {age} ago, policy mtime:{argument}"

        return oldest_while(facts, why)

    return policy
