"""`.groups/G/.claims`: how consumers share a group's partitions (`claims`).

Opened for reading and writing, the open file is a consumer until its last descriptor is closed.
Lines that it takes:

    claim TOPIC [PARTITION]                 it wants this partition, or all of the topic
    commit TOPIC PARTITION POSITION         as in `.groups/G/T/N`, with metadata behind a TAB; only
                                            of a partition that it holds
    return TOPIC PARTITION                  it gives this partition back

Read from its beginning it shows `TOPIC PARTITION STATE TOPIC_ID` for each partition that is its, or
will be (`State`). poll(2) says POLLPRI when that has changed since.

Opened for reading only, it is a table of all claims. The right to commit is checked for each topic.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable, Collection, Sequence
from functools import partial

from kafkafs.printable import one_line
from kafkafs.tree.files.control_file import CommandEffects, ControlHandle, TextCommands
from kafkafs.tree.files.text_file import Text, text_table
from kafkafs.tree.groups.claims import NAME_BYTES, Claimed, Claims, Consumer, Numbers
from kafkafs.tree.groups.group_files import GroupTopic, check_may_commit
from kafkafs.tree.groups.positions import Change, Wanted, parse
from kafkafs.tree.handles import READY, Handle, Opener
from kafkafs.tree.notices import Waiter
from kafkafs.tree.partition.partitions import Partitions
from kafkafs.tree.permissions import may_write
from kafkafs.tree.recent_lookups import process_of
from storage import paths
from storage.errors import InvalidRecord

NAME = ".claims"
_COLUMNS = (("topic", 24), ("partition", 9), ("state", 6), ("consumer", 0))
_COMMAND_BYTES = 200


def claims_text(claims: Claims, group: str) -> str:
    """All claims of a group, for people."""
    found = claims.of(group)
    rows = [
        (claimed.topic, claimed.partition, state, consumer.name)
        for consumer in found.consumers
        for claimed, state in found.share_of(consumer)
    ]
    claims.forget_empty(group)
    return "".join(f"{line}\n" for line in text_table(_COLUMNS, rows))


class ClaimHandle(ControlHandle[str]):
    """A consumer."""

    __slots__ = ("_claiming", "_consumer", "_text")

    def __init__(self, commands: ClaimCommands, flags: int) -> None:
        super().__init__(commands, flags, None)
        self._claiming = commands
        self._consumer = commands.consumer
        # The text that a reader has begun to read.
        self._text = Text("")

    def opened_by(self, opener: Opener) -> None:
        super().opened_by(opener)
        self._consumer.name = _process_name(process_of(opener.thread))

    def read(self, position: int, size: int) -> bytes | bytearray | memoryview:
        if position == 0:
            self._consumer.has_news = False
            self._text = Text(self._shown())
        return self._text.read(position, size)

    def _shown(self) -> str:
        found = self._claiming.claims.of(self._claiming.group)
        return "".join(
            f"{claimed.topic} {claimed.partition} {state} {claimed.topic_id}".rstrip() + "\n"
            for claimed, state in found.share_of(self._consumer)
        )

    def poll(self, waiter: Waiter | None) -> int:
        if waiter is not None:
            self._consumer.waiter = waiter
        return READY | (select.POLLPRI if self._consumer.has_news else 0)

    def release(self) -> None:
        self._kept.clear()
        self._text = Text("")
        self._claiming.claims.leave(self._claiming.group, self._consumer)
        self._claiming.mount.unfinished.add(self._kept.uid, -self._claiming.claimed_bytes)


class ClaimCommands(TextCommands):
    """The lines of a consumer."""

    def __init__(self, partitions: Partitions, claims: Claims, group: str, path: str) -> None:
        super().__init__(partitions.mount, path)
        self.partitions = partitions
        self.claims = claims
        self.group = group
        self.consumer = Consumer()
        self.claimed_bytes = 0
        """The memory of the names that the consumer wants, which counts as its user's."""

    def open(self, flags: int, reader: Handle | None) -> ClaimHandle:
        check_may_commit(self.mount)
        if flags & os.O_ACCMODE != os.O_RDWR:
            raise OSError(errno.EINVAL, "this file must be opened for reading and writing")
        return ClaimHandle(self, flags)

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        """Carry out lines; a wrong one changes nothing. Commits come first: only they are refused,
        or have to wait.
        """
        if self.mount.stopping:
            raise OSError(errno.ESHUTDOWN, "the file system is being unmounted")
        commits: list[Callable[[], CommandEffects]] = []
        wanted: dict[str, set[int] | None] = {}
        returned: list[Claimed] = []
        for line in lines:
            command, _, rest = line.partition(" ")
            if command == "commit":
                commits.append(self._commit(rest))
            elif command == "claim":
                self._claim(rest, wanted)
            elif command == "return":
                returned.append(self._return(rest))
            else:
                raise _wrong(line)
        claims, consumer = self.claims.of(self.group), self.consumer
        joined: dict[str, Numbers] = {}
        for topic, numbers in wanted.items():
            self._check_claim(topic, numbers)
            before = consumer.wanted.get(topic, frozenset())
            joined[topic] = None if numbers is None or before is None else before | numbers
        more = 0
        if joined:
            names = claims.check_wanted(consumer, {**consumer.wanted, **joined})
            more = names * NAME_BYTES - self.claimed_bytes
            self.mount.unfinished.check(self.opener.uid, more)
        grown = [each for commit in commits for each in commit().grown]
        if joined or returned:
            claims.change(consumer, joined, returned)
            self.mount.unfinished.add(self.opener.uid, more)
            self.claimed_bytes += more
        return CommandEffects(grown=list(dict.fromkeys(grown)))

    def _commit(self, text: str) -> Callable[[], CommandEffects]:
        words = text.split(" ", 2)
        if len(words) != 3:
            raise _wrong(f"commit {text}")
        topic, number = words[0], _number(words[1], f"commit {text}")
        wanted = parse(words[2], self.mount.clock_ns() // 1_000_000)
        if isinstance(wanted.where, Change):
            raise _wrong(f"commit {text}")  # a commit may be carried out twice
        self.claims.of(self.group).check_holds(self.consumer, topic, number)
        self._check_rights(topic, [number])
        return partial(self._committed, topic, number, wanted)

    def _committed(self, topic: str, number: int, wanted: Wanted) -> CommandEffects:
        return self._topic(topic).commit([number], wanted)

    def _topic(self, name: str) -> GroupTopic:
        """The group's positions in a topic."""
        known = self.mount.manager.topics.get(name)
        return GroupTopic(self.partitions, self.claims, self.group, name, known)

    def _claim(self, text: str, wanted: dict[str, set[int] | None]) -> None:
        """Add what a line claims to what is wanted."""
        topic, _, number = text.partition(" ")
        if topic not in wanted:
            if not paths.is_topic_name(topic):
                raise _wrong(f"claim {text}")
            wanted[topic] = set()
        if topic == text:
            wanted[topic] = None
            return
        partition, numbers = _number(number, f"claim {text}"), wanted[topic]
        if numbers is not None:
            numbers.add(partition)

    def _check_claim(self, topic: str, numbers: set[int] | None) -> None:
        """EACCES unless the user may commit in those of these partitions that are there."""
        known = self.mount.manager.topics.get(topic)
        there = frozenset(() if known is None else known.numbers)
        self._check_rights(topic, there if numbers is None else there & numbers)

    def _return(self, text: str) -> Claimed:
        topic, _, number = text.partition(" ")
        partition = _number(number, f"return {text}")
        return self.claims.of(self.group).held_by(self.consumer, topic, partition)

    def _check_rights(self, topic: str, numbers: Collection[int]) -> None:
        """EACCES unless the user may commit in these partitions."""
        permissions = self.mount.permissions
        if numbers:
            shown = permissions.positions(self.group, topic, numbers)
        else:
            shown = permissions.group(self.group)
        if not may_write(shown, self.opener):
            raise OSError(errno.EACCES, f"no permission to commit offsets of this group in {topic}")


def _number(text: str, line: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 10:
        raise _wrong(line)
    return int(text)


def _wrong(line: str) -> InvalidRecord:
    return InvalidRecord(
        f"{one_line(line[:80])!r} is not claim TOPIC [PARTITION], commit TOPIC PARTITION OFFSET "
        "or return TOPIC PARTITION"
    )


def _process_name(process: int) -> str:
    """A process and its command, as far as it can be seen from here."""
    if not process:
        return "a process in another PID namespace"
    try:
        with open(f"/proc/{process}/cmdline", "rb") as file:
            words = file.read(_COMMAND_BYTES).rstrip(b"\0").split(b"\0")
    except OSError:
        return f"process {process}"
    command = one_line(b" ".join(words).decode(errors="replace"))
    return f"process {process} ({command})"
