"""The owners and modes of groups: a small file in the data directory, `kafkafs.groups`.

One line for each group that a user has made, or whose owner or mode was changed::

    UID:GID:MODE NAME

The mode is octal, the name JSON text: it may have any characters. Groups without a line have no
owner. The file is replaced atomically, and only its owner can read it. The next change drops the
lines of deleted groups. A broker ignores the file, and without it only owners and modes are lost.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection
from typing import Final

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files

_LINE: Final = re.compile(r'([0-9]{1,10}):([0-9]{1,10}):([0-7]{4}) (".*")')

Owner = tuple[int, int, int]
"""(uid, gid, mode)"""


class GroupOwners:
    """The content of the file, read at its first use; one thread at a time changes it.

    `is_followed`: another process may replace the file, so each use looks for a new one.
    """

    def __init__(self, files: Files, data_dir: str, *, is_followed: bool = False) -> None:
        self._files = files
        self._path = os.path.join(data_dir, paths.GROUP_OWNERS)
        self._is_followed = is_followed
        self._owners: dict[str, Owner] | None = None
        self._seen: tuple[int, int] | None = None

    def get(self, group: str) -> Owner | None:
        """Return a group's owner and mode, if it has any. Errors: CorruptCheckpoint, OSError."""
        return self._read().get(group)

    def set(self, group: str, owner: Owner, there: Collection[str]) -> None:
        """Write a group's owner and mode; durable. `there`: the other existing groups. Errors:
        CorruptCheckpoint, OSError; nothing has changed.
        """
        known = self._read()
        kept = {name: each for name, each in known.items() if name in there}
        owners = {**kept, group: owner}
        lines = [
            f"{uid}:{gid}:{mode:04o} {json.dumps(name)}\n"
            for name, (uid, gid, mode) in sorted(owners.items())
        ]
        self._files.replace_private(self._path, "".join(lines).encode())
        self._owners = owners

    def _read(self) -> dict[str, Owner]:
        seen = self._files.version(self._path) if self._is_followed else None
        if self._owners is None or seen != self._seen:
            try:
                text = self._files.read_whole(self._path).decode("ascii", "replace")
            except FileNotFoundError:
                text = ""
            self._owners = dict(
                self._parsed(number, line) for number, line in enumerate(text.splitlines(), 1)
            )
            self._seen = seen
        return self._owners

    def _parsed(self, number: int, line: str) -> tuple[str, Owner]:
        found = _LINE.fullmatch(line)
        try:
            if found is None:
                raise ValueError(line)
            return str(json.loads(found[4])), (int(found[1]), int(found[2]), int(found[3], 8))
        except ValueError:
            reason = "not UID:GID:MODE and a name"
            raise CorruptCheckpoint(reason, path=self._path, line=number) from None
