"""The small text files of a log, each replaced atomically.

Checkpoints (`CheckpointFile.java`): UTF-8, `\\n` ends each line; line 1 is the version `0`, line 2
the count of entries, then one entry per line, its fields separated by white space:

- `leader-epoch-checkpoint`: `<epoch> <start offset>`, both strictly rising;
- the offset checkpoints of a data directory: `<topic> <partition> <offset>`.

A missing or 0-byte file has no entries. Reading is strict, like Kafka's: any other malformed
content is CorruptCheckpoint with path and line, because a guessed number would lose records later.
So is anything but a regular file (a link, a pipe, a directory).

`partition.metadata` is two lines, `version: 0` and `topic_id: <22 characters>`, without a last
newline. The existence of the clean-shutdown marker counts; its content is for a broker.

Not here: the time of writing, and the meaning of the numbers.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import os
import re
import stat
import uuid
from collections.abc import Iterable, Mapping

from storage import paths
from storage.errors import CorruptCheckpoint, UnusableFile
from storage.files import Files

_VERSION = 0
_MARKER = b'{"version":0,"brokerEpoch":-1}'
_WHITE_SPACE = re.compile(r"[ \t\r\f\v]+")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_LINE_END = re.compile(r"\r\n|\n|\r")
# The digits of the largest number, 2**63 - 1; and how many characters of a wrong one are quoted.
_DIGITS, _SHOWN = 19, 40
_COLON = re.compile(r":\s+")

MAX_EPOCH = 2**31 - 1


# -- offset checkpoints --------------------------------------------------------------------------


def read_offsets(files: Files, path: str) -> dict[tuple[str, int], int]:
    """Return offsets by (topic, partition); empty without a file."""
    offsets: dict[tuple[str, int], int] = {}
    for line, (topic, partition, offset) in _read_entries(files, path, 3):
        number = _integer(path, line, partition, paths.MAX_PARTITION)
        offsets[topic, number] = _integer(path, line, offset, paths.MAX_OFFSET)
    return offsets


def write_offsets(files: Files, path: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace an offset checkpoint. Errors: OSError; the old one stays."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    files.replace_atomically(path, _frame(lines))


# -- leader epochs -------------------------------------------------------------------------------


def read_epochs(files: Files, path: str) -> list[tuple[int, int]]:
    """Return (epoch, its start offset), both strictly rising; empty without a file."""
    epochs: list[tuple[int, int]] = []
    for line, (epoch_field, start_field) in _read_entries(files, path, 2):
        epoch = _integer(path, line, epoch_field, MAX_EPOCH)
        start = _integer(path, line, start_field, paths.MAX_OFFSET)
        if epochs and (epoch <= epochs[-1][0] or start <= epochs[-1][1]):
            raise CorruptCheckpoint(
                f"epoch {epoch} from offset {start} follows"
                f" epoch {epochs[-1][0]} from offset {epochs[-1][1]}",
                path=path,
                line=line,
            )
        epochs.append((epoch, start))
    return epochs


def write_epochs(files: Files, path: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Replace `leader-epoch-checkpoint`."""
    entries = list(epochs)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(entries))
    lines = [f"{epoch} {start}" for epoch, start in entries]
    files.replace_atomically(path, _frame(lines))


def begin_epoch(epochs: list[tuple[int, int]], epoch: int, start: int) -> None:
    """Add a later epoch than the last one, from `start`; drop epochs from `start` on, which have no
    record (`LeaderEpochFileCache.assign`).
    """
    while epochs and epochs[-1][1] >= start:
        epochs.pop()
    epochs.append((epoch, start))


# -- partition.metadata --------------------------------------------------------------------------


def new_topic_id() -> str:
    """Return a random topic id: 22 characters, none a `-` (`Uuid.java` draws again for it)."""
    while True:
        topic_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if "-" not in topic_id:
            return topic_id


def stand_in_topic_id(directory: str, topic: str) -> str:
    """Return the id of a topic without one in a directory that is read-only.

    It is the same at each opening, so that inode numbers and cached pages stay.
    """
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"file://{directory}/{topic}")
    return base64.urlsafe_b64encode(name.bytes).rstrip(b"=").decode().replace("-", "_")


