"""Finds out why a mount has refused a request: from the new lines of its log about the request.

A request gets only an errno. The daemon writes the reason, and what to do instead, to
`.kafkafs/log` (`kafkafs.tree.events`), for users who may read that file.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kafkafs.cli.common.ending import fail

_AGAIN = re.compile(r" … \d+ more in [\d.]+ s$")


class Request:
    """A request of a command to a mount. Create it before sending the request.

    `paths`: the paths below the mount by which the log may name the request.
    """

    def __init__(self, mount: str, *paths: str) -> None:
        self._log = os.path.join(mount, ".kafkafs", "log")
        path = "|".join(map(re.escape, paths))
        self._line = re.compile(
            rf"(\S+) (?:(?:{path})(?:: append refused)?|\w+ of (?:{path})(?: refused)?): (.*)"
        )
        self.begin()

    def begin(self) -> None:
        """Set the time of the request, or of a new attempt: older lines of the log do not count."""
        self._began_ms = time.time_ns() // 1_000_000

    @contextmanager
    def failing_as(self, what: str) -> Iterator[None]:
        """Raise ClickException with `what` and the reason if the request is refused."""
        try:
            yield
        except OSError as error:
            raise fail(f"{what}: {self.refusal(error)}") from None

    def refusal(self, error: OSError) -> str:
        """Return the reason of the refusal, as far as this user may read it."""
        reason = error.strerror or str(error)
        if error.errno == errno.EACCES:  # from the kernel, which checks the modes
            return reason
        try:
            said = self._said()
        except OSError:
            return f"{reason}; for the reason see {self._log}"
        return said[-1] if said else reason

    def _said(self) -> list[str]:
        """Return the reasons that the log has for the request, oldest first. Errors: OSError."""
        from kafkafs.tree.events import time_text

        began = time_text(self._began_ms)
        with open(self._log, encoding="utf-8", errors="replace") as log:
            found = [match for line in log if (match := self._line.fullmatch(line.rstrip("\n")))]
        return [_AGAIN.sub("", each[2]) for each in found if each[1] >= began]
