"""A round into staged files makes the very files that the log's own cleaner makes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import Log
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.staged_round import preview
from storage.errors import StorageError
from storage.files import Files
from storage.segment.reader import SegmentReader
from storage.state.checkpoint_file import read_offsets
from storage.task import Task
from tests.crash.cleaned_log import LATER_MS, Life
from tests.storage.compaction.cleaned import Clock, compacted, contents, put, roll
from tests.storage.compaction.staging import clean_staged, planned, staged
from tests.storage.logs import NOW_MS, Unsynced, opened, write_settings
from tests.storage.old_logs import write_legacy

KINDS = (".log", ".index", ".timeindex", ".txnindex")


def files_of(log: Log) -> dict[str, bytes]:
    """Of the sealed segments, with their times."""
    found = {}
    for segment in log.segments[:-1]:
        for kind in KINDS:
            path = Path(segment.file_path(kind))
            if path.exists():
                found[path.name] = path.read_bytes()
        stat = Path(segment.log_path).stat()
        found[f"{segment.base_offset} is of"] = b"%d" % stat.st_mtime_ns
    return found


def facts_of(log: Log) -> list[tuple[object, ...]]:
    """The fields of the sealed segments while the log is open."""
    return [
        (
            segment.base_offset,
            segment.next_offset,
            segment.size,
            segment.stable_size,
            segment.first_timestamp,
            segment.max_timestamp,
            segment.max_timestamp_offset,
            segment.mtime_ns,
            segment.aborted,
        )
        for segment in log.segments[:-1]
    ]


def checkpoint(data: Path) -> int | None:
    return read_offsets(Files(), str(data / "cleaner-offset-checkpoint")).get(("t", 0))


def small_map(keys: int) -> dict[str, Any]:
    """Settings with which an offset map holds this number of keys."""
    size = 1 << 20
    factor = (keys + 0.5) / (size // 24)
    return {
        "log_cleaner_dedupe_buffer_size": size,
        "log_cleaner_io_buffer_load_factor": f"{factor:.8f}",
    }


def compare(data: Path, clock: Clock) -> None:
    """Clean the log and a copy of it, either way, in as many rounds as the map needs."""
    copy = data.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(data, copy)
    with opened(copy, clock_ms=clock) as manager:
        log = manager.log("t", 0)
        expected = LogCleaner(manager).clean_all(log, Task())
        assert expected
        files, facts = files_of(log), facts_of(log)
        read = contents(log)
    with opened(data, clock_ms=clock) as manager:
        log = manager.log("t", 0)
        for each in expected:
            names = os.listdir(log.directory)
            counted = preview(planned(manager, log), manager.files, Task())
            assert os.listdir(log.directory) == names
            cleaned = clean_staged(manager, log)
            assert cleaned_facts(cleaned) == cleaned_facts(each)
            assert counted.bytes_after == cleaned.bytes_after
        assert files_of(log) == files
        assert facts_of(log) == facts
        assert contents(log) == read
        assert staged(os.listdir(log.directory)) == []
    assert checkpoint(data) == checkpoint(copy)


def cleaned_facts(cleaned: object) -> list[object]:
    return [getattr(cleaned, name) for name in cleaned.__slots__ if name != "elapsed_ms"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("mapped", [None, 2])
def test_a_log_of_all_kinds_of_batches(tmp_path: Path, mapped: int | None) -> None:
    """``mapped``: how many keys a map holds; there are more."""
    life = Life(tmp_path / "data")
    life.build()
    life.begin(Unsynced())
    life.manager.close()
    if mapped is not None:
        write_settings(life.data, log_index_size_max_bytes=240, **small_map(mapped))
    clock = Clock()
    for clock.now_ms in (NOW_MS, LATER_MS):
        compare(life.data, clock)


@pytest.mark.parametrize("magic", [0, 1])
def test_old_formats(tmp_path: Path, magic: int) -> None:
    data = tmp_path / "data"
    data.mkdir()
    clock = Clock()
    write_legacy(data, "t", magic, segments=4)
    with opened(data, clock_ms=clock) as manager:
        manager.change_topic_settings("t", {"cleanup.policy": "compact"})
        manager.change_topic_settings("t", {"delete.retention.ms": "5"})
        log = manager.log("t", 0)
        put(log, (b"k9", b"new"), (b"k0", None))
        roll(log)
    for _ in range(2):
        clock.now_ms += 10
        compare(data, clock)


@pytest.mark.parametrize("number", range(4))
def test_a_base_offset_that_is_damaged(tmp_path: Path, number: int) -> None:
    """No CRC covers it: nothing that was made of it is put in."""
    with compacted(tmp_path) as (manager, log):
        for each in range(2):
            put(log, (b"a", b"1"), (b"b", b"2"))
            put(log, (b"c%d" % each, b"1"), (b"b", b"2"))
            roll(log)
        places = [
            (segment, at)
            for segment in log.segments[:-1]
            for at, _ in SegmentReader(segment).batches()
        ]
        segment, at = places[number]
        path = Path(segment.log_path)
        stored = path.read_bytes()
        path.write_bytes(stored[:at] + (1 << 40).to_bytes(8, "big") + stored[at + 8 :])
        manager.checkpoint()
        segments, names = log.segments, sorted(os.listdir(log.directory))
        with pytest.raises(StorageError):
            LogCleaner(manager).clean(log, Task())
        with pytest.raises(StorageError):
            clean_staged(manager, log)
        assert log.segments is segments
        assert [name for name in sorted(os.listdir(log.directory)) if "staged" not in name] == names
        path.write_bytes(stored)
