"""The memory that users can make the daemon hold is bounded, whatever they append and read."""

from __future__ import annotations

import errno
import functools
import mmap
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.control.verify import VERIFY
from kafkafs.tree.handles import Handle, Opener
from kafkafs.tree.jobs import JobResult
from storage import Record, encode
from storage.errors import InvalidConfig, InvalidRecord, RecordTooLarge
from storage.plain_forms import plain_forms
from storage.record.plain import recompress
from storage.task import Task
from tests.kafkafs.trees import APPEND, Tree, a_tree, read, write

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
ZSTD = 4


class Bytes:
    """The bytes that Python has allocated since, and not freed: in the end, and at most."""

    held = 0
    peak = 0


@contextmanager
def counted() -> Iterator[Bytes]:
    found = Bytes()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        yield found
        held, peak = tracemalloc.get_traced_memory()
        found.held, found.peak = held - before, peak - before
    finally:
        tracemalloc.stop()


def bomb(size: int, first: int = 0, records: int = 64) -> bytes:
    """A few kilobytes of zstd that are records of `size` bytes together."""
    value = b"%016d" % first + bytes(size // records - 16)
    batch = encode([Record(first + n, 1_700_000_000_000, 0, b"", value) for n in range(records)])
    made = recompress(batch, ZSTD)
    assert len(made) < 64 << 10
    return made


def test_readers_of_one_large_batch_share_its_plain_form(tree: Tree) -> None:
    """Twelve handles that read in the middle of one batch hold it once."""
    tree.append("t/.batches/0", bomb(24 * MIB))
    handles = [tree.open("t/0") for _ in range(12)]
    with counted() as found:
        for number, handle in enumerate(handles):
            assert len(read(handle, (number + 1) * MIB, 4096)) == 4096
    assert found.held < 2 * 24 * MIB


def test_readers_of_many_large_batches_hold_no_more_than_the_budget(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batches are over the budget together: each is there once, whoever reads."""
    monkeypatch.setattr(plain_forms, "budget", 16 * MIB)
    for number in range(4):
        tree.append("t/.batches/0", bomb(12 * MIB, 64 * number))
    handles = [tree.open("t/0") for _ in range(8)]
    with counted() as found:
        for number, handle in enumerate(handles):
            read(handle, number % 4 * 12 * MIB + number * MIB, 4096)
    assert found.held < (16 + 12) * MIB


def test_walking_over_large_batches_needs_room_for_one(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measuring and looking up a record free one batch before they read the next."""
    monkeypatch.setattr(plain_forms, "budget", MIB)
    monkeypatch.setattr(plain_forms, "patience_s", 0)
    for number in range(3):
        tree.append("t/.batches/0", bomb(5 * MIB, 64 * number))
    text = tree.attributes(tree.file()).size
    for name in ("0@150", "0@-70", "0@1", "0@64", "0@start..140", "0@2023-11-14T22:13:20Z"):
        assert 0 < tree.attributes(tree.file(f"t/{name}")).size <= text
    assert len(tree.read("t/0", 0, text + 1)) == text
    assert len(tree.read("t/.jsonl/0@100")) == MIB


def test_an_append_waits_until_there_is_room_to_check_it(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking batches takes as much memory as reading them."""
    monkeypatch.setattr(plain_forms, "budget", MIB)
    monkeypatch.setattr(plain_forms, "patience_s", 0)
    batch = bomb(5 * MIB)

    def append(size: int) -> None:
        with pytest.raises(OSError, match="not enough memory") as raised:
            tree.append("t/.batches/0", batch)
        assert raised.value.errno == errno.ENOMEM

    plain_forms.with_room((5 * MIB, 5 * MIB), append)
    assert "t/0: append refused: not enough memory for a batch" in tree.events()
    tree.append("t/.batches/0", batch)
    assert tree.log().log_end_offset == 64


@functools.cache
def tiny_records(*, rises: bool) -> bytes:
    """A batch of 100,000 records of a few bytes each, in less than 1 KB."""
    records = [Record(n * rises, 1_700_000_000_000, 0, None, b"") for n in range(100_000)]
    return recompress(encode(records), ZSTD)


@pytest.mark.parametrize("rises", [True, False])
def test_checking_many_records_takes_little_memory(tree: Tree, rises: bool) -> None:
    batch = tiny_records(rises=rises)
    with counted() as found:
        try:
            tree.append("t/.batches/0", batch)
        except InvalidRecord:
            assert not rises
    assert found.peak < 3 * MIB


def test_finding_a_record_of_very_many_takes_little_memory(tree: Tree) -> None:
    """A table of all records of a batch would be more than the batch."""
    tree.append("t/.batches/0", tiny_records(rises=True))
    with counted() as found:
        assert tree.attributes(tree.file("t/0@70000")).size == 30_000
    assert found.peak < 3 * MIB


# -- what is unfinished --------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Tree]:
    """A tree whose users may each leave 1 MiB unfinished."""
    with a_tree(tmp_path / "data", options=MountOptions(memory=MIB)) as tree:
        tree.mkdir("t")
        yield tree


def opened(tree: Tree, uid: int, path: str = "t/0") -> Handle:
    return tree.open(path, APPEND, Opener(uid, uid, (), 0))


def allocated(size: int) -> int:
    """The bytes of memory that one write of this size takes: whole pages."""
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def refused(handle: Handle, data: bytes) -> None:
    with pytest.raises(OSError, match="unfinished lines of") as raised:
        write(handle, 0, data)
    assert raised.value.errno == errno.ENOMEM


@pytest.mark.parametrize("path", ["t/0", "t/.kv/0", "t/.jsonl/0", "t/.append", "t/.jsonl/append"])
def test_unfinished_lines_count_for_their_user(small: Tree, path: str) -> None:
    """Ten handles with 300 KB each of one user: three are taken, and another user's are."""
    line = b"x" * 300_000
    handles = [opened(small, 1000, path) for _ in range(10)]
    for handle in handles[:3]:
        write(handle, 0, line)
    for handle in handles[3:]:
        refused(handle, line)
    size = allocated(300_000)
    assert small.fs.mount.unfinished.total == 3 * size
    name = path.removeprefix("t/") if "append" in path else "0"
    assert f"t/{name}: append refused: unfinished lines of user 1000 would take" in small.events()
    other = opened(small, 1001, path)
    write(other, 0, line)
    assert small.fs.mount.unfinished.total == 4 * size


def test_unfinished_lines_of_all_users_have_a_bound(small: Tree) -> None:
    for uid in range(4):
        write(opened(small, uid), 0, bytes(1_000_000))
    refused(opened(small, 4), bytes(1_000_000))
    assert "unfinished lines of all users would take " in small.events()


def test_a_refused_line_is_dropped_and_the_next_is_a_record(small: Tree) -> None:
    """The beginning of the line frees its room, and no part of it becomes a record."""
    held, handle = opened(small, 1000), opened(small, 1000)
    write(held, 0, b"a" * 600_000)
    write(handle, 0, b"b" * 300_000)
    refused(handle, b"b" * 300_000)
    assert small.fs.mount.unfinished.total == allocated(600_000)
    write(handle, 0, b"the rest\nnext\n")
    write(held, 0, b"\n")
    handle.release()
    held.release()
    assert small.read("t/0") == b"next\n" + b"a" * 600_000 + b"\n"
    assert small.fs.mount.unfinished.total == 0


def test_whole_lines_need_no_room(small: Tree) -> None:
    """A writer who has used all of it may append whole lines, but not begin one."""
    write(opened(small, 1000), 0, b"a" * (MIB // 2))
    write(opened(small, 1000), 0, b"a" * (MIB // 2))
    handle = opened(small, 1000)
    write(handle, 0, b"whole\n")
    refused(handle, b"another\nbegun")
    assert small.read("t/0") == b"whole\n"


def test_a_closed_file_gives_its_room_back(small: Tree) -> None:
    for _ in range(3):
        handle = opened(small, 1000)
        write(handle, 0, b"a" * 1_000_000)
        handle.release()
        assert small.fs.mount.unfinished.total == 0


def test_parts_of_batches_count(small: Tree) -> None:
    part = encode([Record(0, 1_700_000_000_000, 0, None, bytes(900_000))])[:600_000]
    first, second = opened(small, 1000, "t/.batches/0"), opened(small, 1000, "t/.batches/0")
    write(first, 0, part[:300_000])
    write(first, 0, part[300_000:])
    refused(second, part)
    first.release()
    assert small.fs.mount.unfinished.total == 0
    write(second, 0, part)


def test_lines_for_control_files_count(small: Tree) -> None:
    handles = [opened(small, 1000, "t/.config") for _ in range(17)]
    for handle in handles[:16]:
        write(handle, 0, b"x" * ((1 << 16) - 1))
    refused(handles[16], b"x")
    write(handles[16], 0, b"segment.bytes=2000000\n")
    for handle in handles[:16]:
        with pytest.raises(InvalidConfig):
            handle.release()
    assert small.fs.mount.unfinished.total == 0


def test_requests_to_the_owner_count(small: Tree) -> None:
    handle = opened(small, 0, ".kafkafs/adopt")
    write(handle, 0, b"x" * 1_000_000)
    refused(opened(small, 0, ".kafkafs/adopt"), b"x" * 100_000)
    with pytest.raises(InvalidRecord):
        handle.release()
    assert small.fs.mount.unfinished.total == 0


def test_a_line_may_take_all_of_the_limit(small: Tree) -> None:
    """It then takes no memory ahead."""
    handle = opened(small, 0, ".kafkafs/adopt")
    for size in (MIB // 8, *[MIB // 32] * 28):
        write(handle, 0, bytes(size))
    assert small.fs.mount.unfinished.total == MIB
    refused(handle, b"x")


# Adds bytes to a short and to a long line, without address space for them.
NO_MEMORY = """
import resource
from kafkafs.tree.unfinished import CountedRest, Unfinished

budget = Unfinished(1 << 30)
more = memoryview(bytes(256 << 20))
for size in (60_000, 70_000):
    rest = CountedRest(budget)
    for _ in range(size // 10):
        rest.add(memoryview(b"0123456789"))
    before = len(rest), rest.capacity, budget.total
    with open("/proc/self/statm") as sizes:
        used = int(sizes.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    try:
        rest.add(more)
    except OSError as error:
        print(error.errno, (len(rest), rest.capacity, budget.total) == before)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
    rest.add(memoryview(b"the end"))
    print(rest.joined() == b"0123456789" * (size // 10) + b"the end")
    rest.clear()
    print(budget.total)
"""


@pytest.mark.programs
def test_without_memory_for_more_of_a_line_nothing_changes() -> None:
    program = [sys.executable, "-c", NO_MEMORY]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{errno.ENOMEM} True", "True", "0"] * 2


# -- settings ------------------------------------------------------------------------------------


def test_a_batch_may_not_be_set_to_be_larger_than_the_budget(small: Tree) -> None:
    config = opened(small, 1000, "t/.config")
    with pytest.raises(InvalidConfig, match=r"line 1: max.message.bytes=2147483647 .* -o memory"):
        write(config, 0, b"max.message.bytes=2147483647\n")
    write(config, 0, b"max.message.bytes=1MiB\n")
    assert small.log().config.max_message_bytes == MIB


def test_a_file_that_says_more_takes_no_more_than_the_budget(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with a_tree(data, options=MountOptions(memory=MIB)) as tree:
        tree.mkdir("t")
    with a_tree(data) as tree:
        tree.manager.change_topic_settings("t", {"max.message.bytes": str(60 * MIB)})
    (data / "kafkafs.properties").write_text("message.max.bytes=2147483647\n")
    with a_tree(data, options=MountOptions(memory=2 * MIB)) as tree:
        tree.mkdir("u")
        for topic in ("t", "u"):
            assert tree.log(topic).config.max_message_bytes == 2 * MIB
            with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes=2097152"):
                tree.append(f"{topic}/0", b"x" * (2 * MIB) + b"\n")
            tree.append(f"{topic}/0", b"x" * MIB + b"\n")


# -- long lines ----------------------------------------------------------------------------------


def large_records(count: int, size: int) -> bytes:
    """Records whose lines are some times as long, between small ones."""
    values = [b"small", *(b"\t\x01" * (size // 2) for _ in range(count)), b"small"]
    return encode([Record(n, 0, 0, b"k", value) for n, value in enumerate(values)])


def in_pieces(tree: Tree, path: str, text: bytes, piece: int) -> None:
    """Read a file in order, and see that it is the text."""
    handle, at = tree.open(path), 0
    while got := read(handle, at, piece):
        assert got == text[at : at + len(got)]
        at += len(got)
    assert at == len(text)


@pytest.mark.parametrize("codec", [0, ZSTD])
@pytest.mark.parametrize("view", [".kv", ".jsonl"])
def test_long_lines_are_the_same_in_pieces(tree: Tree, view: str, codec: int) -> None:
    tree.manager.change_topic_settings("t", {"max.message.bytes": str(20 * MIB)})
    made = large_records(2, 6 * MIB)
    tree.append("t/.batches/0", recompress(made, codec) if codec else made)
    path = f"t/{view}/0"
    size = tree.attributes(tree.file(path)).size
    text = tree.read(path, 0, size)
    assert len(text) == size > 18 * MIB
    in_pieces(tree, path, text, MIB)
    handle = tree.open(path)
    for at in (5 * MIB, 100, size - 100, 7 * MIB + 1, 12 * MIB, 5 * MIB):
        assert read(handle, at, 70_000) == text[at : at + 70_000]


def test_a_line_whose_batch_had_to_give_way_goes_on(tree: Tree) -> None:
    tree.append("t/.batches/0", recompress(large_records(2, 4 * MIB), ZSTD))
    path = "t/.jsonl/0"
    text = tree.read(path, 0, tree.attributes(tree.file(path)).size)
    handle = tree.open(path)
    for at in range(0, len(text), 3 * MIB):
        assert read(handle, at, 3 * MIB) == text[at : at + 3 * MIB]
        plain_forms.clear()


def test_readers_of_a_long_line_hold_no_part_of_it(tree: Tree) -> None:
    """A line of JSON may be six times its record: eight handles in its middle hold the record."""
    tree.append("t/.batches/0", recompress(encode([Record(0, 0, 0, b"", bytes(8 * MIB))]), ZSTD))
    handles = [tree.open("t/.jsonl/0") for _ in range(8)]
    with counted() as found:
        for number, handle in enumerate(handles):
            assert len(read(handle, (number + 1) * 5 * MIB, 4096)) == 4096
    assert found.peak < (8 + 2) * MIB


def test_a_long_line_takes_as_long_as_its_bytes(tree: Tree) -> None:
    """A cursor continues where the last read ended: each piece takes as long as the others."""
    tree.append("t/.batches/0", recompress(encode([Record(0, 0, 0, b"", bytes(32 * MIB))]), ZSTD))
    handle, at, took = tree.open("t/.jsonl/0"), 0, []
    while at < 190 * MIB:
        before = time.thread_time()
        at += len(read(handle, at, MIB))
        took.append(time.thread_time() - before)
    early, late = sorted(took[2:60]), sorted(took[-58:])
    assert late[len(late) // 2] < 4 * early[len(early) // 2]


@pytest.mark.parametrize("path", [".kafkafs/log", "t/.control/verify"])
def test_texts_of_open_files_count_for_their_user(small: Tree, path: str) -> None:
    """A user may open one text of any size, and more up to his limit; others may, too."""
    table, mount = small.fs.open_files, small.fs.mount
    verify = mount.jobs.start(VERIFY.kind, small.manager.topic("t"), "run", _faulty)
    assert verify.ended
    for number in range(100):
        mount.events(f"{number} {'x' * 3000}")

    def opens(uid: int) -> int:
        node = small.node(path)
        return table.add(node, small.open(node, opener=Opener(uid, uid, (), 0)), uid)

    first = opens(1000)
    size = mount.open_texts.total
    assert MIB // 4 < size < MIB // 2
    numbers = [first, *(opens(1000) for _ in range(MIB // size - 1))]
    with pytest.raises(OSError, match="texts of open files of user 1000 would take") as raised:
        opens(1000)
    assert raised.value.errno == errno.ENOMEM
    numbers.append(opens(1001))
    for number in numbers:
        table.remove(number).release()
    assert mount.open_texts.total == 0
    for number in range(100, 500):
        mount.events(f"{number} {'x' * 3000}")
    table.remove(opens(1000)).release()


def _faulty(task: Task) -> JobResult:
    return JobResult([], [f"fault {'x' * 3000}" for _ in range(100)])
