"""The process that has a data directory open and takes requests: the plain file `kafkafs.owner`.

One line of JSON: `{"pid": …, "mount": …}`. The daemon of a mount that writes makes it when it is
mounted, and removes it before it releases the directory. `mount` is the absolute path of the mount
point; bytes that are not UTF-8 are escaped by Python's `surrogateescape`.

If others may write the directory (o+w), the file counts only if it belongs to root, to the
directory's owner or to the user of the process: another user's file could redirect requests.

A killed process leaves it: it counts only while the process `pid` holds `.lock`
(`Files.locked_by`). It need not survive a power cut, after which it does not count.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from typing import NamedTuple

from storage import paths
from storage.files import Files


class OwnerProcess(NamedTuple):
    """The process, and the path of its mount."""

    pid: int
    mount: str


def write(files: Files, directory: str, owner: OwnerProcess) -> None:
    """Replace the file. Errors: OSError."""
    data = json.dumps(owner._asdict()).encode() + b"\n"
    files.replace_atomically(_path(directory), data, sync=False)


def remove(files: Files, directory: str) -> None:
    """Remove the file: no process takes requests any more. Errors: OSError."""
    with contextlib.suppress(FileNotFoundError):
        files.unlink(_path(directory))


def read(files: Files, directory: str) -> OwnerProcess | None:
    """Return the file's content, also of a dead process, or None. Errors: OSError."""
    try:
        fields = json.loads(files.read_whole(_path(directory)))
        owner = OwnerProcess(fields["pid"], fields["mount"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    if type(owner.pid) is not int or not isinstance(owner.mount, str):
        return None
    if not os.path.isabs(owner.mount) or _is_strangers(files, directory, owner.pid):
        return None
    return owner


def _is_strangers(files: Files, directory: str, pid: int) -> bool:
    top = files.file_stat(directory)
    if not top.st_mode & stat.S_IWOTH:
        return False
    counting = {0, top.st_uid}
    with contextlib.suppress(OSError):  # the process has ended
        counting.add(os.stat(f"/proc/{pid}").st_uid)
    return files.file_stat(_path(directory)).st_uid not in counting


def _path(directory: str) -> str:
    return os.path.join(directory, paths.OWNER)
