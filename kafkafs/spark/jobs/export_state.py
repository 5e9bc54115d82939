"""What an export keeps beside its Parquet files: what is exported, and how far it is.

In `OUT/_kafkafs`, which readers of Parquet pass over as they do every name with an underscore:

- `export.json`: the data directory, its topics, the columns.  Another run must want the same:
  offsets of other topics would be forgotten, and exported twice.
- `checkpoint/`: the streaming query's, which knows what offsets are done.
- `lock`: held by the run that is at work.

Spark's file sink writes down in `OUT/_spark_metadata` which files count.

Not here: the query (`export`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from storage.errors import InvalidConfig, StorageError
from storage.files import Files

_STATE = "_kafkafs"
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

Offsets = dict[tuple[str, int], int]


class ExportContent(NamedTuple):
    """What is exported: which topics or partitions of which directory, in which form."""

    data: str
    places: tuple[tuple[str, int | None], ...]
    as_text: bool
    options: tuple[tuple[str, str], ...]

    def encode(self) -> str:
        """As JSON."""
        return json.dumps(self._asdict(), indent=2, ensure_ascii=False) + "\n"


def without_scheme(path: str) -> str:
    """The path that `file:///…` stands for; anything else as it is."""
    return unquote(urlsplit(path).path) if path.startswith("file:/") else path


def is_uri(out: str) -> bool:
    """Whether this names no directory here."""
    return _URI.match(out) is not None


def checkpoint_of(out: str) -> str:
    """Where the query's checkpoint is."""
    return f"{out.rstrip('/')}/{_STATE}/checkpoint"


def check(out: str, content: ExportContent) -> bool:
    """Whether an export of this was begun.  InvalidConfig where something else is there."""
    if _is_begun(out, content):
        return True
    if os.path.isdir(out) and set(os.listdir(out)) - {_STATE}:
        raise InvalidConfig(f"{out} is not empty, and no export: give a new directory")
    return False


def _is_begun(out: str, content: ExportContent) -> bool:
    path = os.path.join(out, _STATE, "export.json")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return False
    if text != content.encode():
        raise InvalidConfig(
            f"{out} is an export of something else ({path} says what): give another directory"
        )
    return True


@contextlib.contextmanager
def begun(out: str, content: ExportContent) -> Iterator[None]:
    """Be the only run that exports there; what is exported is written down.

    InvalidConfig, OSError; StorageError where another run is at work.
    """
    if is_uri(out):
        yield
        return
    check(out, content)
    state = os.path.join(out, _STATE)
    os.makedirs(state, exist_ok=True)
    with open(os.path.join(state, "lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError("another run is exporting there", path=out) from None
        # Who had it before may have begun something else meanwhile.
        if not _is_begun(out, content):
            path = os.path.join(state, "export.json")
            Files(state).replace_atomically(path, content.encode().encode())
        yield


def exported(out: str) -> Offsets:
    """Up to which offsets a run that was done has exported; none before the first."""
    checkpoint = checkpoint_of(out)
    done = max(_numbers(os.path.join(checkpoint, "commits")), default=-1)
    if done < 0:
        return {}
    with open(os.path.join(checkpoint, "offsets", str(done)), encoding="utf-8") as file:
        # A version, the query's settings, and a line of each source.
        lines = file.read().splitlines()
    return parse_offsets(lines[2])


def parse_offsets(text: str) -> Offsets:
    """Offsets in the form that Spark users know: {"topic":{"0":23}}; none of null."""
    found = json.loads(text) or {}
    return {
        (topic, int(partition)): offset
        for topic, partitions in found.items()
        for partition, offset in partitions.items()
    }


def _numbers(directory: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isdecimal()]
    except FileNotFoundError:
        return []
