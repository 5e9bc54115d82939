"""Threads where the system lets none start."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage.errors import NoThread
from storage.threads import side_by_side, start, submit
from tests.no_threads import no_threads

ROOT = Path(__file__).parents[2]

# Starts a thread with more and more room for it; each try in a process of its own.
TRIES = """
import os, resource, sys, threading
from storage import threads

stack = 1 << 20
outcomes = set()
for room in range(stack - (1 << 16), stack + (3 << 20), 1 << 14):
    child = os.fork()
    if not child:
        with open("/proc/self/statm") as sizes:
            used = int(sizes.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
        thread = threading.Thread(target=int)
        try:
            threads.start(thread)
        except threads.NoThread:
            os._exit(1)
        thread.join()
        os._exit(0)
    outcomes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(*sorted(outcomes))
"""


def test_a_thread_that_cannot_be_started() -> None:
    with no_threads(), pytest.raises(NoThread) as raised:
        start(threading.Thread(target=int))
    assert raised.value.errno == errno.ENOMEM
    thread = threading.Thread(target=int)
    start(thread)
    thread.join()


@pytest.mark.programs
def test_nobody_waits_for_a_thread_that_finds_no_memory_to_begin_in() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", TRIES]
    # A stack of the size that the limit says, as it is read when the program begins.
    done = subprocess.run(
        ["prlimit", f"--stack={1 << 20}:", *program], env=env, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("0 1\n", "")


def test_what_a_pool_has_refused_is_never_called() -> None:
    held, called = threading.Event(), []
    with ThreadPoolExecutor(2) as pool:
        holding = submit(pool, held.wait)
        with no_threads(), pytest.raises(NoThread):
            submit(pool, lambda: called.append("refused"))
        held.set()
        assert holding.result()
        last = submit(pool, lambda: called.append("taken"))
        last.result()
    assert called == ["taken"]


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_work_is_shared(threads: int) -> None:
    everybody = threading.Barrier(threads)
    who: set[int] = set()

    def twice(number: int) -> int:
        if number < threads:
            everybody.wait()
        who.add(threading.get_ident())
        return 2 * number

    assert side_by_side(twice, range(100), threads, "twice") == list(range(0, 200, 2))
    assert len(who) == threads
    assert threading.get_ident() in who
    assert side_by_side(twice, [], threads, "twice") == []


def test_who_finds_nobody_to_share_with_does_it_alone() -> None:
    with no_threads():
        found = side_by_side(lambda _: threading.get_ident(), range(10), 8, "alone")
    assert found == [threading.get_ident()] * 10


def test_after_a_failure_nothing_is_begun() -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        if number == 3:
            raise OSError(errno.EIO, "bad")

    with pytest.raises(OSError, match="bad"):
        side_by_side(work, range(10), 1, "failing")
    assert begun == [0, 1, 2, 3]


def test_who_is_interrupted_waits_for_what_was_begun() -> None:
    both = threading.Barrier(2)
    ended: list[int] = []

    def work(number: int) -> None:
        both.wait()
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        ended.append(number)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(work, range(2), 2, "interrupted")
    assert len(ended) == 1
    assert not [each for each in threading.enumerate() if each.name.startswith("interrupted")]
