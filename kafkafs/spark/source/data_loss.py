"""Handles records that a query should read and that were deleted.

Retention may delete records before a query reads them. A user may delete a topic and create it
again. The query then fails. With `failOnDataLoss=false` it continues with the records that exist,
and logs one warning for each partition.
"""

from __future__ import annotations

import logging

from kafkafs.spark.source.offsets import TopicPartition
from storage.errors import StorageError

_log = logging.getLogger(__name__)


class DataLoss(StorageError):  # noqa: N818 - as the errors of storage
    """See the module; the message names partitions and offsets."""


class LossPolicy:
    """Fails a query on data loss (`fail`), or warns."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail
        self._said: set[TopicPartition | str] = set()

    def report_offsets(self, name: TopicPartition, start: int, end: int, why: str) -> None:
        """Report that the query cannot read the offsets from `start` to before `end`."""
        self.report(
            name,
            f"Could not read records in offset [{start}, {end}) for topic partition {name}: {why}",
        )

    def report(self, name: TopicPartition | None, reason: str) -> None:
        """Raise DataLoss, or warn if this is the partition's first loss.

        Without a `name`, it warns if the reason is new.
        """
        if self.fail:
            raise DataLoss(
                "Some data may have been lost because it is not in the log any more: it was "
                "deleted by retention, or its topic was deleted, before all of it was processed. "
                "If you don't want your query to fail on such cases, set the source option "
                f"failOnDataLoss to false. Reason: {reason}"
            )
        said = name or reason
        if said not in self._said:
            self._said.add(said)
            _log.warning(
                "Some data may have been lost because it is not in the log any more, and the query "
                "continues without it. If you want it to fail on such cases, set the source option "
                "failOnDataLoss to true. Reason: %s",
                reason,
            )
