"""Updates the book of an open log, the list of its sealed segments (`state.book_file`).

A claim is withdrawn, durably, before its file is removed; claims for new files are written with the
next checkpoint and when the log is closed.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence

from storage.log.core import LogCore
from storage.room import FULL
from storage.segment.segment import Segment
from storage.state import book_file
from storage.state.book_file import BookContent, Claim


class Book:
    """The book of an open log. Thread-safe."""

    def __init__(self, log: LogCore, recorded: BookContent | None) -> None:
        """`recorded`: the file's content; None: there is no book."""
        self._log = log
        self._is_kept = recorded is not None and not log.read_only
        recorded = recorded or BookContent()
        # Held while the file and its claims change.
        self._lock = threading.Lock()
        self._claims = recorded.claims
        # Segments that are about to leave the log, with the number of their unfinished `let_go`.
        self._leaving: Counter[Segment] = Counter()
        # The log's segments (each change makes another tuple) and its start when last saved.
        self._saved: tuple[Segment, ...] | None = None
        self._log_start = recorded.log_start
        if list(recorded.claims) == self._wanted(log.segments):
            self._saved = log.segments

    def save(self) -> None:
        """Claim every sealed segment that stays, durably; do nothing if nothing has changed.

        On a full disk the older claims stay, or none, if a claimed segment was removed or given up
        at the opening. Errors: OSError from the disk.
        """
        log = self._log
        with self._lock:
            is_right = self._saved is log.segments and self._log_start == log.log_start_offset
            if self._is_kept and not log.closed and not is_right:
                try:
                    self._write()
                except OSError as error:
                    if error.errno not in FULL:
                        raise
                    sizes = {segment.base_offset: segment.size for segment in log.segments[:-1]}
                    if any(sizes.get(claim.base_offset) != claim.size for claim in self._claims):
                        self._drop()

    def let_go(self, segments: Iterable[Segment]) -> None:
        """Withdraw the claims for these segments, durably, until `keep` or until they leave the
        log.

        Does not wait for segments without a claim. Errors: OSError; nothing has changed.
        """
        gone = list(segments)
        with self._lock:
            self._leaving.update(gone)
            bases = {segment.base_offset for segment in gone}
            if not self._is_kept or not any(claim.base_offset in bases for claim in self._claims):
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

    def keep(self, segments: Iterable[Segment]) -> None:
        """End `let_go`. The next `save` claims these segments again if the log still has them."""
        with self._lock:
            self._leaving.subtract(segments)
            self._leaving = +self._leaving

    def _drop(self) -> None:
        book_file.drop(self._log.files, self._log.directory)
        self._claims, self._saved = (), None

    def _write(self) -> None:
        log = self._log
        segments, log_start = log.segments, log.log_start_offset
        claims = self._wanted(segments)
        if claims or self._claims:
            path = os.path.join(log.directory, book_file.FILE_NAME)
            data = book_file.text(BookContent(log_start, claims))
            try:
                log.files.replace_if_room(path, data)
            except FileNotFoundError:
                # The topic was deleted meanwhile.
                if not log.closed:
                    raise
        self._claims, self._log_start = claims, log_start
        self._saved = None if self._leaving else segments

    def _wanted(self, segments: Sequence[Segment]) -> list[Claim]:
        return [
            Claim(segment.base_offset, segment.next_offset, segment.size, segment.largest_timestamp)
            for segment in segments[:-1]
            if not self._leaving[segment]
        ]
