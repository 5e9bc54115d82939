"""The table of open files, and handles that refuse."""

from __future__ import annotations

import errno

import pytest

from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Node
from kafkafs.tree.open_files import OpenTable
from kafkafs.tree.unfinished import OpenTexts


def test_numbers_are_not_used_again() -> None:
    table = OpenTable(OpenTexts(0))
    nodes, handles = [Node(5), Node(6)], [Handle(), Handle()]
    numbers = [table.add(*each, 0) for each in zip(nodes, handles, strict=True)]
    assert [table.get(number) for number in numbers] == handles
    assert [table.node(number) for number in numbers] == nodes
    assert table.remove(numbers[0]) is handles[0]
    assert table.add(nodes[0], handles[0], 0) not in numbers
    assert table.node(numbers[0]) is None
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
    assert not handle.sync_plans()
