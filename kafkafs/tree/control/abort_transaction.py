"""`.control/abort-transaction`: aborts transactions whose producer does not end them.

A line `PARTITION PRODUCER_ID` writes the ABORT marker of that producer's open transaction, as its
coordinator would; readers then see the records after it, without its own. A transaction of a
running adoption (`.kafkafs/adopt`) is refused, since the adoption ends it. Reading shows the last
outcome and, from the second line on, a table of the open transactions of all partitions. Times are
milliseconds since 1970.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence

from kafkafs.tree.context import MountContext
from kafkafs.tree.control.commands import TopicCommands, numbered, parse_partition, refused
from kafkafs.tree.files.control_file import CommandEffects
from kafkafs.tree.files.text_file import text_table
from kafkafs.tree.partition.partitions import Partitions
from storage.errors import InvalidTxnState, StorageError
from storage.log.append import abort_transaction
from storage.log.append_queue import check_all_may_append
from storage.log.log import Log
from storage.manager import Topic
from storage.waiting import before_waiting

NAME = "abort-transaction"
_COLUMNS = (
    ("partition", 10),
    ("producer_id", 20),
    ("epoch", 6),
    ("first_offset", 20),
    ("last_offset", 20),
    ("last_timestamp", 20),
)


def transactions_text(mount: MountContext, topic: Topic) -> str:
    """The text of the file. There may be any number of producers, so a worker thread makes it."""
    before_waiting()
    outcome = mount.abort_outcomes.get((topic.name, topic.id), "none")
    rows = [
        (
            number,
            producer.producer_id,
            producer.epoch,
            producer.transaction_first_offset,
            producer.last_offset,
            producer.timestamp,
        )
        for number, log in sorted(topic.partitions.items())
        for producer in sorted(log.producers, key=lambda producer: producer.producer_id)
        if producer.in_transaction
    ]
    return "\n".join([f"last_outcome {outcome}", *text_table(_COLUMNS, rows), ""])


class AbortTransactions(TopicCommands):
    """The lines of an open file. It is not structural: only the loop thread appends."""

    def __init__(self, partitions: Partitions, path: str, topic: Topic) -> None:
        super().__init__(partitions.mount, path, topic)
        self._partitions = partitions

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        """Carry out the lines, or none where one is wrong or names no open transaction.

        EINVAL; errors of `abort_transaction`.
        """
        self.check()
        mount, topic = self.mount, self.topic
        if mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        commands: dict[tuple[int, int], None] = {}
        for number, line, words in numbered(lines):
            command = _parse(words, topic.partitions)
            if command is None or command in commands:
                reason = "is not PARTITION PRODUCER_ID" if command is None else "is given twice"
                raise refused(number, line, reason)
            commands[command] = None
        mount.manager.check_may_write(topic.name)
        for partition, producer_id in commands:
            _check(mount, topic.partitions[partition], producer_id)
        check_all_may_append(topic.partitions[partition].append_queue for partition, _ in commands)
        logs = [_abort(mount, topic, *command) for command in commands]
        return CommandEffects(grown=[self._partitions.of(log) for log in logs])


def _parse(words: Sequence[str], partitions: Mapping[int, Log]) -> tuple[int, int] | None:
    partition = parse_partition(words[0], partitions)
    number = words[-1]
    if partition is None or len(words) != 2 or not (number.isascii() and number.isdecimal()):
        return None
    return (partition, int(number)) if len(number) <= 20 else None


def _check(mount: MountContext, log: Log, producer_id: int) -> None:
    producer = log.producers.by_id.get(producer_id)
    if producer is None or not producer.in_transaction:
        reason = f"no open transaction in partition {log.partition}"
        raise InvalidTxnState(reason, producer_id)
    pending = mount.manager.adopter.adoptions.pending
    if (
        pending is not None
        and pending.producer_id == producer_id
        and (log.topic, log.partition) in pending.partitions
    ):
        # Half of the records that are about to be committed would be lost.
        raise InvalidTxnState(
            "it belongs to a commit of staged files, which ends by itself", producer_id
        )


def _abort(mount: MountContext, topic: Topic, partition: int, producer_id: int) -> Log:
    log = topic.partitions[partition]
    now_ns = mount.clock_ns()
    what = f"partition {partition} producer {producer_id}"
    key = topic.name, topic.id
    try:
        offset = abort_transaction(log, producer_id, now_ns)
    except (StorageError, OSError):
        mount.abort_outcomes[key] = f"{now_ns // 1_000_000} failed {what}"
        raise
    mount.abort_outcomes[key] = f"{now_ns // 1_000_000} aborted {what} marker {offset}"
    mount.events.of_request(
        f"{topic.name}/.control/{NAME}: aborted {what}, marker at offset {offset}"
    )
    return log
