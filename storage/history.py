"""What happened to a partition's past, so that a reader who comes back is never misled.

A partition directory holds one small text file, ``kafkafs.history`` (Kafka ignores it)::

    version 0
    nonce 9c0f…          16 hex digits, drawn anew whenever what was shown may have changed
    boot 6d5c…           the boot of the machine in which it was last opened for writing
    first 0              base offset of the first segment
    start 17             log start offset
    sealed 3 1a2b3c4d    count of the sealed segments, CRC-32C over their bases and sizes
    last 4096 88 5e6f…   the last batch then: segment base, position, CRC of the batch
    base values 0 0      per view: an offset that starts a segment, its absolute position in bytes

Everything but ``nonce`` and ``base`` is a fingerprint of the segments.  A log only grows at its
end, so the fingerprint still fits a longer log; where it does not fit, a broker or an offline tool
has rewritten something, or a crash took bytes that may have been shown.  The nonce is then drawn
anew, and no inode number of the old history is ever used for the new one.

Of a directory that may not be written the file is kept *aside*, in a directory of the reader's own.
It is a cache there: where it cannot be written, the next reader draws another nonce.

Invariants: the file is replaced atomically; a change that rewrites the past is written down before
it is carried out.

Not here: what an inode shows (``kafkafs.generations``).
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from crc32c import crc32c

from storage.errors import CorruptCheckpoint, CorruptRecord
from storage.files import Files
from storage.record.batch import HEADER_SIZE

if TYPE_CHECKING:
    from storage.segment import Segment

FILE_NAME = "kafkafs.history"


def boot_id() -> str:
    """The kernel's name for this run of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip().replace("-", "")


class History:
    """The nonce and the absolute bases of one partition."""

    def __init__(
        self, files: Files, directory: str, *, writable: bool, aside: bool = False
    ) -> None:
        self._files = files
        self._directory = directory
        self._writable = writable
        self._aside = aside
        self._bases: dict[str, tuple[int, int]] = {}
        self.nonce = 0
        # The log start offset, for the next ``save``; never below the first segment.
        self.log_start = 0

    @classmethod
    def load(
        cls,
        files: Files,
        directory: str,
        segments: Sequence[Segment],
        *,
        writable: bool,
        clean: bool,
        cut: bool,
        log_start: int = 0,
        aside: str | None = None,
    ) -> History:
        """Read the file and hold it against the segments, which are shown from ``log_start`` on.

        ``clean``: the last writer closed the directory orderly; ``cut``: recovery has set bytes
        aside.  ``aside``: where it is kept of a directory that may not be written.  A writable
        history is durable when this returns.
        """
        history = cls(files, directory, writable=writable)
        history.log_start = log_start
        if aside is None:
            recorded = history._read()
        else:
            writers = history
            history = cls(files, aside, writable=True, aside=True)
            history.log_start = log_start
            recorded = {}
            with contextlib.suppress(CorruptCheckpoint, OSError):
                recorded = history._read()
            if not recorded:
                recorded = writers._read()
                history._bases = dict(writers._bases)
            # What looks damaged may be a batch that is just being written.
            writable, cut = True, False
        boot = boot_id()
        lost = not clean and recorded.get("boot") != [boot]
        if recorded and not cut and not lost and _fits(recorded, segments, log_start):
            history.nonce = int(recorded["nonce"][0], 16)
            if writable and (history._aside or recorded["boot"] != [boot]):
                history.save(segments)
        elif writable:
            history._bases.clear()
            history.new_nonce()
            history.save(segments)
        else:
            # Nothing may be written: a nonce that stays the same while the log's head does.
            history._bases.clear()
            history.nonce = int.from_bytes(_head(segments), "big")
        return history

    def base(self, view: str) -> tuple[int, int]:
        """(base offset of a segment, absolute position at its start in bytes), or (-1, 0)."""
        return self._bases.get(view, (-1, 0))

    def set_base(self, view: str, base_offset: int, position: int) -> None:
        """The absolute position (bytes, signed) of the segment that starts at ``base_offset``."""
        self._bases[view] = (base_offset, position)

    def new_nonce(self) -> None:
        """What was shown has changed: a number that no inode has had."""
        self.nonce = secrets.randbits(64)

    def save(self, segments: Sequence[Segment]) -> None:
        """Write nonce, bases and the fingerprint of ``segments`` (all of the log) durably.

        One that is kept aside: if the disk takes it, and not durably.
        """
        if self._aside:
            with contextlib.suppress(OSError):
                self._save(segments)
        elif self._writable:
            self._save(segments)

    def _save(self, segments: Sequence[Segment]) -> None:
        lines = [
            "version 0",
            f"nonce {self.nonce:016x}",
            f"boot {boot_id()}",
            f"first {segments[0].base_offset}",
            f"start {max(self.log_start, segments[0].base_offset)}",
            f"sealed {len(segments) - 1} {_sealed_crc(segments[:-1]):08x}",
        ]
        last = segments[-1].last_batch()
        if last is not None:
            lines.append(f"last {segments[-1].base_offset} {last[0]} {last[1].crc:08x}")
        lines += [f"base {view} {offset} {at}" for view, (offset, at) in self._bases.items()]
        path = os.path.join(self._directory, FILE_NAME)
        data = "".join(f"{line}\n" for line in lines).encode()
        self._files.replace_atomically(path, data, sync=not self._aside)

    def relocate(self, directory: str) -> None:
        """The partition's directory was renamed."""
        if not self._aside:
            self._directory = directory

    def _read(self) -> dict[str, list[str]]:
        path = os.path.join(self._directory, FILE_NAME)
        try:
            data = self._files.read_whole(path)
        except FileNotFoundError:
            return {}
        recorded: dict[str, list[str]] = {}
        try:
            for line in data.decode().splitlines():
                name, *values = line.split(" ")
                if name == "base":
                    self._bases[values[0]] = (int(values[1]), int(values[2]))
                else:
                    recorded[name] = values
            _check(recorded)
        except (ValueError, KeyError, IndexError) as error:
            raise CorruptCheckpoint(
                "not a history file; remove it, and readers start over", path=path
            ) from error
        return recorded


