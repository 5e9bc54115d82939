"""How long one request keeps the loop thread busy: everybody else waits meanwhile.

The tests count the steps of Python that the thread takes for the largest input that is allowed:
lines, calls and returns. A million of them takes about 50 ms, and their number is the same on a
busy machine. The work of compiled code on the bytes of a request isn't counted. A log may have any
number of segments, and a directory any number of partitions. Here there are 500 of each, so that
the tests stay cheap: such a request may take a twentieth of the steps that it may take for 10,000.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pyfuse3
import pytest
import trio

from kafkafs.fuse.operations import Operations
from kafkafs.fuse.session_loop import Spinner
from kafkafs.tree.files.control_file import MOST_LINES
from kafkafs.tree.groups.claims import MOST_CONSUMERS
from kafkafs.tree.handles import Handle, NotExamined
from kafkafs.tree.inodes import Directory
from kafkafs.tree.jobs import Job
from kafkafs.tree.owner.adopt_file import MOST_REQUESTS
from storage.errors import StorageError
from storage.log.append_queue import MustQueue
from storage.record.plain import recompress
from storage.waiting import at_once
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, in_thread
from tests.kafkafs.trees import write as write_all
from tests.storage.logs import NOW_MS, Unsynced, append, batch, write_settings

LARGEST_WRITE = (1 << 20) - 4096
MOST_STEPS = 1_000_000
MANY = 500
MOST_STEPS_OF_MANY = MOST_STEPS * MANY // 10_000


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """With a topic of one partition, topics of many, a log of many segments, and a group that has
    consumers.
    """
    data = tmp_path_factory.mktemp("data")
    write_settings(data, offsets_topic_num_partitions=1, num_partitions=100)
    with a_tree(data, files=Unsynced()) as tree:
        tree.fs.mount.jobs.runner = lambda job: run_job(tree, job)
        tree.manager.create_topic("t", 1)
        tree.manager.create_topic("wide", 200)
        tree.manager.create_topic("wider", MANY)
        tree.manager.create_topic("long", 1)
        for _ in range(MANY):
            append(tree.log("long"), b"x")
            tree.log("long").roll(NOW_MS)
        for name in ("g", "crowd"):
            tree.directory(".groups").mkdir(name, 0o700, CALLER)
        write(tree.open(".groups/g/t/0", APPEND), b"0\n")
        yield tree


def run_job(tree: Tree, job: Job) -> None:
    """Do the work in a worker thread, as the daemon does."""
    tree.fs.mount.jobs.started(job)
    in_thread(job.carry_out)
    tree.fs.mount.jobs.ended(job)


def write(handle: Handle, data: bytes) -> None:
    """A write that the loop thread carries out or refuses."""
    with contextlib.suppress(OSError, StorageError, NotExamined, MustQueue):
        handle.write(0, data)


@contextlib.contextmanager
def counted() -> Iterator[list[int]]:
    """Count the steps of this thread. The list holds the number."""
    steps = [0]

    def step(frame: FrameType, event: str, arg: object) -> Any:
        steps[0] += 1
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        yield steps
    finally:
        sys.settrace(before)


def steps_of(request: Callable[[], object]) -> int:
    with counted() as steps:
        request()
    return steps[0]


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
    assert steps_of(lambda: write(tree.open(path, flags), data)) < MOST_STEPS


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("wider/.control/compaction", b"run\n" * MOST_LINES),
        ("wider/.control/flush", b"run\n" * MOST_LINES),
        ("wider/.control/retention", b"dry-run\n" * MOST_LINES),
        ("wider/.control/roll", b"".join(b"%d\n" % (n % MANY) for n in range(MOST_LINES))),
        ("wider/.control/verify", b"run\n" * MOST_LINES),
        ("wider/.control/verify", b"run\n" * (MOST_LINES - 1) + b"x" * 60_000 + b"\n"),
        ("wider/.control/delete-records", b"".join(b"%d -1\n" % n for n in range(MANY))),
        ("wider/.control/delete-records", b"\n" * (MOST_LINES - 1) + b"0 " + b"9" * 60_000 + b"\n"),
        ("wider/.control/abort-transaction", b"".join(b"%d 1\n" % n for n in range(MANY))),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:16]),
)
def test_commands(tree: Tree, path: str, data: bytes) -> None:
    """A quarter: the part that grows with the partitions has room for 10,000."""
    assert steps_of(lambda: write(tree.open(path, APPEND), data)) < MOST_STEPS // 4


@pytest.mark.parametrize(
    "path",
    [
        *(".groups/.lag", ".groups/g/.lag", ".groups/g/.claims", ".kafkafs/topics"),
        *(".kafkafs/metrics", ".kafkafs/config", ".kafkafs/help", "t/.config"),
    ],
)
def test_texts(tree: Tree, path: str) -> None:
    assert steps_of(lambda: tree.open(path, os.O_RDONLY).read(0, 1 << 20)) < MOST_STEPS


@pytest.mark.parametrize(
    "name", [f"t/0@{'9' * 250}", f"t/0@{'1..' * 80}", f"t/0@-{'9' * 240}d", "t/" + "x" * 255]
)
def test_names(tree: Tree, name: str) -> None:
    def look_up() -> None:
        with contextlib.suppress(OSError):
            tree.node(name)

    assert steps_of(look_up) < MOST_STEPS


@pytest.mark.parametrize(
    ("values", "codec"),
    [([b"x" * 1000], 0), ([b"x" * 1_000_000], 0), ([b""] * 100_000, 4)],
    ids=["small", "large", "zstd"],
)
def test_batches(tree: Tree, values: list[bytes], codec: int) -> None:
    stored = bytes(recompress(batch(values), codec))
    data = whole(stored)
    assert steps_of(lambda: write_all(tree.open("t/.batches/0", APPEND), 0, data)) < MOST_STEPS


REQUEST = b'{"positions":{"group":"g","positions":{"t":{"0":0}}}}\n'


@pytest.mark.parametrize(
    "data",
    [REQUEST * MOST_REQUESTS, whole(b"{}\n"), whole(b"x"), b" " * 60_000 + REQUEST],
    ids=lambda data: repr(data[:8]),
)
def test_requests_to_the_owner(tree: Tree, data: bytes) -> None:
    def ask() -> None:
        with contextlib.suppress(OSError, StorageError):
            write_all(tree.open(".kafkafs/adopt", APPEND), 0, data)

    assert steps_of(ask) < MOST_STEPS
    assert steps_of(lambda: tree.open(".kafkafs/adopt", os.O_RDONLY).read(0, 1 << 20)) < MOST_STEPS


@pytest.mark.parametrize(
    "path",
    [
        *(f"t/.meta/0/{name}" for name in ("segments", "index", "timeindex", "txnindex")),
        *("t/.meta/0/producers", "t/.control/abort-transaction", "t/.raw/0"),
    ],
)
def test_a_worker_thread_makes_what_may_be_of_any_length(tree: Tree, path: str) -> None:
    node = tree.node(path)
    looks: list[Callable[[], object]] = [node.attributes, lambda: node.open(os.O_RDONLY)]
    for look in [node.names] if isinstance(node, Directory) else looks:
        with pytest.raises(BlockingIOError):
            at_once(look)


# -- requests as the kernel makes them -----------------------------------------------------------

CONTEXT: Any = SimpleNamespace(uid=0, gid=0, pid=os.getpid(), umask=0)
ASKED: Any = SimpleNamespace(
    **dict.fromkeys(
        ("update_uid", "update_gid", "update_size", "update_atime", "update_mtime"), False
    ),
    update_mode=True,
)
SERIAL = itertools.count()
Request = Callable[[Operations, Tree], Awaitable[object]]


def steps_of_handler(tree: Tree, request: Request) -> int:
    """Count the second time, as caches may be cold at first."""

    async def serve() -> int:
        operations = Operations(tree.fs, Spinner(), lambda: None)
        await request(operations, tree)
        with counted() as steps:
            await request(operations, tree)
        return steps[0]

    return trio.run(serve)


async def chmod(operations: Operations, tree: Tree) -> None:
    inode = tree.node("wider").inode
    mode: Any = SimpleNamespace(st_mode=0o40755)
    await operations.setattr(inode, mode, ASKED, None, CONTEXT)


async def mkdir_and_rmdir(operations: Operations, tree: Tree) -> None:
    name = b"topic-%d" % next(SERIAL)
    await operations.mkdir(1, name, 0o755, CONTEXT)
    await operations.rmdir(1, name, CONTEXT)


async def touch(operations: Operations, tree: Tree) -> None:
    name = b"%d" % len(tree.manager.topics["wider"].partitions)
    made, _ = await operations.create(wider(tree), name, 0o644, os.O_WRONLY, CONTEXT)
    await operations.release(made.fh)


def wider(tree: Tree) -> int:
    return tree.node("wider").inode


def reading(path: str) -> Request:
    """stat, open, read from the beginning, poll, and close."""

    async def request(operations: Operations, tree: Tree) -> None:
        directory, _, name = path.rpartition("/")
        parent = tree.node(directory).inode
        entry = await operations.lookup(parent, os.fsencode(name), CONTEXT)
        await operations.getattr(entry.st_ino, CONTEXT)
        found = await operations.open(entry.st_ino, os.O_RDONLY, CONTEXT)
        await operations.read(found.fh, 0, 1 << 20)
        await operations.poll(entry.st_ino, found.fh, None, CONTEXT)
        await operations.release(found.fh)

    request.__name__ = f"reading {path}"
    return request


def facts(path: str) -> Request:
    """listxattr, and getxattr of each name."""

    async def request(operations: Operations, tree: Tree) -> None:
        inode = tree.node(path).inode
        for name in await operations.listxattr(inode, CONTEXT):
            await operations.getxattr(inode, name, CONTEXT)

    request.__name__ = f"facts of {path}"
    return request


@pytest.mark.parametrize(
    "handler",
    [
        *(chmod, mkdir_and_rmdir, touch),
        *(
            reading(f"long/{name}")
            for name in ("0", ".kv/0", ".jsonl/0", ".follow/0", ".batches/0")
        ),
        *(reading(f"long/0@{name}") for name in ("0", "100..400", "-300", "group=g", "2001-01-01")),
        *(
            reading(f"long/.meta/0/{name}")
            for name in ("segments", "index", "offsets", "producers")
        ),
        *(reading(f"long/{name}") for name in (".snapshot/0", ".config", ".control/retention")),
        *(reading(f"wider/.control/{name}") for name in ("verify", "abort-transaction", "flush")),
        *(reading(name) for name in (".kafkafs/topics", ".kafkafs/metrics", ".groups/g/wider/7")),
        *(facts("long/0"), facts("long/.follow/0")),
    ],
    ids=lambda handler: handler.__name__,
)
def test_handlers(tree: Tree, handler: Request) -> None:
    assert steps_of_handler(tree, handler) < MOST_STEPS_OF_MANY


@pytest.mark.parametrize(
    "path", ["wider", "wider/.meta", "long/.raw/0", ".groups", ".groups/g/wider"]
)
def test_readdir(tree: Tree, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names, and a page of entries, for which there is room enough."""
    replied: list[bytes] = []

    def reply(token: Any, name: bytes, entry: Any, number: int) -> bool:
        replied.append(name)
        return True

    monkeypatch.setattr(pyfuse3, "readdir_reply", reply)
    for number in range(MANY if path == ".groups" else 0):
        tree.manager.groups.make(f"group-{number}")

    async def request(operations: Operations, tree: Tree) -> None:
        number = await operations.opendir(tree.node(path).inode, CONTEXT)
        await operations.readdir(number, 0, None)  # type: ignore[arg-type]
        await operations.releasedir(number)

    assert steps_of_handler(tree, request) < MOST_STEPS
    assert replied or path == ".groups/g/wider"


def test_a_group_with_as_many_consumers_as_there_may_be(tree: Tree) -> None:
    """One joins, one returns what it has, some end, the clock looks."""
    claims = tree.fs.claims
    crowd = [tree.open(".groups/crowd/.claims", os.O_RDWR) for _ in range(MOST_CONSUMERS)]
    for each in crowd[:-1]:
        write(each, b"claim wide\n")
    assert steps_of(lambda: write(crowd[-1], b"claim wide\n")) < MOST_STEPS
    assert steps_of(lambda: write(crowd[0], b"return wide 0\n")) < MOST_STEPS
    assert steps_of(claims.look) < MOST_STEPS
    assert steps_of(crowd[0].release) < MOST_STEPS
    for each in crowd[1:]:
        each.release()
    assert steps_of(claims.look_if_due) < MOST_STEPS
