"""Restore points of a mirror: plain files `kafkafs.point.NAME` of a data directory.

A restore point is a state in which the mirror can give its topics to a broker (`handover`): up to
the end of each partition, all records and no others; and what the consumer groups had committed
before. NAME is the time of the point in UTC, `20260131T021500Z`, or a name that a user has given by
a rename. Files are written once, whole, and need no lock. A file is text, one fact a line::

    version 0
    time 1790000000000    of the ends, in ms since 1970
    cluster 5L6g3nShT-eMCtK--X86sw
    state valid           one of `STATES`; a reason may follow
    topic orders ID       as in `kafkafs.mirror`, and so are the settings
    setting orders cleanup.policy=compact,delete
    partition orders 0 start 0 end 812
                          `start`: the log start of the copy; `end`: the last stable offset in the
                          cluster
    group billing orders 0 800 4 %
                          a committed offset: group, topic, partition, offset, leader epoch (-1: not
                          known) and metadata. In group and metadata most punctuation and all blanks
                          are percent-encoded; a single `%`: empty

Reading is strict. While the directory is a mirror, retention keeps the records of points with a
name of a user. The others are thinned.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeVar

from storage import paths
from storage.errors import CorruptCheckpoint, InvalidConfig
from storage.files import Files
from storage.state.checkpoint_file import read_text
from storage.state.gaps_file import Gap
from storage.state.mirror_file import (
    HEAD,
    NO_ID,
    add_lines,
    add_setting,
    escaped,
    kept_name,
    number_of,
    setting_lines,
    unescaped,
)

VALID: Final = "valid"
INVALID: Final = "invalid"
"""The copy reached the ends too late, so that the cluster may have removed records since; or
something is missing.
"""
SPLIT: Final = "split"
"""The ends cut a transaction, or it is not known whether they do."""
STATES: Final = (VALID, INVALID, SPLIT)

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
MONTH_MS: Final = 30 * DAY_MS

_T = TypeVar("_T")

_TIME_FORMAT: Final = "%Y%m%dT%H%M%SZ"
_TIME: Final = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_EMPTY: Final = "%"


class Range(NamedTuple):
    """The offsets of a partition in a point: `end` is exclusive."""

    start: int
    end: int


class Position(NamedTuple):
    """The committed offset of a group in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(slots=True)
class Point:
    """The content of a file. `groups`: by name, and by topic and partition."""

    time_ms: int
    cluster: str
    state: str = VALID
    reason: str = ""
    ids: dict[str, str] = field(default_factory=dict)
    settings: dict[str, dict[str, str]] = field(default_factory=dict)
    partitions: dict[tuple[str, int], Range] = field(default_factory=dict)
    groups: dict[str, dict[tuple[str, int], Position]] = field(default_factory=dict)

    @property
    def state_text(self) -> str:
        """The state, with its reason."""
        return f"{self.state}: {self.reason}" if self.reason else self.state

    def text(self) -> str:
        """Return the file's content."""
        lines = [
            "version 0",
            f"time {self.time_ms}",
            f"cluster {self.cluster}",
            " ".join(["state", self.state, *self.reason.split()]),
            *(f"topic {name} {topic_id}" for name, topic_id in sorted(self.ids.items())),
            *setting_lines(self.settings),
            *(
                f"partition {topic} {number} start {start} end {end}"
                for (topic, number), (start, end) in sorted(self.partitions.items())
            ),
            *(
                f"group {_word(group)} {topic} {number} {offset} {epoch} {_word(metadata)}"
                for group, committed in sorted(self.groups.items())
                for (topic, number), (offset, epoch, metadata) in sorted(committed.items())
            ),
        ]
        return "".join(f"{line}\n" for line in lines)

    @classmethod
    def parse(cls, text: str, path: str) -> Point:
        """Parse the content of the file `path`. Errors: CorruptCheckpoint for any other content,
        such as that of a later version.
        """
        parsed = cls(-1, "")
        add_lines(text, path, parsed._add)
        return parsed

    def _add(self, number: int, words: list[str]) -> None:
        """Add a line. Errors: ValueError."""
        match words:
            case ["time", time_ms] if number == 2:
                self.time_ms = number_of(time_ms)
            case ["cluster", cluster] if number == 3:
                self.cluster = cluster
            case ["state", state, *reason] if state in STATES and number == HEAD:
                self.state, self.reason = state, " ".join(reason)
            case ["topic", name, topic_id] if number > HEAD and name not in self.ids:
                if not paths.is_topic_name(name):
                    raise ValueError(words)
                self.ids[name] = topic_id
            case ["setting", topic, setting] if topic in self.ids:
                add_setting(self.settings.setdefault(topic, {}), setting)
            case ["partition", topic, digits, "start", start, "end", end] if topic in self.ids:
                found = Range(number_of(start), number_of(end))
                if not 0 <= found.start <= found.end:
                    raise ValueError(words)
                _put(self.partitions, topic, digits, found)
            case ["group", group, topic, digits, offset, epoch, metadata]:
                position = Position(number_of(offset), number_of(epoch), _text(metadata))
                if position.offset < 0 or not paths.is_topic_name(topic):
                    raise ValueError(words)
                _put(self.groups.setdefault(_text(group), {}), topic, digits, position)
            case _:
                raise ValueError(words)


