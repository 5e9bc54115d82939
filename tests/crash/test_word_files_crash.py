"""A crash at every file operation while the files of words are built, and segments come and go.

Wherever it stops, no file is left without its segment, none is unfinished, and a search by what is
left finds each record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import LogManager, Record, encode
from storage.compaction.repack import repack_all
from storage.directory.word_files import WordFiles, path_of
from storage.files import Files
from storage.segment.segment import Segment
from storage.task import Task
from storage.words import build
from storage.words.query import query_of_bytes
from storage.words.words import Words
from tests.crash import moments
from tests.crash.moments import Found, Unsynced
from tests.kafkafs.trees import Tree, in_thread
from tests.storage.logs import NOW_MS, NOW_NS, remove_head


class Life(moments.Life):
    """Seals, builds, repacks and deletes in a tree."""

    def build(self) -> None:
        self.data.mkdir()
        with LogManager.open(str(self.data)) as manager:
            manager.create_topic("t", 1)
            settings = {"segment.index.bytes": "4096", "kafkafs.repack": "zstd"}
            manager.change_topic_settings("t", settings)

    def run(self, files: Files) -> None:
        tree = Tree(self.data, files=files)
        log, words = tree.log(), tree.fs.mount.word_files

        def segment() -> None:
            for number in range(log.log_end_offset, log.log_end_offset + 4):
                record = Record(0, NOW_MS, 0, None, b"line word%d " % number * 3)
                log.append(bytearray(encode([record])), now_ns=NOW_NS)
            tree.roll()

        segment()
        segment()
        in_thread(lambda: words.build_missing(log, Task()))
        log.flush()
        tree.fs.partitions.housekeeping()
        segment()
        log.flush()
        in_thread(lambda: repack_all(log, NOW_MS, Task()))
        in_thread(lambda: words.build_missing(log, Task()))
        remove_head(log, 1, NOW_MS)
        tree.delete_files()
        tree.stop()

    def check(self, path: Path, found: Found) -> None:
        with LogManager.open(str(path), files=Unsynced()) as manager:
            log = manager.log("t", 0)
            names = [each.name for each in (path / "t-0").iterdir()]
            assert not [name for name in names if name.endswith(".tmp")]
            logs = {name.removesuffix(".log") for name in names if name.endswith(".log")}
            assert {n.removesuffix(".words") for n in names if n.endswith(".words")} <= logs
            for segment in log.segments:
                check_search(segment)
            WordFiles().build_missing(log, Task())
            for segment in log.segments[:-1]:
                assert check_search(segment)


def check_search(segment: Segment) -> bool:
    """Check that the file of a segment finds its records; return whether it has one."""
    words = Words.open(segment, path_of(segment))
    if words is None:
        return False
    for number in range(segment.base_offset, segment.next_offset):
        query = query_of_bytes(b"word%d" % number, starts=True, ends=True)
        assert any(first <= number < end for first, end in words.offsets(query))
    return True


def test_a_kill_and_a_power_cut_at_every_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file has several parts.
    monkeypatch.setattr(build, "BLOCK_BYTES", 50)
    monkeypatch.setattr(build, "MOST_BLOCKS", 1)
    life = Life(tmp_path / "data")
    stops = life.stops((0, 2))
    assert sum(".words" in moment for moment in stops.moments) > 30
    stops.judge(life.check, tmp_path / "found")
