"""The tasks of a compaction: they scan ranges, merge buckets and write groups of segments.

Each stage hands `Item`s to the next. A task has several small ranges, buckets or groups, of any
rounds. A fault of a log (damage, a replaced file) is an item too: it ends its round and no other.

Not here: the work itself (`storage.compaction.shared.round`), the order of stages (`compact`).
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyMerge, Superseded
from storage.compaction.shared.plan import SharedRound
from storage.compaction.shared.round import keep, new_superseded, scan
from storage.compaction.shared.swap_request import staged_suffix
from storage.compaction.transactions import OpenAtStart
from storage.errors import StorageError
from storage.files import Files
from storage.task import Task

if TYPE_CHECKING:
    from pyspark import Broadcast

# A map's memory grows with its keys.
_UNLIMITED = 1 << 46


class ItemKind(IntEnum):
    """What an item is."""

    DIRTY = 0  # a bucket's keys; CLEAN too
    CLEAN = 1
    SUPERSEDED = 2  # offsets in a group
    MET = 3  # transactions in a range
    KEYS = 4  # the number of a bucket's keys
    KEPT = 5  # what a group has kept
    FAULT = 6


class Item(NamedTuple):
    """`number`: of a bucket, range or group of the round."""

    round: int
    kind: ItemKind
    number: int
    data: bytes


class RoundPart(NamedTuple):
    """A range, bucket or group of a round."""

    round: int
    number: int


class Shares(NamedTuple):
    """The input of all tasks: which `ranges`, `buckets` and `groups` each one has, by number."""

    rounds: tuple[SharedRound, ...]
    job: str
    ranges: tuple[tuple[RoundPart, ...], ...]
    buckets: tuple[tuple[RoundPart, ...], ...]
    groups: tuple[tuple[RoundPart, ...], ...]

    def task_of_bucket(self) -> dict[RoundPart, int]:
        """Which task merges each bucket."""
        return {part: task for task, parts in enumerate(self.buckets) for part in parts}

    def task_of_group(self) -> dict[RoundPart, int]:
        """Which task writes each group."""
        return {part: task for task, parts in enumerate(self.groups) for part in parts}


def _files(shared: SharedRound) -> Files:
    """The files of the data directory that has the round's partition."""
    return Files(os.path.dirname(shared.directory))


def scan_ranges(broadcast: Broadcast[Shares], task: int) -> Iterator[tuple[int, Item]]:
    """Scan the ranges of a task: (merging task, item). An item for no bucket goes to any task."""
    shares = broadcast.value
    tasks = shares.task_of_bucket()
    for number, at in shares.ranges[task]:
        shared = shares.rounds[number]
        anyone = tasks[RoundPart(number, 0)]
        try:
            scanned = scan(shared, at, _files(shared), Task())
        except (StorageError, OSError) as error:
            yield anyone, _fault(number, at, error)
            continue
        for kind, keys in ((ItemKind.DIRTY, scanned.dirty), (ItemKind.CLEAN, scanned.clean)):
            for bucket, data in enumerate(keys):
                if data:
                    yield tasks[RoundPart(number, bucket)], Item(number, kind, bucket, data)
        for group, data in scanned.superseded:
            yield anyone, Item(number, ItemKind.SUPERSEDED, group, data)
        yield anyone, Item(number, ItemKind.MET, at, pickle.dumps(scanned.met))


def merge_buckets(
    broadcast: Broadcast[Shares], items: Iterable[tuple[int, Item]]
) -> Iterator[Item]:
    """Merge the buckets of a task, and hand on all other items."""
    shares = broadcast.value
    merges: dict[RoundPart, KeyMerge] = {}
    later: list[Item] = []
    for _, item in items:
        if item.kind not in (ItemKind.DIRTY, ItemKind.CLEAN):
            yield item
            continue
        part = RoundPart(item.round, item.number)
        if part not in merges:
            merges[part] = KeyMerge(OffsetMap(_UNLIMITED), shares.rounds[item.round].buckets)
        if item.kind == ItemKind.DIRTY:
            merges[part].add_dirty(item.data)
        else:
            later.append(item)
    for item in later:
        merges[RoundPart(item.round, item.number)].add_clean(item.data)
    for (number, bucket), merge in merges.items():
        try:
            found = merge.superseded_by_group(shares.rounds[number].group_bounds)
        except StorageError as error:
            yield _fault(number, bucket, error)
            continue
        for group, data in found:
            yield Item(number, ItemKind.SUPERSEDED, group, data)
        yield Item(number, ItemKind.KEYS, bucket, merge.keys.to_bytes(8, "little"))


def by_group(broadcast: Broadcast[Shares], items: Iterable[Item]) -> Iterator[tuple[int, Item]]:
    """The superseded offsets for the groups: (writing task, item)."""
    tasks = broadcast.value.task_of_group()
    for item in items:
        if item.kind == ItemKind.SUPERSEDED:
            yield tasks[RoundPart(item.round, item.number)], item


def keep_groups(
    broadcast: Broadcast[Shares],
    openings: Broadcast[dict[RoundPart, OpenAtStart]],
    writes: bool,
    task: int,
    items: Iterable[tuple[int, Item]],
) -> Iterator[Item]:
    """Write the groups of a task or, without `writes`, count what would stay.

    `openings` has all groups of the rounds without a fault.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = context.taskAttemptId() if context is not None else 0
    shares = broadcast.value
    superseded: dict[RoundPart, Superseded] = {}
    for _, (number, _, group, data) in items:
        part = RoundPart(number, group)
        if part not in superseded:
            superseded[part] = new_superseded(shares.rounds[number], group)
        superseded[part].add(data)
    for part in shares.groups[task]:
        opening = openings.value.get(part)
        if opening is None:
            continue
        shared, group = shares.rounds[part.round], part.number
        suffix = staged_suffix(shares.job, group, attempt) if writes else None
        gone = superseded.pop(part, None) or new_superseded(shared, group)
        try:
            kept = keep(shared, group, opening, gone, _files(shared), Task(), suffix)
        except (StorageError, OSError) as error:
            yield _fault(part.round, group, error)
        else:
            yield Item(part.round, ItemKind.KEPT, group, pickle.dumps(kept))


def _fault(number: int, at: int, error: Exception) -> Item:
    if isinstance(error, FileNotFoundError):
        reason = f"{error.filename} is gone: the log was cleaned or deleted meanwhile"
    else:
        reason = str(error)
    return Item(number, ItemKind.FAULT, at, reason.encode())


def bundled(
    parts: Sequence[tuple[RoundPart, int]], least: int
) -> tuple[tuple[RoundPart, ...], ...]:
    """Bundle (part, bytes) in order, so that a bundle has `least` bytes or a little more."""
    bundles: list[list[RoundPart]] = []
    weight = least
    for part, weighs in parts:
        if weight >= least:
            bundles.append([])
            weight = 0
        bundles[-1].append(part)
        weight += weighs
    return tuple(map(tuple, bundles))
