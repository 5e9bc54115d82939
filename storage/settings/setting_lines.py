"""The lines of the files that keep settings: ``name=value``, in a subset of Java's properties.

White space around either is dropped; blank lines, and those that begin with ``#`` or ``!``, say
nothing; there are no escapes.  A line that is not right is InvalidConfig, which names file and
line.

Not here: which names there are (``config``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from storage.errors import InvalidConfig, UnusableFile
from storage.settings.config import Setting


class ReadableFiles(Protocol):
    """The part of ``files.Files`` that is needed here."""

    def read_whole(self, path: str) -> bytes: ...


class Line(NamedTuple):
    """One that says something."""

    number: int
    name: str
    value: str


def read_lines(files: ReadableFiles, path: str) -> list[Line]:
    """Those of a file.  InvalidConfig; FileNotFoundError, and other errors of the disk."""
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
        yield Line(number, name.strip(), value.strip())


def parse(setting: Setting, name: str, text: str, *, line: int = 0, path: str | None = None) -> Any:
    """The value of a setting's text.  InvalidConfig."""
    try:
        return setting.parse(text)
    except ValueError as error:
        where = f"line {line}: " if line else ""
        raise InvalidConfig(f"{where}{name}={text} is not {error}", path=path) from None
