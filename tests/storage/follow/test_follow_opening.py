"""A directory that its writer rewrites while it is opened, and before it is followed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.follow.follow_directory import DirectoryFollower
from tests.broker_files import Between, BrokerDirectory, BrokerPartition, before_each_operation
from tests.storage.logs import values
from tests.storage.producers import Producer


def _clean_last(partition: BrokerPartition) -> None:
    """The active segment is rolled and cleaned, and what was there is removed."""
    partition.append(b"x1", b"x2")
    partition.roll()
    partition.append(b"x3")
    partition.clean(len(partition.bases) - 1, lambda offset, value: offset % 2 == 0)
    partition.remove_deleted()


def _clean_first(partition: BrokerPartition) -> None:
    partition.clean(1, lambda offset, value: offset % 2 == 0)
    partition.remove_deleted()


def _clean_each(partition: BrokerPartition) -> None:
    """Each segment by itself, also what was the active one; the first one twice, so that what it
    was is there no longer.
    """
    partition.roll()
    partition.append(b"x1", b"x2")
    for first in (0, 0, 1, 2, 3):
        partition.clean(1, lambda offset, value: offset % 2 == 0, first)


def _delete(partition: BrokerPartition) -> None:
    """All but a segment that was not there before."""
    partition.roll()
    partition.append(b"x1", b"x2")
    partition.delete_head(len(partition.bases) - 1)
    partition.remove_deleted()


CHANGES = [_clean_first, _clean_last, _clean_each, _delete]


def _filled(broker: BrokerDirectory) -> BrokerPartition:
    """Segments begin at 0, 5, 10, 15, and end at 20; a batch begins there and one before."""
    partition = broker.partition()
    for each in range(4):
        partition.append(*[b"%d %d" % (each, n) for n in range(4)])
        partition.append(b"last of %d" % each)
        if each < 3:
            partition.roll()
    return partition


@pytest.mark.parametrize("until", [None, 4, 19])
@pytest.mark.parametrize("change", CHANGES)
def test_it_is_rewritten_while_it_is_opened(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[BrokerPartition], None],
    until: int | None,
) -> None:
    """``until``: the high watermark that was written down before."""
    for number, files in before_each_operation(20):
        broker = BrokerDirectory(tmp_path / str(number))
        partition = _filled(broker)
        if until is not None:
            broker.write_high_watermark(partition, until)
        files.begin(lambda: change(partition))  # noqa: B023
        with LogManager.open(
            str(broker.data), read_only=True, files=files, keeps_faulty=True
        ) as manager:
            follower = DirectoryFollower(manager, until_high_watermark=until is not None)
            files.end()
            follower.look_for_partitions()
            assert manager.topics.faulty == []
            log = manager.log("t", 0)
            follower.look(log)
            follower.look(log)
            shown = values(log)
            if until is None:
                assert shown == partition.values
            else:
                below = [value for offset, value in partition.records if offset < until]
                assert shown[: len(below)] == below
                assert shown == partition.values[: len(shown)]
            assert not any(segment.damages for segment in log.segments)
        assert not caplog.records


@pytest.mark.parametrize("looked", [False, True])
@pytest.mark.parametrize("until", [0, 4, 9, 15, 19])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_high_watermark_names_is_removed(
    tmp_path: Path, change: Callable[[BrokerPartition], None], until: int, looked: bool
) -> None:
    """The broker changes the log before it writes the next high watermark.

    The reader shows the new state, at least up to the old high watermark. `looked`: the reader also
    looks after each step of the change.
    """
    broker = BrokerDirectory(tmp_path)
    partition = _filled(broker)
    broker.write_high_watermark(partition, until)
    with LogManager.open(str(tmp_path), read_only=True) as manager:
        follower = DirectoryFollower(manager, until_high_watermark=True)
        log = manager.log("t", 0)

        def look() -> None:
            follower.look(log)

        if looked:
            partition.step = look
        change(partition)
        follower.look(log)
        shown = values(log)
        below = [value for offset, value in partition.records if offset < until]
        assert shown[: len(below)] == below
        assert shown == partition.values[: len(shown)]
        broker.write_high_watermark(partition, partition.next_offset)
        follower.look(log)
        assert values(log) == partition.values


def _with_aborted(broker: BrokerDirectory) -> BrokerPartition:
    """Two sealed segments with indexes and the active one; an aborted transaction in the first."""
    partition = broker.partition()
    partition.append(b"kept")
    producer = Producer(7, transactional=True)
    partition.put(producer.batch(b"aborted"))
    partition.put(producer.abort())
    for value in (b"one", b"two"):
        partition.write_indexes()
        partition.roll()
        partition.append(value)
    return partition


def _finish(directory: Path) -> None:
    """Finish the swap of one segment, as a broker does when it starts."""
    if not list(directory.glob(f"*{paths.CLEANED}")):
        for path in directory.glob(f"*{paths.SWAP}"):
            path.rename(path.with_suffix(""))


@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_aborted_stays_so_between_the_last_two_renames_of_a_swap(
    tmp_path: Path, is_open: bool
) -> None:
    """kafkafs renames the log last, so its index of transactions has the final name before."""
    broker = BrokerDirectory(tmp_path)
    partition = _with_aborted(broker)
    log_path = partition.directory / paths.file_name(0, paths.LOG)
    swapped = log_path.with_name(log_path.name + paths.SWAP)

    def swap() -> None:
        swapped.write_bytes(log_path.read_bytes())
        log_path.rename(log_path.with_name(log_path.name + paths.DELETED))

    if not is_open:
        swap()
    with LogManager.open(str(broker.data), read_only=True, keeps_faulty=True) as manager:
        follower = DirectoryFollower(manager)
        log = manager.log("t", 0)
        if is_open:
            swap()
            follower.look(log)
        assert log.segments[0].log_path == str(swapped)
        assert len(log.segments[0].aborted) == 1
        swapped.rename(log_path)
        follower.look(log)
        assert values(log) == partition.values


def _pairs(
    has_acted: Callable[[], bool], has_ended: Callable[[], bool], first: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield at which operation of the reader the writer acts, and how many steps it comes.

    Each third number of steps is tried, and the next two at the next operations of the reader.
    """
    for number in itertools.count():
        for step in itertools.count(first + number % 3, 3):
            yield number, step
            if has_ended():
                break
        if not has_acted():
            return


