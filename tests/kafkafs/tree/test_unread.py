"""Another process cleans records before a reader has read them: the reader gets the records left.

A consumer gets the same: it fetches by offset, and the next record is the next one that exists.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.handles import Handle
from storage import paths
from storage.errors import SegmentGone
from tests.broker_files import BrokerDirectory, BrokerPartition
from tests.kafkafs.trees import Following, Tree, in_thread, read
from tests.storage.producers import Producer

VIEWS = ("", ".kv", ".jsonl", ".batches", ".follow")
Keep = Callable[[int, bytes], bool]
KEPT: dict[str, Keep] = {
    "all": lambda offset, value: True,
    "some": lambda offset, value: offset % 2 == 0,
    "none": lambda offset, value: False,
}


class Beside:
    """A broker's directory beside a tree in which one file stays open."""

    def __init__(self, home: Path, *, limited: bool) -> None:
        self.broker = BrokerDirectory(home / "data")
        self.partition = self.broker.partition()
        self.limited = limited
        self.shown = b""
        self._options = Following(read_only=True, until="high-watermark" if limited else "log-end")

    def see(self, end: int | None = None) -> None:
        """All up to `end`, or to the log end, lies below the high watermark now."""
        end = self.partition.next_offset if end is None else end
        self.broker.write_high_watermark(self.partition, end)

    def mount(self, path: str) -> None:
        self.tree = Tree(self.broker.data, self._options)
        self.path = path
        self.node: ViewFile = self.tree.file(path)
        self.handle: Handle = self.tree.open(self.node)

    def read_on(self) -> bytes:
        """As `tail -f`: what has come."""
        size = self.tree.attributes(self.node).size
        assert size >= len(self.shown)
        more = read(self.handle, len(self.shown), size - len(self.shown))
        self.shown += more
        return more

    def forget(self) -> None:
        """No file of the log is open: only names lead to them."""
        for segment in self.tree.log().segments:
            segment.close_descriptors()

    def by_name(self, start: int | None = None) -> bytes:
        """The text for a reader that opens the file now: all of it, or from an offset on."""
        path = self.path.replace(".follow/", "")
        return self.tree.read(path if start is None else f"{path}@{start}")


@pytest.fixture(params=[False, True], ids=["all", "below the high watermark"])
def beside(home: Path, request: pytest.FixtureRequest) -> Iterator[Beside]:
    beside = Beside(home, limited=request.param)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: beside.tree.stop())
        yield beside


def fill(partition: BrokerPartition, name: str, batches: int) -> None:
    for number in range(batches):
        partition.append(b"%s %d" % (name.encode(), number), b"%s %d'" % (name.encode(), number))


def readable_but_last(beside: Beside) -> None:
    """The segments before the active one are open, even if their names change."""
    for segment in beside.tree.log().segments[:-1]:
        segment.open_log()


def clean_twice(partition: BrokerPartition, count: int, keep: Keep, first: int) -> None:
    """So quickly that nobody has opened what was put aside the first time."""
    for number in (count, 1):
        partition.clean(number, keep, first)
        partition.remove_deleted()


@pytest.mark.parametrize(
    ("seen", "merged", "unread", "kept", "view"),
    [
        *(
            (seen, int(seen == unread), unread, kept, "")
            for seen, unread, kept in itertools.product([0, 2], [0, 2], KEPT)
        ),
        *(
            (seen, merged, 1, "some", view)
            for seen, merged in ((0, 1), (2, 0))
            for view in VIEWS[1:]
        ),
    ],
)
def test_a_tail_goes_on_with_what_is_left(
    beside: Beside, seen: int, merged: int, unread: int, kept: str, view: str
) -> None:
    """The tail has read `seen` batches of the active segment.

    Then that segment is cleaned, with `merged` segments before it and `unread` segments after it.
    """
    partition = beside.partition
    for number in range(3):
        fill(partition, f"old{number}", 3)
        partition.roll()
    fill(partition, "seen", seen)
    beside.see()
    beside.mount(f"t/{view}/0".replace("//", "/"))
    beside.read_on()
    shown, first = beside.shown, partition.next_offset
    assert shown
    beside.forget()
    fill(partition, "more", 2)
    for number in range(unread):
        partition.roll()
        fill(partition, f"unread{number}", 2)
    partition.roll()
    fill(partition, "last", 1)
    clean_twice(partition, 1 + merged + unread, KEPT[kept], 3 - merged)
    left = [value for offset, value in partition.records if offset >= first]
    beside.read_on()
    beside.see()
    beside.read_on()
    assert beside.shown == shown + beside.by_name(first)
    if view == "":
        assert beside.shown == shown + b"".join(value + b"\n" for value in left)
        assert beside.by_name() == partition.text()
    partition.append(b"new")
    beside.see()
    beside.read_on()
    assert beside.shown == shown + beside.by_name(first)
    # The reported size stays, without the bytes that no file has any more.
    with contextlib.suppress(SegmentGone):
        assert read(beside.handle, 0, len(shown)) == shown


