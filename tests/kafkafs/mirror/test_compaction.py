"""A mirror compacts the topic of committed offsets, and no other, beside its other work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kafkafs.mirror.compaction import Compaction
from storage import LogManager, paths
from storage.groups.offset_records import Committed
from storage.record.batch import Record, encode
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.groups.records import positions
from tests.storage.logs import NOW_MS, NOW_NS, write_settings

COUNT = 200


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[LogManager]:
    """With many old offsets of a group, and many old records of a key in a topic."""
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    make_mirror(tmp_path)
    with LogManager.open(str(tmp_path), mirrors=True) as manager:
        log = manager.create_topic("keyed", 1).partitions[0]
        manager.change_topic_settings("keyed", {"cleanup.policy": "compact"})
        for number in range(COUNT):
            log.append(bytearray(encode([Record(0, NOW_MS, 0, b"key", b"v")])), now_ns=NOW_NS)
            manager.groups.commit("g", "keyed", {0: Committed(number)})
        for each in manager.logs():
            each.roll(NOW_MS)
        yield manager


def cleaners() -> list[str]:
    """Return the names of the threads that clean."""
    return [each.name for each in threading.enumerate() if each.name.startswith("cleaner")]


def test_only_offsets_are_compacted(mirror: LogManager) -> None:
    log, (offsets,) = mirror.log("keyed", 0), mirror.groups.logs
    before, size = log.size, offsets.size
    with closing(Compaction(mirror)) as compaction:
        while compaction.begin():
            # The mirror's thread appends meanwhile.
            mirror.groups.commit("h", "keyed", {0: Committed(1)})
            compaction.run()
        assert cleaners() == []
    assert mirror.uncleanable == {}
    assert log.size == before
    assert offsets.size < size / 2
    assert positions(mirror, "g") == {("keyed", 0): COUNT - 1}
    assert positions(mirror, "h") == {("keyed", 0): 1}


def test_a_mirror_that_ends_waits_for_no_cleaning(mirror: LogManager) -> None:
    (offsets,) = mirror.groups.logs
    size = offsets.size
    with closing(Compaction(mirror)) as compaction:
        assert compaction.begin()
    assert offsets.size == size
    assert (cleaners(), offsets.cleaning, mirror.uncleanable) == ([], False, {})


def test_an_interrupted_swap_is_finished_later(
    mirror: LogManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, the log cannot be truncated."""
    (offsets,) = mirror.groups.logs
    obstacle = Path(f"{offsets.segments[0].file_path(paths.INDEX)}{paths.DELETED}", "file")
    obstacle.parent.mkdir()
    obstacle.touch()
    with closing(Compaction(mirror)) as compaction:

        def clean() -> bool:
            while compaction.begin():
                compaction.run()
            return offsets.replacement is None

        assert not clean()
        obstacle.unlink()
        obstacle.parent.rmdir()
        assert not clean()
        later_ms = mirror.monotonic_ms() + mirror.settings.broker.log_cleaner_backoff_ms
        monkeypatch.setattr(mirror, "monotonic_ms", lambda: later_ms)
        assert clean()
    mirror.truncate(offsets, 0)
