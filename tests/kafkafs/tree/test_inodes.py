"""Inode numbers, and the table of what the kernel knows."""

from __future__ import annotations

import errno

import pytest

from kafkafs.tree.inodes import (
    PASSING,
    ROOT_INODE,
    Directory,
    InodeTable,
    Node,
    inode_number,
)
from storage.waiting import at_once


class CountedNode(Node):
    """Counts how often it was remembered and forgotten."""

    def __init__(self, inode: int) -> None:
        super().__init__(inode)
        self.told: list[str] = []

    def remembered(self) -> None:
        self.told.append("remembered")

    def forgotten(self) -> None:
        self.told.append("forgotten")


class PassingNode(CountedNode):
    """As a file that any name may make."""

    is_passing = True
    handles = 0

    @property
    def is_open(self) -> bool:
        return self.handles > 0


def test_numbers_are_hashes_of_what_a_node_is() -> None:
    assert inode_number("a", 1) == inode_number("a", "1")
    numbers = {inode_number(*parts) for parts in (("a", 1), ("a", 2), ("a", "1", ""), ("a1",))}
    assert len(numbers) == 4
    assert all(ROOT_INODE < number < 1 << 64 for number in numbers)


def test_a_replaced_node_gives_its_number_and_its_lookups_to_the_next() -> None:
    """The kernel may forget the lookups of both at once, or those of the old one only."""

    class Replaced(CountedNode):
        is_replaced = False

    table = InodeTable()
    old, new = Replaced(5), CountedNode(5)
    for _ in range(3):
        table.remember(old)
    old.is_replaced = True
    assert table.find(5) is None
    with pytest.raises(OSError, match="its topic was deleted and restored"):
        table.get(5)
    assert table.remember(new) is new
    assert old.told == ["remembered", "forgotten"]
    table.forget(5, 3)
    assert table.get(5) is new
    table.forget(5, 1)
    assert table.find(5) is None
    assert new.told == ["remembered", "forgotten"]


def test_a_node_is_there_while_the_kernel_knows_it() -> None:
    table = InodeTable()
    node = CountedNode(5)
    assert table.remember(node) is node
    assert table.remember(CountedNode(5)) is node, "one node for a number"
    assert table.get(5) is node
    table.forget(5, 1)
    assert table.find(5) is node
    assert node.told == ["remembered"]
    table.forget(5, 1)
    assert node.told == ["remembered", "forgotten"]
    assert table.find(5) is None
    with pytest.raises(OSError, match="not given") as caught:
        table.get(5)
    assert caught.value.errno == errno.ESTALE
    table.forget(5, 1)


def test_of_passing_nodes_the_last_are_kept_and_the_open_ones() -> None:
    table = InodeTable()
    stays = CountedNode(2)
    table.remember(stays)
    first, opened = PassingNode(10), PassingNode(11)
    table.remember(first)
    table.remember(opened).lookups += 1
    opened.handles = 1
    for inode in range(100, 100 + PASSING):
        table.remember(PassingNode(inode))
    assert table.find(10) is None
    assert first.told == ["remembered", "forgotten"]
    assert table.find(11) is opened
    assert table.find(2) is stays
    assert len(table.nodes) == PASSING + 2
    # The kernel forgets what the table has dropped, and an earlier node of this number.
    table.forget(10, 1)
    assert table.remember(first) is first
    table.forget(10, 2)
    assert table.find(10) is None
    table.forget(11, 2)
    assert table.find(11) is opened, "it is open"
    opened.handles = 0
    table.closed(opened)
    assert table.find(11) is opened
    for inode in range(100, 100 + PASSING):
        table.remember(PassingNode(inode))
    assert table.find(11) is None
    assert len(table.nodes) == PASSING + 1
    table.closed(opened)
    assert len(table.nodes) == PASSING + 1


def test_a_passing_node_that_is_looked_up_again_stays() -> None:
    table = InodeTable()
    node = PassingNode(10)
    for inode in range(100, 100 + 3 * PASSING):
        table.remember(PassingNode(inode))
        table.remember(node)
    assert node.told == ["remembered"]


def test_the_root_is_never_forgotten() -> None:
    table = InodeTable()
    table.remember(Directory(ROOT_INODE))
    table.forget(ROOT_INODE, 1)
    assert table.find(ROOT_INODE) is not None


def test_what_a_node_does_not_say_is_refused() -> None:
    node, directory = Node(5), Directory(6)
    with pytest.raises(IsADirectoryError):
        at_once(directory.open, 0)
    with pytest.raises(OSError, match="no such attribute"):
        at_once(node.xattr, "user.x")
    assert list(node.xattr_names()) == []
