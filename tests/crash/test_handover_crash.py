"""A stop at every file operation of a handover, a failure of each, and a full disk from each on.

Wherever it stops, the source has all its records.  As long as the broker can start it finds the
topics either whole or empty, as they were, and where it cannot, the next run hands them over.  What
another topic of the broker's has in its checkpoints stays.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.errors import HandoverRefused
from storage.files import Files
from storage.handover.handover import hand_over
from storage.state import checkpoint_file, point_file
from storage.state.point_file import Position, Range
from tests.crash.failing_disk import FailingDisk
from tests.crash.moments import Found, Stops, Unsynced, chosen_numbers
from tests.storage.handed import OTHER, clock_ms, shown, write_broker
from tests.storage.handover.test_restore_points import NAME, take_point
from tests.storage.logs import NOW_MS, append, write_settings
from tests.storage.old_logs import content
from tests.storage.transactions import Client

CHECKPOINTS = (
    *(paths.RECOVERY_POINTS, paths.LOG_STARTS),
    *(paths.HIGH_WATERMARKS, paths.CLEANER_OFFSETS),
)
PARTITIONS = {"a": 1, "b": 2}
Shown = dict[tuple[str, int], tuple[object, ...]]


TOPICS = {**PARTITIONS, paths.CONSUMER_OFFSETS: 2}


def build(root: Path, *, is_open: bool = False, topics: Mapping[str, int] = PARTITIONS) -> None:
    """A source, and a broker's directory beside it."""
    data = root / "data"
    data.mkdir(parents=True)
    write_settings(data, log_index_size_max_bytes=240)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        for topic, partitions in PARTITIONS.items():
            manager.create_topic(topic, partitions)
            manager.change_topic_settings(topic, {"internal.segment.bytes": "300"})
        log = manager.log("a", 0)
        for n in range(4):
            append(log, b"%d" % n * 60, b"%d!" % n * 60, timestamp_ms=NOW_MS + n)
        log.raise_log_start(3)
        client = Client(manager.log("b", 0), 7)
        client.send(b"aborted")
        client.abort()
        if is_open:
            client.send(b"open")
    write_broker(root / "broker", dict(topics))


def run(root: Path, files: Files, *, link: bool = False) -> None:
    data, broker = str(root / "data"), str(root / "broker")
    hand_over(
        data, broker, abort=True, link=link, files=files, clock_ns=lambda: clock_ms() * 1_000_000
    )


def given(root: Path) -> dict[str, bytes]:
    """Return all files that a broker finds, except the lock, which it makes itself."""
    return {name: data for name, data in content(root / "broker").items() if name != paths.LOCK}


class Reference:
    """The records before and after an undisturbed run."""

    def __init__(self, tmp_path: Path, *, is_open: bool = False, link: bool = False) -> None:
        self.link = link
        self.root = tmp_path / "reference"
        build(self.root, is_open=is_open)
        self.empty: Shown = shown(self.root / "broker")
        self.records = self.committed(shown(self.root / "data"))
        run(self.root, Files(), link=link)
        self.whole: Shown = shown(self.root / "data")
        assert shown(self.root / "broker") == self.whole

    @staticmethod
    def committed(found: Shown) -> list[object]:
        return [fact[2]["read_committed"] for fact in found.values()]  # type: ignore[index]

    def check(self, root: Path) -> None:
        """Judge what a stop or a failure has left, and go on from there."""
        broker = root / "broker"
        assert self.committed(shown(root / "data")) == self.records
        if not (broker / paths.HANDOVER).exists():
            assert shown(broker) in (self.empty, self.whole)
            assert_others_stay(broker)
        else:
            with pytest.raises(HandoverRefused):
                LogManager.open(str(broker))
        run(root, Unsynced(), link=self.link)
        assert not (broker / paths.HANDOVER).exists()
        assert shown(broker) == shown(root / "data") == self.whole
        assert_others_stay(broker)
        for name in CHECKPOINTS:
            mine, theirs = (
                checkpoint_file.read_offsets(Files(), str(each / "broker" / name))
                for each in (root, self.root)
            )
            assert mine == theirs, name
        assert {path.name for path in broker.rglob("*.snapshot")} == {
            path.name for path in (self.root / "broker").rglob("*.snapshot")
        }


