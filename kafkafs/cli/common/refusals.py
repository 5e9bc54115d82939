"""Why a mount has refused something: the lines of its log about it that have come since.

A request gets an errno only. What the daemon found, and what to do instead, stands in
`.kafkafs/log` (`kafkafs.tree.events`), for who may read that.
"""

from __future__ import annotations

import errno
import os
import re
import time

_AGAIN = re.compile(r" … \d+ more in [\d.]+ s$")


class Request:
    """What a command asks of a mount; made before it asks.

    `paths`: the paths below the mount by which the log may call it.
    """

    def __init__(self, mount: str, *paths: str) -> None:
        self._log = os.path.join(mount, ".kafkafs", "log")
        path = "|".join(map(re.escape, paths))
        self._line = re.compile(
            rf"(\S+) (?:(?:{path})(?:: append refused)?|\w+ of (?:{path})(?: refused)?): (.*)"
        )
        self.begin()

    def begin(self) -> None:
        """It asks, or asks again: what the log has said before is of something else."""
        self._began_ms = time.time_ns() // 1_000_000

    def refusal(self, error: OSError) -> str:
        """Why it was refused, as far as this user may know."""
        reason = error.strerror or str(error)
        if error.errno == errno.EACCES:  # by the kernel, which looks at the modes
            return reason
        try:
            said = self._said()
        except OSError:
            return f"{reason}; for the reason see {self._log}"
        return said[-1] if said else reason

    def _said(self) -> list[str]:
        """What the log says of it, oldest first. OSError."""
        from kafkafs.tree.events import time_text

        began = time_text(self._began_ms)
        with open(self._log, encoding="utf-8", errors="replace") as log:
            found = [match for line in log if (match := self._line.fullmatch(line.rstrip("\n")))]
        return [_AGAIN.sub("", each[2]) for each in found if each[1] >= began]
