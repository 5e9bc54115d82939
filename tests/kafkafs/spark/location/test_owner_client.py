"""Requests to the owner of a data directory: a mount's daemon, else this process itself.

Tests of requests to a daemon that dies: `tests/mount/test_adopt.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kafkafs.spark.location import owner_client
from kafkafs.spark.location.owner_client import (
    OwnerNotReached,
    ask_owner,
    create_topic,
    partitions_of,
)
from kafkafs.tree.owner.adopt_file import LONGEST_LINE
from storage.adopt.adopt import Adopted
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.directory.lock import alone
from storage.directory.mirror import end_mirror
from storage.errors import (
    BatchGap,
    CorruptRecord,
    FaultyPartition,
    Fenced,
    InvalidRecord,
    MirroredDirectory,
    PolicyViolation,
    TaskCancelled,
    TopicExists,
    UnknownTopicOrPartition,
)
from storage.files import Files
from storage.manager import LogManager
from storage.owner.group_positions import GroupPositions
from storage.owner.request_kinds import ADOPT, POSITIONS, SWAP
from storage.record.compression import ZSTD
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess
from storage.task import Task
from tests.kafkafs.trees import a_tree, asked
from tests.mount.mounting import check_data, let_others_in, mounted, needs_root
from tests.storage.compaction.cleaned import compacted, put, roll
from tests.storage.compaction.staging import staged_request
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.logs import append, values
from tests.storage.staging import left, staged
from tests.waits import HANG_S

ROOT = Path(__file__).parents[4]
BRIEFLY = 0.2

files = Files()

# Takes the lock, says so, and has it until its input ends.
HOLD = """
import sys
from storage.files import Files
Files().lock(sys.argv[1] + "/.lock")
print("locked", flush=True)
sys.stdin.read()
"""
# Asks for batches of one value each, of a query of its own.
ASK = """
import sys
from kafkafs.spark.location.owner_client import ask_owner
from storage.files import Files
from storage.owner.request_kinds import ADOPT
from tests.storage.staging import staged
data, query, count = sys.argv[1:]
for batch in range(int(count)):
    rows = {("t", 0): [[b"%s %d" % (query.encode(), batch)]]}
    assert ask_owner(data, ADOPT, staged(Files(), data, query, batch, rows)).records == 1
"""


def ask(path: str, request: AdoptRequest, **more: Any) -> Adopted:
    return ask_owner(path, ADOPT, request, **more)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    """A data directory with a topic `t` of two partitions, open nowhere; checked at the end."""
    path = tmp_path / "data"
    path.mkdir()
    with LogManager.open(str(path)) as manager:
        manager.create_topic("t", 2)
    yield str(path)
    check_data(path)


@pytest.fixture(params=["nobody", "a daemon"])
def place(request: pytest.FixtureRequest, data: str, tmp_path: Path) -> Iterator[str]:
    """The same, open nowhere, and mounted."""
    with contextlib.ExitStack() as stack:
        if request.param == "a daemon":
            stack.enter_context(mounted(tmp_path))
        yield data


@contextlib.contextmanager
def held(data: str) -> Iterator[subprocess.Popen[str]]:
    """Another process has the lock."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, data],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield holder


def request(data: str, batch: int, *content: bytes, query: str = "q") -> AdoptRequest:
    return staged(files, data, query, batch, {("t", 0): [list(content)]} if content else {})


def content(data: str, partition: int = 0) -> list[bytes | None]:
    """The values that there are, without what markers hold."""
    with LogManager.open(data, read_only=True) as manager:
        return [value for value in values(manager.log("t", partition)) if len(value or b"") != 6]


