"""The lines of `.kafkafs/log`: recent events, in three bounded rings in memory.

The first has what has happened to the data and the daemon (`events(…)`): recovery, damage, duties
that fail. The others have answers to requests (`events.of_request(…)`), of which any program may
cause any number: one those that a fault of the data, the disk or the machine has brought about, the
other refusals and outcomes of commands. So no flood of refusals pushes a message of damage out.

Each line has the time (UTC, milliseconds) and a message, in which `one_line` escapes what came from
outside; the lines of a traceback follow theirs, indented. A message that comes again soon is
counted: behind it stands one line more, at the time of the last one, which ends with "… 499 more in
0.6 s". Any thread may add one; where two add the same message at once, one of them may be left
uncounted.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from kafkafs.printable import one_line

MESSAGES = 1000
"""Messages in each ring."""
MESSAGE_LIMIT = 8192
"""Characters of one message; its middle is cut out, which bounds the rings' memory."""
REQUEST_LIMIT = 2048
"""The same for answers to requests, which show names and text of programs."""
FAULTS = frozenset(
    {
        errno.EIO,
        errno.ESTALE,
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
    }
)
"""Errors of the data, the disk or the machine, which no caller has brought about."""
AGAIN_MS = 60_000
"""A message that comes later than this after the last one like it is a new one."""
_CUT = " … (cut) … "


class _Entry:
    """A message, and how often it has come. `stays`: it came again since it was last due to go."""

    __slots__ = ("first", "first_ms", "last", "last_ms", "message", "more", "stays")

    def __init__(self, message: str, number: int, now_ms: int) -> None:
        self.message = message
        # The numbers of the first and the last one among all messages, and their times.
        self.first = self.last = number
        self.first_ms = self.last_ms = now_ms
        self.more = 0
        self.stays = False

    def lines(self) -> list[tuple[int, str]]:
        """Its lines, each with the number that orders them."""
        lines = [(self.first, f"{time_text(self.first_ms)} {self.message}\n")]
        if self.more:
            took_s = (self.last_ms - self.first_ms) / 1000
            again = f"{self.message} … {self.more} more in {took_s:.1f} s"
            lines.append((self.last, f"{time_text(self.last_ms)} {again}\n"))
        return lines


class _Ring:
    """`MESSAGES` different messages: the last ones, and those that still come."""

    __slots__ = ("_by_message", "_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: deque[_Entry] = deque()
        self._by_message: dict[str, _Entry] = {}

    def add(self, message: str, number: int, now_ms: int) -> bool:
        """Add or count a message. False: it was there, or is one of more than `MESSAGES` that have
        come within `AGAIN_MS`.
        """
        if len(message) > self._limit:
            half = (self._limit - len(_CUT)) // 2
            message = f"{message[:half]}{_CUT}{message[-half:]}"
        known = self._by_message.get(message)
        if known is not None and now_ms - known.last_ms <= AGAIN_MS:
            known.more += 1
            known.last, known.last_ms = number, max(now_ms, known.last_ms)
            known.stays = True
            return False
        gone = self._make_room()
        entry = self._by_message[message] = _Entry(message, number, now_ms)
        self._entries.append(entry)
        return gone is None or now_ms - gone.first_ms > AGAIN_MS

    def _make_room(self) -> _Entry | None:
        """Drop the oldest message where there are `MESSAGES`; returns it."""
        while len(self._entries) >= MESSAGES:
            oldest = self._entries.popleft()
            if oldest.stays:
                oldest.stays = False
                self._entries.append(oldest)
                continue
            if self._by_message.get(oldest.message) is oldest:
                self._by_message.pop(oldest.message, None)
            return oldest
        return None

    def lines(self) -> list[tuple[int, str]]:
        return [line for entry in list(self._entries) for line in entry.lines()]


class Events:
    """Call it with a message to add it. `forward` gets new messages too (stderr, journal): of a
    flood the first ones.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.count = 0
        """All messages since the start."""
        self._happened = _Ring(MESSAGE_LIMIT)
        self._faults = _Ring(REQUEST_LIMIT)
        self._refusals = _Ring(REQUEST_LIMIT)
        self.forward: Callable[[str], None] | None = None

    def __call__(self, message: str, traceback: str = "") -> None:
        """Add what has happened to the data or the daemon."""
        self._add(self._happened, message, traceback)

    def of_request(self, message: str, number: int | None = None) -> None:
        """Add the answer to a request of a program, with its errno if that may be one of FAULTS."""
        self._add(self._faults if number in FAULTS else self._refusals, message)

    def _add(self, ring: _Ring, message: str, traceback: str = "") -> None:
        shown = "\n    ".join(map(one_line, [message, *traceback.splitlines()]))
        self.count += 1
        if ring.add(shown, self.count, self._clock_ms()) and self.forward is not None:
            self.forward(shown)

    def text(self) -> str:
        """The lines, oldest first."""
        rings = (self._happened, self._faults, self._refusals)
        return "".join(line for _, line in sorted(line for ring in rings for line in ring.lines()))


def time_text(ms: int) -> str:
    """A time as it stands in front of a message; later ones are greater."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
