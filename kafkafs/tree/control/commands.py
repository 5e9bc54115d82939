"""Parses the lines of control files: `VERB` and `VERB PARTITION`.

    run          now, for all partitions of the topic
    run N        for partition N only
    dry-run      what `run` would do; dry-run N
    cancel       ends the running and the queued jobs

Each file has its own set of verbs; some take a bare `N` for `run N`. All lines of a write are
parsed before the first one acts. Lines with one verb are one command for all their partitions;
different verbs in one write are refused, since the file could not show the first one's outcome.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kafkafs.tree.context import MountContext
from kafkafs.tree.files.control_file import TextCommands
from kafkafs.tree.permissions import Writers
from storage.errors import UnknownTopicOrPartition
from storage.manager import Topic

RUN = "run"
DRY_RUN = "dry-run"
CANCEL = "cancel"


class TopicCommands(TextCommands):
    """The rules of an open file whose lines act on all partitions of a topic."""

    def __init__(self, mount: MountContext, path: str, topic: Topic) -> None:
        super().__init__(mount, path)
        self.topic = topic
        self._writers = Writers(mount.permissions, topic)

    def check(self) -> None:
        """Check that the topic exists, and that the user may still write all of it."""
        if self.mount.manager.topics.get(self.topic.name) is not self.topic:
            raise UnknownTopicOrPartition("the topic is deleted")
        self._writers.check(self.opener)


class Command(NamedTuple):
    """The command of a write. `partitions` are ascending."""

    verb: str
    partitions: Sequence[int]
    text: str


def refused(number: int, line: str, why: str) -> OSError:
    """EINVAL that names a line."""
    return OSError(errno.EINVAL, f"line {number}: {line.strip()!r} {why}")


def parse_partition(word: str, partitions: Mapping[int, object]) -> int | None:
    """The number of an existing partition, else None."""
    # Python takes long to convert millions of digits.
    if not (word.isascii() and word.isdecimal()) or len(word) > 10 or int(word) not in partitions:
        return None
    return int(word)


def numbered(lines: Iterable[str]) -> Iterator[tuple[int, str, list[str]]]:
    """(number, line, words) of the lines that are not blank."""
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if words:
            yield number, line, words


def parse(
    lines: Iterable[str],
    verbs: Sequence[str],
    partitions: Mapping[int, object],
    *,
    bare: bool = False,
) -> Command | None:
    """The command of these lines; None where all are blank. OSError: EINVAL.

    `bare`: a partition alone means `run` of it.
    """
    chosen: set[int] = set()
    verb, everywhere = None, False
    for number, line, words in numbered(lines):
        if bare and len(words) == 1 and words[0].isdecimal():
            words = [RUN, *words]
        if words[0] not in verbs:
            raise refused(number, line, f"is not one of {', '.join(verbs)}")
        if len(words) > 2 or (len(words) == 2 and words[0] == CANCEL):
            raise refused(number, line, "has too many words")
        if verb is not None and words[0] != verb:
            raise refused(number, line, f"cannot be in the same write as {verb}")
        verb = words[0]
        if len(words) == 1:
            everywhere = True
            continue
        partition = parse_partition(words[1], partitions)
        if partition is None:
            raise refused(number, line, "names a partition that the topic does not have")
        chosen.add(partition)
    if verb is None:
        return None
    ordered = sorted(partitions if everywhere else chosen)
    names_all = verb == CANCEL or len(ordered) == len(partitions)
    text = verb if names_all else f"{verb} {' '.join(map(str, ordered))}"
    return Command(verb, ordered, text)
