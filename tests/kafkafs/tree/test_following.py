"""Files of a partition that another process writes: an inode shows one history."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.mount_options import MountOptions
from kafkafs.tree.files.view_file import ViewFile
from kafkafs.tree.handles import Handle
from kafkafs.tree.inodes import Node
from storage.errors import SegmentGone
from storage.files import Files
from storage.log.append import append_batches
from storage.recovery.swap import finish_swaps
from storage.waiting import may_wait
from tests.broker_files import BadFile, BrokerDirectory, BrokerPartition
from tests.kafkafs.tree.partition.test_truncation import Woken
from tests.kafkafs.trees import Following, Tree, a_tree, in_thread, read
from tests.mount.mounting import fails
from tests.storage.logs import NOW_NS, append
from tests.storage.producers import Producer

FOLLOWING = Following(read_only=True)


class Beside:
    """A broker's directory and a tree that follows it."""

    def __init__(self, data: Path, options: MountOptions = FOLLOWING) -> None:
        self.broker = BrokerDirectory(data)
        self.partition = self.broker.partition()
        self.partition.append(b"zero")
        self.options = options

    def mount(self) -> Tree:
        self.tree = Tree(self.broker.data, self.options)
        return self.tree

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Tree]:
        try:
            yield self.mount()
        finally:
            self.tree.stop()

    def size(self, node: Node) -> int:
        return self.tree.attributes(node).size


@pytest.fixture
def beside(home: Path) -> Iterator[Beside]:
    beside = Beside(home / "data")
    with beside.mounted():
        yield beside


def changes(partition: BrokerPartition) -> list[Callable[[], None]]:
    """All but the first and the last rewrite the past."""
    return [
        lambda: partition.append(b"more"),
        lambda: partition.delete_head(1),
        lambda: partition.clean(2, lambda offset, value: offset % 2 == 0),
        lambda: partition.truncate(partition.next_offset - 1),
        partition.roll,
    ]


def rest(handle: Handle, node: ViewFile, position: int, tree: Tree) -> bytes:
    """The bytes that `tail -f` reads next: it asks for the size first."""
    size = tree.attributes(node).size
    return read(handle, position, size - position) if size > position else b""