@pytest.mark.parametrize(
    ("is_held", "marker", "commit", "merged", "kept", "view"),
    [
        (*transaction, *cleaning)
        for transaction, cleaning in zip(
            [*itertools.product([False, True], ["same", "unread", "last"], [False, True])] * 2,
            itertools.cycle(itertools.product([0, 1], ["some", "none"], ["", ".batches"])),
            strict=False,
        )
    ],
)
def test_transactions_in_what_is_left(
    beside: Beside, is_held: bool, merged: int, marker: str, commit: bool, kept: str, view: str
) -> None:
    """The transaction begins before the end of the last read (`is_held`), or after it.

    Its marker lies in the same segment, in a later segment that is cleaned, too, or in the active
    segment, which no cleaner touches.
    """
    partition = beside.partition
    producer = Producer(7, transactional=True)
    fill(partition, "old", 3)
    partition.roll()
    fill(partition, "before", 1)
    first = partition.next_offset
    if is_held:
        partition.put(producer.batch(b"one", b"two"))
        fill(partition, "between", 1)
    beside.see()
    beside.mount(f"t/{view}/0".replace("//", "/"))
    beside.read_on()
    shown = beside.shown
    if view == ".batches":
        first = partition.next_offset
    beside.forget()
    if not is_held:
        partition.put(producer.batch(b"one", b"two"))
    fill(partition, "more", 1)
    if marker == "unread":
        partition.roll()
        fill(partition, "unread", 1)
    if marker != "last":
        partition.put(producer.commit() if commit else producer.abort())
    partition.roll()
    fill(partition, "last", 1)
    if marker == "last":
        partition.put(producer.commit() if commit else producer.abort())
    cleaned = partition.bases[1 - merged : -1]
    indexes = [partition.log(base).with_suffix(paths.TXNINDEX) for base in cleaned]
    aborted = b"".join(path.read_bytes() for path in indexes if path.exists())
    assert bool(aborted) == (not commit and marker != "last")
    indexes[0].write_bytes(aborted)
    clean_twice(partition, len(cleaned), KEPT[kept], 1 - merged)
    is_seen = marker != "last" or not beside.limited
    for is_shown in (commit and is_seen, commit, commit):
        beside.read_on()
        assert beside.shown == shown + beside.by_name(first)
        if view == "":
            assert (b"one\ntwo\n" in beside.shown) == is_shown
            assert (b"one" in beside.shown) == is_shown
        partition.append(b"new")
        beside.see()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("kept", "times"), [("all", 1), ("some", 2)])
def test_a_read_over_the_place_where_it_goes_on(
    beside: Beside, times: int, kept: str, view: str
) -> None:
    """The bytes in the last reported size come from the file as it was before the cleaning.

    The bytes after them come from the middle of the cleaned file.
    """
    partition = beside.partition
    for number in range(2):
        fill(partition, f"old{number}", 3)
        partition.roll()
    beside.see()
    beside.mount(f"t/{view}/0".replace("//", "/"))
    late = beside.tree.open(beside.node)
    expected = beside.tree.read(beside.node)
    for number in range(times):
        first = partition.next_offset
        beside.tree.attributes(beside.node)
        beside.forget()
        readable_but_last(beside)
        fill(partition, f"more{number}", 2)
        partition.roll()
        clean_twice(partition, 2, KEPT[kept], len(partition.bases) - 3)
        beside.see()
        beside.tree.attributes(beside.node)
        expected += beside.by_name(first)
    size = beside.tree.attributes(beside.node).size
    assert size == len(expected)
    assert read(late, 0, size) == expected
    for position in range(0, size, 7):
        assert read(late, position, 11) == expected[position : position + 11]


def read_to_the_end(beside: Beside, view: str) -> BrokerPartition:
    """Return the partition, after a handle has read its sealed segment and its active one."""
    partition = beside.partition
    fill(partition, "old", 3)
    partition.roll()
    fill(partition, "seen", 3)
    beside.see()
    beside.mount(f"t/{view}/0".replace("//", "/"))
    beside.read_on()
    return partition


@pytest.mark.parametrize("view", ["", ".jsonl", ".batches"])
def test_a_read_in_a_worker_thread_while_what_was_read_is_cleaned(
    beside: Beside, view: str
) -> None:
    """Only the log's thread notices the cleaning. The text can still be read from open files."""
    partition = read_to_the_end(beside, view)
    partition.roll()
    clean_twice(partition, 1, KEPT["none"], 1)
    shown = in_thread(lambda: beside.handle.read(0, len(beside.shown)))
    assert bytes(shown) == beside.shown


@pytest.mark.parametrize("view", ["", ".jsonl", ".batches"])
def test_a_cut_is_still_an_error(beside: Beside, view: str) -> None:
    partition = read_to_the_end(beside, view)
    size = len(beside.shown)
    beside.forget()
    partition.truncate(partition.next_offset - 4)
    left = len(beside.by_name())
    with pytest.raises(SegmentGone):
        read(beside.handle, left, size - left)
