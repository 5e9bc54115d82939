"""Appending to the view of stored batches: ready batches, back to back, go into the log.

Whole batches only: all that a write completes are appended together, or none of them. An
incomplete one waits for the next write, wherever a write() or the kernel has cut it; flush refuses
it (EINVAL), and at release it is dropped, with a line in the log. It can never be much: a batch of
more than max.message.bytes, or than a segment takes, is refused as soon as its length is there
(EMSGSIZE).

What a batch has to be like, offsets, codecs, and what is asked of a producer's next batch:
`Appender.append_batches`. The handle remembers which producers it has brought batches of, so that
the gaps of a log that was compacted pass.

After a refusal of the content the next write begins a batch, unless it is the refused bytes again.

Batches are decoded to be checked. Where that may take long it is done in a worker thread
(`examine`): a few kilobytes can be a quarter of a gigabyte compressed.
"""

from __future__ import annotations

from kafkafs.tree.append.append_handle import AppendHandle
from kafkafs.tree.append.append_target import PartitionTarget
from kafkafs.tree.handles import Handle
from storage.errors import InvalidRecord, LogClosed, StorageError
from storage.log.validator import Admitted, admitted
from storage.record.batch import parse_header
from storage.record.scan import whole_batches
from storage.settings.config import LogConfig

_AT_ONCE = 64 << 10
"""Bytes of uncompressed batches that are checked on the owner's thread."""


class BatchesHandle(AppendHandle[PartitionTarget]):
    """See the module."""

    __slots__ = ("_examined", "_needed", "_producers", "_taken", "_to_examine")

    def __init__(self, target: PartitionTarget, flags: int, reader: Handle | None) -> None:
        super().__init__(target, flags, reader)
        # The size of the batch that `_rest` begins, in bytes; 0 where it does not tell yet.
        self._needed = 0
        # Bytes that are in the log, of all that were written here.
        self._taken = 0
        # Producer id -> last offset of the last batch of it that came this way.
        self._producers: dict[int, int] = {}
        # What a write waits for: batches and the settings to check them by; then what came of it.
        self._to_examine: tuple[bytes, LogConfig] | None = None
        self._examined: list[Admitted] | StorageError | None = None

    def _take(self, data: bytes) -> None:
        rest = self._rest
        if not rest:
            end = self._append_whole(data)
            if end < len(data):
                self._rest = bytearray(memoryview(data)[end:])
            return
        before = len(rest)
        rest += data
        if len(rest) < self._needed:
            return
        try:
            # A copy: an error may keep views of what was refused.
            end = self._append_whole(bytes(rest))
        except BaseException:
            del rest[before:]
            raise
        self._rest = rest[end:]

    def _append_whole(self, data: bytes) -> int:
        """Append the whole batches that `data` begins with; returns where the rest begins."""
        config = self._target.config
        end, needed = whole_batches(data, min(config.max_message_bytes, config.segment_bytes))
        if end:
            self._append(data, 0, end)
        self._taken += end
        self._needed = needed
        return end

    def _put(self, data: bytes | bytearray, start: int, end: int, now_ns: int) -> None:
        batches = bytes(data[start:end])
        checked = None
        if _takes_long(batches):
            checked = self._checked(batches, self._target.config)
        self._target.append_batches(batches, now_ns, self._producers, checked)

    def _checked(self, batches: bytes, config: LogConfig) -> list[Admitted]:
        """What `examine` has found, if it was asked about just this."""
        found, self._examined = self._examined, None
        if found is None or self._to_examine != (batches, config):
            self._to_examine = (batches, config)
            raise BlockingIOError
        self._to_examine = None
        if isinstance(found, StorageError):
            raise found
        return found

    def examine(self, data: bytes) -> None:
        assert self._to_examine is not None
        batches, config = self._to_examine
        now_ms = self._target.mount.clock_ns() // 1_000_000
        try:
            self._examined = list(admitted(batches, config, now_ms))
        except StorageError as error:
            self._examined = error

    def _check_rest(self) -> None:
        log = self._target.partition.log
        if log.closed:
            raise LogClosed("the topic has been deleted", path=log.directory)
        raise InvalidRecord(self._incomplete())

    def _incomplete(self) -> str:
        of = f" of {self._needed}" if self._needed else ""
        return f"an incomplete batch, {len(self._rest)}{of} bytes"

    def _drop_rest(self, data: bytes) -> None:
        self._rest = bytearray()
        self._needed = 0

    def _say(self, what: str) -> None:
        super()._say(f"{what} (behind the first {self._taken} bytes written)")

    def release(self) -> None:
        """What is not whole is dropped."""
        if self._rest:
            self._say(f"{self._incomplete()} at the end, is dropped")
            self._drop_rest(b"")
        super().release()


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
