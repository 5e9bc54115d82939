"""Records that a log lacks by its manifest are no silent gap: in Spark's reader, at a handover."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import CorruptRecord, HandoverRefused, SegmentGone, StorageError
from storage.handover.handover import hand_over
from tests.storage.handed import write_broker
from tests.storage.logs import log_file
from tests.storage.old_logs import content
from tests.storage.splitting import EVERYTHING, plan, read
from tests.storage.state.test_segment_manifest import LINES, fill, opened_with_faults

WAYS = ["gone 0", "gone 3", "gone 6", "left 3 0", "left 3 40", "left 3 74", "left 6 148"]


def lose(data: Path, way: str) -> tuple[int, int]:
    """Damage a log as ``way`` says; the offsets that are lost."""
    kind, base, *left = way.split()
    path = log_file(data, int(base))
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(left[0])])
    return int(base) + (int(left[0]) // 74 if left else 0), int(base) + 3


@pytest.mark.parametrize(
    ("clean", "settings"), [(True, {}), (False, {"cleanup.policy": "compact"})]
)
@pytest.mark.parametrize("target", [1, 150, EVERYTHING])
@pytest.mark.parametrize("way", WAYS)
def test_a_split_fails_exactly_there(
    tmp_path: Path, way: str, target: int, clean: bool, settings: dict[str, str]
) -> None:
    fill(tmp_path, clean=clean)
    first, end = lose(tmp_path, way)
    with opened_with_faults(tmp_path) as manager:
        for name, value in settings.items():
            manager.change_topic_settings("t", {name: value})
        splits = plan(manager.log("t", 0), target=target)
        assert (splits[0].from_offset, splits[-1].to_offset) == (0, len(LINES))
        for split in splits:
            if split.to_offset <= first or split.from_offset >= end:
                assert [row.value for row in read(split)] == LINES[
                    split.from_offset : split.to_offset
                ]
                continue
            with pytest.raises(CorruptRecord) as caught:
                read(split)
            assert caught.value.offset == first
            found = LINES[split.from_offset : first]
            assert [row.value for row in read(split._replace(to_offset=first))] == found


@pytest.mark.parametrize("base", [0, 3, 6])
@pytest.mark.parametrize("target", [1, EVERYTHING])
def test_a_file_that_vanishes_after_planning(tmp_path: Path, base: int, target: int) -> None:
    fill(tmp_path)
    with opened_with_faults(tmp_path) as manager:
        splits = plan(manager.log("t", 0), target=target)
        log_file(tmp_path, base).unlink()
        for split in splits:
            if split.from_offset <= base < split.to_offset:
                with pytest.raises(StorageError):
                    read(split)
            if base and split.from_offset <= base < split.to_offset:
                with pytest.raises(SegmentGone, match="missing"):
                    read(split._replace(from_offset=base + 1))


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_handover_refuses_and_changes_nothing(
    tmp_path: Path, way: str, clean: bool, dry_run: bool
) -> None:
    data, broker = tmp_path / "data", tmp_path / "broker"
    data.mkdir()
    fill(data, clean=clean)
    write_broker(broker, {"t": 1})
    first, end = lose(data, way)
    before = content(broker)
    if dry_run:
        (line,) = hand_over(str(data), str(broker), dry_run=True).refusals
    else:
        with pytest.raises(HandoverRefused) as caught:
            hand_over(str(data), str(broker))
        line = str(caught.value)
    assert f"offsets {first} to {end - 1}" in line
    assert str(log_file(data, int(way.split()[1]))) in line
    assert "accept-loss" in line
    assert content(broker) == before