def test_a_runs_next_batch_opens_only_its_topics(data: str) -> None:
    """With thousands of other partitions each batch would take seconds."""

    def beside() -> set[tuple[str, int, int]]:
        found = (each for each in Path(data, "beside-0").iterdir())
        return {(each.name, each.stat().st_mtime_ns, each.stat().st_size) for each in found}

    with LogManager.open(data) as manager:
        log = manager.create_topic("beside", 1).partitions[0]
        append(log, b"0", b"1", b"2")
        log.raise_log_start(1)
    before = beside()
    assert ask(data, request(data, 0, b"0")).records == 1
    opened = beside()
    assert opened != before
    for number in (1, 2):
        assert ask(data, request(data, number, b"%d" % number)).records == 1
        assert beside() == opened
    with LogManager.open(data) as manager:
        assert manager.clean
        assert values(manager.log("beside", 0)) == [b"1", b"2"]
    assert content(data) == [b"0", b"1", b"2"]

    positions = GroupPositions("g", {"t": {0: 1}})
    assert ask_owner(data, POSITIONS, positions) == 1
    opened = beside()
    assert ask_owner(data, POSITIONS, positions) == 1
    assert beside() == opened
    with LogManager.open(data, read_only=True) as manager:
        group = manager.groups.find("g")
        assert group is not None
        assert list(group.committed) == [("t", 0)]

    # After a crash, and for a run whose producer gets a new epoch, all is looked at.
    LogManager.open(data).abandon()
    recovered = beside()
    assert ask(data, request(data, 3, b"3")).records == 1
    assert beside() != recovered
    asked = staged(files, data, "q", 4, {("t", 0): [[b"4"]]}, run="another")
    recovered = beside()
    assert ask(data, asked).records == 1
    assert beside() != recovered


def test_more_partitions_than_descriptors(data: str) -> None:
    """A process with a low limit raises it."""
    with LogManager.open(data) as manager:
        for number in range(2, 50):
            manager.create_partition("t", number)
    asked = staged(files, data, "q", 0, {("t", number): [[b"x"]] for number in range(50)})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(map(int, os.listdir("/proc/self/fd"))) + 60
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        assert ask(data, asked).records == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert content(data, 49) == [b"x"]


# -- both ways -------------------------------------------------------------------------------------


@pytest.mark.programs
def test_what_comes_of_it(place: str, tmp_path: Path) -> None:
    rows = {("t", 0): [[b"a", b"b"], [b"c"]], ("t", 1): [[b"x"]]}
    asked = staged(files, place, "q", 0, rows)
    link = tmp_path / "link"
    link.symlink_to(place)
    found = ask(str(link), asked)
    assert not found.duplicate
    assert (found.records, found.offsets) == (4, {("t", 0): (0, 2), ("t", 1): (0, 0)})
    assert found.size > 100
    assert ask(place, asked).duplicate
    assert ask(os.path.relpath(place), request(place, 1, b"d")).offsets == {("t", 0): (4, 4)}
    assert content(place) == [b"a", b"b", b"c", b"d"]
    assert content(place, 1) == [b"x"]
    assert left(place) == []


@pytest.mark.programs
def test_errors(place: str) -> None:
    """The same ones, in the same words, and nothing has changed."""
    ask(place, request(place, 0, b"a"))
    newer = request(place, 1)._replace(run="newer")
    ask(place, newer)

    def broken(asked: AdoptRequest) -> AdoptRequest:
        path = Path(place, "t-0", asked.files[0].name)
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        return asked

    def gone(asked: AdoptRequest) -> AdoptRequest:
        Path(place, "t-0", asked.files[0].name).unlink()
        return asked

    def renamed(asked: AdoptRequest) -> AdoptRequest:
        return asked._replace(files=(asked.files[0]._replace(topic="none"),), run="newer")

    def newest(batch: int) -> AdoptRequest:
        return request(place, batch, b"x")._replace(run="newer")

    wrong: list[tuple[type[Exception], str, Callable[[], AdoptRequest]]] = [
        (Fenced, "newer has replaced it", lambda: request(place, 2, b"x")),
        (BatchGap, "does not follow batch 1", lambda: newest(3)),
        (CorruptRecord, r"q-2-0-0\.staged", lambda: broken(newest(2))),
        (UnknownTopicOrPartition, "'none'", lambda: renamed(newest(2))),
        (FileNotFoundError, r"q-2-0-0\.staged", lambda: gone(newest(2))),
    ]
    for kind, words, make in wrong:
        with pytest.raises(kind, match=words):
            ask(place, make())
    assert content(place) == [b"a"]
    assert ask(place, request(place, 2, b"b")._replace(run="newer")).records == 1


