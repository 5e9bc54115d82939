"""`.kafkafs/adopt`: takes requests to the owner of the data directory, and shows their outcomes.

Writing: each line is a request (`storage.owner`), to adopt batches, to swap segments or to commit a
group's positions, of up to `LONGEST_LINE` bytes, in any number of writes. `write()` only begins the
work. A wrong request is EINVAL, and drops an unfinished line; after any other error (EMSGSIZE for a
longer line) the open file is as before.

Reading: a line for each request, as it is at open, the newest last.

Only the user of the daemon may open it, since a request may append records to any topic.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence

from kafkafs.tree.files.control_file import CommandEffects, Commands
from kafkafs.tree.owner.owner_requests import OwnerRequests
from storage.errors import InvalidRecord
from storage.owner.request_kinds import OwnerRequest, decode
from storage.paths import ABOUT

NAME = "adopt"
LONGEST_LINE = 64 << 20
MOST_REQUESTS = 100
"""Requests of a write at most: the loop thread begins a job for each."""
AT_ONCE = 1 << 14
"""A worker thread parses longer lines."""


class AdoptCommands(Commands[OwnerRequest]):
    """See the module."""

    longest_line = LONGEST_LINE
    most_lines = MOST_REQUESTS
    too_long = errno.EMSGSIZE
    decoded_at_once = AT_ONCE
    resumes = True

    def __init__(self, requests: OwnerRequests) -> None:
        super().__init__(requests.mount, f"{ABOUT}/{NAME}")
        self._requests = requests

    def decode(self, lines: Sequence[bytes]) -> Sequence[OwnerRequest]:
        """Parse requests. InvalidRecord, with the number of the line, for any that is wrong."""
        asked = []
        for number, line in enumerate(lines, start=1):
            try:
                asked.append(decode(line))
            except InvalidRecord as error:
                raise InvalidRecord(f"line {number}: {error}") from None
        return asked

    def carry_out(self, lines: Sequence[OwnerRequest]) -> CommandEffects:
        self._requests.start(lines)
        return CommandEffects()
