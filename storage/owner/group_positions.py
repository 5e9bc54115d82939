"""A request to commit offsets of a consumer group: the progress of a query of another program.

Offsets outside of log start..log end, or in a missing partition, are skipped, since the requesting
process read the directory a moment before.

A request is one line of JSON, `{"group": "G", "positions": {"orders": {"0": 23}}}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from storage import paths
from storage.errors import InvalidRecord
from storage.groups.offset_records import Committed, check_name
from storage.log.append_queue import check_all_may_append
from storage.manager import LogManager
from storage.task import Task

_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")


class GroupPositions(NamedTuple):
    """A group's offsets, by topic and partition."""

    group: str
    positions: Mapping[str, Mapping[int, int]]

    def encode(self) -> str:
        """Return one line, without its end."""
        return json.dumps(self._asdict(), separators=(",", ":"))

    @classmethod
    def decode(cls, fields: Any) -> GroupPositions:
        """Return the request of a parsed JSON value. Errors: InvalidRecord where it is none."""
        try:
            group, positions = fields["group"], fields["positions"]
            if len(fields) != 2 or not isinstance(group, str):
                raise TypeError("expected a group name and committed offsets")
            check_name(group)
            return cls(group, {_topic(name): _numbers(each) for name, each in positions.items()})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRecord(f"invalid request to commit offsets: {error}") from None


def _topic(name: str) -> str:
    if not paths.is_topic_name(name):
        raise ValueError(f"{name!r} is not a valid topic name")
    return name


def _numbers(positions: Any) -> dict[int, int]:
    for partition, position in positions.items():
        if _NUMBER.fullmatch(partition) is None or int(partition) > paths.MAX_PARTITION:
            raise ValueError(f"{partition!r} is not a valid partition number")
        if type(position) is not int or not 0 <= position <= paths.MAX_OFFSET:
            raise ValueError(f"{position!r} is not a valid offset")
    return {int(partition): position for partition, position in positions.items()}


def commit(
    manager: LogManager, request: GroupPositions, task: Task, now_ns: Callable[[], int]
) -> int:
    """Commit the offsets, a topic at a time; return their number. Runs on a worker thread. Errors:
    those of `Groups.commit`; a repeated request commits all again.
    """
    return sum(
        task.on_log_thread(partial(_commit, manager, request.group, topic, positions))
        for topic, positions in request.positions.items()
    )


def _commit(manager: LogManager, group: str, topic: str, positions: Mapping[int, int]) -> int:
    known = manager.topics.get(topic)
    found = {}
    for number, position in positions.items():
        log = None if known is None else known.partitions.get(number)
        if log is not None and log.log_start_offset <= position <= log.log_end_offset:
            found[number] = Committed(position)
    if found:
        check_all_may_append(log.append_queue for log in manager.groups.logs)
        manager.groups.commit(group, topic, found)
    return len(found)
