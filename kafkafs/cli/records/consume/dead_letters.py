"""Appends the batches that a command has refused to a dead-letter topic.

Headers of each record say where the record comes from, and why it was refused:

    kafkafs.topic, kafkafs.partition, kafkafs.offset, kafkafs.group, kafkafs.reason
"""

from __future__ import annotations

import json
import os
import shlex

from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.output import write_all
from kafkafs.cli.records.consume.reader import Batch


class DeadLetters:
    """Appends to a topic of the same mount. Keys, values, headers and timestamps stay the same."""

    def __init__(self, mount: str, topic: str, group: str) -> None:
        """Check that the topic exists. Errors: ClickException."""
        self._path = os.path.join(mount, topic, ".jsonl", "append")
        self._group = group
        if not os.path.exists(self._path):
            path = os.path.join(mount, topic)
            create = f"mkdir {shlex.quote(path)}"
            raise fail(f"{path}: the dead-letter topic does not exist. To create it: {create}")

    def put(self, batch: Batch, lines: bytes, reason: str) -> None:
        """Append the records of a batch, and wait until they are on the disk.

        `lines`: the records in the format of `.jsonl`.

        Errors: OSError.
        """
        text = "".join(self._line(line, batch, reason) for line in lines.splitlines())
        fd = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        try:
            write_all(fd, text.encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def _line(self, line: bytes, batch: Batch, reason: str) -> str:
        record = json.loads(line)
        said = {
            "kafkafs.topic": batch.partition.topic,
            "kafkafs.partition": str(batch.partition.number),
            "kafkafs.offset": str(record["offset"]),
            "kafkafs.group": self._group,
            "kafkafs.reason": reason,
        }
        record["headers"] += [[name, value] for name, value in said.items() if value]
        return json.dumps(record, ensure_ascii=False) + "\n"
