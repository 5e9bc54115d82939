"""How long one request keeps the loop thread busy: everybody else waits meanwhile.

What is measured is the processor time of the thread for the largest input that is allowed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

import pytest

from kafkafs.tree.control.control_file import MOST_LINES
from kafkafs.tree.groups.claims import MOST_CONSUMERS
from kafkafs.tree.handles import Handle, NotExamined, Opener
from storage.errors import StorageError
from storage.log.pace import OutOfTurn
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree
from tests.storage.logs import write_settings

LARGEST_WRITE = (1 << 20) - 4096
MOST_S = 0.05
RUNS = 5


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """With a topic of one partition, one of many, and a group that has consumers."""
    data = tmp_path_factory.mktemp("data")
    write_settings(data, offsets_topic_num_partitions=1)
    with a_tree(data) as tree:
        tree.manager.create_topic("t")
        tree.manager.create_topic("wide", 200)
        for name in ("g", "crowd"):
            tree.directory(".groups").mkdir(name, 0o700, CALLER)
        write(opened(tree, ".groups/g/t/0"), b"0\n")
        yield tree


def opened(tree: Tree, path: str, flags: int = APPEND) -> Handle:
    handle = tree.open(path, flags)
    handle.opened_by(Opener(0, 0, (), 0))
    return handle


def write(handle: Handle, data: bytes) -> None:
    """A write that the loop thread carries out or refuses."""
    with contextlib.suppress(OSError, StorageError, NotExamined, OutOfTurn):
        handle.write(0, data)


def busy_s(request: Callable[[], object]) -> float:
    """The least of several times, as caches may be cold at first."""

    def once() -> float:
        started = time.thread_time()
        request()
        return time.thread_time() - started

    return min(once() for _ in range(RUNS))


def whole(line: bytes) -> bytes:
    """As many of these lines as one write has at most."""
    return line * (LARGEST_WRITE // len(line))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("t/0", whole(b"\n")),
        ("t/0", whole(b"x\n")),
        ("t/.kv/0", whole(b"k\tv\n")),
        ("t/.kv/0", whole(b"\\t\\n\t\\\\\n")),
        ("t/.jsonl/0", whole(b'{"value":"x"}\n')),
        ("t/.jsonl/0", whole(b'{"headers":[["a","b"]]}\n')),
        ("t/.jsonl/0", b'{"value":"' + b"x" * (LARGEST_WRITE - 20) + b'"}\n'),
        ("wide/.append", whole(b"xyz\n")),
        ("wide/.kv/append", whole(b"k\tv\n")),
        ("wide/.jsonl/append", whole(b'{"key":"x"}\n')),
        (".groups/g/t/0", whole(b"1\n")),
        (".groups/g/t/0", b"0\n" * MOST_LINES),
        (".groups/g/t/0", b"2001-01-01T08:00\n" * MOST_LINES),
        (".groups/g/wide/.all", b"earliest\n" * MOST_LINES),
        (".groups/g/.claims", whole(b"x\n")),
        (".groups/g/.claims", b"".join(b"claim no-%d\n" % n for n in range(MOST_LINES))),
        (".groups/g/.claims", b"".join(b"claim wide %d\n" % n for n in range(MOST_LINES))),
        (".groups/g/.claims", b"claim wide\n" * MOST_LINES),
        (".groups/g/.claims", b"claim t\n" + b"commit t 0 0\n" * (MOST_LINES - 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:16]),
)
def test_writes(tree: Tree, path: str, data: bytes) -> None:
    flags = os.O_RDWR if path.endswith(".claims") else APPEND
    assert busy_s(lambda: write(opened(tree, path, flags), data)) < MOST_S


@pytest.mark.parametrize(
    "path",
    [
        *(".groups/.lag", ".groups/g/.lag", ".groups/g/.claims", ".kafkafs/topics"),
        *(".kafkafs/metrics", ".kafkafs/config", ".kafkafs/help", "t/.config"),
    ],
)
def test_texts(tree: Tree, path: str) -> None:
    assert busy_s(lambda: tree.open(path, os.O_RDONLY).read(0, 1 << 20)) < MOST_S


@pytest.mark.parametrize(
    "name", [f"t/0@{'9' * 250}", f"t/0@{'1..' * 80}", f"t/0@-{'9' * 240}d", "t/" + "x" * 255]
)
def test_names(tree: Tree, name: str) -> None:
    def look_up() -> None:
        with contextlib.suppress(OSError):
            tree.node(name)

    assert busy_s(look_up) < MOST_S


def test_a_group_with_as_many_consumers_as_there_may_be(tree: Tree) -> None:
    """One joins, one returns what it has, some end, the clock looks."""
    claims = tree.fs.claims
    crowd = [opened(tree, ".groups/crowd/.claims", os.O_RDWR) for _ in range(MOST_CONSUMERS)]
    for each in crowd[:-RUNS]:
        write(each, b"claim wide\n")
    joining = iter(crowd[-RUNS:])
    assert busy_s(lambda: write(next(joining), b"claim wide\n")) < MOST_S
    assert busy_s(lambda: write(crowd[0], b"return wide 0\n")) < MOST_S
    assert busy_s(claims.look) < MOST_S
    ending = iter(crowd)
    assert busy_s(lambda: next(ending).release()) < MOST_S
    for each in ending:
        each.release()
    started = time.thread_time()
    claims.look_if_due()
    assert time.thread_time() - started < MOST_S
