"""A crash at every file operation while the words of a segment are built again: a file that was not
finished is never taken, and no file hides a record.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.files import Files
from storage.record.batch import Record, encode
from storage.segment.segment import Segment
from storage.task import Task
from storage.words import build as build_module
from storage.words.build import build
from storage.words.query import Entry
from storage.words.words import Words, check
from tests.crash.moments import Found, Stops
from tests.storage.words.made_words import segment_of

COUNT = 40
DATA = b"".join(
    encode([Record(n, 0, 0, None, b"in%d of%d all " % (n, n % 7) + b"%d " % n * 60)])
    for n in range(COUNT)
)


def segment_in(directory: Path, files: Files) -> Segment:
    segment = segment_of(directory, DATA)
    segment.disk = files
    return segment


def judge(path: Path, found: Found) -> None:
    segment = segment_of(path, DATA)
    file = segment.file_path(".words")
    words = Words.open(segment, file)
    if not found.lost and words is not None:
        assert check(segment, file) is None
    if words is None:
        return
    for number in range(COUNT):
        for word in (b"in%d" % number, b"of%d" % (number % 7), b"all", b"%d" % number):
            ranges = words.offsets(Entry(word))
            assert any(first <= number < last for first, last in ranges)


def test_words_that_were_not_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_module, "BLOCK_BYTES", 400)
    monkeypatch.setattr(build_module, "MOST_BLOCKS", 10)
    monkeypatch.setattr(build_module, "urandom", random.Random(1).randbytes)
    data = tmp_path / "data"
    data.mkdir()
    segment_of(data, DATA)
    stops = Stops(data, seeds=(0, 2, 3))
    segment = segment_in(data, stops.disk)
    for _ in range(2):
        build(segment, segment.file_path(".words"), Task())
    stops.end()
    assert sum("rename" in moment for moment in stops.moments) == 2
    stops.judge(judge, tmp_path / "found")
