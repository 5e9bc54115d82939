"""The tombstones that delete a group, in an order that a broker can replay.

A broker replays the records of a partition one by one. If it cannot replay one of them, it loads
none of the partition. The tombstone of a member has to follow those of the member's two
assignments. The tombstone of a group has to follow those of its members and of its assignment epoch
(`ConsumerGroup.createGroupTombstoneRecords`, `GroupMetadataManager.replay`). Then a log that ends
after any of them can be replayed, too.

Pure: keys in, keys out.
"""

from __future__ import annotations

import shlex
import struct
from collections.abc import Collection
from typing import Final

from storage.errors import PolicyViolation
from storage.groups.group import CLASSIC, KINDS
from storage.groups.offset_records import COMMIT, kind_of, name_bytes

_ORDER: Final = (COMMIT, CLASSIC, 8, 7, 6, 5, 16, 4, 3, 22, 21, 20, 19, 23, 18, 17)
# By kind: the types of a member's records, and of the records that every group has.
_OF_MEMBER: Final = {"consumer": (8, 7, 5), "streams": (22, 21, 19)}
_OF_GROUP: Final = {"consumer": (6, 3), "streams": (20, 17), "classic": (CLASSIC,)}


def group_tombstones(group: str, keys: Collection[bytes]) -> list[bytes]:
    """Return the keys to write without a value. `keys`: those of the group that have a value.

    A broker also asks for tombstones of records that may never have been written: both assignments
    of each member, and the assignment epoch. A group that has committed offsets only is one of the
    classic protocol for a broker. Errors: PolicyViolation for a share group, and for records of
    unknown types.
    """
    quoted = shlex.quote(group)
    kinds = {KINDS.get(kind_of(key), "") for key in keys if kind_of(key) != COMMIT} or {"classic"}
    if "share" in kinds:
        raise PolicyViolation(
            f"{group!r} is a share group: its state is in __share_group_state, which only a "
            "broker writes. To delete it, start the broker and use: kafka-share-groups "
            f"--delete --group {quoted}"
        )
    if "" in kinds:
        raise PolicyViolation(
            f"group {group!r} has records of a newer Kafka version. To delete it, start the "
            f"broker and use: kafka-consumer-groups --delete --group {quoted}"
        )
    found = set(keys)
    for kind in kinds:
        of_member = _OF_MEMBER.get(kind, ())
        members = {key[2:] for key in keys if kind_of(key) in of_member}
        found.update(_key(each, member) for each in of_member for member in members)
        found.update(_key(each, _string(group)) for each in _OF_GROUP[kind])
    return sorted(found, key=lambda key: (_ORDER.index(kind_of(key)), key))


def _key(kind: int, names: bytes) -> bytes:
    return struct.pack(">h", kind) + names


def _string(group: str) -> bytes:
    name = name_bytes(group)
    return struct.pack(">h", len(name)) + name
