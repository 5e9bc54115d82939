"""The cache of plain forms: its budget, and which threads wait for others."""

from __future__ import annotations

import errno
import threading

import pytest

from storage.plain_forms import AT_ONCE, WAITING, Form, Key, PlainForms
from storage.record.compression import TooLarge
from storage.waiting import at_once

MIB = 1 << 20


def key(number: int) -> Key:
    return Key("segment", number, 100, b"")


def sizes(size: int) -> tuple[int, int]:
    return size, size


def made(size: int) -> Form:
    return bytearray(size), 100


def unwanted(size: int) -> Form:
    raise AssertionError(f"another form of {size} bytes is made")


def test_a_large_form_is_made_once_for_all() -> None:
    forms = PlainForms()
    one = forms.make(key(1), sizes(20 * MIB), made)
    assert forms.get(key(1)) is one
    assert forms.make(key(1), sizes(20 * MIB), unwanted) is one
    assert forms.held_bytes == 20 * MIB
    assert forms.get(key(2)) is None


def test_a_small_form_is_not_counted_before_it_is_kept() -> None:
    forms = PlainForms()
    one = forms.make(key(1), sizes(0), lambda _: made(100))
    assert (forms.get(key(1)), forms.held_bytes) == (None, 0)
    forms.keep(key(1), one)
    assert (forms.get(key(1)), forms.held_bytes) == (one, 100)
    forms.clear()
    assert forms.held_bytes == 0


def test_what_was_used_least_recently_gives_way() -> None:
    forms = PlainForms(10_000)
    for number in range(3):
        forms.keep(key(number), made(4000))
        forms.get(key(0))
    assert forms.held_bytes == 8000
    assert [number for number in range(3) if forms.get(key(number))] == [0, 2]


def test_a_form_counts_until_nobody_uses_it() -> None:
    forms = PlainForms(64 * MIB, patience_s=0)
    one = forms.make(key(1), sizes(20 * MIB), made)
    two = forms.make(key(2), sizes(20 * MIB), made)
    assert forms.get(key(1)) is one
    assert forms.held_bytes == 40 * MIB
    with pytest.raises(OSError, match="-o memory") as raised:
        forms.make(key(3), sizes(30 * MIB), made)
    assert raised.value.errno == errno.ENOMEM
    assert forms.get(key(1)) is None, "it had to give way"
    assert forms.held_bytes == 40 * MIB, "but somebody uses it"
    del one
    assert forms.make(key(3), sizes(30 * MIB), made)
    del two
    assert forms.held_bytes <= 50 * MIB
    forms.clear()
    assert forms.held_bytes == 0


def test_what_is_over_the_budget_is_there_one_at_a_time() -> None:
    forms = PlainForms(10 * MIB, patience_s=0)
    one = forms.make(key(1), sizes(20 * MIB), made)
    with pytest.raises(OSError, match="not enough memory") as raised:
        forms.make(key(2), sizes(30 * MIB), made)
    assert raised.value.errno == errno.ENOMEM
    assert forms.make(key(3), sizes(5 * MIB), made), "small ones do not wait for it"
    del one
    forms.make(key(2), sizes(30 * MIB), made)
    assert forms.held_bytes == 35 * MIB


def test_they_wait_for_each_other_in_their_order() -> None:
    forms = PlainForms(10 * MIB, patience_s=600)
    used = [forms.make(key(0), sizes(20 * MIB), made)]
    order: list[int] = []

    def wait(number: int) -> None:
        def decode(size: int) -> Form:
            order.append(number)
            return made(size)

        forms.make(key(number), sizes(20 * MIB), decode)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(1, 5)]
    for number, thread in enumerate(threads):
        thread.start()
        while forms.waiting <= number:
            pass
    assert not order
    used.clear()
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3, 4]


def test_those_that_wait_for_one_form_share_it() -> None:
    forms = PlainForms(10 * MIB, patience_s=600)
    used = [forms.make(key(0), sizes(20 * MIB), made)]
    times: list[int] = []
    got: list[Form] = []

    def decode(size: int) -> Form:
        times.append(size)
        return made(size)

    def wait() -> None:
        got.append(forms.make(key(1), sizes(20 * MIB), decode))

    threads = [threading.Thread(target=wait) for _ in range(5)]
    for thread in threads:
        thread.start()
    while forms.waiting < 5:
        pass
    used.clear()
    for thread in threads:
        thread.join()
    assert len(times) == 1
    assert forms.held_bytes == 20 * MIB
    assert all(form is got[0] for form in got)


def test_no_more_than_some_threads_wait() -> None:
    """The others have work to do for those who read small batches."""
    forms = PlainForms(10 * MIB, patience_s=600)
    used = [forms.make(key(0), sizes(20 * MIB), made)]
    threads = [
        threading.Thread(target=forms.make, args=(key(number), sizes(20 * MIB), made))
        for number in range(1, WAITING + 1)
    ]
    for thread in threads:
        thread.start()
    while forms.waiting < WAITING:
        pass
    with pytest.raises(OSError, match="not enough memory"):
        forms.make(key(99), sizes(20 * MIB), made)
    used.clear()
    for thread in threads:
        thread.join()


def test_a_guess_that_is_too_low() -> None:
    """gzip's streams do not say what they decompress to."""
    forms = PlainForms(64 * MIB)
    tried: list[int] = []

    def decode(limit: int) -> Form:
        tried.append(limit)
        if limit < 25 * MIB:
            raise TooLarge("too large")
        return made(25 * MIB)

    forms.make(key(1), (10 * MIB, 100 * MIB), decode)
    forms.make(key(2), (1, 100 * MIB), decode)
    assert tried == [10 * MIB, 100 * MIB, AT_ONCE, 100 * MIB]
    assert forms.held_bytes == 50 * MIB
    with pytest.raises(TooLarge):
        forms.make(key(3), (10 * MIB, 20 * MIB), decode)


def test_the_owners_thread_takes_what_is_there() -> None:
    forms = PlainForms()
    with pytest.raises(BlockingIOError):
        at_once(forms.make, key(1), sizes(AT_ONCE + 1), made)
    one = forms.make(key(1), sizes(AT_ONCE + 1), made)
    assert at_once(forms.make, key(1), sizes(AT_ONCE + 1), unwanted) is one
    assert at_once(forms.make, key(2), sizes(AT_ONCE), lambda _: made(10))[1] == 100


def test_what_is_over_the_budget_goes_when_nobody_takes_it() -> None:
    forms = PlainForms(10 * MIB)
    forms.keep(key(0), made(100))
    forms.make(key(1), sizes(20 * MIB), made)
    forms.age()
    assert forms.get(key(1))
    forms.age()
    assert forms.held_bytes == 20 * MIB + 100
    forms.age()
    assert forms.held_bytes == 100


def test_lookups_are_counted() -> None:
    forms = PlainForms()
    forms.make(key(1), sizes(20 * MIB), made)
    forms.make(key(1), sizes(20 * MIB), unwanted)
    forms.get(key(2))
    assert (forms.hits, forms.misses) == (1, 2)
    forms.drop(key(1))
    forms.drop(key(2))
    assert forms.held_bytes == 0


def test_a_failure_gives_its_room_back() -> None:
    forms = PlainForms(10 * MIB, patience_s=0)
    for _ in range(3):
        with pytest.raises(MemoryError):
            forms.make(key(1), sizes(20 * MIB), fail)
    assert forms.held_bytes == 0


def fail(_: int) -> Form:
    raise MemoryError
