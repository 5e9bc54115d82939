"""Small files that cannot be read are set aside by name: `NAME.bad` beside where they lay.

Their content is rebuilt from elsewhere, or counts as unknown. The file stays, for people to look
at, until `repair --purge --apply`. Brokers ignore the suffix.

Not here: what is rebuilt from what (`checkpoints`, `loader`, `history`, `recovery`).
"""

from __future__ import annotations

import os

from storage import paths
from storage.files import Files


def set_aside(files: Files, path: str) -> str:
    """Rename a file, or whatever is in its place; returns the new name. OSError.

    A link itself is renamed. Not durable: what comes back is set aside again.
    """
    number, target = 0, path + paths.BAD
    while files.exists(target):
        number += 1
        target = f"{path}.{number}{paths.BAD}"
    files.rename(path, target)
    return os.path.basename(target)
