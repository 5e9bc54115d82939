"""The owner and the mode of the mount's root, in the file `kafkafs.root` of the data directory.

The file has one line, `UID:GID:MODE`, with the mode in octal. chmod and chown of the root replace
it atomically. Without the file the root has the owner and the mode of the data directory. A broker
ignores the file.
"""

from __future__ import annotations

import logging
import os
import re
from typing import Final

from storage import paths
from storage.errors import CorruptCheckpoint
from storage.files import Files

_log = logging.getLogger(__name__)

_LINE: Final = re.compile(r"([0-9]{1,10}):([0-9]{1,10}):([0-7]{4})\n")
_NOBODY: Final = 2**32 - 1  # for chown: leave it unchanged

Owner = tuple[int, int, int]
"""(uid, gid, mode)"""


class RootOwner:
    """Reads and writes the file. `current`: its content; None: no file. `is_known`: whether the
    file could be read.
    """

    def __init__(self, files: Files, data_dir: str) -> None:
        self._files = files
        self._path = os.path.join(data_dir, paths.ROOT_OWNER)
        self.current: Owner | None = None
        self.is_known = True
        self._seen: tuple[int, int] | None = None
        self._load()

    def look(self) -> None:
        """Read the file again if another process has replaced it. Errors: OSError."""
        seen = self._files.version(self._path)
        if seen != self._seen:
            self._load()
            self._seen = seen

    def _load(self) -> None:
        try:
            self.current, self.is_known = self._read(), True
        except (CorruptCheckpoint, OSError) as error:
            self.is_known = False
            _log.warning("%s; to replace it: chmod the root of the mount", error)

    def set(self, owner: Owner) -> None:
        """Write the file; durable. Errors: OSError; nothing has changed."""
        uid, gid, mode = owner
        self._files.replace_atomically(self._path, f"{uid}:{gid}:{mode:04o}\n".encode())
        self.current, self.is_known = owner, True

    def _read(self) -> Owner | None:
        try:
            text = self._files.read_whole(self._path).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        found = _LINE.fullmatch(text)
        if found is None or max(int(found[1]), int(found[2])) >= _NOBODY:
            raise CorruptCheckpoint("not a single line UID:GID:MODE", path=self._path)
        return int(found[1]), int(found[2]), int(found[3], 8)