@pytest.mark.programs
def test_many_clients_at_once(place: str) -> None:
    """Processes and threads of one process: each waits for the others, and all come to an end."""
    clients = [
        subprocess.Popen([sys.executable, "-c", ASK, place, f"process-{n}", "5"], cwd=ROOT)
        for n in range(2)
    ]

    def client(name: str) -> None:
        for batch in range(5):
            value = f"{name} {batch}".encode()
            assert ask(place, request(place, batch, value, query=name)).records == 1

    threads = [threading.Thread(target=client, args=[f"thread-{n}"]) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [client.wait(HANG_S) for client in clients] == [0, 0]
    found = content(place)
    names = [f"{kind}-{n}" for kind in ("process", "thread") for n in range(2)]
    assert len(found) == 20
    for name in names:
        mine = [value for value in found if value is not None and value.startswith(name.encode())]
        assert mine == [f"{name} {batch}".encode() for batch in range(5)]


@pytest.mark.programs
def test_told_to_stop(place: str) -> None:
    task = Task()
    task.cancel()
    asked = request(place, 0, b"a")
    with pytest.raises(TaskCancelled):
        ask(place, asked, task=task)
    assert ask(place, asked).records == 1


@pytest.mark.programs
def test_a_topic_is_created(place: str) -> None:
    for _ in range(2):
        create_topic(place, "new", 3)
    assert partitions_of(place, "new") == [0, 1, 2]
    create_topic(place, "t", 7)
    assert partitions_of(place, "t") == [0, 1]
    create_topic(place, "a.b", 1)
    with pytest.raises(TopicExists, match="collides"):
        create_topic(place, "a_b", 1)


@pytest.mark.programs
def test_a_topic_that_many_create_at_once(place: str) -> None:
    """Each of them finds it whole when it goes on."""

    def create(_: int) -> int:
        create_topic(place, "new", 20)
        return len(partitions_of(place, "new"))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(create, range(4))) == [20] * 4


@pytest.mark.parametrize("is_mounted", [False, pytest.param(True, marks=pytest.mark.programs)])
def test_a_partition_that_cannot_be_opened_stops_no_other(
    data: str, tmp_path: Path, is_mounted: bool
) -> None:
    with LogManager.open(data) as manager:
        manager.create_topic("bad", 1)
    directory = Path(data, "bad-0")
    directory.rename(tmp_path / "aside")
    directory.symlink_to("../aside")
    with mounted(tmp_path) if is_mounted else contextlib.nullcontext():
        assert ask(data, request(data, 0, b"a")).records == 1
        assert ask_owner(data, POSITIONS, GroupPositions("g", {"t": {0: 1}})) == 1
        create_topic(data, "new", 1)
        faulty = AdoptRequest("r", 0, "run", (StagedFile("bad", 0, "r-0-0-0.staged", 1),))
        with pytest.raises(FaultyPartition, match="symbolic link"):
            ask(data, faulty)
        directory.unlink()
        (tmp_path / "aside").rename(directory)


# -- nobody has it ---------------------------------------------------------------------------------


def test_orphans_go_with_it(data: str) -> None:
    ask(data, request(data, 0, b"a"))
    request(data, 5, b"old")
    (orphan,) = left(data)
    os.utime(Path(data, "t-0", orphan), (1, 1))
    kept = request(data, 9, b"young")
    asked = request(data, 1, b"b")
    # Its age does not count, because a request names it.
    os.utime(Path(data, "t-0", asked.files[0].name), (1, 1))
    assert ask(data, asked).records == 1
    assert left(data) == [kept.files[0].name]


