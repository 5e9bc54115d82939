"""Updates the manifest of an open log, the list of its sealed segments (`state.manifest_file`).

An entry is withdrawn, durably, before its file is removed; entries for new files are written with
the next checkpoint and when the log is closed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from storage.log.state import LogState
from storage.room import FULL
from storage.segment.segment import Segment
from storage.state import manifest_file
from storage.state.manifest_file import ManifestContent, ManifestEntry


class SegmentManifest:
    """The manifest of an open log. Thread-safe."""

    def __init__(self, log: LogState, recorded: ManifestContent | None) -> None:
        """`recorded`: the file's content; None: there is no manifest."""
        self._log = log
        self._is_used = recorded is not None and not log.read_only
        recorded = recorded or ManifestContent()
        # Held while the file and its entries change.
        self._lock = threading.Lock()
        self._entries = recorded.entries
        # Segments that are about to leave the log, with the number of their unfinished `withdraw`.
        self._leaving: Counter[Segment] = Counter()
        # The log's segments (each change makes another tuple) and its start when last saved.
        self._saved: tuple[Segment, ...] | None = None
        self._log_start = recorded.log_start
        if list(recorded.entries) == self._wanted(log.segments):
            self._saved = log.segments

    def save(self) -> None:
        """List every sealed segment that stays, durably; do nothing if nothing has changed.

        On a full disk the older entries stay, or none, if a listed segment was removed or given up
        at the opening, or if the log start has moved down. Errors: OSError from the disk.
        """
        log = self._log
        with self._lock:
            is_right = self._saved is log.segments and self._log_start == log.log_start_offset
            if self._is_used and not log.closed and not is_right:
                try:
                    self._write()
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    sizes = {segment.base_offset: segment.size for segment in log.segments[:-1]}
                    is_lower = log.log_start_offset < self._log_start
                    if is_lower or any(
                        sizes.get(entry.base_offset) != entry.size for entry in self._entries
                    ):
                        self._drop()

    def withdraw(self, segments: Iterable[Segment]) -> None:
        """Withdraw the entries of these segments, durably, until `reinstate` or until they leave
        the log.

        Does not wait for segments without an entry. Errors: OSError; nothing has changed.
        """
        gone = list(segments)
        with self._lock:
            self._leaving.update(gone)
            bases = {segment.base_offset for segment in gone}
            if not self._is_used or not any(entry.base_offset in bases for entry in self._entries):
                return
            try:
                try:
                    self._write()
                except OSError:
                    # On a full disk a file can still be removed.
                    self._drop()
            except OSError:
                self._leaving.subtract(gone)
                raise

    def reinstate(self, segments: Iterable[Segment]) -> None:
        """End `withdraw`. The next `save` lists these segments again if the log still has them."""
        with self._lock:
            self._leaving.subtract(segments)
            self._leaving = +self._leaving

    def _drop(self) -> None:
        manifest_file.drop(self._log.files, self._log.directory)
        self._entries, self._saved = (), None

    def _write(self) -> None:
        log = self._log
        segments, log_start = log.segments, log.log_start_offset
        entries = self._wanted(segments)
        # A log start that is too high would count if no segment is there.
        if entries or self._entries or self._log_start > log_start:
            path = os.path.join(log.directory, manifest_file.FILE_NAME)
            data = manifest_file.text(ManifestContent(log_start, entries))
            try:
                log.files.replace_if_room(path, data)
            except FileNotFoundError:
                # The topic was deleted meanwhile.
                if not log.closed:
                    raise
        self._entries, self._log_start = entries, log_start
        self._saved = None if self._leaving else segments

    def _wanted(self, segments: Sequence[Segment]) -> list[ManifestEntry]:
        return [
            ManifestEntry(
                segment.base_offset, segment.next_offset, segment.size, segment.largest_timestamp
            )
            for segment in segments[:-1]
            if not self._leaving[segment]
        ]
