"""The lines that `.kafkafs/topics` takes, one for each write.

    create TOPIC [partitions=N] [owner=UID:GID:MODE] [NAME=VALUE ...]
    undelete TOPIC [ID]

`create` makes a topic with its settings, owner and partitions before anybody sees it: without them
as `mkdir` by the daemon's user does. `undelete` takes the deletion of a topic back; the ID is the
topic's, where several of the name were deleted.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence

from kafkafs.tree.control.commands import numbered
from kafkafs.tree.files.control_file import CommandEffects, TextCommands
from storage.errors import InvalidConfig
from storage.manager import LogManager
from storage.settings.setting_files import parse_owner

_CREATE, _UNDELETE = "create", "undelete"
_COUNT = re.compile(r"[1-9][0-9]{0,5}")
_MODE = 0o755


class DirectoryCommands(TextCommands):
    """The lines of an open file."""

    structural = True

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        """Carry out a command. EINVAL, InvalidConfig, and errors of `create_topic` and
        `undelete_topic`: nothing has changed.
        """
        manager = self.mount.manager
        commands = [words for _, _, words in numbered(lines)]
        if len(commands) > 1:
            raise OSError(errno.EINVAL, "give one command per write")
        for verb, *words in commands:
            if verb == _CREATE and words:
                _create(manager, *words)
            elif verb == _UNDELETE and len(words) in (1, 2):
                manager.undelete_topic(*words)
            else:
                line = " ".join((verb, *words))
                reason = f"{line!r} is not create TOPIC ... or undelete TOPIC [ID]"
                raise OSError(errno.EINVAL, reason)
        return CommandEffects()


def create_line(
    topic: str, partitions: int, owner: tuple[int, int, int], settings: Sequence[str]
) -> str:
    """The line that creates a topic; `settings` are NAME=VALUE."""
    uid, gid, mode = owner
    words = [_CREATE, topic, f"partitions={partitions}", f"owner={uid}:{gid}:{mode:04o}"]
    return " ".join([*words, *settings])


def undelete_line(topic: str, topic_id: str | None) -> str:
    """The line that undeletes a topic."""
    return " ".join(filter(None, (_UNDELETE, topic, topic_id)))


def _create(manager: LogManager, topic: str, *words: str) -> None:
    owner = (os.geteuid(), os.getegid(), _MODE)
    partitions: int | None = None
    settings: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value or name in settings:
            raise InvalidConfig(f"{word!r} is not NAME=VALUE, or is given twice")
        if name == "partitions":
            if _COUNT.fullmatch(value) is None:
                raise InvalidConfig(f"{word} is not a number of partitions")
            partitions = int(value)
        elif name == "owner":
            try:
                owner = parse_owner(value)
            except ValueError as error:
                raise InvalidConfig(f"owner: {error}") from None
        else:
            settings[name] = value
    manager.create_topic(topic, partitions, owner=owner, settings=settings)
