"""Renames a small file that cannot be read to `NAME.bad`, in the same directory.

The caller rebuilds the content from other files, or treats it as unknown. The file stays for
inspection until `repair --purge --apply`. Brokers ignore the suffix.

Not here: how each file is rebuilt (`checkpoints`, `directory.partition`, `history`, `recovery`).
"""

from __future__ import annotations

import os

from storage import paths
from storage.files import Files


def set_aside(files: Files, path: str) -> str:
    """Rename a file, a directory or a link itself; return the new name. Errors: OSError.

    Not durable: after a crash the caller renames the same file again.
    """
    number, target = 0, path + paths.BAD
    while files.exists(target):
        number += 1
        target = f"{path}.{number}{paths.BAD}"
    files.rename(path, target)
    return os.path.basename(target)