def assert_others_stay(broker: Path) -> None:
    for name in (paths.RECOVERY_POINTS, paths.HIGH_WATERMARKS):
        found = checkpoint_file.read_offsets(Files(), str(broker / name))
        assert found.items() >= OTHER.items()


def stops_of(tmp_path: Path, seeds: Iterable[int], *, is_open: bool, link: bool) -> Stops:
    root = tmp_path / "root"
    build(root, is_open=is_open)
    stops = Stops(root, seeds=seeds)
    run(root, stops.disk, link=link)
    stops.end()
    for kind in ("mkdir broker/kafkafs.handover", "rmdir", "unlink", "kafkafs.handover/plan"):
        assert any(kind in moment for moment in stops.moments), kind
    assert any(moment.startswith("link ") for moment in stops.moments) == link
    return stops


def judge(tmp_path: Path, seeds: Iterable[int], *, is_open: bool, link: bool) -> None:
    reference = Reference(tmp_path, is_open=is_open, link=link)
    stops = stops_of(tmp_path, seeds, is_open=is_open, link=link)

    def check(reference: Reference, path: Path, _found: Found) -> None:
        reference.check(path)

    stops.judge(functools.partial(check, reference), tmp_path / "found")


@pytest.mark.parametrize("link", [False, True])
def test_a_stop_at_every_operation(tmp_path: Path, link: bool) -> None:
    judge(tmp_path, (0, 2), is_open=False, link=link)


def test_a_stop_while_transactions_are_aborted(tmp_path: Path) -> None:
    judge(tmp_path, (0,), is_open=True, link=False)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failure_of_every_operation(tmp_path: Path, error: int) -> None:
    """The broker has been given all or nothing, and can start."""
    reference = Reference(tmp_path)
    for at in chosen_numbers():
        root = tmp_path / str(at)
        build(root)
        disk = FailingDisk(str(root))
        disk.fail_from_now(error, at)
        with contextlib.suppress(OSError):
            run(root, disk)
        disk.kill()
        if not disk.failed:
            break
        assert not (root / "broker" / paths.HANDOVER).exists(), disk.failed
        reference.check(root)
    assert at > 30


# -- restore points --------------------------------------------------------------------------------


def build_point(root: Path) -> None:
    """A point that divides a transaction, with groups in both of the broker's partitions."""
    build(root, is_open=True, topics=TOPICS)
    positions = {("a", 0): Position(3)}
    take_point(root / "data", groups={f"g{number}": positions for number in range(5)})
    point = point_file.read(Files(), str(root / "data"), NAME)
    start, _ = point.partitions["b", 0]
    with LogManager.open(str(root / "data"), mirrors=True, clock_ms=clock_ms) as manager:
        log = manager.log("b", 0)
        point.partitions["b", 0] = Range(start, log.log_end_offset)
        Client(log, 7).abort()
    point_file.write(Files(), str(root / "data"), point)


def run_point(root: Path, files: Files) -> None:
    data, broker = str(root / "data"), str(root / "broker")
    hand_over(data, broker, at=NAME, files=files, clock_ns=lambda: clock_ms() * 1_000_000)


def test_a_stop_at_every_operation_with_a_restore_point(tmp_path: Path) -> None:
    root = tmp_path / "root"
    build_point(root)
    empty = shown(root / "broker")
    source = content(root / "data")
    stops = Stops(root, seeds=(0,))
    run_point(root, stops.disk)
    stops.end()
    whole = shown(root / "broker")
    assert {topic for topic, _ in whole} == TOPICS.keys()

    def check(path: Path, _found: Found) -> None:
        broker = path / "broker"
        assert content(path / "data") == source
        if (broker / paths.HANDOVER).exists():
            with pytest.raises(HandoverRefused):
                LogManager.open(str(broker))
        else:
            assert_others_stay(broker)
            if shown(broker) == whole:
                return
            assert shown(broker) == empty
        run_point(path, Unsynced())
        assert shown(broker) == whole
        assert_others_stay(broker)

    stops.judge(check, tmp_path / "found")
