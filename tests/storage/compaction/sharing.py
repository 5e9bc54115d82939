"""A round of cleaning that is shared out, all of it done by one process, in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from storage import Log, LogManager
from storage.compaction._offset_map import OffsetMap
from storage.compaction._superseded import KeyMerge
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.shared.plan import Limits, SharedRound, plan
from storage.compaction.shared.round import Kept, finished, keep, new_superseded, openings_of, scan
from storage.compaction.shared.swap_request import SwapRequest, staged_suffix
from storage.task import Task

SECRET = bytes(range(16))
JOB = "compact.test"


def planned(manager: LogManager, log: Log, limits: Limits | None = None) -> SharedRound:
    """A round that has something to do."""
    now_ms = manager.clock_ms()
    cleanable = LogCleaner(manager).plan(log, now_ms)
    shared = plan(log, cleanable, now_ms=now_ms, secret=SECRET, limits=limits or Limits())
    assert shared is not None
    return shared


def shared_out(
    manager: LogManager, shared: SharedRound, seed: int = 0, *, writes: bool = True
) -> SwapRequest:
    """What its processes make of a round: new files, and what the owner is to be asked for."""
    files, shuffle = manager.files, random.Random(seed).shuffle
    order = list(range(len(shared.ranges)))
    shuffle(order)
    scanned = {number: scan(shared, number, files, Task()) for number in order}
    told = [scanned[number] for number in range(len(order))]
    opened = openings_of(shared, [met for each in told for met in each.met])
    superseded = [new_superseded(shared, group) for group in range(len(shared.firsts))]
    keys = 0
    for bucket in range(shared.buckets):
        merge = KeyMerge(OffsetMap(1 << 40), shared.buckets)
        shuffle(order)
        for number in order:
            merge.add_dirty(scanned[number].dirty[bucket])
        for number in order:
            merge.add_clean(scanned[number].clean[bucket])
        keys += merge.keys
        for group, offsets in merge.superseded_by_group(shared.group_bounds):
            superseded[group].add(offsets)
    for each in told:
        for group, offsets in each.superseded:
            superseded[group].add(offsets)
    groups = list(range(len(shared.firsts)))
    shuffle(groups)
    kept: list[Kept] = []
    for group in groups:
        suffix = staged_suffix(JOB, group, seed) if writes else None
        kept.append(keep(shared, group, opened[group], superseded[group], files, Task(), suffix))
    return finished(shared, JOB, kept, keys=keys, elapsed_ms=1)


def clean_shared(
    manager: LogManager, log: Log, limits: Limits | None = None, seed: int = 0
) -> Cleaned:
    """All of a round, swapped in."""
    request = shared_out(manager, planned(manager, log, limits), seed)
    return LogCleaner(manager).swap_in(request, Task())


def staged(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.endswith(".staged")]