def read_partition_metadata(files: Files, path: str) -> str | None:
    """Return the topic's id, 22 characters, or None without a file.

    Any version ≥ 0 and a last newline are accepted (`PartitionMetadataFile.java`). Errors:
    CorruptCheckpoint for an invalid id, or zero.
    """
    try:
        lines = _LINE_END.split(read_text(files, path))
    except FileNotFoundError:
        return None
    if lines[-1] == "":
        lines.pop()
    if len(lines) != 2:
        raise CorruptCheckpoint(f"expected 2 lines, found {len(lines)}", path=path)
    _integer(path, 1, _named_value(path, 1, lines[0], "version"), 2**31 - 1)
    topic_id = _named_value(path, 2, lines[1], "topic_id")
    try:
        id_bytes = base64.b64decode(topic_id + "==", altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        id_bytes = b""
    if len(topic_id) != 22 or len(id_bytes) != 16:
        raise CorruptCheckpoint(f"{_quoted(topic_id)} is not a valid topic id", path=path, line=2)
    if not any(id_bytes):
        raise CorruptCheckpoint("the topic id is all zero", path=path, line=2)
    return topic_id


def created_ns(files: Files, directory: str) -> int:
    """Return the creation time of a partition: the time of `partition.metadata`, which is written
    once.

    Without that file: the time of the directory.
    """
    with contextlib.suppress(OSError):
        return files.file_stat(os.path.join(directory, paths.PARTITION_METADATA)).st_mtime_ns
    with contextlib.suppress(OSError):
        return files.born_ns(directory) or files.file_stat(directory).st_mtime_ns
    return 0


def write_partition_metadata(files: Files, path: str, topic_id: str) -> None:
    """Write `partition.metadata`, before the partition's first append."""
    assert len(topic_id) == 22
    files.replace_atomically(path, f"version: 0\ntopic_id: {topic_id}".encode())


# -- the clean-shutdown marker -------------------------------------------------------------------


def write_marker(files: Files, directory: str) -> None:
    """Record that all logs of a data directory are closed and their checkpoints written."""
    files.replace_atomically(os.path.join(directory, paths.CLEAN_SHUTDOWN), _MARKER)


def has_marker(files: Files, directory: str) -> bool:
    """Return whether the directory was closed cleanly; older brokers wrote an empty file."""
    try:
        mode = files.file_stat(os.path.join(directory, paths.CLEAN_SHUTDOWN)).st_mode
    except (FileNotFoundError, UnusableFile):
        return False
    return stat.S_ISREG(mode)


def remove_marker(files: Files, directory: str) -> None:
    """Remove the marker durably, before anything changes; a missing one is no error.

    The directory is fsynced: after a power cut, a marker must not return for logs that were open.
    """
    try:
        files.unlink(os.path.join(directory, paths.CLEAN_SHUTDOWN))
    except FileNotFoundError:
        return
    files.sync_directory(directory)


# -- the frame -----------------------------------------------------------------------------------


def _frame(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in (str(_VERSION), str(len(lines)), *lines)).encode()


def _read_entries(files: Files, path: str, fields: int) -> list[tuple[int, list[str]]]:
    """Return (line number, its fields) of each entry of a checkpoint."""
    try:
        text = read_text(files, path)
    except FileNotFoundError:
        return []
    if not text:
        return []
    lines = _LINE_END.split(text)
    if lines[-1] == "":
        lines.pop()
    version = _integer(path, 1, lines[0], 2**31 - 1)
    if version != _VERSION:
        raise CorruptCheckpoint(f"unknown version {version}", path=path, line=1)
    if len(lines) < 2:
        raise CorruptCheckpoint("the number of entries is missing", path=path, line=2)
    count = _integer(path, 2, lines[1], 2**31 - 1)
    entries = []
    for number, line in enumerate(lines[2:], start=3):
        # As in Java's split, a trailing separator makes no field.
        parts = _WHITE_SPACE.split(line.rstrip(" \t\r\f\v"))
        if len(parts) != fields or not all(parts):
            raise CorruptCheckpoint(
                f"expected {fields} fields, found {_quoted(line)}", path=path, line=number
            )
        entries.append((number, parts))
    if len(entries) != count:
        raise CorruptCheckpoint(
            f"expected {count} entries, found {len(entries)}", path=path, line=2
        )
    return entries


def read_text(files: Files, path: str) -> str:
    """Return the text of a file. Errors: FileNotFoundError, CorruptCheckpoint, OSError."""
    try:
        return files.read_whole(path).decode()
    except UnusableFile as error:
        raise CorruptCheckpoint(str(error.strerror), path=path) from None
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"not UTF-8 at byte {error.start}", path=path) from None


def _integer(path: str, line: int, field: str, largest: int) -> int:
    """Return a number from 0 to `largest`, as Java reads one (no underscores, no spaces)."""
    digits = field.lstrip("+").lstrip("0") or "0"
    is_one = _INTEGER.fullmatch(field) is not None and len(digits) <= _DIGITS
    if not is_one or not 0 <= int(digits) <= largest:
        reason = f"{_quoted(field)} is not a number from 0 to {largest}"
        raise CorruptCheckpoint(reason, path=path, line=line)
    return int(digits)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…")


def _named_value(path: str, line: int, text: str, name: str) -> str:
    parts = _COLON.split(text)
    if len(parts) != 2 or parts[0] != name:
        raise CorruptCheckpoint(
            f"expected '{name}: …', found {_quoted(text)}", path=path, line=line
        )
    return parts[1]
