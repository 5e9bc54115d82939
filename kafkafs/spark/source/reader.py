"""`spark.read.format("kafkafs")`: a batch query over the records that exist when Spark plans it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from kafkafs.spark.option_values import InvalidOption
from kafkafs.spark.source import options, planning, rows
from kafkafs.spark.source.assigned import Assigned
from kafkafs.spark.source.data_loss import LossPolicy
from kafkafs.spark.source.offsets import OffsetRange
from kafkafs.spark.worker import SentWithTask

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)


class BatchReader(SentWithTask, DataSourceReader):
    """Plans in one process, and reads in others, to which Spark pickles it; it keeps no state."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        self._options = options.parse(given, "batch")
        self._schema = rows.chosen(schema)

    def partitions(self) -> list[InputPartition]:
        chosen = self._options
        for remark in chosen.remarks:
            _log.warning("%s", remark)
        assigned = Assigned(chosen)
        try:
            start = assigned.resolve(chosen.starting, is_start=True)
            end = assigned.resolve(chosen.ending, is_start=False)
            for name in start:
                if start[name] > end[name]:
                    raise InvalidOption(
                        f"The resolved start offset {start[name]} is greater than the resolved end "
                        f"offset {end[name]} for topic {name.topic} partition {name.partition}."
                    )
            ranges = [OffsetRange(name, start[name], end[name]) for name in end if name in start]
            return planning.plan(
                *(chosen, assigned, ranges, LossPolicy(chosen.fail_on_data_loss)),
                starts_small=chosen.min_partitions is None,
            )
        finally:
            assigned.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return planning.read(partition, self._schema)
