"""libmount's own table of mounts, /run/mount/utab, which has umount(8) call our helper.

Of an absolute path umount(8) learns the type from statfs(2), which says "fuse" of every FUSE file
system, and so finds no /sbin/umount.fuse.kafkafs; unless libmount's table knows the path. Only root
writes that table, and only root's umount(8) needs it. mount(8) and umount(8) with `--fake` write it
without mounting anything; where they are missing, nobody is there to ask for it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

from kafkafs.mount_table import TYPE

_TABLE_ONLY = ("--fake", "--internal-only", "--no-canonicalize")


def enter(source: str, path: str) -> None:
    """Note that `source` is mounted at `path` (absolute, without symbolic links). It may wait."""
    _run("mount", *_TABLE_ONLY, "--types", TYPE, "--options", f"helper={TYPE}", "--", source, path)


def leave(path: str) -> None:
    """Remove the entry of a mount that was unmounted."""
    _run("umount", *_TABLE_ONLY, "--", path)


def _run(*command: str) -> None:
    if os.geteuid() == 0:
        with contextlib.suppress(OSError):
            subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL)
