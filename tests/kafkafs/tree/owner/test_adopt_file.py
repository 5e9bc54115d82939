"""`.kafkafs/adopt`: its lines, refusals that change nothing, and the outcomes that it shows."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kafkafs.mount_options import MountOptions
from kafkafs.tree.events import MESSAGES
from kafkafs.tree.handles import Handle, NotExamined
from kafkafs.tree.inodes import Change
from kafkafs.tree.jobs import Job
from kafkafs.tree.owner import adopt_file, owner_requests
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.errors import InvalidConfig, InvalidRecord, TaskCancelled
from storage.files import Files
from storage.owner import request_kinds as kinds
from storage.owner.request_kinds import ADOPT, encode
from storage.segment.reader import SegmentReader
from tests.kafkafs.trees import APPEND, CALLER, Tree, a_tree, write
from tests.storage.staging import left, staged

FILE = ".kafkafs/adopt"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
        tree.directory("t").create("1", 0o644, APPEND, CALLER)
        yield tree


def request(tree: Tree, batch: int, *values: bytes, partition: int = 0) -> AdoptRequest:
    rows = {("t", partition): [list(values)]} if values else {}
    return staged(Files(), tree.manager.path, "q", batch, rows)


def line(asked: AdoptRequest, name: str) -> bytes:
    return encode(ADOPT, asked, name).encode() + b"\n"


def told(tree: Tree) -> list[dict[str, Any]]:
    text = tree.read(FILE, size=1 << 24)
    assert tree.attributes(tree.node(FILE)).size == len(text)
    return [json.loads(each) for each in text.splitlines()]


def states(tree: Tree) -> list[tuple[str, str]]:
    return [(facts["id"], facts["state"]) for facts in told(tree)]


def opened(tree: Tree, flags: int = os.O_WRONLY) -> Handle:
    return tree.open(FILE, flags)


def refused(number: int, handle: Handle, data: bytes) -> None:
    with pytest.raises(OSError, match=r".") as found:
        write(handle, 0, data)
    assert found.value.errno == number


def test_outcomes_are_lines(tree: Tree) -> None:
    assert told(tree) == []
    first = request(tree, 0, b"a", b"b", b"c")
    handle = opened(tree)
    data = line(first, "one")
    assert write(handle, 0, data) == len(data)
    (facts,) = told(tree)
    assert facts.pop("bytes") == tree.log().size - marker_size(tree)
    assert facts == {
        "id": "one",
        "kind": "adopt",
        "state": "adopted",
        "records": 3,
        "offsets": [["t", 0, 0, 2]],
    }
    write(handle, 0, line(first, "two") + line(request(tree, 2, b"x"), "three"))
    assert states(tree) == [("one", "adopted"), ("two", "duplicate"), ("three", "refused")]
    facts = told(tree)[-1]
    assert facts["error"] == "BatchGap"
    assert "batch 2 of q" in facts["reason"]
    assert tree.read("t/0") == b"a\nb\nc\n"
    counters = tree.fs.mount.counters
    assert counters.owner_requests == {
        ("adopt", "adopted"): 1,
        ("adopt", "duplicate"): 1,
        ("adopt", "refused"): 1,
    }
    assert (counters.adopted_records, counters.adopted_bytes) == (3, told(tree)[0]["bytes"])
    events = tree.events().splitlines()
    assert [event.split(" ", 1)[1].split(": b")[0] for event in events[-3:]] == [
        f"adoption of batch 0 of q: adopted: records 3, bytes {told(tree)[0]['bytes']}",
        "adoption of batch 0 of q: duplicate: records 0, bytes 0",
        "adoption of batch 2 of q: refused",
    ]


def marker_size(tree: Tree) -> int:
    """Of the last batch of the log: the COMMIT marker."""
    (*_, (_, header)) = SegmentReader(tree.log().active).batches()
    return header.size


def test_who_may(tree: Tree) -> None:
    found = tree.attributes(tree.node(FILE))
    assert stat.S_IMODE(found.mode) == 0o600
    assert (found.uid, found.gid) == (os.geteuid(), os.getegid())
    node = tree.node(FILE)
    node.set_attributes(Change(size=0))
    node.set_attributes(Change(times=True))
    with pytest.raises(PermissionError):
        node.set_attributes(Change(mode=0o666))


def test_not_where_nothing_may_be_written(tmp_path: Path) -> None:
    with a_tree(tmp_path / "data") as tree:
        tree.mkdir("t")
    with a_tree(tmp_path / "data", MountOptions(read_only=True)) as tree:
        assert "adopt" not in tree.directory(".kafkafs").names()
        with pytest.raises(FileNotFoundError):
            tree.node(FILE)


def test_what_has_no_newline_acts_at_release(tree: Tree) -> None:
    handle = opened(tree)
    write(handle, 0, line(request(tree, 0, b"a"), "one")[:-1])
    assert told(tree) == []
    handle.release()
    assert states(tree) == [("one", "adopted")]
    handle = opened(tree)
    write(handle, 0, line(request(tree, 1, b"b"), "two")[:-5])
    with pytest.raises(InvalidRecord):
        handle.release()
    assert len(told(tree)) == 1


@pytest.mark.parametrize("bad", [b"\n", b"{}\n", b"x\n", b'{"adopt":{}}\n', b"\xff\n"])
@pytest.mark.parametrize("long", [False, True])
def test_all_lines_of_a_write_or_none(tree: Tree, bad: bytes, long: bool) -> None:
    good = line(request(tree, 0, b"a"), "one")
    padding = b" " * (2 * adopt_file.AT_ONCE) if long else b""
    handle = opened(tree)
    for data in (padding + good + bad, bad + good + padding, bad):
        with pytest.raises(InvalidRecord, match="line"):
            write(handle, 0, data)
        assert told(tree) == []
        # The next write begins a new line.
    write(handle, 0, padding + good)
    assert states(tree) == [("one", "adopted")]


def test_a_write_has_so_many_requests_at_most(tree: Tree) -> None:
    handle = opened(tree)
    with pytest.raises(InvalidConfig, match="a write may have at most 100 lines, not 101"):
        write(handle, 0, b"".join(line(request(tree, 0), f"r{n}") for n in range(101)))
    assert told(tree) == []
    write(handle, 0, b"".join(line(request(tree, 0), f"r{n}") for n in range(100)))
    assert len(told(tree)) == 100


def test_many_files_are_looked_at_in_a_worker_thread(tree: Tree) -> None:
    """The owner's thread takes no long line apart."""
    files = tuple(StagedFile("t", 0, f"q-0-{n}-0.staged", 1) for n in range(30_000))
    data = line(AdoptRequest("q", 0, "r", files), "big")
    handle = opened(tree)
    for at in range(0, len(data) - 1, 1 << 20):
        part = data[at : at + (1 << 20)]
        if at + len(part) < len(data):
            assert handle.write(at, part) == len(part)
    with pytest.raises(NotExamined):
        handle.write(at, part)
    write(handle, at, part)
    (facts,) = told(tree)
    assert (facts["state"], facts["errno"]) == ("failed", "ENOENT")
    assert "q-0-0-0.staged" in facts["reason"]


