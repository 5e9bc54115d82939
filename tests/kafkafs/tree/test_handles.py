"""The table of open files."""

from __future__ import annotations

import errno

import pytest

from kafkafs.tree.handles import Handle, HandleTable


def test_numbers_are_not_used_again() -> None:
    table = HandleTable()
    first, second = Handle(), Handle()
    numbers = [table.add(first), table.add(second)]
    assert [table.get(number) for number in numbers] == [first, second]
    assert table.remove(numbers[0]) is first
    assert table.add(first) not in numbers
    for call in (table.get, table.remove):
        with pytest.raises(OSError, match="no such handle") as caught:
            call(numbers[0])
        assert caught.value.errno == errno.EBADF


def test_what_a_handle_does_not_do_is_refused() -> None:
    handle = Handle()
    for call in (lambda: handle.read(0, 1), lambda: handle.write(0, b"x")):
        with pytest.raises(OSError, match="not open for") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    handle.flush()
    handle.release()
    assert handle.sync_plan() is None
