"""The state of a mirror: the plain file `kafkafs.mirror` of a data directory.

While a data directory has the file, it is the mirror of a cluster: only `kafkafs mirror` writes its
logs (`directory/mirror`). The file is text, one fact a line::

    version 0
    cluster 5L6g3nShT-eMCtK--X86sw
    source kafka://one:9092,two:9092
    topics orders-* audit                the patterns of the topics; `*`: all but internal ones
    topic orders-eu eV5C2xLoR3ehQ0NFt2aPvA
                          its id, in Kafka's text; `-`: the cluster had no topic ids
    setting orders-eu cleanup.policy=compact,delete
                          set on the topic in the cluster, as a fact: nothing here depends on it.
                          In the value, most punctuation and all blanks are percent-encoded
    partition orders-eu 0 start 0 end 812 source-start 0 source-end 815 at-end 1790000000000 state …
                          `start`: the offset at which the copy begins; `end`: its log end;
                          `source-start` and `source-end`: the log of the leader; `at-end`: the
                          time, in ms since 1970, when the copy last had all records of the leader;
                          -1: not known. `state` is one of `STATES`; a reason may follow

`start` is durable before the topic is created, so that a new run continues as the first one would.
Reading is strict: a guess would leave out records. No secret of the source is in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files
from storage.state.checkpoint_file import read_text

STATES = ("ok", "waiting")
"""`waiting`: the mirror copies nothing of the partition until its reason is removed."""
UNKNOWN = -1
"""Stands for an offset or a time that is not known."""
NO_ID = "-"
"""Stands for the id of a topic in a cluster that has no topic ids."""

HEAD = 4
"""The number of lines before those of topics."""

_NUMBER = re.compile(r"-1|0|[1-9][0-9]{0,18}")
_NUMBERS = ("start", "end", "source-start", "source-end", "at-end")


@dataclass(frozen=True, slots=True)
class MirroredPartition:
    """The copy of one partition: see the file."""

    start: int = UNKNOWN
    end: int = UNKNOWN
    source_start: int = UNKNOWN
    source_end: int = UNKNOWN
    at_end_ms: int = UNKNOWN
    state: str = "ok"
    reason: str = ""

    @property
    def is_waiting(self) -> bool:
        return self.state == "waiting"

    @property
    def lag(self) -> int | None:
        """The number of offsets that the leader has and the copy has not; None: not known."""
        at = max(self.start, self.end)
        return None if UNKNOWN in (at, self.source_end) else max(0, self.source_end - at)


@dataclass(slots=True)
class MirrorFile:
    """The content of the file: the source, the ids of its mirrored topics, the partitions, and the
    settings that are set on the topics.
    """

    cluster: str
    source: str
    topics: tuple[str, ...]
    ids: dict[str, str] = field(default_factory=dict)
    partitions: dict[tuple[str, int], MirroredPartition] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)

    def text(self) -> str:
        """Return the file's content."""
        lines = [
            "version 0",
            f"cluster {self.cluster}",
            f"source {self.source}",
            f"topics {' '.join(self.topics)}",
            *(f"topic {name} {topic_id}" for name, topic_id in sorted(self.ids.items())),
            *setting_lines(self.settings),
        ]
        for (topic, number), copy in sorted(self.partitions.items()):
            values = (copy.start, copy.end, copy.source_start, copy.source_end, copy.at_end_ms)
            numbers = (f"{name} {value}" for name, value in zip(_NUMBERS, values, strict=True))
            state = ["state", copy.state, *copy.reason.split()]
            lines.append(" ".join(["partition", topic, str(number), *numbers, *state]))
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str, path: str) -> MirrorFile:
        """Parse the content of the file `path`. Errors: CorruptCheckpoint for any other content,
        such as that of a later version.
        """
        parsed = cls("", "", ())
        add_lines(text, path, parsed._add)
        return parsed

    def _add(self, number: int, words: list[str]) -> None:
        """Add a line. Errors: ValueError, IndexError."""
        match words:
            case ["cluster", cluster] if number == 2:
                self.cluster = cluster
            case ["source", source] if number == 3:
                self.source = source
            case ["topics", *patterns] if patterns and number == HEAD:
                self.topics = tuple(patterns)
            case ["topic", name, topic_id] if number > HEAD:
                if name in self.ids or not paths.is_topic_name(name):
                    raise ValueError(words)
                self.ids[name] = topic_id
            case ["setting", topic, setting] if topic in self.ids:
                add_setting(self.settings.setdefault(topic, {}), setting)
            case ["partition", name, digits, *copy] if name in self.ids:
                item = name, number_of(digits)
                if item in self.partitions or not 0 <= item[1] <= paths.MAX_PARTITION:
                    raise ValueError(words)
                self.partitions[item] = _parse_copy(copy)
            case _:
                raise ValueError(words)


