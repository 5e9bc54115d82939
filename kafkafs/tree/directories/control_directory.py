"""`.control`, and what its files and `.config` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from kafkafs.tree.control.abort_transaction import NAME, abort_transactions, transactions_text
from kafkafs.tree.control.compaction import COMPACTION
from kafkafs.tree.control.control_file import Act, CommandEffects, ControlHandle
from kafkafs.tree.control.delete_records import DELETE_RECORDS
from kafkafs.tree.control.flush_and_roll import FLUSH, ROLL
from kafkafs.tree.control.job_file import JobFile, begin_job, state_text
from kafkafs.tree.control.retention import RETENTION
from kafkafs.tree.control.verify import VERIFY
from kafkafs.tree.directories.topic import InTopic, TopicDirectory
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Node, inode_number, missing
from kafkafs.tree.permissions import WholeTopic
from storage.errors import UnknownTopicOrPartition
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
    name: str,
    text: Callable[[], str],
    act: Act,
    *,
    structural: bool = False,
    shows_partitions: bool = True,
) -> Node:
    """A file that takes lines; the event log gets the reason why it refuses one.

    Its lines act on all partitions, so its mode is what all of them and the topic let through;
    unless `shows_partitions`, reading it takes no right but that to read the topic.
    """
    mount, path = topic.mount, f"{topic.path}/{name}"

    def owner() -> Ownership:
        mode, uid, gid = mount.permissions.whole_topic(topic.topic)
        if not shows_partitions:
            mode = mode & ~0o444 | topic.owner()[0] & 0o444
        return mode & 0o666, uid, gid

    def say(reason: str) -> None:
        mount.events.of_request(f"{path}: {reason}")

    def take(flags: int, reader: Handle | None) -> ControlHandle:
        right = WholeTopic(mount.permissions, topic.topic)

        def carry_out(lines: Sequence[str]) -> CommandEffects:
            if mount.manager.topics.get(topic.topic.name) is not topic.topic:
                raise UnknownTopicOrPartition("the topic is deleted")
            right.check()
            return act(lines)

        return ControlHandle(carry_out, say, flags, mount.unfinished, reader, structural=structural)

    return TextFile(inode, text, owner, mount.clock_ns, take=take, path=path)


def _job_file(file: JobFile, topic: TopicDirectory, inode: int) -> Node:
    what = topic.mount, topic.topic, file
    return command_file(
        topic,
        inode,
        f".control/{file.kind.name}",
        partial(state_text, *what),
        partial(begin_job, *what),
    )


def _abort_transaction(topic: TopicDirectory, inode: int) -> Node:
    # Not structural: only the owner's thread appends.
    return command_file(
        topic,
        inode,
        f".control/{NAME}",
        partial(transactions_text, topic.mount, topic.topic),
        partial(abort_transactions, topic.partitions, topic.topic),
    )


CONTROLS: dict[str, Callable[[TopicDirectory, int], Node]] = {
    NAME: _abort_transaction,
    **{
        file.kind.name: partial(_job_file, file)
        for file in (COMPACTION, DELETE_RECORDS, FLUSH, RETENTION, ROLL, VERIFY)
    },
}
"""Makes the node of each file of `.control`."""
