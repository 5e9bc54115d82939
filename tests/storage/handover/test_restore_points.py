"""A handover of a restore point: the broker is given the state of that moment, or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from storage import LogManager, paths
from storage.errors import HandoverRefused, MirroredDirectory
from storage.files import Files
from storage.state import gaps_file, mirror_file, point_file
from storage.state.gaps_file import Gap
from storage.state.mirror_file import MirrorFile
from storage.state.point_file import Point, Position, Range
from storage.verify.verify import verify
from tests.storage import handed
from tests.storage.handed import TOPICS, Places, clock_ms, go_on, shown, write_broker, write_source
from tests.storage.logs import NOW_MS, NOW_NS, append, values
from tests.storage.old_logs import content
from tests.storage.transactions import Client, produced, put

NAME = point_file.name_at(NOW_MS)
hand = partial(handed.hand, at=NAME, clock_ns=lambda: NOW_NS)
refused = partial(handed.refused, at=NAME, clock_ns=lambda: NOW_NS)


def open_mirror(data: Path) -> LogManager:
    return LogManager.open(str(data), mirrors=True, clock_ms=clock_ms)


def take_point(data: Path, **more: object) -> Point:
    """Make the directory a mirror, and take a point of its present state."""
    point = Point(NOW_MS, "C")
    with LogManager.open(str(data), read_only=True, clock_ms=clock_ms) as manager:
        for log in manager.logs():
            point.ids[log.topic] = manager.topic(log.topic).id or "-"
            item = log.topic, log.partition
            point.partitions[item] = Range(log.log_start_offset, log.last_stable_offset)
    for name, value in more.items():
        setattr(point, name, value)
    point_file.write(Files(), str(data), point)
    mirror_file.write(Files(), str(data), MirrorFile("C", "kafka://one:9092", ("*",)))
    return point


def copy_on(data: Path) -> None:
    """Later records, in the segments of the point and in new ones."""
    with open_mirror(data) as manager:
        for log in manager.logs():
            for n in range(6):
                append(log, b"later %d" % n * 10, timestamp_ms=NOW_MS - n)
        log = manager.log("sent", 0)
        for n in range(4):
            client = Client(log, 70 + n)
            client.send(b"later %d" % n)
            client.end(n % 2)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    """A mirror with a point and later records, and the broker's directory."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    take_point(data)
    shutil.copytree(data, tmp_path / "then")
    copy_on(data)
    write_broker(broker)
    return data, broker


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_broker_is_given_the_state_of_the_point(
    places: Places, link: bool, is_clean: bool
) -> None:
    data, broker = places
    if not is_clean:
        (data / paths.CLEAN_SHUTDOWN).unlink()
        hand(places, dry_run=True)
    before = content(data)
    outcome = hand(places, link=link)
    if is_clean:
        assert content(data) == before
    assert shown(broker) == shown(data.parent / "then")
    # The mirror may truncate its files.
    assert not any(each.linked_size for each in outcome.handed)
    assert verify(str(broker)).faults == []
    again = hand(places)
    assert (again.handed, len(again.finished)) == ([], sum(TOPICS.values()))
    go_on(broker)


def test_each_end(tmp_path: Path) -> None:
    """… of a batch, also with gaps, and in an empty log."""
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        log = manager.create_topic("t", 1, settings={"internal.segment.bytes": "200"}).partitions[0]
        for n in range(7):
            append(log, b"%d" % n * 30, b"more")
        ends = range(0, log.log_end_offset + 1, 2)
    point = take_point(data)
    for end in ends:
        broker = tmp_path / f"broker-{end}"
        write_broker(broker, {"t": 1})
        point.partitions["t", 0] = Range(0, end)
        point_file.write(Files(), str(data), point)
        (handed,) = hand((data, broker)).handed
        assert (handed.log_start, handed.log_end) == (0, end)
        with LogManager.open(str(broker), clock_ms=clock_ms) as manager:
            log = manager.log("t", 0)
            assert (log.log_start_offset, log.log_end_offset) == (0, end)
            assert len(values(log)) == end
            append(log, b"new")
        assert verify(str(broker)).faults == []


def shown_from(broker: Path, start: int, isolation: str) -> list[bytes | None]:
    with LogManager.open(str(broker), read_only=True, clock_ms=clock_ms) as manager:
        log = manager.log("sent", 0)
        assert log.last_stable_offset == log.log_end_offset
        found = log.records(isolation=isolation)  # type: ignore[arg-type]
        return [each.value for each in found if each.offset >= start]


