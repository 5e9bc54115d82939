"""The interface of a log for its parts, which `log.Log` imports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, TypeVarTuple

from storage.counters import LogCounters
from storage.files import Files
from storage.log.append_queue import AppendQueue
from storage.segment.segment import Segment
from storage.settings.config import LogConfig
from storage.state.producer_state import ProducerState

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class LogCore(Protocol):
    """One partition's log, without its parts."""

    files: Files
    directory: str
    config: LogConfig
    counters: LogCounters
    monotonic_ms: Callable[[], int]
    append_queue: AppendQueue
    read_only: bool
    closed: bool
    segments: tuple[Segment, ...]
    # Removed segments that can still be read, each with the time of its release.
    retired: list[tuple[int, Segment]]
    producers: ProducerState
    log_start_offset: int
    log_end_offset: int

    @property
    def active(self) -> Segment: ...

    @property
    def last_stable_offset(self) -> int: ...

    @property
    def high_watermark(self) -> int: ...

    def segments_from(self, offset: int) -> Sequence[Segment]: ...

    def check_writable(self) -> None: ...

    def off_log_thread(
        self, segment: Segment, function: Callable[[*Ts], T], /, *arguments: *Ts
    ) -> T: ...

    def became_unflushed(self) -> None: ...

    def became_flushed(self) -> None: ...
