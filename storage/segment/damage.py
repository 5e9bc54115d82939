"""Damage in the log of a segment, found while it is in use.

Damage extends from the start of a missing batch to the next sound one, so it never includes part of
a sound batch. A segment has a tuple of damages, ascending and separate, that is replaced as a
whole: a reader in another thread keeps a consistent one. It is not stored: after a restart it is
found again.

Not here: checks (`reader` at the first read, `log_checker` at intervals), reads that meet damage
(`reader`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from storage import paths
from storage.errors import CorruptRecord

_log = logging.getLogger(__name__)


class Damage(NamedTuple):
    """Bytes `start` to `end` of a log, in which the offsets from `first_offset` to (without)
    `next_offset` are lost. A `next_offset` of `MAX_OFFSET` is not known: no sound batch follows.
    `Check` sets -1 if it ends in the damage, and `SegmentReader.add_damages` replaces it.
    """

    start: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    @property
    def is_empty(self) -> bool:
        """Whether no record can be lost: there is no offset between the batches on either side."""
        return self.next_offset <= self.first_offset

    @property
    def message(self) -> str:
        """The lost offsets, and the reason."""
        if self.is_empty:
            return f"{self.end - self.start} bytes are not a batch: {self.reason}"
        offsets = f"offsets {self.first_offset} to {self.next_offset - 1}"
        if self.next_offset == paths.MAX_OFFSET:
            offsets = f"offsets from {self.first_offset} on"
        return f"{offsets} are damaged: {self.reason}"

    def error(self, path: str) -> CorruptRecord:
        """Return the error of a read of the damage."""
        return CorruptRecord(self.message, path=path, position=self.start, offset=self.first_offset)


Damages = tuple[Damage, ...]


def report(path: str, places: Iterable[Damage]) -> None:
    """Log a line for each damage: file, position, offsets, reason."""
    topic, _, partition = os.path.basename(os.path.dirname(path)).rpartition("-")
    for place in places:
        _log.warning(
            "%s/%s: damaged: %s. Run `kafkafs verify` for details, `kafkafs repair --salvage "
            "--apply` to fix it.",
            *(topic, partition, place.error(path)),
        )


def merged(known: Damages, found: Iterable[Damage]) -> Damages:
    """Return the damages of both; adjacent or overlapping ones become one."""
    places: list[Damage] = []
    for place in sorted({*known, *found}):
        last = places[-1] if places else None
        if last is not None and place.start <= last.end:
            places[-1] = last._replace(
                end=max(last.end, place.end),
                next_offset=max(last.next_offset, place.next_offset),
            )
        else:
            places.append(place)
    return tuple(places)


def sound_size(damages: Damages, position: int, size: int, path: str) -> int:
    """Return the number of the `size` bytes from `position` before damage begins. Errors:
    CorruptRecord if it begins before the first one.
    """
    for place in damages:
        if position < place.start:
            return min(size, place.start - position)
        if position < place.end:
            raise place.error(path)
    return size
