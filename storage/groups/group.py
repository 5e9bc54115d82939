"""A group as its records describe it: its committed offsets, its kind, and whether it has members.

The metadata records of a group determine its kind. A classic group has one record for all (type 2);
groups of the newer protocols have one for each fact (3 to 8 `consumer`, 10 to 15 `share`, 17 to 23
`streams`). Only brokers write metadata; a group without any has committed offsets and no kind.

Pure: records in, facts out. Not here: which offsets count (`groups`, which knows the topics).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from storage.groups.offset_records import (
    COMMIT,
    Committed,
    kind_of,
    read_commit,
    read_commit_key,
    read_key,
    read_value,
)
from storage.groups.offsets_log import GroupRecords
from storage.settings.messages import MessageError

TopicPartition = tuple[str, int]

CLASSIC: Final = 2
"""The type of a classic group's metadata."""
KINDS: Final = {
    CLASSIC: "classic",
    **dict.fromkeys((*range(3, 9), 16), "consumer"),
    **dict.fromkeys(range(10, 16), "share"),
    **dict.fromkeys(range(17, 24), "streams"),
}
"""The kind of a group by the types of its metadata."""
_MINUTE_MS: Final = 60_000
_MEMBERS: Final = frozenset({5, 10, 19})


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group.

    `committed`: the offsets that count, by topic and partition. `kind`: `classic`, `consumer`,
    `share` or `streams`; empty if the group has committed offsets only. `has_members`: whether a
    broker has recorded any, which may have left since. `empty_since_ms`: when a classic group lost
    its last member, or None.
    """

    name: str
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    kind: str = ""
    has_members: bool = False
    empty_since_ms: int | None = None

    def is_expired(
        self, committed: Committed, minutes: int | None, now_ms: int, left_ms: int | None
    ) -> bool:
        """Return whether a committed offset of the group is too old
        (`OffsetMetadataManager.cleanupExpiredOffsets`).

        It expires `minutes` (None: never) after the latest of these events: its commit; the last
        member of a classic group left; the last consumer of our own left, at `left_ms`. A broker
        ignores the time of a commit that was made after the last member had left. Offsets of groups
        with members stay: only a running broker knows whether the members still exist.
        """
        if minutes is None or self.has_members:
            return False
        if committed.expire_ms is not None:
            return now_ms >= committed.expire_ms
        events_ms = committed.time_ms, self.empty_since_ms, left_ms
        since_ms = max(each for each in events_ms if each is not None)
        return now_ms - since_ms >= minutes * _MINUTE_MS


class GroupFacts:
    """Decodes the changed records of a group.

    `committed`: all its offsets, in any topic. `changes` grows with each change.
    """

    def __init__(self, name: str, records: GroupRecords) -> None:
        self.name = name
        self.records = records
        self.committed: dict[TopicPartition, Committed] = {}
        self.changes = 0
        records.changed = set(records.newest)
        self._metadata: set[bytes] = set()

    def refresh(self) -> None:
        """Decode the records that were read since the last call."""
        records = self.records
        for key in records.changed:
            value = records.newest.get(key)
            if kind_of(key) != COMMIT:
                (self._metadata.discard if value is None else self._metadata.add)(key)
                continue
            with suppress(MessageError):
                _, topic, partition = read_commit_key(key)
                if value is None:
                    self.committed.pop((topic, partition), None)
                else:
                    self.committed[topic, partition] = read_commit(value)
        if records.changed:
            self.changes += 1
            records.changed = set()

    def group(self, counts: Callable[[str, Committed], bool]) -> Group:
        """Return the group with the offsets that count.

        `counts`: whether an offset in a topic does.
        """
        kind, has_members, empty_since_ms = "", False, None
        for key in sorted(self._metadata):
            type_ = kind_of(key)
            try:
                read_key(key)
                data = read_value(key, self.records.newest[key])
            except MessageError:
                continue  # Kafka would not read this record either
            kind = KINDS.get(type_, kind)
            if type_ == CLASSIC:
                since_ms: int = data["currentStateTimestamp"]
                empty_since_ms = since_ms if not data["members"] and since_ms >= 0 else None
            has_members |= bool(data["members"]) if type_ == CLASSIC else type_ in _MEMBERS
        committed = {
            item: each for item, each in sorted(self.committed.items()) if counts(item[0], each)
        }
        return Group(self.name, committed, kind, has_members, empty_since_ms)
