"""The files of an export beside its Parquet files: its options, and the exported offsets.

They are in `OUT/_kafkafs`. Readers of Parquet skip names that begin with an underscore.

- `export.json`: the data directory, its topics, the columns. Another run must have the same ones:
  with other topics, Spark would forget offsets and export records twice.
- `checkpoint/`: the streaming query's checkpoint, with the exported offsets.
- `lock`: the active run has the lock of this file.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from kafkafs.spark.location.location import is_uri
from kafkafs.spark.source.offsets import Offsets, from_nested
from storage.errors import InvalidConfig, StorageError
from storage.files import Files

_STATE = "_kafkafs"


def without_scheme(path: str) -> str:
    """Return the path of a `file:///…`; anything else unchanged."""
    return unquote(urlsplit(path).path) if path.startswith("file:/") else path


def checkpoint_of(out: str) -> str:
    """Return the directory of the query's checkpoint."""
    return f"{out.rstrip('/')}/{_STATE}/checkpoint"


def check(out: str, content: str) -> bool:
    """Return whether an export of this content exists. InvalidConfig if other files exist."""
    path = os.path.join(out, _STATE, "export.json")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        if os.path.isdir(out) and set(os.listdir(out)) - {_STATE}:
            raise InvalidConfig(
                f"{out} is neither empty nor an export; give a new directory"
            ) from None
        return False
    if text != content:
        raise InvalidConfig(
            f"{out} is an export of other data (see {path}); give another directory"
        )
    return True


@contextlib.contextmanager
def begun(out: str, content: str) -> Iterator[None]:
    """Take the lock of an export, and write down `content`, which all runs have in common.

    Errors: InvalidConfig, OSError; StorageError if another run has the lock.
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
            raise StorageError("another export is running there", path=out) from None
        # The previous holder of the lock may have begun another export.
        if not check(out, content):
            path = os.path.join(state, "export.json")
            Files(state).replace_atomically(path, content.encode())
        yield


def exported(out: str) -> Offsets:
    """Return the offset after the last exported one, by partition; empty before the first run."""
    checkpoint = checkpoint_of(out)
    try:
        names = os.listdir(os.path.join(checkpoint, "commits"))
    except FileNotFoundError:
        return {}
    done = max((int(name) for name in names if name.isdecimal()), default=-1)
    if done < 0:
        return {}
    with open(os.path.join(checkpoint, "offsets", str(done)), encoding="utf-8") as file:
        # The file has a version, the query's settings, and a line for each source.
        lines = file.read().splitlines()
    return parse_offsets(lines[2])


def parse_offsets(text: str | None) -> Offsets:
    """Parse the offsets in a checkpoint of Spark; none for null."""
    return from_nested(json.loads(text or "null") or {}).offsets