def test_the_directory_is_closed_again(data: str) -> None:
    ask(data, request(data, 0, b"a"))
    assert files.locked_by(os.path.join(data, ".lock")) is None
    with pytest.raises(BatchGap):
        ask(data, request(data, 7, b"a"))
    with LogManager.open(data) as manager:
        assert manager.clean


def test_a_mirror(data: str) -> None:
    """Also while it runs: nobody waits for its process, which takes no requests."""
    make_mirror(Path(data))
    batch, offsets = request(data, 0, b"one"), GroupPositions("g", {"t": {0: 0}})
    calls: list[Callable[[], object]] = [
        lambda: ask(data, batch),
        lambda: ask_owner(data, POSITIONS, offsets),
        lambda: owner_client.check_owner(data),
        lambda: owner_client.make_group(data, "g"),
        lambda: create_topic(data, "new", 1),
    ]
    for call in calls:
        with pytest.raises(MirroredDirectory):
            call()
    with LogManager.open(data, mirrors=True), pytest.raises(MirroredDirectory):
        owner_client.check_owner(data)
    with alone(data, mirrors=True) as files:
        end_mirror(files, data)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="none"):
        ask(str(tmp_path / "none"), AdoptRequest("q", 0, "r", ()))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["__consumer_offsets", "x-delete", ".kafkafs"])
def test_a_topic_whose_name_is_reserved(data: str, name: str) -> None:
    with pytest.raises(PolicyViolation, match="Choose another name"):
        create_topic(data, name, 1)
    assert partitions_of(data, name) == []


# -- somebody else has it --------------------------------------------------------------------------


def test_another_process_is_waited_for(data: str) -> None:
    with held(data) as holder:
        found: list[int] = []
        asking = threading.Thread(
            target=lambda: found.append(ask(data, request(data, 0, b"a")).records)
        )
        asking.start()
        assert holder.stdin is not None
        holder.stdin.close()
        asking.join(HANG_S)
    assert found == [1]


def test_another_process_that_stays_is_named(data: str) -> None:
    asked = request(data, 0, b"a")
    owner_file.write(files, data, OwnerProcess(1 << 22, "/mnt"))  # of a daemon that was killed
    with held(data) as holder:
        with pytest.raises(OwnerNotReached, match=f"process {holder.pid} .* kafkafs mount") as e:
            ask(data, asked, patience_s=BRIEFLY)
        assert (e.value.pid, e.value.path) == (holder.pid, data)
    with LogManager.open(data), pytest.raises(OwnerNotReached, match="this process itself"):
        ask(data, asked, patience_s=BRIEFLY)
    assert left(data) == [asked.files[0].name]
    assert ask(data, asked).records == 1


def test_another_process_creates_no_topics(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owner_client, "TOPIC_PATIENCE_S", BRIEFLY)
    with held(data) as holder:
        create_topic(data, "t", 2)
        with pytest.raises(OwnerNotReached, match=f"{holder.pid} .* creates no topics") as refused:
            create_topic(data, "new", 1)
        assert (refused.value.pid, refused.value.path) == (holder.pid, data)
    assert partitions_of(data, "new") == []


@pytest.mark.programs
def test_a_mount_that_is_not_there(data: str, tmp_path: Path) -> None:
    """In another container, perhaps, or taken away by force; another directory's mount there."""
    asked = request(data, 0, b"a")
    other = tmp_path / "other"
    other.mkdir()
    with mounted(other) as mount, held(data) as holder:
        for path in (tmp_path / "none", tmp_path, mount.path):
            owner_file.write(files, data, OwnerProcess(holder.pid, str(path)))
            with pytest.raises(OwnerNotReached, match=f"does not answer at '{path}'"):
                ask(data, asked, patience_s=BRIEFLY)