class _Stopped(Exception):  # noqa: N818 - nothing is wrong
    """The writer was killed."""


@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_aborted_stays_so_wherever_a_cleaner_is_with_its_names(
    tmp_path: Path, is_open: bool
) -> None:
    """While the log is opened, or looked at, a cleaner comes as far as its ``step``-th change and
    is killed; the broker that starts then finishes the swap.
    """
    first = 1 if is_open else 6  # the first rename of an old file
    steps = 0
    for number, step in _pairs(lambda: files.has_acted, lambda: left > 0, first):  # noqa: B023
        broker = BrokerDirectory(tmp_path / f"{number} {step}")
        partition = _with_aborted(broker)
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise _Stopped

        def clean() -> None:
            partition.step = count  # noqa: B023
            with contextlib.suppress(_Stopped):
                partition.clean(1, lambda offset, value: True)  # noqa: B023

        files = Between(number)
        if not is_open:
            files.begin(clean)
        with LogManager.open(
            str(broker.data), read_only=True, files=files, keeps_faulty=True
        ) as manager:
            follower = DirectoryFollower(manager)
            if is_open:
                (partition.directory / "other").touch()
                files.begin(clean)
                follower.look(manager.log("t", 0))
            files.end()
            follower.look_for_partitions()
            assert manager.topics.faulty == []
            log = manager.log("t", 0)
            for _ in range(2):
                follower.look(log)
                aborted = [entry.first_offset for entry in log.transactions.aborted()]
                assert aborted == [1], (number, step)
                _finish(partition.directory)
        steps = max(steps, step)
    assert number > 10
    assert steps > 12


class BesideBroker(Between):
    """A broker, another process, has the directory's lock."""

    def is_locked(self, path: str) -> bool:
        return True


@pytest.mark.parametrize("is_flushed", [False, True])
def test_what_is_aborted_stays_so_while_a_killed_broker_recovers(
    tmp_path: Path, is_flushed: bool
) -> None:
    """While the log is opened, the broker empties the indexes of what may not be on the disk, and
    has come as far as its ``step``-th change when the log is open.
    """
    steps = 0
    for number, step in _pairs(lambda: files.has_acted, lambda: left >= 0):  # noqa: B023
        broker = BrokerDirectory(tmp_path / f"{number} {step}")
        partition = broker.partition()
        producer = Producer(7, transactional=True)
        expected = []
        for _ in range(2):
            partition.append(b"kept")
            expected.append(partition.put(producer.batch(b"aborted")))
            partition.put(producer.abort())
            partition.append(b"kept")
            partition.roll()
        # The last broker was closed in the middle of the last segment, and its successor killed.
        expected.append(partition.put(producer.batch(b"aborted")))
        partition.put(producer.abort())
        partition.append(b"flushed")
        (partition.directory / paths.file_name(partition.next_offset, paths.SNAPSHOT)).write_bytes(
            partition.producers.encode()
        )
        (broker.data / paths.META_PROPERTIES).write_text("version=1\n")
        if not is_flushed:
            partition.append(b"kept")
        partition.recover(*partition.bases)
        point = partition.next_offset if is_flushed else partition.bases[1]
        broker.write_recovery_point(partition, point)
        recovered = partition.bases[-1:] if is_flushed else partition.bases[1:]
        left = step

        def count() -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise _Stopped

        def recover() -> None:
            partition.step = count  # noqa: B023
            with contextlib.suppress(_Stopped):
                partition.recover(*recovered)  # noqa: B023

        files = BesideBroker(number)
        files.begin(recover)
        with LogManager.open(str(broker.data), read_only=True, files=files) as manager:
            files.end()
            log = manager.log("t", 0)
            aborted = [entry.first_offset for entry in log.transactions.aborted()]
            assert aborted == expected, (number, step)
        steps = max(steps, step)
    assert number > 10
    assert steps > 7