def test_transactions_whose_markers_lie_above_the_point_end_alike(tmp_path: Path) -> None:
    """They had ended: consumers of the cluster were given the committed one."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        log = manager.log("sent", 0)
        start = log.log_end_offset
        committed, aborted, opened = (Client(log, number) for number in (50, 51, 52))
        committed.send(b"committed")
        aborted.send(b"aborted")
        opened.send(b"open")
        committed.commit()
        aborted.abort()
        committed.send(b"later")
        aborted.send(b"later")
        aborted.commit()
        assert log.last_stable_offset == start + 2
    take_point(data)
    write_broker(broker)
    outcome = hand((data, broker))
    assert outcome.aborted == [("sent", 0, 51)]
    assert {each.log_end for each in outcome.handed if each.topic == "sent"} == {start + 4}
    assert shown_from(broker, start, "read_committed") == [b"committed"]
    assert shown_from(broker, start, "read_uncommitted") == [b"committed", b"aborted"]
    assert verify(str(broker)).faults == []
    again = hand((data, broker))
    assert (again.handed, len(again.finished)) == ([], sum(TOPICS.values()))
    go_on(broker)
    assert any(
        "sent:0 is not empty" in each for each in hand((data, broker), dry_run=True).refusals
    )


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_the_point_divides(tmp_path: Path, is_committed: bool) -> None:
    """… is refused: it has more records above, or it has no marker at all."""
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    with LogManager.open(str(data), clock_ms=clock_ms) as manager:
        log = manager.log("sent", 0)
        start = log.log_end_offset
        divided = Client(log, 50)
        divided.send(b"divided")
        Client(log, 51).send(b"open")
        if is_committed:
            divided.send(b"more")
            divided.commit()
    point = take_point(data)
    point.partitions["sent", 0] = Range(0, start + 1)
    point_file.write(Files(), str(data), point)
    write_broker(broker)
    with pytest.raises(HandoverRefused, match="divides a transaction of producer 50"):
        hand((data, broker))
    assert not (broker / paths.HANDOVER).exists()
    outcome = hand((data, broker), force=True)
    assert outcome.aborted == ([] if is_committed else [("sent", 0, 50)])
    assert shown_from(broker, start, "read_committed") == [b"divided"] * is_committed
    go_on(broker)


@pytest.mark.parametrize(("start", "reason"), [(3, ""), (0, "offsets 0 to 2 were deleted since")])
def test_records_were_deleted_beyond_the_end_of_the_point(
    places: Places, start: int, reason: str
) -> None:
    """A partition that was empty at the point needs none."""
    data, _ = places
    at("plain", 3, start)(data)
    with open_mirror(data) as manager:
        log = manager.log("plain", 0)
        log.raise_log_start(5)
        log.note_gaps(Gap("diverged", 2, 5, NOW_MS + 1))
    if reason:
        refused(places, reason)
    else:
        done = hand(places)
        assert {(each.log_start, each.log_end) for each in done.handed if each.partition == 0} >= {
            (3, 3)
        }
        go_on(places[1])


def test_groups_alone(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    take_point(data, groups={"g": {("sent", 0): Position(1), ("elsewhere", 0): Position(1)}})
    write_broker(broker, {**TOPICS, paths.CONSUMER_OFFSETS: 3})
    refused((data, broker), "no topic __transaction_state", "__transaction_state")
    with LogManager.open(str(broker), clock_ms=clock_ms) as manager:
        for number in range(3):
            log = manager.log(paths.CONSUMER_OFFSETS, number)
            put(log, produced([b"of another group"]))
    refused((data, broker), "__consumer_offsets:0 is not empty", paths.CONSUMER_OFFSETS)
    refused((data, broker), "__consumer_offsets:1 is not empty", paths.CONSUMER_OFFSETS)
    shutil.rmtree(broker)
    write_broker(broker, {**TOPICS, paths.CONSUMER_OFFSETS: 3})
    assert len(hand((data, broker), paths.CONSUMER_OFFSETS).handed) == 1


def test_groups(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    groups = {
        f"g{number}": {
            ("plain", 0): Position(number % 5, 7, "some\udcff"),
            # A consumer had read uncommitted records.
            ("plain", 1): Position(99),
            ("sent", 0): Position(1),
            ("elsewhere", 0): Position(1),
        }
        for number in range(30)
    }
    take_point(data, groups={**groups, "other": {("sent", 0): Position(3)}})
    write_broker(broker, {**TOPICS, paths.CONSUMER_OFFSETS: 3})
    before = content(broker)
    outcome = hand((data, broker), "plain", paths.CONSUMER_OFFSETS, dry_run=True)
    assert outcome.refusals == []
    assert content(broker) == before
    done = hand((data, broker), "plain", paths.CONSUMER_OFFSETS)
    assert done.handed == outcome.handed
    again = hand((data, broker), "plain", paths.CONSUMER_OFFSETS)
    assert (again.handed, len(again.finished)) == ([], len(done.handed))
    assert verify(str(broker)).faults == []
    with LogManager.open(str(broker), read_only=True) as manager:
        assert manager.groups.names() == sorted(groups)
        topic_id = manager.topic("plain").id
        for name, positions in groups.items():
            group = manager.groups.find(name)
            assert group is not None
            assert {
                item: (each.position, each.leader_epoch, each.metadata, each.time_ms, each.topic_id)
                for item, each in group.committed.items()
            } == {
                ("plain", 0): (positions["plain", 0].offset, -1, "some\udcff", NOW_MS, topic_id),
                ("plain", 1): (6, -1, "", NOW_MS, topic_id),
            }
    refused((data, broker), f"{paths.CONSUMER_OFFSETS}:", paths.CONSUMER_OFFSETS, "sent")


def test_a_topic_that_was_created_again(places: Places) -> None:
    data, broker = places
    with open_mirror(data) as manager:
        ids = {name: manager.topic(name).id for name in ("plain", "sent")}
    for number in range(2):
        (data / f"plain-{number}").rename(data / f"plain.{ids['plain']}-{number}")
    with open_mirror(data) as manager:
        append(manager.create_mirrored_topic("plain", None, 2, {}).partitions[0], b"another topic")
    hand(places)
    assert shown(broker) == shown(data.parent / "then")
    (data / "sent-0").rename(data / "renamed-0")
    refused(places, f"sent with the id {ids['sent']}, of the restore point, is not complete here")


# -- what is refused -------------------------------------------------------------------------------


def rewrite(change: Callable[[Point], object]) -> Callable[[Path], None]:
    def run(data: Path) -> None:
        point = point_file.read(Files(), str(data), NAME)
        change(point)
        point_file.write(Files(), str(data), point)

    return run


def end_mirror(data: Path) -> None:
    (data / paths.MIRROR).unlink()


def raise_start(data: Path) -> None:
    with open_mirror(data) as manager:
        manager.log("plain", 0).raise_log_start(1)


def diverge(data: Path) -> None:
    with open_mirror(data) as manager:
        manager.log("plain", 0).note_gaps(Gap("diverged", 3, 5, NOW_MS + 1))


def damage_gaps(data: Path) -> None:
    (data / "plain-0" / gaps_file.FILE_NAME).write_text("?\n")


def at(topic: str, end: int, start: int = 0) -> Callable[[Path], None]:
    return rewrite(lambda point: point.partitions.update({(topic, 0): Range(start, end)}))


@pytest.mark.parametrize(
    ("change", "reason", "may_force"),
    [
        (rewrite(lambda point: setattr(point, "state", "split")), "is split", True),
        (rewrite(lambda point: setattr(point, "state", "invalid")), "is invalid", True),
        (end_mirror, "this is no mirror any more", True),
        (raise_start, "plain:0: offsets 0 to 0 were deleted since", True),
        (diverge, "plain:0: the cluster has lost records from offset 3 on since", True),
        (damage_gaps, "plain:0: kafkafs.gaps cannot be read", True),
        (at("plain", 99), "before the restore point: 99", False),
        (at("started-late", 7), "offset 7, the end of the restore point, lies within", False),
        (rewrite(lambda point: point.ids.update(plain="other")), "plain with the id other", False),
        (
            rewrite(lambda point: point.partitions.update({("plain", 2): Range(0, 0)})),
            "is not complete here",
            False,
        ),
        (
            rewrite(lambda point: point.groups.update(g={("plain", 0): Position(0)})),
            f"the broker has no topic {paths.CONSUMER_OFFSETS}",
            False,
        ),
    ],
)
def test_a_point_that_is_not_whole(
    places: Places, change: Callable[[Path], None], reason: str, may_force: bool
) -> None:
    change(places[0])
    refused(places, reason)
    if may_force:
        assert hand(places, force=True).handed
        go_on(places[1])
    else:
        refused(places, reason, force=True)


def test_a_topic_that_is_not_complete_is_not_created(places: Places) -> None:
    """It would have too few partitions."""
    data, broker = places
    rewrite(lambda point: point.partitions.update({("plain", 2): Range(0, 0)}))(data)
    for number in range(2):
        shutil.rmtree(broker / f"plain-{number}")
    outcome = hand(places, dry_run=True)
    assert "plain" not in outcome.missing
    assert outcome.settings.keys() == TOPICS.keys() - {"plain"}


def test_the_topic_of_groups_at_the_broker(tmp_path: Path) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    take_point(data, groups={"g": {("sent", 0): Position(1)}})
    write_broker(broker)
    outcome = hand((data, broker), dry_run=True)
    assert outcome.missing == {paths.CONSUMER_OFFSETS: 50}
    assert outcome.settings[paths.CONSUMER_OFFSETS]["cleanup.policy"] == "compact"
    shutil.rmtree(broker)
    write_broker(broker, {**TOPICS, paths.CONSUMER_OFFSETS: 2})
    shutil.rmtree(broker / f"{paths.CONSUMER_OFFSETS}-0")
    refused((data, broker), f"the broker has only some partitions of {paths.CONSUMER_OFFSETS}")


def test_mistakes(places: Places) -> None:
    refused(places, "the restore point has no topic none", "none")
    with pytest.raises(HandoverRefused, match="there is no restore point 'none'"):
        hand(places, at="none")


def test_a_mirror_that_was_killed_is_recovered_and_nothing_in_it_is_aborted(
    tmp_path: Path,
) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    write_source(data)
    take_point(data)
    write_broker(broker)
    (data / paths.CLEAN_SHUTDOWN).unlink()
    before = content(data)
    with pytest.raises(MirroredDirectory):
        hand((data, broker), at=None, abort=True)
    assert content(data) == before
    hand((data, broker), at=None)
    assert shown(broker) == shown(data)
