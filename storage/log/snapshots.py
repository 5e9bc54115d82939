"""The snapshots of a log's producers (Kafka's `ProducerStateManager.takeSnapshot`).

A snapshot has the state of the producers up to an offset, so that a start need not read the log
before it. There is one at each segment's base, and the newest one. A torn file fails its checksum
and counts as absent.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection

from storage import paths
from storage.log.state import LogState


class ProducerSnapshots:
    """The snapshots of one log. `newest_offset`: of the newest one; -1: there is none.

    `unsynced`: the offsets of snapshots that the next flush makes durable.
    """

    def __init__(self, log: LogState, newest_offset: int, unsynced: Collection[int]) -> None:
        self._log = log
        self.replace(newest_offset, unsynced)

    def replace(self, newest_offset: int, unsynced: Collection[int]) -> None:
        """Take the snapshots that loading has found."""
        self.newest_offset = newest_offset
        self.unsynced = set(unsynced)

    def path(self, offset: int) -> str:
        """Return the path of the snapshot of the producers up to `offset`."""
        return os.path.join(self._log.directory, paths.file_name(offset, paths.SNAPSHOT))

    def write(self, offset: int, state: bytes) -> None:
        """Write the (encoded) producers' state up to `offset`, the log's end. Errors: OSError."""
        self._write(self.path(offset), state)
        self.unsynced.add(offset)

    def set_newest(self, offset: int) -> str | None:
        """Note the newest snapshot; return the path of the previous one if that can be removed.

        Snapshots at a segment's base stay.
        """
        before, self.newest_offset = self.newest_offset, offset
        if before in {-1, offset, *(segment.base_offset for segment in self._log.segments)}:
            return None
        return self.path(before)

    def start(self) -> Callable[[], None] | None:
        """Encode the state of the producers now; return a thread-safe function that writes it.

        Return None if the log has not grown since the last snapshot. After a crash a log with such
        a snapshot need not be read from its segment's start.
        """
        log, offset = self._log, self._log.log_end_offset
        if log.read_only or log.closed or offset == self.newest_offset:
            return None
        path, data = self.path(offset), log.producers.encode()
        before = self.newest_offset
        replaced = self.set_newest(offset)

        def write() -> None:
            # A log that was closed meanwhile has its last one. A partition that was deleted needs
            # none, and another one may have its path.
            if log.closed:
                return
            with contextlib.suppress(FileNotFoundError):
                try:
                    self._write(path, data)
                except OSError:
                    if self.newest_offset == offset:
                        # The next checkpoint tries again, though the log may not have grown.
                        self.newest_offset = before
                    raise
                if replaced is not None:
                    log.files.unlink(replaced)

        return write

    def write_last(self) -> None:
        """Write a snapshot at the end of a closing log, and remove the useless ones."""
        log, end = self._log, self._log.log_end_offset
        self.write(end, log.producers.encode())
        self.newest_offset = end
        keep = {end, *(segment.base_offset for segment in log.segments)}
        for name, kind in log.files.listing(log.directory):
            if name.endswith(paths.SNAPSHOT) and kind != "directory":
                offset = paths.base_offset_of(name)
                if offset is not None and offset not in keep:
                    log.files.unlink(os.path.join(log.directory, name))

    def _write(self, path: str, data: bytes) -> None:
        files = self._log.files
        fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            files.pwrite(fd, data, 0)
        except OSError:
            # A reader of the directory must not take the rest for damage.
            with contextlib.suppress(OSError):
                files.unlink(path)
            raise
        finally:
            files.close(fd)