def test_the_longest_line(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adopt_file.AdoptCommands, "longest_line", 1000)
    handle = opened(tree)
    good = line(request(tree, 0, b"a"), "one")
    write(handle, 0, b" " * (1001 - len(good)) + good)
    assert states(tree) == [("one", "adopted")]
    refused(errno.EMSGSIZE, handle, b" " * 1001 + b"\n")
    write(handle, 0, b" " * 600)
    for _ in range(2):
        refused(errno.EMSGSIZE, handle, b" " * 401)
    write(handle, 0, line(request(tree, 1, b"b"), "two"))
    assert len(told(tree)) == 2


def test_an_id_is_used_once(tree: Tree) -> None:
    one = request(tree, 0, b"a")
    handle = opened(tree)
    refused(errno.EEXIST, handle, line(one, "id") + line(one, "id"))
    assert told(tree) == []
    write(handle, 0, line(one, "id"))
    refused(errno.EEXIST, handle, line(one, "id"))
    assert len(told(tree)) == 1
    write(handle, 0, b'{"adopt":%s}\n' % one.encode().encode() * 2)
    assert len({facts["id"] for facts in told(tree)}) == 3


def test_not_while_stopping(tree: Tree) -> None:
    handle = opened(tree)
    data = line(request(tree, 0, b"a"), "one")
    write(handle, 0, data[:10])
    tree.fs.mount.stopping = True
    # As often as the kernel's caller goes on after a short count.
    for _ in range(2):
        refused(errno.ESHUTDOWN, handle, data[10:])
    tree.fs.mount.stopping = False
    write(handle, 0, data[10:])
    assert states(tree) == [("one", "adopted")]


