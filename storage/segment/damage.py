"""Damaged places in the log of a segment, found while it is in use.

A place is from where a batch should begin to where the next sound one does, so it never cuts a
sound batch.  What is known of a segment is a tuple of places, ascending and apart from one another,
replaced as a whole: whoever reads from another thread keeps a consistent one.  It is not written
down: after a restart it is found again.

Not here: who looks (``segment`` before the first reading, ``log_checker`` by the clock), how
reading deals with it (``segment``).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import NamedTuple

from storage.errors import CorruptRecord

_log = logging.getLogger(__name__)


class Damage(NamedTuple):
    """Bytes ``start`` to ``end`` of a log, in which the offsets from ``first_offset`` to (without)
    ``next_offset`` are lost.
    """

    start: int
    end: int
    first_offset: int
    next_offset: int
    reason: str

    @property
    def is_empty(self) -> bool:
        """Whether no record can be lost in it: there is no offset between its neighbours."""
        return self.next_offset <= self.first_offset

    @property
    def message(self) -> str:
        """What is wrong there."""
        if self.is_empty:
            return f"{self.end - self.start} bytes that are no batch: {self.reason}"
        offsets = f"offsets {self.first_offset} to {self.next_offset - 1}"
        return f"{offsets} are damaged: {self.reason}"

    def error(self, path: str) -> CorruptRecord:
        """What reading there raises."""
        return CorruptRecord(self.message, path=path, position=self.start, offset=self.first_offset)


Damages = tuple[Damage, ...]


def report(path: str, places: Iterable[Damage]) -> None:
    """A line in the log for each: file, position, offsets, reason."""
    topic, _, partition = os.path.basename(os.path.dirname(path)).rpartition("-")
    for place in places:
        _log.warning(
            "%s/%s: damage found: %s; kafkafs verify tells more, kafkafs repair mends",
            *(topic, partition, place.error(path)),
        )


def merged(known: Damages, found: Iterable[Damage]) -> Damages:
    """Both together; places that touch or overlap become one."""
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
    """How many of the ``size`` bytes from ``position`` are read before damage begins.

    CorruptRecord where it begins before the first one.
    """
    for place in damages:
        if position < place.start:
            return min(size, place.start - position)
        if position < place.end:
            raise place.error(path)
    return size
