"""A crash at every file operation while the copy of a topic gets another name.

The next start completes it: the copy has the records that it had, in all of its partitions.
"""

from __future__ import annotations

from pathlib import Path

from kafkafs.mirror.topics import set_aside
from storage import LogManager
from storage.files import Files
from storage.log.append import append_as_follower
from storage.state import mirror_file
from storage.state.mirror_file import MirroredPartition, MirrorFile
from tests.crash.moments import Found, Unsynced, stops_of_life
from tests.storage.log.test_follower import at, stored
from tests.storage.logs import NOW_MS, NOW_NS, batch

ID = "AAECAwQFBgcICQoLDA0ODw"
KEPT = f"t.{ID}"
BATCHES = b"".join(at(batch([b"%d" % n] * 5), 5 * n, 3) for n in range(4))


class Renaming:
    """The copies of two topics, of which one was created again."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.is_done = False

    def build(self) -> None:
        self.data.mkdir()
        with LogManager.open(str(self.data), files=Unsynced()) as manager:
            for name, topic_id in (("t", ID), ("other", ID.lower())):
                topic = manager.create_mirrored_topic(name, topic_id, 2, {})
                for log in topic.partitions.values():
                    append_as_follower(log, BATCHES, NOW_NS)
                    log.raise_log_start(7 + log.partition)
        status = MirrorFile("c", "kafka://b:9092", ("*",), {"t": ID, "other": ID.lower()})
        for name in status.ids:
            for number in range(2):
                status.partitions[name, number] = MirroredPartition(start=0)
        mirror_file.write(Unsynced(), str(self.data), status)

    def expected(self) -> tuple[object, ...]:
        return (self.is_done,)

    def run(self, files: Files) -> None:
        complete(files, self.data)
        self.is_done = True

    def check(self, data: Path, found: Found) -> None:
        (is_done,) = found.expected
        status = mirror_file.read(Unsynced(), str(data))
        assert status is not None
        if is_done:
            assert "t" not in status.ids
        complete(Unsynced(), data)
        for _ in range(2):
            with LogManager.open(
                str(data), files=Unsynced(), mirrors=True, clock_ms=lambda: NOW_MS
            ) as manager:
                assert {name: topic.id for name, topic in manager.topics.items()} == {
                    KEPT: ID,
                    "other": ID.lower(),
                }
                assert (manager.faults, manager.cuts) == ([], [])
                for log in manager.logs():
                    assert stored(log) == BATCHES
                    assert log.log_start_offset == 7 + log.partition
                if "t" not in manager.topics:
                    manager.create_mirrored_topic("t", ID[::-1], 2, {})
                    assert manager.log("t", 1).log_start_offset == 0
                    manager.delete_topic("t")


def complete(files: Files, data: Path) -> None:
    """Rename, as a start does that finds the topic with another id."""
    status = mirror_file.read(files, str(data))
    assert status is not None
    if "t" in status.ids:
        assert set_aside(files, str(data), status, "t") == KEPT
        mirror_file.write(files, str(data), status)
    assert sorted(status.partitions) == [("other", 0), ("other", 1)]


def test_a_crash_while_a_copy_is_renamed(tmp_path: Path) -> None:
    life = Renaming(tmp_path / "data")
    stops = stops_of_life(life, seeds=(0, 2, 3), kinds=())
    stops.judge(life.check, tmp_path / "found")
