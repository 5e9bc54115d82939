"""Records that a query should have read and that are no longer there.

Retention may delete what has not been read yet; a topic may be deleted, and made anew. A query
fails then, so that nobody overlooks it, unless `failOnDataLoss` is false: then it goes on with what
is there, and says once what is missing of each partition.
"""

from __future__ import annotations

import logging

from kafkafs.spark.source.offsets import TopicPartition

_log = logging.getLogger(__name__)


class DataLoss(RuntimeError):  # noqa: N818 - as the errors of storage
    """See the module; the message names partitions and offsets."""


class LossPolicy:
    """What is done about it."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._said: set[TopicPartition | None] = set()

    def report(self, name: TopicPartition | None, reason: str) -> None:
        """DataLoss, or a warning, the first of this partition."""
        if self.fail:
            raise DataLoss(
                "Some data may have been lost because it is not in the log any more: it was "
                "deleted by retention, or its topic was deleted, before all of it was processed. "
                "If you don't want your query to fail on such cases, set the source option "
                f"failOnDataLoss to false. Reason: {reason}"
            )
        if name not in self._said:
            self._said.add(name)
            _log.warning(
                "Some data may have been lost because it is not in the log any more, and the query "
                "goes on without it. If you want it to fail on such cases, set the source option "
                "failOnDataLoss to true. Reason: %s",
                reason,
            )


def unreadable(name: TopicPartition, start: int, end: int, why: str) -> str:
    """The reason where offsets of a partition cannot be read."""
    return f"Could not read records in offset [{start}, {end}) for topic partition {name}: {why}"
