"""`format("steered")`: the sink of kafkafs, which fails at a chosen point of its commit.

It is the real sink with one more option, `steer`: the point and the batch (`before:1`). All of it
runs in the processes that Spark starts for sinks.

At these points the driver and all its processes die, as if each had got SIGKILL:

- `before`: all tasks have staged their rows, and the driver has not requested the commit;
- `asked`: the owner is a daemon. It has received the request, and the driver has not read the
  outcome yet;
- `adopted`: the owner has reported the outcome, and Spark's commit log does not have the batch.

At `fail` the first attempt of each task fails after it has staged all rows.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from kafkafs.spark.data_source import KafkafsDataSource
from kafkafs.spark.location import owner_client
from kafkafs.spark.sink.sink import StagedTask, StreamWriter
from kafkafs.spark.sink.sink_options import SinkOptions, parse
from tests.spark.processes import kill, session_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.types import StructType


def die() -> None:
    """End all processes of this driver, at once as far as that goes."""
    mine = os.getpid()
    others = [pid for pid in session_of(os.getsid(0)) if pid != mine]
    kill(others, signal.SIGSTOP)
    kill(others)
    kill([mine])


class SteeredWriter(StreamWriter):
    """See the module."""

    def __init__(self, options: SinkOptions, steer: tuple[str, int]) -> None:
        super().__init__(options)
        self._point, self._batch = steer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedTask:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if self._point == "fail" and not context.attemptNumber():
            raise RuntimeError("the first attempt of a task fails here")
        return staged

    def commit(
        self,
        messages: list[WriterCommitMessage | None],
        batchId: int,  # noqa: N803 - Spark's
    ) -> None:
        point = self._point if batchId == self._batch else ""
        if point == "before":
            die()
        elif point == "asked":
            vars(owner_client)["_outcome"] = _dead
        super().commit(messages, batchId)
        if point == "adopted":
            die()


def _dead(*_: Any) -> None:
    die()


class SteeredDataSource(KafkafsDataSource):
    """See the module."""

    @classmethod
    def name(cls) -> str:
        return "steered"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        options = {name.lower(): value for name, value in self.options.items()}
        point, _, batch = options.pop("steer", "").partition(":")
        return SteeredWriter(parse(options), (point, int(batch or -1)))
