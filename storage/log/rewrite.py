"""Writes down, off the owner's thread, what a change of a log's past needs.

A listener writes down what readers were shown before the past changes (``removing``,
``swapping``), which waits for the disk.  Another thread can do that before::

    write = owner(lambda: prepare_removal(log, 3))      # on the owner's thread
    write()                                             # in any thread; waits for the disk
    owner(lambda: log.detach_head(3, now_ms))           # nothing is left to be written

It comes before anything from which a restart would carry the change out.  An OSError or
StorageError of ``write`` says that the past must not be changed now.  A change that is prepared and
not carried out does no harm; one that was not prepared, or otherwise, is written down when it is
carried out.

Not here: what is written (``listener``), the change itself (``log``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from storage.log.log import Log
from storage.segment.segment import Segment


def prepare_removal(log: Log, count: int, *, log_start: int = 0) -> Callable[[], None]:
    """Prepare that the first ``count`` segments leave the log (0: only its start moves).

    ``log_start``: the log start offset afterwards, where it is not the first segment's or as it is.
    """
    return prepare_replacement(log, log.segments[:count], (), log_start=log_start)


def prepare_replacement(
    log: Log, old: Sequence[Segment], new: Sequence[Segment], *, log_start: int = 0
) -> Callable[[], None]:
    """Prepare that ``new`` takes the place of ``old``, segments from the log's head on.

    Both can be read, ``new`` under whatever names its files have by now.
    """
    first = (*new, *log.segments[len(old) :])[0].base_offset
    start = max(log.log_start_offset, first, log_start)
    assert start <= log.log_end_offset, "the log start is not behind the log's end"
    writers = [listener.preparing(log, old, new, start) for listener in log.listeners]

    def write_all() -> None:
        for write in writers:
            if write is not None:
                write()

    return write_all
