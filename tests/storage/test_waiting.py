"""Whether the caller may wait."""

from __future__ import annotations

import threading

import pytest

from storage.waiting import anyway, at_once, before_waiting, may_wait


def test_a_thread_may_wait_unless_it_was_called_at_once() -> None:
    before_waiting()
    assert may_wait()
    assert not at_once(may_wait)
    with pytest.raises(BlockingIOError):
        at_once(before_waiting)
    assert may_wait()


def test_what_is_called_anyway_may_wait_and_its_caller_still_may_not() -> None:
    def call() -> tuple[bool, bool]:
        return anyway(may_wait), may_wait()

    assert at_once(call) == (True, False)


def test_an_error_leaves_it_as_it_was() -> None:
    def fail() -> None:
        raise ValueError("a fault")

    def call() -> bool:
        with pytest.raises(ValueError, match="a fault"):
            anyway(fail)
        return may_wait()

    with pytest.raises(ValueError, match="a fault"):
        at_once(fail)
    assert may_wait()
    assert not at_once(call)


def test_other_threads_may_wait_meanwhile() -> None:
    found = []

    def call() -> None:
        thread = threading.Thread(target=lambda: found.append(may_wait()))
        thread.start()
        thread.join()

    at_once(call)
    assert found == [True]


def test_arguments_and_results_are_handed_on() -> None:
    assert at_once(divmod, 7, 3) == (2, 1)
    assert anyway(divmod, 7, 3) == (2, 1)
