"""`.kafkafs/adopt`: takes requests to the owner of the data directory, and shows their outcomes.

Writing: each line is a request (`storage.owner`), to adopt batches, to swap segments or to commit a
group's positions, of up to `LONGEST_LINE` bytes, in any number of writes; a line without a newline
acts at release. `write()` only begins the work. All lines of a write are parsed first: a wrong one
is EINVAL, changes nothing, and drops an unfinished line. After any other error (EMSGSIZE for a
longer line) the handle is as before: the kernel reports a refused piece of a large write() as a
short count, and the writer gets the error by writing the rest again.

Reading: a line for each request, as it is at open, the newest last.

Only the user of the daemon may open it, since a request may append records to any topic.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence

from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.handles import Handle, NotExamined, WritingHandle
from kafkafs.tree.owner.owner_requests import OwnerRequests
from storage.errors import InvalidRecord, StorageError, refusal_of
from storage.owner.request_kinds import OwnerRequest, decode
from storage.paths import ABOUT

NAME = "adopt"
LONGEST_LINE = 64 << 20
MOST_REQUESTS = 100
"""Requests of a write at most: the loop thread begins a job for each."""
AT_ONCE = 1 << 14
"""A worker thread parses longer lines."""


def adopt_file(requests: OwnerRequests, inode: int) -> TextFile:
    """See the module."""
    return TextFile(
        inode,
        requests.text,
        lambda: (0o600, os.geteuid(), os.getegid()),
        requests.mount.clock_ns,
        take=lambda flags, reader: AdoptHandle(requests, reader),
        path=f"{ABOUT}/{NAME}",
    )


class AdoptHandle(WritingHandle):
    """Collects lines, and has them carried out."""

    __slots__ = ("_examined", "_requests")

    def __init__(self, requests: OwnerRequests, reader: Handle | None) -> None:
        super().__init__(requests.mount.unfinished, reader)
        self._requests = requests
        # A write that was looked at, and what it asks for or why it is refused.
        self._examined: tuple[bytes, list[OwnerRequest] | StorageError] | None = None

    def write(self, position: int, data: bytes) -> int:
        end = data.rfind(b"\n") + 1
        count = data.count(b"\n")
        if count > MOST_REQUESTS:
            reason = f"a write may have at most {MOST_REQUESTS} requests, not {count}"
            raise self._refused(InvalidRecord(reason))
        # The first of the lines is the one that may be long.
        first = data.find(b"\n") if end else len(data)
        if len(self._rest) + first > LONGEST_LINE:
            reason = f"a line of more than {LONGEST_LINE} bytes"
            self._say(reason)
            raise OSError(errno.EMSGSIZE, reason)
        try:
            self._check_room(len(data) - end + (0 if end else len(self._rest)))
        except OSError as error:
            self._say(str(error.strerror))
            raise
        if end:
            asked = self._asked(data, end)
            try:
                self._requests.start(asked)
            except OSError as error:
                self._say(str(error.strerror))
                raise
            self._rest = bytearray()
        self._rest += data[end:]
        return len(data)

    def _asked(self, data: bytes, end: int) -> list[OwnerRequest]:
        """What the complete lines of a write ask for; NotExamined before a long look."""
        found = self._examined
        self._examined = None
        if found is None or found[0] != data:
            if len(self._rest) + end > AT_ONCE:
                raise NotExamined
            self.examine(data)
            found, self._examined = self._examined, None
        assert found is not None
        if isinstance(found[1], StorageError):
            raise self._refused(found[1])
        return found[1]

    def examine(self, data: bytes) -> None:
        lines = (bytes(self._rest) + data[: data.rfind(b"\n")]).split(b"\n")
        try:
            self._examined = (data, _decoded(lines))
        except StorageError as error:
            self._examined = (data, error)

    def _refused(self, error: StorageError) -> StorageError:
        self._rest = bytearray()
        self._say(refusal_of(error))
        return error

    def _say(self, reason: str) -> None:
        self._requests.mount.events.of_request(f"{ABOUT}/{NAME}: {reason}")

    def release(self) -> None:
        rest, self._rest = self._rest, bytearray()
        if rest:
            try:
                asked = _decoded([bytes(rest)])
            except StorageError as error:
                raise self._refused(error) from None
            self._requests.start(asked)


def _decoded(lines: Sequence[bytes]) -> list[OwnerRequest]:
    """What lines ask for. InvalidRecord, with the number of the line, for any that is wrong."""
    asked = []
    for number, line in enumerate(lines, start=1):
        try:
            asked.append(decode(line))
        except InvalidRecord as error:
            raise InvalidRecord(f"line {number}: {error}") from None
    return asked
