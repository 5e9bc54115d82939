"""Small files that cannot be read are set aside by name: ``NAME.bad`` beside where they lay.

What they said is rebuilt from elsewhere, or taken for unknown; who wants to know what is in one
finds it there until ``repair --purge``.  Brokers ignore the suffix.

Not here: what is rebuilt from what (``checkpoints``, ``loader``, ``history``, ``recovery``).
"""

from __future__ import annotations

import os

from storage import paths
from storage.files import Files


def set_aside(files: Files, path: str) -> str:
    """Give a file, or whatever is in its place, another name; the name.  OSError.

    A link is renamed itself.  Not durable: what comes back is set aside again.
    """
    number, target = 0, path + paths.BAD
    while files.exists(target):
        number += 1
        target = f"{path}.{number}{paths.BAD}"
    files.rename(path, target)
    return os.path.basename(target)


def is_bad(name: str) -> bool:
    """Whether this is the name of something that was set aside."""
    return name.endswith(paths.BAD)
