"""Turns at logs that are slow: their order, who goes on meanwhile, and how many may wait."""

from __future__ import annotations

import errno
import threading

import pytest
import trio
import trio.testing

from kafkafs.fuse import threads
from kafkafs.fuse.session_loop import Spinner
from kafkafs.fuse.threads import Turns
from storage.log.append_queue import SLOW_NS, AppendQueue, check_all_may_append
from tests.no_threads import no_free_threads
from tests.waits import HANG_S


def a_slow(name: str) -> AppendQueue:
    queue = AppendQueue(name)
    queue.note_duration(SLOW_NS + 1)
    return queue


class Append:
    """Appends to logs: to each slow one aside, where it is held until `release`."""

    def __init__(self, done: list[str], name: str, *queues: AppendQueue, held: bool = True) -> None:
        self._done = done
        self._name = name
        self._paces = queues
        self._release = threading.Event()
        self.begun = trio.Event()
        self.thread = 0
        self._token = trio.lowlevel.current_trio_token()
        if not held:
            self.release()

    def __call__(self) -> str:
        check_all_may_append(self._paces)
        self.thread = threading.get_ident()
        for queue in self._paces:
            queue.off_log_thread(self._wait)
        self._done.append(self._name)
        return self._name

    def _wait(self) -> None:
        self._token.run_sync_soon(self.begun.set)
        assert self._release.wait(HANG_S)

    def release(self) -> None:
        self._release.set()


@trio.testing.trio_test
async def test_a_fast_one_is_called_at_once() -> None:
    done: list[str] = []
    append = Append(done, "fast", AppendQueue("log"), held=False)
    assert await Turns(Spinner(), trio.Lock()).call(append) == "fast"
    assert append.thread == threading.get_ident()


@trio.testing.trio_test
async def test_a_slow_one_holds_up_only_who_comes_for_the_same_log() -> None:
    turns, done = Turns(Spinner(), trio.Lock()), list[str]()
    slow, other = a_slow("slow"), a_slow("other")
    first, second = Append(done, "1", slow), Append(done, "2", slow, held=False)

    async def look() -> None:
        await turns.passed(slow)
        done.append("looked")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.call, first)
        await first.begun.wait()
        nursery.start_soon(turns.call, second)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(look)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(turns.call, Append(done, "3", slow, held=False))
        await trio.testing.wait_all_tasks_blocked()
        await turns.passed(other)
        assert await turns.call(Append(done, "other", other, held=False)) == "other"
        assert await turns.call(Append(done, "fast", AppendQueue("fast"), held=False)) == "fast"
        assert done == ["other", "fast"]
        first.release()
    assert done == ["other", "fast", "1", "2", "looked", "3"]
    assert first.thread not in (0, threading.get_ident())
    assert turns.queues == {}


@trio.testing.trio_test
async def test_it_is_never_called_beside_the_owner() -> None:
    """Only what it calls aside is."""
    turns, slow = Turns(Spinner(), trio.Lock()), a_slow("slow")
    visits = 0
    ended = False

    async def visit() -> None:
        nonlocal visits
        while not ended:
            visits += 1
            await trio.lowlevel.checkpoint()

    def change() -> None:
        slow.check_may_append()
        before = visits
        for _ in range(1000):
            # A thread that may run does so now.
            threading.Event().wait(1e-6)
        assert visits == before

    async with trio.open_nursery() as nursery:
        nursery.start_soon(visit)
        await turns.call(change)
        ended = True
    assert visits


@trio.testing.trio_test
async def test_who_needs_more_than_one_turn_gets_all_of_them() -> None:
    turns, done = Turns(Spinner(), trio.Lock()), list[str]()
    one, two = a_slow("1"), a_slow("2")
    appends = [
        Append(done, "both", one, two, held=False),
        Append(done, "both", two, one, held=False),
        Append(done, "one", one, held=False),
        Append(done, "two", two, held=False),
    ]
    async with trio.open_nursery() as nursery:
        for append in appends * 5:
            nursery.start_soon(turns.call, append)
    assert sorted(done) == ["both"] * 10 + ["one"] * 5 + ["two"] * 5
    assert turns.queues == {}


@trio.testing.trio_test
async def test_a_call_in_turn_is_not_cancelled_and_ends_before_the_end() -> None:
    turns, done = Turns(Spinner(), trio.Lock()), list[str]()
    slow = a_slow("slow")
    first, second = Append(done, "1", slow), Append(done, "2", slow, held=False)
    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            nursery.start_soon(turns.call, first)
            nursery.start_soon(turns.call, second)
            await first.begun.wait()
            nursery.cancel_scope.cancel()
            scope.cancel()
            first.release()
            with trio.CancelScope(shield=True):
                await turns.end()
                assert sorted(done) == ["1", "2"]


@trio.testing.trio_test
async def test_an_error_ends_the_turn() -> None:
    turns, slow = Turns(Spinner(), trio.Lock()), a_slow("slow")

    def fail() -> None:
        slow.check_may_append()
        raise OSError(errno.EIO, "the disk")

    with pytest.raises(OSError, match="the disk"):
        await turns.call(fail)
    assert turns.queues == {}
    assert await turns.call(Append([], "next", slow, held=False)) == "next"


@trio.testing.trio_test
async def test_without_threads_the_owner_waits_itself() -> None:
    append = Append([], "here", a_slow("slow"), held=False)
    with no_free_threads():
        assert await Turns(Spinner(), trio.Lock()).call(append) == "here"
    assert append.thread == threading.get_ident()


@trio.testing.trio_test
async def test_so_many_may_wait_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LOOKING", 3)
    turns, slow = Turns(Spinner(), trio.Lock()), a_slow("slow")
    first = Append([], "1", slow)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(turns.call, first)
        await first.begun.wait()
        for _ in range(3):
            nursery.start_soon(turns.passed, slow)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(BlockingIOError) as refused:
            await turns.passed(slow)
        assert refused.value.errno == errno.EAGAIN
        # An append is not refused.
        nursery.start_soon(turns.call, Append([], "2", slow, held=False))
        await turns.passed(AppendQueue("other"))
        first.release()
        await turns.end()
        await turns.passed(slow)