def add_lines(text: str, path: str, add: Callable[[int, list[str]], None]) -> None:
    """Call `add` with the number and the words of each line of the file `path` after that of its
    version. Errors: CorruptCheckpoint, also for a line for which `add` raises ValueError or
    IndexError.
    """
    lines = text.split("\n")
    if lines.pop() or len(lines) < HEAD:
        raise CorruptCheckpoint("the file is incomplete", path=path)
    for number, line in enumerate(lines, start=1):
        words = line.split(" ")
        try:
            if "" in words or (number == 1 and words != ["version", "0"]):
                raise ValueError(words)
            if number > 1:
                add(number, words)
        except (ValueError, IndexError):
            reason = f"not a line of this file: {line[:80]!r}"
            raise CorruptCheckpoint(reason, path=path, line=number) from None


def kept_name(topic: str, topic_id: str) -> str:
    """Return the name of the copy of a topic after the cluster has created another one of the same
    name.
    """
    return f"{topic}.{topic_id}"


def path_in(data_dir: str) -> str:
    """Return the path of the file of a data directory."""
    return os.path.join(data_dir, paths.MIRROR)


def read(files: Files, data_dir: str) -> MirrorFile | None:
    """Return the state of a mirror, or None if the directory is none. Errors: CorruptCheckpoint,
    OSError.
    """
    path = path_in(data_dir)
    try:
        return MirrorFile.parse(read_text(files, path), path)
    except FileNotFoundError:
        return None


def write(files: Files, data_dir: str, value: MirrorFile) -> None:
    """Replace the file; durable. Errors: OSError; the old one stays."""
    # A reason may have the name of a file.
    data = value.text().encode(errors="backslashreplace")
    files.replace_atomically(path_in(data_dir), data)


def escaped(text: str) -> str:
    """Return a text as a part of a word. Bytes that are not UTF-8 are kept as surrogates."""
    return quote(text, safe="*,/:", errors="surrogateescape")


def unescaped(word: str) -> str:
    """Return the text of a part of a word. Errors: ValueError."""
    text = unquote(word, errors="surrogateescape")
    if escaped(text) != word:
        raise ValueError(word)
    return text


def setting_lines(settings: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield the lines of the settings of topics."""
    for topic, given in sorted(settings.items()):
        for name, value in sorted(given.items()):
            yield f"setting {topic} {escaped(name)}={escaped(value)}"


def add_setting(settings: dict[str, str], word: str) -> None:
    """Add the setting in the last word of a line. Errors: ValueError."""
    name, value = map(unescaped, word.split("="))
    if name in settings:
        raise ValueError(word)
    settings[name] = value


def _parse_copy(words: Sequence[str]) -> MirroredPartition:
    """Return the copy of a line. Errors: ValueError, IndexError."""
    if tuple(words[0:10:2]) != _NUMBERS or words[10] != "state" or words[11] not in STATES:
        raise ValueError(words)
    start, end, source_start, source_end, at_end_ms = map(number_of, words[1:10:2])
    return MirroredPartition(
        *(start, end, source_start, source_end, at_end_ms),
        state=words[11],
        reason=" ".join(words[12:]),
    )


def number_of(word: str) -> int:
    """Return an offset or a time, or -1. Errors: ValueError."""
    if _NUMBER.fullmatch(word) is None or int(word) > paths.MAX_OFFSET:
        raise ValueError(word)
    return int(word)
