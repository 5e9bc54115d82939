"""The lines of `.kafkafs/log`: recent events, in a bounded ring in memory.

Each line has the time (UTC, milliseconds) and a message; a message of several lines (a traceback)
stays together. Any thread may add one.
"""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

MESSAGES = 1000
MESSAGE_LIMIT = 8192
"""Characters of one message; the rest is cut off, which bounds the ring's memory."""


class Events:
    """Call it with a message to add it. `forward` gets each message too (stderr, journal)."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.count = 0
        """All messages since the start."""
        self._lines: deque[str] = deque(maxlen=MESSAGES)
        self.forward: Callable[[str], None] | None = None

    def __call__(self, message: str) -> None:
        # File names may have bytes that are not UTF-8; they are shown as \udcXX.
        message = message.encode(errors="backslashreplace").decode()
        if len(message) > MESSAGE_LIMIT:
            message = message[:MESSAGE_LIMIT] + " … (cut)"
        self.count += 1
        moment = datetime.fromtimestamp(self._clock_ms() / 1000, UTC)
        self._lines.append(
            f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z {message}"
        )
        if self.forward is not None:
            self.forward(message)

    def text(self) -> str:
        """The lines, oldest first."""
        return "".join(line + "\n" for line in list(self._lines))
