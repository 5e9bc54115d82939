"""Long work: progress, pace, cancellation."""

from __future__ import annotations

import threading

import pytest

from storage.errors import TaskCancelled
from storage.task import Task


def test_progress_and_owner() -> None:
    task = Task()
    task.begin("mapping", 100)
    task.advance(30)
    task.advance(30)
    assert (task.phase, task.done, task.total) == ("mapping", 60, 100)
    task.begin("cleaning", 7)
    assert (task.phase, task.done, task.total) == ("cleaning", 0, 7)
    assert task.on_log_thread(lambda: 5) == 5


def test_cancelled_at_the_next_step() -> None:
    task = Task()
    task.begin("mapping", 100)
    task.cancel()
    assert task.cancelled
    for step in (task.check, lambda: task.advance(1), lambda: task.begin("x", 1)):
        with pytest.raises(TaskCancelled):
            step()


def test_not_faster_than_asked() -> None:
    """The pauses add up to what the bytes have to take, whatever their sizes."""
    task = Task(bytes_per_second=1 << 20)
    started = task._clock()
    for size in (1, 1 << 14, 1 << 15, 1 << 16, 7):
        task.advance(size)
    task.pace(1 << 15)
    assert task.done == 1 + (1 << 14) + (1 << 15) + (1 << 16) + 7
    assert task._clock() - started >= 0.13


@pytest.mark.parametrize("rate", [1, 1e-300])
def test_cancelled_while_it_waits(rate: float) -> None:
    task = Task(bytes_per_second=rate)
    timer = threading.Timer(0.05, task.cancel)
    timer.start()
    with pytest.raises(TaskCancelled):
        task.advance(1000)
    timer.join()


def test_what_it_was_too_slow_by_is_not_made_up_for() -> None:
    now = [100.0]
    task = Task(bytes_per_second=1000, clock=lambda: now[0])
    now[0] += 50
    task.advance(10)
    now[0] += 0.0015
    task.cancel()
    with pytest.raises(TaskCancelled):
        # A second of bytes: without the pause of before it would have gone through at once.
        task.advance(1000)
    assert task._passed in (0, 1000)