def _check(recorded: dict[str, list[str]]) -> None:
    """ValueError, KeyError or IndexError where the lines do not say what ``_fits`` asks for."""
    if recorded["version"] != ["0"] or "boot" not in recorded:
        raise ValueError(recorded)
    nonce = int(recorded["nonce"][0], 16)
    numbers = [nonce, int(recorded["first"][0]), int(recorded["sealed"][0])]
    numbers.append(int(recorded.get("start", recorded["first"])[0]))
    int(recorded["sealed"][1], 16)
    if "last" in recorded:
        base, position, crc = recorded["last"]
        numbers += [int(base), int(position), int(crc, 16)]
    if min(numbers) < 0 or nonce >= 1 << 64:
        raise ValueError(recorded)


def _fits(recorded: dict[str, list[str]], segments: Sequence[Segment], log_start: int) -> bool:
    """Whether the segments are those of the fingerprint, or have only grown since."""
    # Files of earlier releases do not have it.
    start = recorded.get("start", recorded["first"])
    if int(start[0]) != max(log_start, segments[0].base_offset):
        return False
    count, crc = int(recorded["sealed"][0]), int(recorded["sealed"][1], 16)
    if int(recorded["first"][0]) != segments[0].base_offset or count >= len(segments):
        return False
    if _sealed_crc(segments[:count]) != crc:
        return False
    if "last" not in recorded:
        return True
    base, position, batch_crc = recorded["last"]
    segment = segments[count]
    if segment.base_offset != int(base):
        return False
    try:
        batch = next(segment.batches(int(position)), None)
    except CorruptRecord:
        return False
    return batch is not None and batch[1].crc == int(batch_crc, 16)


def _sealed_crc(segments: Sequence[Segment]) -> int:
    text = "".join(f"{segment.base_offset} {segment.size}\n" for segment in segments)
    return crc32c(text.encode())


def _head(segments: Sequence[Segment]) -> bytes:
    """Eight bytes that name the first batch of the log."""
    first = segments[0]
    try:
        data = first.read_at(0, HEADER_SIZE) if first.size else b""
    except CorruptRecord:
        data = b""
    return crc32c(data).to_bytes(4, "big") + crc32c(str(first.base_offset).encode()).to_bytes(
        4, "big"
    )
