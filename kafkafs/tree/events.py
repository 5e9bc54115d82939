"""The lines of `.kafkafs/log`: recent events, in three bounded lists in memory.

The first has the events of the data and the daemon (`events(…)`): recovery, damage, duties that
fail. The others have answers to requests (`events.of_request(…)`): the second those that failed
because of the data, the disk or the machine, the third all others. Any program may cause any number
of the others, so they push no message of damage out.

Each line has the time (UTC, milliseconds) and a message, in which `one_line` escapes text from
outside; the lines of a traceback follow theirs, indented. A repetition within a minute is counted:
a second line has the time of the last one, and ends with "… 499 more in 0.6 s". Thread-safe; if two
threads add the same message at the same time, one of them may be left uncounted.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from kafkafs.printable import one_line

MESSAGES = 1000
"""Messages in each list."""
MESSAGE_LIMIT = 8192
"""Characters of one message; its middle is cut out, which bounds the memory."""
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
"""Errors of the data, the disk or the machine, for which the caller is not responsible."""
AGAIN_MS = 60_000
"""A message that comes later than this after the last one like it is a new one."""
_CUT = " … (cut) … "
_LOGGED = "is_logged"


class _Entry:
    """A message and its repetitions."""

    __slots__ = ("first", "first_ms", "last", "last_ms", "message", "more")

    def __init__(self, message: str, number: int, now_ms: int) -> None:
        self.message = message
        # The numbers of the first and the last one among all messages, and their times.
        self.first = self.last = number
        self.first_ms = self.last_ms = now_ms
        self.more = 0

    def lines(self) -> list[tuple[int, str]]:
        """Its lines, each with the number that orders them."""
        lines = [(self.first, f"{time_text(self.first_ms)} {self.message}\n")]
        if self.more:
            took_s = (self.last_ms - self.first_ms) / 1000
            again = f"{self.message} … {self.more} more in {took_s:.1f} s"
            lines.append((self.last, f"{time_text(self.last_ms)} {again}\n"))
        return lines


class _Recent:
    """The last `MESSAGES` different messages."""

    __slots__ = ("_by_message", "_entries", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By `first`, in the order of the last repetitions.
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        self._by_message: dict[str, _Entry] = {}

    def add(self, message: str, number: int, now_ms: int) -> bool:
        """Add or count a message. False: it is a repetition, or one of more than `MESSAGES` within
        `AGAIN_MS`.
        """
        if len(message) > self._limit:
            half = (self._limit - len(_CUT)) // 2
            message = f"{message[:half]}{_CUT}{message[-half:]}"
        known = self._by_message.get(message)
        # Another thread's message may be a little later than `now_ms`. A message is also new if the
        # clock was set back since.
        if known is not None and abs(now_ms - known.last_ms) <= AGAIN_MS:
            known.more += 1
            known.last, known.last_ms = number, max(now_ms, known.last_ms)
            self._entries.pop(known.first, None)
            self._entries[known.first] = known
            return False
        self._by_message[message] = self._entries[number] = _Entry(message, number, now_ms)
        if len(self._entries) <= MESSAGES:
            return True
        _, oldest = self._entries.popitem(last=False)
        if self._by_message.get(oldest.message) is oldest:
            self._by_message.pop(oldest.message, None)
        return abs(now_ms - oldest.first_ms) > AGAIN_MS

    def lines(self) -> list[tuple[int, str]]:
        return [line for entry in list(self._entries.values()) for line in entry.lines()]


class Events:
    """Call it with a message to add it. `forward` gets new messages too (stderr, journal): of a
    flood the first ones.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.count = 0
        """All messages since the start."""
        self._happened = _Recent(MESSAGE_LIMIT)
        self._faults = _Recent(REQUEST_LIMIT)
        self._answers = _Recent(REQUEST_LIMIT)
        self.forward: Callable[[str], None] | None = None

    def __call__(self, message: str, traceback: str = "") -> None:
        """Add an event of the data or the daemon."""
        self._add(self._happened, message, traceback)

    def of_request(self, message: str, number: int | None = None) -> None:
        """Add the answer to a request of a program, with its errno if that may be one of FAULTS."""
        self._add(self._faults if number in FAULTS else self._answers, message)

    def _add(self, recent: _Recent, message: str, traceback: str = "") -> None:
        shown = "\n    ".join(map(one_line, [message, *traceback.splitlines()]))
        self.count += 1
        if recent.add(shown, self.count, self._clock_ms()) and self.forward is not None:
            self.forward(shown)

    def text(self) -> str:
        """The lines, oldest first."""
        lists = (self._happened, self._faults, self._answers)
        return "".join(line for _, line in sorted(line for each in lists for line in each.lines()))


def mark_logged(error: Exception) -> None:
    """Note in an error that the log of events needs no other line about it."""
    vars(error)[_LOGGED] = True


def is_logged(error: Exception) -> bool:
    return _LOGGED in vars(error)


def time_text(ms: int) -> str:
    """A time as text, whose order is that of the times."""
    moment = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
