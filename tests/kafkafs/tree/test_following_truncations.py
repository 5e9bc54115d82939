"""A read-only mount beside a mirror whose log is truncated, so that a transaction loses its marker.

The new leader has the other marker: records that were hidden are shown, or the reverse.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkafs.mirror import transactions
from storage import Log, LogManager
from storage.errors import SegmentGone
from storage.log.append import append_as_follower
from storage.record.control import ABORT, COMMIT
from tests.kafkafs.trees import Following, Tree, read
from tests.storage.log.test_follower import at
from tests.storage.logs import NOW_NS, batch, opened, values
from tests.storage.transactions import marker, produced

OTHER = ABORT + COMMIT


class Beside:
    """A log of small segments, and a mount. `end`: where the marker is."""

    def __init__(self, data: Path, manager: LogManager, rolls: bool) -> None:
        self.data = data
        self.manager = manager
        settings = {"internal.segment.bytes": "300"} if rolls else {}
        self.log: Log = manager.create_mirrored_topic("t", None, 1, settings).partitions[0]
        self.end = 0
        self.tree = Tree(data, Following(read_only=True))

    def mount(self) -> None:
        self.tree.stop()
        self.tree = Tree(self.data, Following(read_only=True))

    def put(self, count: int, value: bytes = b"x", skipped: int = 0) -> None:
        """`skipped`: the offsets before each record that have none."""
        for _ in range(count):
            end = self.log.log_end_offset + skipped
            append_as_follower(self.log, at(batch([b"%d" % end + value * 50]), end, 0), NOW_NS)

    def put_transaction(self) -> None:
        records = produced([b"t" * 60] * 3, 7, 0, transactional=True)
        append_as_follower(self.log, at(records, self.log.log_end_offset, 0), NOW_NS)

    def put_marker(self, kind: int) -> None:
        self.end = self.log.log_end_offset
        append_as_follower(self.log, at(marker(7, kind), self.end, 0), NOW_NS)

    def check(self) -> None:
        """The mount shows the log."""
        self.tree.fs.partitions.of(self.tree.log()).look()
        text = self.tree.read("t/0")
        assert text == b"".join(b"%s\n" % value for value in values(self.log))
        assert self.tree.attributes(self.tree.node("t/0")).size == len(text)
        for position in range(0, len(text), 97):
            assert self.tree.read("t/0", position, 100) == text[position : position + 100]


@pytest.fixture(params=[False, True], ids=["one segment", "segments"])
def beside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Beside]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = tmp_path / "data"
    data.mkdir()
    with opened(data) as manager:
        beside = Beside(data, manager, request.param)
        yield beside
        beside.tree.stop()


LOOKS: dict[str, Callable[[Beside], None]] = {
    "late": lambda beside: None,
    "in time": Beside.check,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("after", [1, 6])
@pytest.mark.parametrize("kind", [ABORT, COMMIT])
def test_a_marker_is_replaced(beside: Beside, kind: int, after: int, look: str) -> None:
    """`after`: the batches after the marker."""
    beside.put(8)
    beside.put_transaction()
    beside.put(8)
    beside.put_marker(kind)
    beside.put(after)
    beside.check()
    before, handle = beside.tree.read("t/0"), beside.tree.open("t/0")
    beside.manager.truncate(beside.log, beside.end)
    LOOKS[look](beside)
    beside.put_marker(OTHER - kind)
    beside.put(9, b"y")
    beside.check()
    shown = b""
    with contextlib.suppress(SegmentGone):
        while len(shown) < len(before):
            shown += read(handle, len(shown), 1)
    assert before.startswith(shown)
    handle.release()


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", ["t/0", "t/.follow/0"])
def test_records_that_an_open_transaction_has_hidden(beside: Beside, path: str, look: str) -> None:
    """A file that is open shows them when the transaction has ended."""
    beside.put(3)
    beside.put_transaction()
    beside.check()
    for _ in range(5):
        beside.put(1)
        beside.check()
    handle = beside.tree.open(path)
    shown = read(handle, 0, 1000)
    assert shown.count(b"\n") == 3
    beside.manager.truncate(beside.log, beside.log.log_end_offset - 2)
    LOOKS[look](beside)
    beside.put_marker(COMMIT)
    beside.put(9, b"y")
    beside.check()
    while data := read(handle, len(shown), 1000):
        shown += data
    assert shown == beside.tree.read("t/0")
    handle.release()


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_a_marker_is_written_between_records(beside: Beside, count: int) -> None:
    """… that a mount has read. With some counts, that is between two segments."""
    log = beside.log
    beside.put(3)
    beside.put_transaction()
    beside.put(count)
    beside.put(1, skipped=5)
    beside.mount()
    beside.check()
    lost = transactions.lost_markers(log, log.log_end_offset)
    transactions.write_markers(beside.manager, log, lost, NOW_NS)
    beside.put(12, b"y")
    beside.check()