# -- names and files -------------------------------------------------------------------------------


def name_at(time_ms: int) -> str:
    """Return the name of the point of a time."""
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime(_TIME_FORMAT)


def time_of(name: str) -> int | None:
    """Return the time of a point, to the second, by its name; None if a user has named it."""
    if _TIME.fullmatch(name) is None:
        return None
    try:
        return int(datetime.strptime(name + "+0000", _TIME_FORMAT + "%z").timestamp()) * 1000
    except ValueError:
        return None


def newest_ms(files: Files, data_dir: str) -> int:
    """Return a time that no point of a data directory is after. Points that cannot be read do not
    count. Errors: OSError.
    """
    times = [0]
    for name in names(files, data_dir):
        time_ms = time_of(name)
        with contextlib.suppress(CorruptCheckpoint, FileNotFoundError):
            times.append(read(files, data_dir, name).time_ms if time_ms is None else time_ms + 999)
    return max(times)


def path_of(data_dir: str, name: str) -> str:
    """Return the path of a point."""
    return os.path.join(data_dir, paths.POINT + name)


def names(files: Files, data_dir: str) -> list[str]:
    """Return the names of the points of a data directory: those of times first. Errors: OSError."""
    found = (
        name.removeprefix(paths.POINT)
        for name, kind in files.listing(data_dir)
        if name.startswith(paths.POINT) and kind != "directory"
    )
    return sorted(filter(_NAME.fullmatch, found), key=lambda name: (time_of(name) is None, name))


def read(files: Files, data_dir: str, name: str) -> Point:
    """Return a point. Errors: CorruptCheckpoint, OSError (FileNotFoundError)."""
    path = path_of(data_dir, name)
    return Point.parse(read_text(files, path), path)


def write(files: Files, data_dir: str, point: Point) -> str:
    """Write a new point; durable. Return its name. Errors: CorruptCheckpoint if it has a value that
    the file cannot have, OSError; there is no file.
    """
    name = name_at(point.time_ms)
    path, text = path_of(data_dir, name), point.text()
    Point.parse(text, path)
    # The reason may have the name of a file.
    files.replace_atomically(path, text.encode(errors="backslashreplace"))
    return name


def keep(files: Files, data_dir: str, point: str, name: str) -> None:
    """Give a point the name of a user, so that it is kept; durable. Errors: InvalidConfig for a
    name that is not valid; FileExistsError, OSError.
    """
    if _NAME.fullmatch(name) is None or _TIME.fullmatch(name) is not None:
        reason = "the name of a restore point has letters, digits, - and _, and is no time"
        raise InvalidConfig(reason, path=name)
    old = path_of(data_dir, point)
    files.link(old, path_of(data_dir, name))
    files.unlink(old)
    files.sync_directory(data_dir)


