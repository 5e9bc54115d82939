"""Finds the kafkafs mount of a path or of a data directory, without touching the mount."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kafkafs.mount_table import Mounted


def mount_around(text: str) -> tuple[Mounted | None, str]:
    """Return the kafkafs mount of a path, or None, and the path without symbolic links.

    Errors: OSError if there are too many symbolic links.
    """
    from kafkafs import mount_table

    if not text:
        return None, text
    path = mount_table.resolve(text)
    mounted = mount_table.find_around(path)
    if mounted is not None and mounted.type != mount_table.TYPE:
        mounted = None
    return mounted, path


def mount_that_writes(data_dir: str) -> str | None:
    """Return the mount of a data directory whose daemon may write; None: no such mount is seen."""
    from kafkafs.data_directory import mount_of
    from storage import paths
    from storage.files import Files
    from storage.state import owner_file

    files = Files()
    try:
        owner = owner_file.read(files, data_dir)
        if owner is None or files.locked_by(os.path.join(data_dir, paths.LOCK)) != owner.pid:
            return None
    except OSError:
        return None  # opening the logs fails too, and reports the error
    return owner.mount if mount_of(owner, data_dir) is not None else None
