"""The mirror of a cluster: a data directory whose logs only `kafkafs mirror` writes; and its end.

The file `kafkafs.mirror` makes a directory a mirror (`mirror_file`). It is created and removed by a
process that has the lock of the directory. So a process that writes, and finds no file after it has
taken the lock, is alone.

At the end of a mirror, the file is renamed to `kafkafs.mirror.ended`. The next start that writes
resets the committed offsets that are ahead of the copies, and then removes this file.
"""

from __future__ import annotations

import os
import shlex

from storage import paths
from storage.directory.top_level import Ignored
from storage.errors import InvalidConfig, MirroredDirectory
from storage.files import Files
from storage.state import mirror_file


def is_mirror(files: Files, data_dir: str) -> bool:
    """Return whether a data directory is a mirror, also if its file cannot be read."""
    return files.exists(mirror_file.path_in(data_dir))


def check_writer(files: Files, data_dir: str, *, mirrors: bool) -> None:
    """Check that a process may write the logs of a data directory. `mirrors`: for the mirror.

    Errors: MirroredDirectory if only the mirror may; InvalidConfig for the mirror if the directory
    is none; CorruptCheckpoint, OSError.
    """
    if mirrors and not is_mirror(files, data_dir):
        raise InvalidConfig(f"not a mirror: it has no {paths.MIRROR}", path=data_dir)
    if not mirrors and (mirror := mirror_file.read(files, data_dir)) is not None:
        raise MirroredDirectory(
            f"{data_dir}: this directory is a mirror of {mirror.source}; only `kafkafs mirror` "
            f"writes it. To end the mirror: kafkafs detach {shlex.quote(data_dir)}"
        )


def is_mirror_for_writer(files: Files, data_dir: str) -> bool:
    """Return whether a data directory is a mirror for a process that will write it. `files` are
    limited to the entries that count for a writer (`top_level`). Errors: OSError.
    """
    Ignored(files, data_dir)
    return is_mirror(files, data_dir)


def refuse_mirror(data_dir: str) -> None:
    """Check that a data directory is no mirror, before work that will take its lock, or that asks
    the process that has it. Errors: MirroredDirectory, CorruptCheckpoint, OSError.
    """
    files = Files(data_dir)
    if is_mirror(files, data_dir) and is_mirror_for_writer(files, data_dir):
        check_writer(files, data_dir, mirrors=False)


def mirrored_id(files: Files, data_dir: str, topic: str) -> str:
    """Return the id that a topic has at the source of a mirror; empty: not known. Errors:
    CorruptCheckpoint, OSError.
    """
    mirror = mirror_file.read(files, data_dir)
    topic_id = "" if mirror is None else mirror.ids.get(topic, "")
    return "" if topic_id == mirror_file.NO_ID else topic_id


def end_mirror(files: Files, data_dir: str) -> None:
    """Make a mirror an ordinary directory; durable. Only this process uses `data_dir`. The next
    start finishes the end. Errors: OSError.
    """
    files.rename(mirror_file.path_in(data_dir), _ended_path(data_dir))
    files.sync_directory(data_dir)


def is_end_unfinished(files: Files, data_dir: str) -> bool:
    """Return whether a mirror has ended, and no start has finished its end."""
    return files.exists(_ended_path(data_dir))


def finish_end(files: Files, data_dir: str) -> None:
    """Note that no committed offset is beyond the end of its log any more, also after a power cut.
    Errors: OSError.
    """
    files.unlink(_ended_path(data_dir))
    files.sync_directory(data_dir)


def _ended_path(data_dir: str) -> str:
    return os.path.join(data_dir, paths.MIRROR_ENDED)