def set_ids(files: Files, data_dir: str, ids: Mapping[str, str]) -> None:
    """Write the ids of topics into the points that have none for them; durable. Errors: OSError."""
    for name in names(files, data_dir):
        # A file that cannot be read cannot be restored either.
        with contextlib.suppress(CorruptCheckpoint, FileNotFoundError):
            point = read(files, data_dir, name)
            new = {topic: ids[topic] for topic in ids if point.ids.get(topic) == NO_ID}
            if new:
                point.ids |= new
                files.replace_atomically(path_of(data_dir, name), point.text().encode())


def remove(files: Files, data_dir: str, name: str) -> None:
    """Remove a point; durable. Errors: OSError."""
    files.unlink(path_of(data_dir, name))
    files.sync_directory(data_dir)


# -- rules -----------------------------------------------------------------------------------------


def surplus(times: Iterable[int], now_ms: int, is_valid: Callable[[int], bool]) -> list[int]:
    """Return the times, of points without a user's name, that are not kept.

    All of the last day are kept, then one an hour up to a month, then one a day: the first that is
    valid or, without any, the first one. So a point that is kept is the same at each call.
    """
    chosen: dict[tuple[int, int], int] = {}
    doomed = []
    for time_ms in sorted(times):
        age = now_ms - time_ms
        if age <= DAY_MS:
            break
        span = HOUR_MS if age <= MONTH_MS else DAY_MS
        kept = chosen.setdefault((span, time_ms // span), time_ms)
        if kept == time_ms:
            continue
        if not is_valid(kept) and is_valid(time_ms):
            chosen[span, time_ms // span] = time_ms
            doomed.append(kept)
        else:
            doomed.append(time_ms)
    return doomed


def thin(files: Files, data_dir: str, now_ms: int) -> list[str]:
    """Remove the points that the rule does not keep; return their names. Errors: OSError."""

    def is_valid(time_ms: int) -> bool:
        try:
            return read(files, data_dir, name_at(time_ms)).state == VALID
        except (CorruptCheckpoint, FileNotFoundError):
            return False

    times = [time for name in names(files, data_dir) if (time := time_of(name)) is not None]
    doomed = [name_at(time_ms) for time_ms in surplus(times, now_ms, is_valid)]
    for name in doomed:
        # `kafkafs points` may name or remove one meanwhile.
        with contextlib.suppress(FileNotFoundError):
            remove(files, data_dir, name)
    return doomed


def kept_starts(files: Files, data_dir: str) -> dict[tuple[str, int], int]:
    """Return, for each partition with records in points that a user has named, the lowest start;
    also under the name that its topic has after it was created again in the cluster (`kept_name`).

    Errors: CorruptCheckpoint, OSError: it is not known which records are needed.
    """
    lowest: dict[tuple[str, int], int] = {}
    for name in names(files, data_dir):
        if time_of(name) is not None:
            continue
        point = read(files, data_dir, name)
        for (topic, number), each in point.partitions.items():
            if each.start == each.end:
                continue
            for item in ((topic, number), (kept_name(topic, point.ids[topic]), number)):
                lowest[item] = min(lowest.get(item, each.start), each.start)
    return lowest


def lost_from(point: Point, kept: Range, gaps: Iterable[Gap]) -> int | None:
    """Return the first offset from which on the cluster has lost records of a point since; None: it
    has lost none. `kept`: the records of a partition in the point; `gaps`: those of its log.
    """
    return min(
        (
            gap.first
            for gap in gaps
            if gap.kind == "diverged"
            # The log ended after `last`: a later end is that of a later point.
            and gap.first < kept.end <= gap.last + 1
            and kept.start < kept.end
            and gap.time_ms >= point.time_ms
        ),
        default=None,
    )


# -- words -----------------------------------------------------------------------------------------


def _word(text: str) -> str:
    return escaped(text) or _EMPTY


def _text(word: str) -> str:
    """Return the text of a word. Errors: ValueError."""
    return "" if word == _EMPTY else unescaped(word)


def _put(found: dict[tuple[str, int], _T], topic: str, digits: str, value: _T) -> None:
    """Add the value of a partition. Errors: ValueError."""
    item = topic, number_of(digits)
    if item in found or not 0 <= item[1] <= paths.MAX_PARTITION:
        raise ValueError(digits)
    found[item] = value
