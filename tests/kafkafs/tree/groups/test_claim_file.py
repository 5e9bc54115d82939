"""`.claims`: what an open one does to the group."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from kafkafs.tree.errnos import errno_of
from kafkafs.tree.files.control_file import MOST_LINES
from kafkafs.tree.groups.claim_file import ClaimHandle
from kafkafs.tree.groups.claims import MOST_CONSUMERS, MOST_NAMES
from storage.errors import InvalidConfig
from storage.task import Task
from tests.kafkafs.trees import CALLER, Tree, a_tree, write
from tests.storage.groups.records import positions
from tests.storage.logs import write_settings

RETENTION_NS = 10 * 60_000_000_000


def opened_claims(tree: Tree) -> ClaimHandle:
    handle = tree.open(".groups/g/.claims", os.O_RDWR)
    assert isinstance(handle, ClaimHandle)
    return handle


def consumer(tree: Tree) -> ClaimHandle:
    """One that wants all of topic `t` for group `g`."""
    handle = opened_claims(tree)
    write(handle, 0, b"claim t\n")
    return handle


def says(tree: Tree, handle: ClaimHandle, lines: Iterable[str]) -> str:
    """Why a write of these lines is EINVAL."""
    with pytest.raises((OSError, InvalidConfig), match="at most") as caught:
        write(handle, 0, "".join(f"{line}\n" for line in lines).encode())
    assert errno_of(caught.value) == errno.EINVAL
    return str(caught.value)


def shown(handle: ClaimHandle) -> list[str]:
    """The topic, partition and state of each partition of a consumer's share."""
    lines = bytes(handle.read(0, 1 << 20)).decode().splitlines()
    return [line.rpartition(" ")[0] for line in lines]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """With a group `g` and a topic `t` of two partitions."""
    data = tmp_path / "data"
    data.mkdir()
    write_settings(data, offsets_topic_num_partitions=1)
    with a_tree(data) as tree:
        tree.manager.create_topic("t", 2)
        tree.directory(".groups").mkdir("g", 0o700, CALLER)
        yield tree


def test_a_consumer_wants_so_many_names_and_a_write_has_so_many_lines(tree: Tree) -> None:
    one = opened_claims(tree)
    names = [f"claim later-{number}" for number in range(MOST_NAMES)]
    assert f"{MOST_LINES} lines" in says(tree, one, [*names, "claim t"])
    assert shown(one) == [], "a refused write changes nothing"
    write(one, 0, "".join(f"{line}\n" for line in names[1:]).encode())
    write(one, 0, b"claim t\nclaim t 1\n")
    assert shown(one) == ["t 0 held", "t 1 held"]
    assert f"{MOST_NAMES} topics" in says(tree, one, ["claim t", "claim later"])
    tree.manager.create_topic("later-5")
    tree.fs.claims.look()
    assert shown(one) == ["later-5 0 held", "t 0 held", "t 1 held"]


def test_a_group_has_so_many_consumers(tree: Tree) -> None:
    consumers = [consumer(tree) for _ in range(MOST_CONSUMERS)]
    one_more = opened_claims(tree)
    assert f"{MOST_CONSUMERS} consumers" in says(tree, one_more, ["claim t"])
    consumers[-1].release()
    write(one_more, 0, b"claim t\n")


def test_what_closed_ones_held_is_granted_at_the_end_of_the_turn(tree: Tree) -> None:
    """Or as soon as somebody asks."""
    ends: list[None] = []
    tree.fs.claims.on_due = lambda: ends.append(None)
    one, *others = [consumer(tree) for _ in range(3)]
    write(one, 0, b"return t 0\n" * 10 + b"return t 1\n")
    assert len(shown(one)) == 1
    for each in others:
        each.release()
    assert len(ends) == len(others)
    assert not one.poll(None) & select.POLLPRI
    tree.fs.claims.look_if_due()
    assert one.poll(None) & select.POLLPRI
    assert shown(one) == ["t 0 held", "t 1 held"]
    two = consumer(tree)
    assert len(shown(two)) == 1
    two.release()
    assert shown(one) == ["t 0 held", "t 1 held"]


def test_a_deleted_topic_is_no_longer_granted_as_soon_as_its_consumer_asks(tree: Tree) -> None:
    """So a consumer knows why its commit is refused."""
    one = opened_claims(tree)
    write(one, 0, b"claim t\nclaim u\n")
    tree.manager.create_topic("u")
    assert shown(one) == ["t 0 held", "t 1 held", "u 0 held"]
    tree.manager.delete_topic("t")
    with pytest.raises(PermissionError):
        write(one, 0, b"commit t 0 0\n")
    assert one.poll(None) & select.POLLPRI
    assert shown(one) == ["u 0 held"]
    tree.manager.create_topic("t")
    assert shown(one) == ["t 0 held", "u 0 held"]
    write(one, 0, b"commit t 0 0\n")


def test_positions_do_not_expire_under_a_consumer(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    write_settings(data, offsets_topic_num_partitions=1, offsets_retention_minutes=10)
    with a_tree(data) as tree:
        groups = tree.manager.groups
        tree.mkdir("t")
        tree.directory(".groups").mkdir("g", 0o700, CALLER)
        one = consumer(tree)
        write(one, 8, b"commit t 0 0\n")
        tree.clock.now_ns += 5 * RETENTION_NS
        two = consumer(tree)
        one.release()
        tree.clock.now_ns += RETENTION_NS
        assert groups.sweep(Task()) == 0
        two.release()
        tree.clock.now_ns += RETENTION_NS - 1_000_000
        assert groups.sweep(Task()) == 0
        assert positions(tree.manager, "g") == {("t", 0): 0}
        tree.clock.now_ns += 1_000_000
        assert groups.sweep(Task()) == 1
        assert positions(tree.manager, "g") == {}
