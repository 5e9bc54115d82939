"""Appends to the view of stored batches: takes finished batches, back to back.

A write appends all batches that it completes, or none. Only in a new partition may it be short: a
write there may need several segments, and the disk may be full after some of them. The writer
continues after the bytes that were taken, and gets the error then.

An incomplete batch waits for the next write; flush refuses it (EINVAL), and release drops it, with
a line in the event log. It stays small: a batch larger than max.message.bytes or a segment is
refused as soon as its length is known (EMSGSIZE).

`append_batches` checks batches, and has the rules for offsets, codecs and producers. The
handle remembers the producers of its batches, so that a compacted log with gaps in a producer's
sequences can be appended.

After a refusal of the content the next write begins a batch, unless the refused bytes come again.

Checking decodes batches. Where that may take long a worker thread does it (`examine`): a few
compressed kilobytes may decode to a quarter of a gigabyte.
"""

from __future__ import annotations

from kafkafs.tree.append.append_handle import AppendHandle
from kafkafs.tree.append.append_target import PartitionTarget
from kafkafs.tree.handles import Handle, NotExamined
from kafkafs.tree.unfinished import Rest
from storage.errors import InvalidRecord, LogClosed, StorageError
from storage.log.validator import ValidatedBatch, validated
from storage.plural import counted
from storage.record.header import parse_header
from storage.record.scan import whole_batches
from storage.settings.config import LogConfig

_AT_ONCE = 64 << 10
"""Bytes of uncompressed batches that the owner's thread checks."""


class BatchesHandle(AppendHandle[PartitionTarget]):
    """See the module."""

    __slots__ = ("_examined", "_needed", "_producers", "_taken", "_to_examine")

    def __init__(self, target: PartitionTarget, flags: int, reader: Handle | None) -> None:
        super().__init__(target, flags, reader)
        # Bytes of the batch that `_kept` begins; 0 while its length is unknown.
        self._needed = 0
        # Written bytes that are in the log.
        self._taken = 0
        # Producer id -> last offset of its last batch through this handle.
        self._producers: dict[int, int] = {}
        # The settings for `examine`, which runs next.
        self._to_examine: LogConfig | None = None
        # (batches, settings, result) of `examine`.
        self._examined: (
            tuple[bytes, LogConfig, list[ValidatedBatch] | StorageError | OSError] | None
        )
        self._examined = None

    def _take(self, data: bytes) -> tuple[int, bool]:
        begun = len(self._kept)
        if begun + len(data) < self._needed:
            self._kept.add(memoryview(data))
            return len(data), False
        joined = self._joined(data)
        config = self._target.config
        end, needed = _whole_batches(joined, config)
        rest = self._kept.rest_of(memoryview(joined)[end:])
        appended = self._append(joined[:end], config) if end else 0
        taken = len(data)
        if appended < end:
            # The writer repeats the rest.
            taken, needed, rest = appended - begun, 0, Rest()
        self._taken += appended
        self._needed = needed
        self._kept.replace(rest)
        return taken, end > 0

    def _append(self, batches: bytes, config: LogConfig) -> int:
        """Append whole batches; return how many bytes of them."""
        target = self._target
        checked = self._checked(batches, config) if _takes_long(batches) else None
        return target.append_batches(batches, target.mount.clock_ns(), self._producers, checked)

    def _joined(self, data: bytes) -> bytes:
        """Return the kept bytes, followed by `data`."""
        return self._kept.joined(data) if self._kept else data

    def _checked(self, batches: bytes, config: LogConfig) -> list[ValidatedBatch]:
        """The result of `examine` for just these batches; NotExamined before it has run."""
        examined, self._examined = self._examined, None
        if examined is None or examined[:2] != (batches, config):
            self._to_examine = config
            raise NotExamined(is_large=bool(self._kept))
        found = examined[2]
        if isinstance(found, (StorageError, OSError)):
            raise found
        return found

    def examine(self, data: bytes) -> None:
        config, self._to_examine = self._to_examine, None
        assert config is not None
        joined = self._joined(data)
        batches = joined[: _whole_batches(joined, config)[0]]
        del joined
        now_ms = self._target.mount.clock_ns() // 1_000_000
        found: list[ValidatedBatch] | StorageError | OSError
        try:
            found = list(validated(batches, config, now_ms))
        except (StorageError, OSError) as error:
            found = error
        self._examined = batches, config, found

    def _check_rest(self) -> None:
        log = self._target.partition.log
        if log.closed:
            raise LogClosed("the topic has been deleted", path=log.directory)
        raise InvalidRecord(self._incomplete())

    def _incomplete(self) -> str:
        if self._needed:
            return f"an incomplete batch, {len(self._kept)} of {self._needed} bytes"
        return f"an incomplete batch, {counted(len(self._kept), 'byte')}"

    def _drop_rest(self, data: bytes) -> None:
        self._kept.clear()
        self._needed = 0

    def _say(self, what: str, number: int | None = None) -> None:
        super()._say(f"{what} (after the first {self._taken} bytes written)", number)

    def release(self) -> None:
        """Drop an incomplete batch."""
        if self._kept:
            self._say(f"{self._incomplete()} at the end; dropped")
            self._drop_rest(b"")
        super().release()


def _whole_batches(data: bytes, config: LogConfig) -> tuple[int, int]:
    """`whole_batches` with the limits of the settings."""
    return whole_batches(data, min(config.max_message_bytes, config.segment_bytes))


def _takes_long(batches: bytes) -> bool:
    """Whether checking these batches may take more than a millisecond or so."""
    if len(batches) > _AT_ONCE:
        return True
    at = 0
    while at < len(batches):
        header = parse_header(batches, at)
        if header.codec:
            return True
        at += header.size
    return False