class Held:
    """The runner of jobs is the test."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.jobs: list[Job] = []
        tree.fs.mount.jobs.runner = self.jobs.append

    def run(self) -> None:
        job = self.jobs.pop(0)
        self.tree.fs.mount.jobs.started(job)
        job.carry_out()
        self.tree.fs.mount.jobs.ended(job)


def test_in_the_order_in_which_they_came(tree: Tree) -> None:
    held = Held(tree)
    handle = opened(tree)
    for number in range(3):
        write(handle, 0, line(request(tree, number, b"%d" % number), str(number)))
    assert [state for _, state in states(tree)] == ["queued"] * 3
    tree.fs.mount.jobs.started(held.jobs[0])
    held.jobs[0].task.begin("checking", 77)
    facts = told(tree)[0]
    assert (facts["state"], facts["phase"], facts["total"]) == ("running", "checking", 77)
    under_way = tree.fs.owner_requests.is_under_way
    assert under_way("t", 0, "q-1-0-0.staged")
    held.run()
    held.run()
    assert states(tree) == [("0", "adopted"), ("1", "adopted"), ("2", "queued")]
    assert not under_way("t", 0, "q-1-0-0.staged")
    assert under_way("t", 0, "q-2-0-0.staged")
    held.run()
    assert tree.read("t/0") == b"0\n1\n2\n"


def test_cancelled_by_the_end(tree: Tree) -> None:
    held = Held(tree)
    asked = request(tree, 0, b"a")
    write(opened(tree), 0, line(asked, "one"))
    tree.fs.mount.jobs.close()
    held.run()
    (facts,) = told(tree)
    assert facts["state"] == "cancelled"
    assert tree.log().log_end_offset == 0
    assert left(tree.manager.path) == ["q-0-0-0.staged"]


def failing(error: Exception) -> Callable[..., Any]:
    def carry_out(*_: object) -> Any:
        raise error

    return carry_out


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space", "/x"), {"state": "failed", "errno": "ENOSPC"}),
        (ZeroDivisionError("our bug"), {"state": "failed", "errno": "EIO"}),
        (TaskCancelled("cancelled"), {"state": "cancelled"}),
    ],
)
def test_other_ends(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: dict[str, str]
) -> None:
    broken = dataclasses.replace(ADOPT, carry_out=failing(error))
    monkeypatch.setattr(kinds, "KINDS", {"adopt": broken})
    held = Held(tree)
    write(opened(tree), 0, line(request(tree, 0, b"a"), "one"))
    held.run()
    (facts,) = told(tree)
    assert facts.items() >= expected.items()
    assert tree.log().log_end_offset == 0
    if isinstance(error, ZeroDivisionError):
        assert "Traceback" in tree.events()
    for number in range(MESSAGES):
        tree.fs.mount.events.of_request(f"refusal {number}", errno.EPERM)
    is_failed = expected["state"] == "failed"
    assert ("adoption of batch 0 of q: failed" in tree.events()) == is_failed, "it stays"


@pytest.mark.parametrize(("limit", "kept"), [("KEPT", 5), ("KEPT_BYTES", 400)])
def test_the_last_outcomes_are_kept(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, limit: str, kept: int
) -> None:
    monkeypatch.setattr(owner_requests, limit, kept)
    handle = opened(tree)
    for number in range(10):
        write(handle, 0, line(request(tree, number), f"id-{number}"))
    ids = [name for name, _ in states(tree)]
    assert ids == [f"id-{number}" for number in range(10)][-len(ids) :]
    assert 3 <= len(ids) <= 5
    # Of what is forgotten the id may come again.
    write(handle, 0, line(request(tree, 10), "id-0"))
    monkeypatch.setattr(owner_requests, limit, 1)
    write(handle, 0, line(request(tree, 11), "last"))
    assert [name for name, _ in states(tree)] == ["last"]