def test_a_name_leads_to_a_new_inode_once_the_past_has_changed(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill()
    inodes = [tree.file().inode]
    for change in changes(partition)[:4]:
        change()
        inode = tree.file().inode
        assert (inode == inodes[-1]) == (len(inodes) == 1)
        inodes.append(inode)
        assert tree.read("t/0") == partition.text()
        assert beside.size(tree.file()) == len(partition.text())
    assert len(set(inodes)) == 4
    assert tree.notices.names == 3


def test_a_file_that_was_woken_and_closed_leaves_no_watch(beside: Beside) -> None:
    """The kernel did not poll it again in between."""
    tree, partition = beside.tree, beside.partition
    watches = tree.fs.partitions.watches
    handle = tree.open("t/0")
    handle.poll(Woken())
    partition.append(b"more")
    assert watches.changed()
    tree.fs.partitions.of(tree.log()).look()
    handle.release()
    partition.append(b"again")
    assert not watches.changed()


def test_each_change_waits_for_the_offsets_of_readers(beside: Beside) -> None:
    """No worker thread has noted them before, since the writer prepares nothing here."""
    tree, broker = beside.tree, beside.partition
    broker.fill()
    tree.read("t/.follow/0")
    noted: list[bool] = []
    partition = tree.fs.partitions.of(tree.log())
    partition.add_follow_reader(object(), lambda end: noted.append(may_wait()))
    for count in (3, 1):
        broker.clean(count, lambda offset, value: offset % 2 == 0)
        partition.look()
    assert noted == [True, True]


def test_an_old_inode_reads_what_is_deleted_while_it_is_open(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill()
    node = tree.file()
    handle = tree.open(node)
    before = partition.text()
    size = beside.size(node)
    partition.delete_head(3)
    assert beside.size(node) == size
    partition.remove_deleted()
    assert read(handle) == before
    partition.append(b"more")
    assert rest(handle, node, size, tree) == b"more\n"
    # file.delete.delay.ms is over; what was kept before the cut is little here, and so is all.
    tree.manager.sweep(1 << 62)
    tree.fs.partitions.housekeeping()
    assert beside.size(node) == size + 5
    assert tree.read("t/0") == partition.text()


def test_an_old_inode_of_a_deleted_segment_that_was_not_open(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill()
    node = tree.file()
    handle = tree.open(node)
    size = beside.size(node)
    for segment in tree.log().segments:
        segment.close_descriptors()
    partition.delete_head(2)
    partition.remove_deleted()
    assert beside.size(node) == size
    with pytest.raises(SegmentGone):
        read(handle, 0, 4)
    at = size - len(partition.text())
    assert read(handle, at) == partition.text()


@pytest.fixture
def cleaned(home: Path) -> Iterator[Beside]:
    """Beside a broker that compacts the topic; all of it has been measured."""
    beside = Beside(home / "data")
    (home / "data" / "kafkafs.properties").write_text("log.cleanup.policy=compact\n")
    beside.partition.fill()
    tree = beside.mount()
    for view in ("", ".jsonl/"):
        tree.read(f"t/{view}0")
    yield beside
    tree.stop()


def close_all(tree: Tree) -> None:
    """As of a log that nobody has read for a while."""
    for segment in tree.log().segments:
        segment.close_descriptors()


def clean_twice(partition: BrokerPartition) -> None:
    """The second time a cleaner puts files aside under the names of the first time."""
    partition.clean(3, lambda offset, value: value[0] in b"abc")
    partition.clean(2, lambda offset, value: value[0] in b"ab")


@pytest.mark.parametrize("name", ["0", ".jsonl/0", "0@1", "0@1..9", ".batches/0"])
def test_what_is_opened_can_be_read_though_a_cleaner_replaces_it_twice(
    cleaned: Beside, name: str
) -> None:
    tree, partition = cleaned.tree, cleaned.partition
    expected = tree.read(f"t/{name}")
    close_all(tree)
    handle = tree.open(f"t/{name}")
    clean_twice(partition)
    partition.remove_deleted()
    assert read(handle) == expected
    assert tree.read("t/0") == partition.text()


@pytest.mark.parametrize("name", ["0", ".jsonl/0", "0@1", "0@1..9"])
def test_what_a_cleaner_has_replaced_twice_since_its_lookup_is_looked_up_again(
    cleaned: Beside, name: str
) -> None:
    tree, partition = cleaned.tree, cleaned.partition
    node = tree.file(f"t/{name}")
    close_all(tree)
    clean_twice(partition)
    fails(errno.ESTALE, tree.open, node)
    assert tree.read("t/0") == partition.text()


class Starting(Files):
    """The disk of a broker that starts: somebody looks after each step."""

    def __init__(self, step: Callable[[], None]) -> None:
        super().__init__()
        self._step = step

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self._step()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self._step()


class Killed(Exception):  # noqa: N818 - it is no error
    """The broker is killed."""


@pytest.mark.parametrize("steps", range(1, 7))
def test_a_broker_that_is_killed_amid_a_swap_and_starts_again(beside: Beside, steps: int) -> None:
    """Whatever is opened by name on the way can be read, then and to the end."""
    tree, partition = beside.tree, beside.partition
    partition.fill()
    partition.append(b"last")
    opened: list[tuple[Handle, bytes]] = []

    def look() -> None:
        tree.log().age_descriptors()
        handle = tree.open("t/0")
        opened.append((handle, read(handle)))

    def step() -> None:
        look()
        if len(opened) == steps:
            raise Killed

    partition.step = step
    with contextlib.suppress(Killed):
        partition.clean(3, lambda offset, value: not value.startswith(b"b"))
    left = [name for name in os.listdir(partition.directory) if name[0] == "0"]
    finish_swaps(Starting(look), str(partition.directory), left)
    look()
    assert len({text for _, text in opened}) <= 2
    assert [read(handle) for handle, _ in opened] == [text for _, text in opened]
    assert (b"b0" in opened[-1][1]) == (steps == 1), "the swap was decided with the second step"


@pytest.mark.parametrize("steps", [2, 3])
def test_a_broker_is_killed_amid_a_swap_of_what_it_had_cleaned_before(
    beside: Beside, steps: int
) -> None:
    """The broker has cleaned the first segment twice, so the file that the tree read is deleted.

    The third segment has a `.deleted` file of an earlier cleaning and a `.swap` file of the last
    one. `steps`: the step of the last cleaning at which the broker is killed.
    """
    partition = beside.partition
    partition.roll()
    partition.append(b"one")
    beside.tree.stop()
    tree = beside.mount()
    for value in (b"two", b"three"):
        partition.roll()
        partition.append(value)
    for first in (0, 0, 1, 2):
        partition.clean(1, lambda offset, value: True, first)

    def step() -> None:
        nonlocal steps
        steps -= 1
        if not steps:
            raise Killed

    partition.step = step
    with contextlib.suppress(Killed):
        partition.clean(1, lambda offset, value: True, 2)
    assert tree.read("t/0") == partition.text()


def test_a_cut_leaves_what_is_below_it_and_never_shrinks_a_file(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill(2)
    for value in (b"x", b"y", b"z"):
        partition.append(value)
        beside.size(tree.file())
    node = tree.file()
    handle = tree.open(node)
    before = partition.text()
    assert beside.size(node) == len(before)
    partition.truncate(partition.next_offset - 2)
    left = partition.text()
    assert read(handle) == left
    with pytest.raises(SegmentGone):
        read(handle, len(left), 1)
    assert read(handle, len(before), 1) == b""
    assert beside.size(node) == len(before)
    partition.append(b"other")
    assert beside.size(node) == len(before) + 6
    assert read(handle, len(before)) == b"other\n"
    with pytest.raises(SegmentGone):
        read(handle, len(before) - 1)
    assert tree.read("t/0") == partition.text() == left + b"other\n"
    assert tree.file() is not node


def test_what_was_rendered_ahead_is_not_shown_after_a_cut(beside: Beside) -> None:
    """Its broker cuts the log behind what a reader has read, where text lies ahead of it."""
    tree, partition = beside.tree, beside.partition
    values = [b"%06d" % number for number in range(60)]
    for value in values:
        partition.append(value)
    before = partition.text()
    handle = tree.open("t/0")
    shown = b"".join(read(handle, position, 42) for position in range(0, 210, 42))
    assert tree.fs.mount.read_ahead.held_bytes
    partition.truncate(partition.next_offset - 25)
    left = partition.text()
    partition.append(b"others")
    assert len(shown) < len(left) < len(shown) + tree.fs.mount.read_ahead.held_bytes
    for position in range(len(shown), len(before), 42):
        with contextlib.suppress(SegmentGone):
            text = read(handle, position, 42)
            assert text
            assert text == left[position : position + 42]
    assert read(handle, len(before)).endswith(b"others\n")


def test_a_read_of_a_snapshot_does_not_end_at_a_cut(beside: Beside) -> None:
    """The page cache would take that for the end of the file, and fill its page up with zeros."""
    tree, partition = beside.tree, beside.partition
    for number in range(60):
        partition.append(b"%06d" % number)
    before = partition.text()
    handle = tree.open("t/.snapshot/0")
    partition.truncate(partition.next_offset - 25)
    left = len(partition.text())
    partition.append(b"others")
    for position in (left - 42, left, left + 42):
        with pytest.raises(SegmentGone):
            read(handle, position, len(before) - position)


@pytest.mark.parametrize("wait", [False, True])
def test_what_is_written_over_while_it_is_read_is_never_shown(beside: Beside, wait: bool) -> None:
    tree, partition = beside.tree, beside.partition
    partition.append(b"before")
    node = tree.file()
    handle = tree.open(node)
    assert read(handle) == b"zero\nbefore\n"
    partition.truncate(1)
    partition.append(b"behind")
    # Nobody has looked since.
    if wait:
        with pytest.raises(SegmentGone):
            in_thread(lambda: handle.read(0, 12))
    assert read(handle, 0, 12) == b"zero\n"
    with pytest.raises(SegmentGone):
        read(handle, 5, 7)


def test_a_view_of_batches_follows_too(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill()
    node = tree.file("t/.batches/0")
    handle = tree.open(node)

    def stored() -> bytes:
        return b"".join(partition.log(base).read_bytes() for base in partition.bases)

    before = stored()
    assert read(handle) == before
    partition.clean(2, lambda offset, value: offset % 2 == 0)
    assert tree.read("t/.batches/0") == stored()
    assert tree.file("t/.batches/0") is not node
    assert read(handle) == before
    partition.append(b"more")
    size = beside.size(node)
    assert read(handle, len(before)) == stored()[-(size - len(before)) :]
    beside.size(tree.file("t/.batches/0"))
    partition.append(b"cut off")
    size = beside.size(node)
    partition.truncate(partition.next_offset - 1)
    assert tree.read("t/.batches/0") == stored()
    partition.append(b"new")
    new = stored()
    assert tree.read("t/.batches/0") == new
    assert read(handle, size) == new[-(beside.size(node) - size) :]
    with pytest.raises(SegmentGone):
        read(handle, size - 1)


def test_transactions(home: Path) -> None:
    with a_tree(home / "data") as writer:
        writer.mkdir("t")
        log = writer.log()
        with a_tree(home / "data", FOLLOWING) as tree:
            node = tree.file()
            handle = tree.open(node)
            shown = b""
            for number in range(6):
                one = Producer(number % 2, epoch=number, transactional=True)
                append_batches(log, one.batch(b"%d" % number), now_ns=NOW_NS)
                append(log, b"plain")
                assert rest(handle, node, len(shown), tree) == b"", "it is held back"
                append_batches(log, one.commit() if number % 3 else one.abort(), now_ns=NOW_NS)
                new = b"%d\nplain\n" % number if number % 3 else b"plain\n"
                assert rest(handle, node, len(shown), tree) == new
                shown += new
                writer.roll()
            writer.remove_head(4)
            assert tree.read("t/0") == shown[shown.index(b"4") :]
            assert tree.file() is not node
            assert read(handle) == shown, "what is aborted in the segments that are gone is hidden"
            assert list(tree.log().transactions.aborted()) == list(log.transactions.aborted())
            assert tree.log().last_stable_offset == log.last_stable_offset


@pytest.mark.parametrize("rewritten", [1, 2])
@pytest.mark.parametrize("rolls", [0, 1, 2])
@pytest.mark.parametrize("looks", [1, 2])
@pytest.mark.parametrize("change", ["clean", "delete"])
def test_a_tail_shows_what_is_committed_and_rewritten_between_two_looks(
    beside: Beside, change: str, looks: int, rolls: int, rewritten: int
) -> None:
    """The marker was there before the cleaner, or retention, could take what it decides on."""
    tree, partition = beside.tree, beside.partition
    node = tree.file()
    handle = tree.open(node)
    producer = Producer(7, transactional=True)
    values = [b"%d" % n for n in range(210)]
    for value in values:
        partition.put(producer.batch(value), value)
    assert rest(handle, node, 0, tree) == b"zero\n", "it is held back"
    partition.roll()
    partition.append(b"plain")
    if looks == 2:
        beside.size(node)
    partition.put(producer.commit())
    later = [b"later %d" % n for n in range(rolls)]
    for value in later:
        partition.roll()
        partition.append(value)
    count = min(rewritten, len(partition.bases) - 1)
    if change == "clean":
        partition.clean(count, lambda offset, value: True)
    else:
        partition.delete_head(count)
    written = b"".join(value + b"\n" for value in (*values, b"plain", *later))
    assert rest(handle, node, 5, tree) == written
    assert tree.read("t/0") == partition.text()


def test_a_tail_shows_nothing_again_after_a_swap_that_leaves_nothing(beside: Beside) -> None:
    """The size of the cleaned segment does not tell which ones it replaces."""
    tree, partition = beside.tree, beside.partition
    partition.fill()
    node = tree.file()
    handle = tree.open(node)
    read_to = len(rest(handle, node, 0, tree))
    partition.step = lambda: beside.size(tree.file())
    partition.clean(3, lambda offset, value: False)
    partition.clean(2, lambda offset, value: True)
    partition.append(b"more")
    assert rest(handle, node, read_to, tree) == b"more\n"
    assert tree.read("t/0") == partition.text()


@pytest.mark.parametrize("is_rolled", [False, True])
def test_what_is_held_back_comes_first_although_its_cleaned_segment_cannot_be_read(
    beside: Beside, is_rolled: bool
) -> None:
    """The old segment is deleted, and no follower has it open."""
    files = BadFile()
    beside.tree.stop()
    beside.tree = tree = Tree(beside.broker.data, FOLLOWING, files)
    partition = beside.partition
    node = tree.file()
    handle = tree.open(node)
    producer = Producer(7, transactional=True)
    partition.put(producer.batch(b"inside"), b"inside")
    partition.roll()
    assert rest(handle, node, 0, tree) == b"zero\n"
    close_all(tree)
    partition.clean(1, lambda offset, value: True)
    partition.remove_deleted()
    files.inode = os.stat(partition.log(0)).st_ino
    if is_rolled:
        partition.append(b"plain")
        partition.roll()
    partition.put(producer.commit())
    partition.append(b"last")
    tree.fs.partitions.tick()
    assert rest(handle, node, 5, tree) == b""
    files.inode = -1
    assert rest(handle, node, 5, tree) == partition.text()[5:]
    assert tree.read("t/0") == partition.text()


def test_what_is_held_back_is_not_taken_from_a_tail_by_a_cleaner(beside: Beside) -> None:
    """A segment is rewritten whose transaction is open: what was never shown is shown in time."""
    tree, partition = beside.tree, beside.partition
    node = tree.file()
    handle = tree.open(node)
    producer = Producer(7, transactional=True)
    values = [b"%d" % n for n in range(210)]
    for value in values:
        partition.put(producer.batch(value), value)
    beside.size(node)
    partition.roll()
    partition.append(b"plain")
    partition.clean(1, lambda offset, value: True)
    assert rest(handle, node, 0, tree) == b"zero\n", "it is held back"
    assert tree.read("t/0") == b"zero\n"
    partition.roll()
    partition.append(b"last")
    partition.remove_deleted()
    assert rest(handle, node, 5, tree) == b""
    partition.put(producer.commit())
    written = b"".join(value + b"\n" for value in (*values, b"plain", b"last"))
    assert rest(handle, node, 5, tree) == written
    assert tree.read("t/0") == partition.text() == b"zero\n" + written
    partition.append(b"more")
    assert rest(handle, node, 5 + len(written), tree) == b"more\n"


def test_indexes_in_the_cache_are_those_of_their_segments(beside: Beside, tmp_path: Path) -> None:
    """A cleaned segment has the name of the one that it replaces."""
    tree, partition = beside.tree, beside.partition
    for number in range(2000):
        partition.append(b"x%06d" % number)
        if number % 500 == 499:
            partition.roll()
    before = partition.text()
    node = tree.file()
    handle = tree.open(node)
    assert read(handle, 0, 1 << 20) == before
    partition.clean(3, lambda offset, value: offset % 2 == 0)
    assert tree.read("t/0") == partition.text()
    for position in range(0, len(before), 1001):
        assert read(handle, position, 100) == before[position : position + 100]
    now = partition.text()
    for position in range(0, len(now), 1001):
        assert tree.read("t/0", position, 100) == now[position : position + 100]
    tree.manager.sweep(1 << 62)
    assert not list(tmp_path.glob("cache/kafkafs/*/*.deleted"))


# -- up to the high watermark --------------------------------------------------------------------


class Ended:
    """A log with transactions, and what a consumer gets below each high watermark."""

    def __init__(self, broker: BrokerDirectory, rolls: int, *, commit: bool) -> None:
        """Write transactions of two producers, and other records.

        The first transaction is aborted. The transaction of the second producer lies inside the
        next transaction of the first one. `commit`: the inner one is committed and the outer one
        aborted, else the other way round. `rolls`: each segment has that many batches; 0: there
        is one segment.
        """
        partition = self.partition = broker.partition()
        one, two = Producer(1, transactional=True), Producer(2, transactional=True)
        batches = [
            (one.batch(b"a0"), b"a0"),
            (one.abort(), None),
            (None, b"p0"),
            (one.batch(b"a1", b"a2"), b"a1\na2"),
            (None, b"p1"),
            (two.batch(b"b0"), b"b0"),
            (None, b"p2"),
            (two.commit() if commit else two.abort(), None),
            (None, b"p3"),
            (one.batch(b"a3"), b"a3"),
            (one.abort() if commit else one.commit(), None),
            (None, b"p4"),
        ]
        kept = {b"b0"} if commit else {b"a1\na2", b"a3"}
        # (the end of a batch, the last stable offset with it, what is shown up to that)
        self.ends = [(0, 0, b"")]
        text = {}
        for number, (batch, value) in enumerate(batches):
            if number and rolls and number % rolls == 0:
                partition.roll()
            if batch is None:
                assert value is not None
                text[partition.next_offset] = value + b"\n"
                partition.append(value)
            else:
                if value in kept:
                    text[partition.next_offset] = value + b"\n"
                partition.put(batch)
            stable = partition.producers.first_undecided_offset
            end = partition.next_offset
            stable = end if stable is None else stable
            shown = b"".join(line for offset, line in text.items() if offset < stable)
            self.ends.append((end, stable, shown))


UNTIL = Following(read_only=True, until="high-watermark")


@pytest.mark.parametrize(
    ("first", "rolls", "commit"),
    [
        (first, rolls, commit)
        for n, (rolls, commit) in enumerate(itertools.product([0, 1, 3], [False, True]))
        for first in range(n % 3, 13, 3)
    ],
)
def test_transactions_below_the_high_watermark(
    home: Path, first: int, rolls: int, commit: bool
) -> None:
    """Transactions that end above it are undecided until it moves past them."""
    broker = BrokerDirectory(home / "data")
    ended = Ended(broker, rolls, commit=commit)
    broker.write_high_watermark(ended.partition, ended.ends[first][0])
    tree = Tree(home / "data", UNTIL)
    node = tree.file()
    handle = tree.open(node)
    for end, stable, shown in ended.ends[first:]:
        broker.write_high_watermark(ended.partition, end)
        assert tree.attributes(node).size == len(shown)
        assert tree.log().log_end_offset == end
        assert tree.log().last_stable_offset == stable
        assert read(handle) == shown
        assert tree.read("t/0") == shown
        assert tree.file() is node
    tree.stop()


@pytest.mark.parametrize("plain", [[], [b"before"], [b"after"], [b"before", b"after"]])
@pytest.mark.parametrize("change", ["clean", "clean often", "merge", "delete"])
@pytest.mark.parametrize(("is_behind", "returns"), [(False, True), (True, False)])
def test_a_marker_is_removed_before_it_was_read(
    home: Path, is_behind: bool, change: str, plain: list[bytes], returns: bool
) -> None:
    """A tail has read the aborted records, and does not show them although the next transaction of
    their producer is committed. If there is none, nothing waits for it.

    ``is_behind``: the last high watermark that the broker has recorded lies before the marker.
    """
    beside = Beside(home / "data", UNTIL if is_behind else FOLLOWING)
    partition = beside.partition
    beside.broker.write_high_watermark(partition, 2)
    with beside.mounted() as tree:
        node = tree.file()
        handle = tree.open(node)
        producer = Producer(7, transactional=True)
        taken = {partition.put(producer.batch(b"aborted"))}
        assert rest(handle, node, 0, tree) == b"zero\n"
        partition.roll()
        partition.append(*(value for value in plain if value == b"before"))
        taken.add(partition.put(producer.abort()))
        partition.append(*(value for value in plain if value == b"after"))
        partition.roll()
        if returns:
            partition.put(producer.batch(b"committed"), b"committed")
            partition.put(producer.commit())
        partition.append(b"last")
        if change == "delete":
            partition.delete_head(2)
        elif change == "merge":
            partition.clean(2, lambda offset, value: True, decided=taken)
        else:
            partition.clean(1, lambda offset, value: True, decided=taken)
            for _ in range(1 if change == "clean" else 2):
                partition.clean(1, lambda offset, value: True, first=1, decided=taken)
        if change != "clean often":
            partition.remove_deleted()
        expected = partition.text().removeprefix(b"zero\n")
        assert expected.startswith(rest(handle, node, 5, tree))
        beside.broker.write_high_watermark(partition, partition.next_offset)
        assert rest(handle, node, 5, tree) == expected
        assert tree.read("t/0") == partition.text()
        assert tree.log().last_stable_offset == partition.next_offset


@pytest.mark.parametrize("is_open", [False, True])
def test_a_replica_has_gaps_of_its_leader_above_the_high_watermark(
    home: Path, is_open: bool
) -> None:
    """Records after them are shown below the high watermark only.

    ``is_open``: a transaction was read whose marker was not. Else a cleaned segment was read in
    part.
    """
    beside = Beside(home / "data", UNTIL)
    partition = beside.partition
    beside.broker.write_high_watermark(partition, 1 + is_open)
    with beside.mounted() as tree:
        producer = Producer(7, transactional=True)
        if is_open:
            partition.put(producer.batch(b"unread"), b"unread")
        else:
            partition.append(b"unread")
        assert tree.read("t/0") == b"zero\n"
        if not is_open:
            close_all(tree)
        partition.roll()
        if is_open:
            partition.put(producer.commit())
        partition.append(b"one")
        # Its leader had removed records before it fetched them.
        partition.next_offset += 3
        partition.append(b"two")
        beside.broker.write_high_watermark(partition, partition.next_offset)
        below = partition.text()
        partition.append(b"three")
        partition.roll()
        partition.append(b"four")
        for _ in range(2):
            partition.clean(1, lambda offset, value: True)
        partition.remove_deleted()
        assert below.startswith(tree.read("t/0"))
        beside.broker.write_high_watermark(partition, partition.next_offset)
        assert tree.read("t/0") == partition.text()


# -- topics --------------------------------------------------------------------------------------


def test_topics_appear_and_go(beside: Beside) -> None:
    tree, broker = beside.tree, beside.broker
    root = tree.fs.root
    assert root.names() == ["t"]
    other = broker.partition("u")
    other.append(b"first")
    assert root.names() == ["t", "u"]
    assert tree.read("u/0") == b"first\n"
    topic = tree.directory("t")
    broker.partition("t", 1, tree.log().topic_id).append(b"one")
    assert topic.names() == ["0", "1"]
    assert tree.read("t/1") == b"one\n"
    handle = tree.open("u/0")
    broker.delete(other)
    assert root.names() == ["t"]
    with pytest.raises(FileNotFoundError):
        tree.node("u")
    assert read(handle) == b"first\n"
    again = broker.partition("u")
    again.append(b"second")
    assert tree.read("u/0") == b"second\n"
    assert read(handle) == b"first\n"
    tree.manager.sweep(1 << 62)
    with pytest.raises(SegmentGone):
        read(handle)


def test_a_topic_appears_that_has_the_file_systems_own_name(beside: Beside) -> None:
    tree, broker = beside.tree, beside.broker
    partition = broker.partition(".kafkafs")
    partition.append(b"hidden")
    for _ in range(2):
        assert tree.fs.root.names() == ["t"]
    assert tree.events().count("topic '.kafkafs' is not shown") == 1
    assert tree.directory(".kafkafs").names()[0] == "config"


def test_a_tick_looks_for_topics_and_log_starts_and_appends(beside: Beside) -> None:
    tree, broker, partition = beside.tree, beside.broker, beside.partition
    node = tree.file()
    broker.partition("u")
    partition.append(b"one")
    tree.notices.clear()
    tree.fs.partitions.tick()
    assert sorted(tree.manager.topics) == ["t", "u"]
    assert node.inode in tree.notices.attributes
    partition.delete_records(1)
    tree.fs.partitions.tick()
    assert tree.log().log_start_offset == 1


def test_records_are_deleted_into_an_open_transaction(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    one = Producer(1, transactional=True)
    partition.put(one.batch(b"one", b"two"))
    last = partition.put(one.batch(b"three"), b"three")
    tree.file()
    tree.fs.partitions.tick()
    partition.delete_records(last)
    tree.fs.partitions.tick()
    assert tree.log().last_stable_offset == last
    assert tree.attributes(tree.file()).size == 0
    partition.put(one.commit())
    assert tree.attributes(tree.file()).size == len(b"three\n")
    assert tree.read("t/0") == b"three\n"


def test_a_partition_that_cannot_be_followed_is_named_once(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    node = tree.file()
    with open(partition.active, "ab") as file:
        file.write(b"nonsense" * 10)
    partition.roll()
    for _ in range(3):
        assert beside.size(node) == 5
    assert tree.events().count("t/0: cannot read the changes of the writer") == 1


# -- when nobody writes it yet -------------------------------------------------------------------


def test_a_broker_that_starts_after_the_mount_is_followed(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount has been at rest: only the start of the broker ends the time of attributes."""
    beside = Beside(home / "data", MountOptions(read_only=True))
    with beside.mounted() as tree:
        node = tree.file()
        assert tree.attributes(node).attr_timeout > 0
        beside.partition.append(b"one")
        tree.fs.partitions.tick()
        assert beside.size(node) == 5, "no process has the lock"
        monkeypatch.setattr(type(tree.manager.files), "is_locked", lambda self, path: True)
        tree.fs.partitions.tick()
        assert beside.size(node) == 9
        assert node.inode in tree.notices.attributes
        assert tree.open(node).direct_io
        tree.rest()
        attributes = tree.attributes(node)
        assert (attributes.attr_timeout, attributes.entry_timeout) == (0, 0)


# -- over remounts -------------------------------------------------------------------------------


def test_inodes_are_the_same_after_a_remount_unless_the_past_has_changed(beside: Beside) -> None:
    partition = beside.partition
    partition.fill()

    def inode(tree: Tree) -> int:
        return tree.file().inode

    inodes = [inode(beside.tree)]
    for change in changes(partition):
        beside.tree.stop()
        change()
        inodes.append(inode(beside.mount()))
        assert beside.tree.read("t/0") == partition.text()
    same = [before == after for before, after in itertools.pairwise(inodes)]
    assert same == [True, False, False, False, True]


def test_records_that_are_deleted_while_nobody_looks(beside: Beside) -> None:
    inode = beside.tree.file().inode
    beside.tree.stop()
    beside.partition.append(b"one")
    beside.partition.delete_records(1)
    assert beside.mount().file().inode != inode


def test_nothing_is_written_into_the_directory(beside: Beside) -> None:
    tree, partition = beside.tree, beside.partition
    partition.fill()
    tree.read("t/0")
    partition.delete_head(1)
    tree.read("t/0")
    before = sorted(str(path) for path in beside.broker.data.rglob("*"))
    tree.manager.sweep(1 << 62)
    tree.stop()
    assert sorted(str(path) for path in beside.broker.data.rglob("*")) == before
    beside.mount()


def test_a_cache_that_cannot_be_written(home: Path) -> None:
    (home / "cache").write_text("a file")
    beside = Beside(home / "data")
    beside.partition.fill()
    inodes = set()
    for _ in range(2):
        tree = beside.mount()
        assert tree.read("t/0") == beside.partition.text()
        inodes.add(tree.file().inode)
        tree.stop()
    assert len(inodes) == 2, "never one that another history may have had"


@pytest.mark.parametrize("end", range(7))
def test_a_name_leads_to_what_a_killed_broker_has_left(home: Path, end: int) -> None:
    """The broker wrote the high watermark `end` and then cleaned all sealed segments.

    It cleaned the first segment three times, so the file that the tree read is deleted.
    """
    beside = Beside(home / "data", UNTIL)
    partition = beside.partition
    for value in (b"one", b"two", b"three"):
        partition.append(value, value)
        partition.roll()
    beside.broker.write_high_watermark(partition, end)
    with beside.mounted() as tree:
        for first in (0, 0, 0, 1, 2):
            partition.clean(1, lambda offset, _: offset % 2 == 0, first)
        shown = tree.read("t/0")
        below = [value for offset, value in partition.records if offset < end]
        assert shown.startswith(b"".join(value + b"\n" for value in below))
        assert partition.text().startswith(shown)
        beside.broker.write_high_watermark(partition, partition.next_offset)
        assert tree.read("t/0") == partition.text()


# -- anything ------------------------------------------------------------------------------------

_OPERATION = st.sampled_from(
    ["append", "append", "append", "roll", "delete", "clean", "cut", "remove", "open", "sweep"]
)


@given(st.lists(st.tuples(_OPERATION, st.integers(0, 7), st.booleans()), max_size=25))
def test_an_inode_never_shows_two_histories(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, int, bool]]
) -> None:
    base = tmp_path_factory.mktemp("following")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        patch.setattr(os, "geteuid", lambda: 1000)
        beside = Beside(base / "data")
        partition = beside.partition
        with beside.mounted() as tree:
            opened = [Shown(tree)]
            for name, number, look in operations:
                if name == "append":
                    partition.append(*[b"%d" % (partition.next_offset + n) for n in range(number)])
                elif name == "roll" and partition.next_offset > partition.bases[-1]:
                    partition.roll()
                elif name == "delete":
                    partition.delete_head(min(number, len(partition.bases) - 1))
                elif name == "clean" and len(partition.bases) > 1:
                    count = 1 + number % (len(partition.bases) - 1)
                    partition.clean(count, lambda offset, value: offset % 3 == number % 3)  # noqa: B023
                elif name == "cut":
                    starts = [*partition.batch_starts(), partition.next_offset]
                    partition.truncate(starts[number % len(starts)])
                    partition.log_start = min(partition.log_start, partition.next_offset)
                elif name == "remove":
                    partition.remove_deleted()
                elif name == "open":
                    opened.append(Shown(tree))
                elif name == "sweep":
                    tree.manager.sweep(1 << 62)
                if look:
                    for shown in opened:
                        shown.check()
            for shown in opened:
                shown.check()
            assert tree.read("t/0") == partition.text()


class Shown:
    """An open file and what it has shown so far, byte by byte; None where nobody has looked.

    ``never``: bytes that it never has.
    """

    def __init__(self, tree: Tree, path: str = "t/0", never: bytes = b"") -> None:
        self._tree = tree
        self._never = never
        # It has blank lines in the place of records that were removed.
        self._is_follow = ".follow" in path
        while True:
            self._node = tree.node(path)
            # As the kernel, which looks the name up again.
            with contextlib.suppress(OSError):
                self._handle = tree.open(self._node)
                break
        self._bytes: list[int | None] = []
        self.check()

    def check(self) -> None:
        """Its size has not shrunk, and each byte is the one that it was, or gone."""
        size = self._tree.attributes(self._node).size
        assert size >= len(self._bytes)
        self._bytes += [None] * (size - len(self._bytes))
        position = 0
        while position < size:
            try:
                text = read(self._handle, position, size - position)
            except SegmentGone:
                position += 1
                continue
            assert text
            for at, byte in enumerate(text, position):
                if self._is_follow and byte == ord("\n"):
                    continue
                assert self._bytes[at] in (None, byte)
                assert byte not in self._never
                self._bytes[at] = byte
            position += len(text)