@pytest.mark.programs
def test_a_mount_that_was_taken_away_by_force(data: str, tmp_path: Path) -> None:
    """The daemon goes on where somebody still has a file open."""
    with mounted(tmp_path) as mount:
        asked = request(data, 0, b"a")
        with open(mount / "t/0", "rb"):
            subprocess.run(["fusermount3", "-u", "-z", str(mount.path)], check=True)
            with pytest.raises(OwnerNotReached, match="does not answer"):
                ask(data, asked, patience_s=BRIEFLY)
        # And then it ends, and is waited for.
        assert ask(data, asked).records == 1
        mount.wait()


@needs_root
@pytest.mark.programs
def test_a_mount_of_another_user(data: str, tmp_path: Path) -> None:
    asked = request(data, 0, b"a")
    for options in ([], ["allow_other"]):
        with mounted(tmp_path, *options):
            let_others_in(tmp_path)
            told = as_nobody(lambda: str(ask(data, asked, patience_s=BRIEFLY)))
            assert told.startswith("OwnerNotReached"), told
            assert "run as that user" in told
    assert content(data) == []
    assert ask(data, asked).records == 1


def as_nobody(call: Callable[[], str]) -> str:
    """The result or error of the call in a child process of the user `nobody`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgid(65534)
            os.setuid(65534)
            told = call()
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writer, told.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    told = os.read(reader, 1 << 16).decode()
    os.close(reader)
    return told


@pytest.mark.programs
def test_a_daemon_that_does_not_understand(data: str, tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        unknown = dataclasses.replace(ADOPT, name="adapt")
        with pytest.raises(InvalidRecord, match="does not understand the request"):
            ask_owner(data, unknown, request(data, 0, b"a"))
        assert "an object with one of adopt" in mount.events()
        long = dataclasses.replace(ADOPT, encode=lambda _: " " * LONGEST_LINE)
        with pytest.raises(InvalidRecord, match=r"\(64 MiB at most\): it names too many staged"):
            ask_owner(data, long, request(data, 0, b"a"))


@pytest.mark.programs
def test_what_is_told_no_more_is_asked_again(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand others came between: it is a duplicate by now."""
    outcome = owner_client._outcome
    missed: list[str] = []

    def forgotten(path: str, request_id: str) -> object:
        found = outcome(path, request_id)
        if missed or found is None or found["state"] in ("queued", "running"):
            return found
        missed.append(found["state"])
        return None

    monkeypatch.setattr(owner_client, "_outcome", forgotten)
    with mounted(tmp_path):
        assert ask(data, request(data, 0, b"a")).duplicate
    assert missed == ["adopted"]
    assert content(data) == [b"a"]


def test_a_swap_without_a_mount_keeps_the_history(tmp_path: Path) -> None:
    """With libzstd 1.5, the new segment has the old one's size: no fingerprint can differ."""
    lines = (b"k4 v1,k5 ,k1 v3v3v3,k2 v2v2,k3 v3v3,k4 ,k3 v1v1v1,k0 v3v3v3v3").split(b",")
    pairs = [(line[:2], line[3:]) for line in lines]
    with compacted(tmp_path) as (_, log):
        put(log, *pairs, codec=ZSTD)
        roll(log)
        put(log, (b"k9", b"last"))
    with a_tree(tmp_path) as tree:
        inodes = tree.file("t/0").inode, tree.file("t/.follow/0").inode
        text = tree.read("t/.follow/0")
        assert text == b"".join(value + b"\n" for _, value in [*pairs, (b"k9", b"last")])
    with LogManager.open(str(tmp_path)) as manager:
        request = staged_request(manager, manager.log("t", 0))
    ask_owner(str(tmp_path), SWAP, request)
    with a_tree(tmp_path) as tree:
        assert len(tree.read("t/0").splitlines()) == 7
        assert tree.file("t/0").inode != inodes[0]
        follow = tree.file("t/.follow/0")
        assert follow.inode == inodes[1]
        first = int(asked(follow.xattr, "user.kafkafs.first_position"))
        assert tree.read(follow, first) == text[first:] == b"last\n"
