"""`.control`, and what its files and `.config` share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kafkafs.tree.control.abort_transaction import NAME, AbortTransactions, transactions_text
from kafkafs.tree.control.compaction import COMPACTION
from kafkafs.tree.control.delete_records import DELETE_RECORDS
from kafkafs.tree.control.flush_and_roll import FLUSH, ROLL
from kafkafs.tree.control.job_file import JobCommands, JobFile, state_text
from kafkafs.tree.control.retention import RETENTION
from kafkafs.tree.control.verify import VERIFY
from kafkafs.tree.directories.topic import InTopic, TopicDirectory
from kafkafs.tree.files.control_file import TextCommands, taking
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.inodes import Node, inode_number, missing
from storage.modes import Ownership


class ControlDirectory(InTopic):
    """`.control`"""

    __slots__ = ()

    name = ".control"

    def lookup(self, name: str) -> Node:
        make = CONTROLS.get(name)
        if make is None:
            raise missing(name)
        topic = self.topic.topic
        inode = inode_number(topic.name, topic.id, ".control", name)
        return self.mount.inodes.find(inode) or make(self.topic, inode)

    def names(self) -> list[str]:
        return list(CONTROLS)


def command_file(
    topic: TopicDirectory,
    inode: int,
    path: str,
    text: Callable[[], str],
    begin: Callable[[], TextCommands],
    *,
    shows_partitions: bool = True,
) -> Node:
    """A file that takes lines; `begin` makes the rules of an open one.

    Its lines act on all partitions, so its mode is what all of them and the topic let through;
    unless `shows_partitions`, reading it takes no right but that to read the topic.
    """
    mount = topic.mount

    def owner() -> Ownership:
        mode, uid, gid = mount.permissions.whole_topic(topic.topic)
        if not shows_partitions:
            mode = mode & ~0o444 | topic.owner()[0] & 0o444
        return mode & 0o666, uid, gid

    return TextFile(inode, text, owner, mount.clock_ns, take=taking(begin), path=path)


def _job_file(file: JobFile, topic: TopicDirectory, inode: int) -> Node:
    path = f"{topic.path}/.control/{file.kind.name}"
    text = partial(state_text, topic.mount, topic.topic, file)
    begin = partial(JobCommands, topic.mount, path, topic.topic, file)
    return command_file(topic, inode, path, text, begin)


def _abort_transaction(topic: TopicDirectory, inode: int) -> Node:
    path = f"{topic.path}/.control/{NAME}"
    text = partial(transactions_text, topic.mount, topic.topic)
    begin = partial(AbortTransactions, topic.partitions, path, topic.topic)
    return command_file(topic, inode, path, text, begin)


CONTROLS: dict[str, Callable[[TopicDirectory, int], Node]] = {
    NAME: _abort_transaction,
    **{
        file.kind.name: partial(_job_file, file)
        for file in (COMPACTION, DELETE_RECORDS, FLUSH, RETENTION, ROLL, VERIFY)
    },
}
"""Makes the node of each file of `.control`."""
