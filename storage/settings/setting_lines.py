"""The lines of the files that keep settings: ``name=value``, in a subset of Java's properties.

White space around either is dropped; blank lines, and those that begin with ``#`` or ``!``, set
nothing; there are no escapes.  InvalidConfig names the file and the line that is wrong.

Not here: which names there are (``config``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from storage.errors import InvalidConfig, UnusableFile
from storage.files import Files
from storage.settings.config import Setting


class Line(NamedTuple):
    """A line that sets something, of the file at ``path``."""

    path: str
    number: int
    name: str
    value: str

    def error(self, reason: str) -> InvalidConfig:
        return InvalidConfig(f"line {self.number}: {reason}", path=self.path)


def read_lines(files: Files, path: str) -> list[Line]:
    """The lines of a file.  InvalidConfig; FileNotFoundError, and other errors of the disk."""
    try:
        text = files.read_whole(path).decode()
    except UnusableFile as error:
        raise InvalidConfig(str(error.strerror), path=path) from None
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"not UTF-8 at byte {error.start}", path=path) from None
    return list(_lines(text, path))


def _lines(text: str, path: str) -> Iterator[Line]:
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"line {number}: {line!r} is not name=value", path=path)
        yield Line(path, number, name.strip(), value.strip())


def parse(setting: Setting, name: str, text: str, line: Line | None = None) -> Any:
    """The value of a setting's text, which stands in ``line`` if in any.  InvalidConfig."""
    try:
        return setting.parse(text)
    except ValueError as error:
        reason = f"{name}={text} is not {error}"
        raise (InvalidConfig(reason) if line is None else line.error(reason)) from None
