"""When a log is slow, whose turn it is, and what a turn does while the disk is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import TypeVar, TypeVarTuple

import pytest

from storage import paths
from storage.errors import LogClosed
from storage.files import Files
from storage.log.append_queue import (
    FAST,
    SLOW_NS,
    AppendQueue,
    MustQueue,
    Turn,
    check_all_may_append,
)
from storage.log.log import Log
from tests.storage.logs import append, opened, opened_log, values
from tests.storage.transactions import Client

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class ATurn(Turn):
    """This thread has it; what goes on beside is what a test wants."""

    def __init__(self, log: Log, beside: Callable[[], object] = lambda: None) -> None:
        self.thread = get_ident()
        self.calls: list[str] = []
        self._beside = beside
        self._queue = log.append_queue
        self._queue.enter()
        self._queue.turn = self

    def end(self) -> None:
        self._queue.leave()
        self._queue.turn = None

    def off_log_thread(self, function: Callable[[*Ts], T], /, *arguments: *Ts) -> T:
        self.calls.append(function.__name__)
        self.thread = 0
        self._beside()
        try:
            return function(*arguments)
        finally:
            self.thread = get_ident()


def is_slow(log: Log) -> bool:
    return log.append_queue.in_use


class Clock:
    """Each append takes `took_ns`: it is asked before and after."""

    def __init__(self) -> None:
        self.took_ns = 0
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += self.took_ns
        return self._now_ns


def test_a_log_is_slow_after_one_append_until_several_were_fast(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path) as manager:
        manager.take_turns(clock)
        log = manager.create_topic("t").partitions[0]
        clock.took_ns = SLOW_NS
        append(log, b"fast")
        assert not is_slow(log)
        for again in range(2):
            clock.took_ns = SLOW_NS + 1
            append(log, b"slow")
            clock.took_ns = SLOW_NS
            for _ in range(FAST - 1 if not again else FAST):
                assert is_slow(log)
                append(log, b"fast")
        assert not is_slow(log)
        clock.took_ns = SLOW_NS + 1
        append(log, b"slow")
        assert is_slow(log)
        manager.end_turns()
        append(log, b"slow")
        assert not is_slow(log)


def test_who_has_no_turn_is_told_whose_he_needs() -> None:
    slow, queued, fast = AppendQueue("slow"), AppendQueue("queued"), AppendQueue("fast")
    slow.note_duration(SLOW_NS + 1)
    queued.enter()
    # A slow log may be changed out of turn: that only takes long.
    slow.check_not_queued()
    for queue in (slow, queued):
        with pytest.raises(MustQueue):
            queue.check_may_append()
    with pytest.raises(MustQueue):
        queued.check_not_queued()
    with pytest.raises(MustQueue) as found:
        check_all_may_append([fast, slow, queued])
    assert found.value.queues == {slow, queued}
    queued.leave()
    slow.reset()
    check_all_may_append([fast, slow, queued])


def test_nobody_else_changes_a_log_in_turn(tmp_path: Path) -> None:
    with opened_log(tmp_path) as log:
        append(log, b"one")
        log.append_queue.enter()
        for change in (
            lambda: append(log, b"two"),
            lambda: log.roll(0),
            lambda: log.raise_log_start(1),
            lambda: log.note_damage(log.active, (), 0),
            log.durability.start_flush,
        ):
            with pytest.raises(MustQueue):
                change()
        log.append_queue.leave()
        assert values(log) == [b"one"]
        assert len(log.segments) == 1


def test_only_a_log_whose_turn_it_is_waits_aside(tmp_path: Path) -> None:
    """While it did, another thread might append to the other one, at the same offset."""
    with opened(tmp_path) as manager:
        topic = manager.create_topic("t", 2)
        slow, fast = topic.partitions[0], topic.partitions[1]
        turn = ATurn(slow)
        append(fast, b"one")
        assert turn.calls == []
        append(slow, b"one")
        assert turn.calls == ["append"]
        slow.roll(0)
        assert turn.calls == ["append", "seal", "_begin_segment"]
        turn.end()
        assert values(slow) == values(fast) == [b"one"]


class SlowFiles(Files):
    """While a log is written `meanwhile` is called."""

    meanwhile: Callable[[], object] | None = None

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
        super().pwrite(fd, data, position)


def test_files_stay_open_and_prepared_aside(tmp_path: Path) -> None:
    files = SlowFiles()
    with opened_log(tmp_path, files) as log:
        append(log, b"one")
        log.flush()
        index = log.active.file_path(paths.INDEX)
        prepared = os.stat(index).st_size
        turn = ATurn(log)
        files.meanwhile = lambda: [log.age_descriptors() for _ in range(3)]
        append(log, b"two")
        files.meanwhile = None
        assert log.active.is_open
        assert os.stat(index).st_size == prepared > 0
        turn.end()
        assert values(log) == [b"one", b"two"]


def test_a_log_that_is_deleted_aside_gets_no_segment(tmp_path: Path) -> None:
    with opened(tmp_path) as manager:
        log = manager.create_topic("t").partitions[0]
        append(log, b"one")
        deleted: list[bool] = []

        def delete() -> None:
            if not deleted:
                deleted.append(True)
                manager.delete_topic("t")

        turn = ATurn(log, beside=delete)
        with pytest.raises((LogClosed, FileNotFoundError)):
            log.roll(0)
        assert len(log.segments) == 1
        turn.end()


def test_producers_are_forgotten_aside(tmp_path: Path) -> None:
    """A roll writes those that there were when it began."""
    with opened_log(tmp_path) as log:
        Client(log, 7).send(b"one", transactional=False)
        encode = log.producers.encode()
        turn = ATurn(log, beside=lambda: log.producers.expire(1 << 62, 0))
        log.roll(0)
        assert Path(log.snapshots.path(1)).read_bytes() == encode
        turn.end()
