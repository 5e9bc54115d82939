"""What the records of a group say: its positions, its kind and its members.

A group is of the kind that its metadata records are of: classic ones keep all of it in one record
(type 2), those of the newer protocols one for each fact (3 to 8 ``consumer``, 10 to 15 ``share``,
17 to 23 ``streams``).  Metadata is written by brokers only; a group that has none has positions and
no kind.

Pure: records in, facts out.  Which positions count is for ``groups``, which knows the topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from storage.groups.offset_records import (
    COMMIT,
    Committed,
    id_text,
    kind_of,
    name_text,
    read_commit,
    read_commit_key,
    read_key,
    read_value,
)
from storage.groups.offsets_log import GroupRecords
from storage.settings.message_schemas import PROTOCOL
from storage.settings.messages import MessageError, Reader, leading_version, parse_schemas

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
_MEMBERS: Final = frozenset({5, 10, 19})
_CURRENT_ASSIGNMENTS: Final = frozenset({8, 14})
_ASSIGNMENT: Final = parse_schemas(PROTOCOL)["ConsumerProtocolAssignment"]


class Member(NamedTuple):
    """A member of a group, and the partitions that it has; ``instance_id``: None if not static."""

    id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """What is known of a group.

    ``committed``: the positions that count, by topic and partition.  ``kind``: ``classic``,
    ``consumer``, ``share``, ``streams``, or nothing where there are positions only; ``protocol``:
    what its members were, ``consumer``, ``connect`` and the like, where a broker has said.
    ``empty_since_ms``: when a classic group has lost its last member, None where it is not known.
    """

    name: str
    committed: Mapping[TopicPartition, Committed] = field(default_factory=dict)
    kind: str = ""
    protocol: str = ""
    members: tuple[Member, ...] = ()
    empty_since_ms: int | None = None


class GroupFacts:
    """Decodes what has changed of a group's records, and no more.

    ``committed``: all positions, whatever topic they are of.  ``changes`` grows with each change.
    """

    def __init__(self, name: str, records: GroupRecords) -> None:
        self.name = name
        self.records = records
        self.committed: dict[TopicPartition, Committed] = {}
        self.changes = 0
        records.changed = set(records.newest)
        self._metadata: set[bytes] = set()

    def refresh(self) -> None:
        """Take in what has been read since."""
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

    def group(
        self, counts: Callable[[str, Committed], bool], topic_of: Callable[[str], str | None]
    ) -> Group:
        """The group, with the positions that count.

        ``counts``: whether a position in a topic does.  ``topic_of``: a topic's name by its id.
        """
        committed = {
            item: each for item, each in sorted(self.committed.items()) if counts(item[0], each)
        }
        found = _Metadata(topic_of)
        for key in sorted(self._metadata):
            with suppress(MessageError):
                found.add(key, self.records.newest[key])
        return Group(
            self.name,
            committed,
            found.kind,
            found.protocol,
            found.listed(),
            found.empty_since_ms,
        )


class _Metadata:
    """Puts together what a group's metadata records say."""

    def __init__(self, topic_of: Callable[[str], str | None]) -> None:
        self.kind = ""
        self.protocol = ""
        self.empty_since_ms: int | None = None
        self._topic_of = topic_of
        self._members: dict[str, Member] = {}
        self._assigned: dict[str, tuple[TopicPartition, ...]] = {}

    def listed(self) -> tuple[Member, ...]:
        """The members, by id."""
        return tuple(
            member._replace(assigned=self._assigned.get(id_, member.assigned))
            for id_, member in sorted(self._members.items())
        )

    def add(self, key: bytes, value: bytes) -> None:
        """MessageError: the record is none that Kafka would read, and does not count."""
        kind = kind_of(key)
        fields, data = read_key(key), read_value(key, value)
        self.kind = KINDS.get(kind, self.kind)
        if kind == CLASSIC:
            self._add_classic(data)
        elif kind in _MEMBERS:
            id_ = name_text(fields["memberId"])
            self._members[id_] = Member(
                id_,
                name_text(data["clientId"]),
                name_text(data["clientHost"]),
                _text_or_none(data.get("instanceId")),
                (),
            )
        elif kind in _CURRENT_ASSIGNMENTS:
            self._assigned[name_text(fields["memberId"])] = tuple(
                (topic, partition)
                for each in data["assignedPartitions"]
                if (topic := self._topic_of(id_text(each["topicId"]))) is not None
                for partition in each["partitions"]
            )

    def _add_classic(self, data: dict[str, Any]) -> None:
        self.protocol = name_text(data["protocolType"])
        for each in data["members"]:
            id_ = name_text(each["memberId"])
            self._members[id_] = Member(
                id_,
                name_text(each["clientId"]),
                name_text(each["clientHost"]),
                _text_or_none(each["groupInstanceId"]),
                tuple(_classic_assignment(each["assignment"] or b"", self.protocol)),
            )
        since_ms: int = data["currentStateTimestamp"]
        self.empty_since_ms = since_ms if not data["members"] and since_ms >= 0 else None


def _classic_assignment(data: bytes, protocol: str) -> Iterable[TopicPartition]:
    """The partitions of a classic member; of other protocols than consumers' it is not known."""
    if protocol != "consumer":
        return
    with suppress(MessageError):
        version = min(leading_version(data, "assignment"), _ASSIGNMENT.last)
        for each in _ASSIGNMENT.read(Reader(data[2:]), version)["assignedPartitions"]:
            for partition in each["partitions"]:
                yield name_text(each["topic"]), partition


def _text_or_none(data: bytes | None) -> str | None:
    return None if data is None else name_text(data)
