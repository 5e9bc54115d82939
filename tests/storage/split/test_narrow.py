"""Which offsets a condition leaves to be read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage import Log, LogManager, Record, encode, paths
from storage.condition.parse import parse
from storage.log.append import append_batches
from storage.split.narrow import MOST_RANGES, few, narrowed
from storage.split.word_query import query_of
from storage.task import Task
from storage.words.build import build
from storage.words.query import EVERYTHING
from tests.storage.logs import NOW_MS, NOW_NS, opened_log

SEGMENTS = 4


def build_words(log: Log, directory: Path | None = None) -> None:
    """Build the words of all sealed segments, beside them or in a directory."""
    for segment in log.segments[:-1]:
        segment.lease()
        path = Path(segment.file_path(paths.WORDS))
        build(segment, str(directory / path.name if directory else path), Task())
        segment.release()
        segment.evict()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic with two records and words of its own in each segment; the last one is active."""
    data = tmp_path / "data"
    data.mkdir()
    with opened_log(data) as log:
        for number in range(SEGMENTS):
            headers = ((f"h{number}", b"in%d" % number),)
            records = [
                Record(0, NOW_MS + number, 0, b"the key%d" % number, b"", headers),
                Record(1, NOW_MS, 0, None, f"from 10.0.0.{number}: word{number} é".encode()),
            ]
            append_batches(log, bytearray(encode(records)), now_ns=NOW_NS)
            if number < SEGMENTS - 1:
                log.roll(NOW_MS)
    return data


@pytest.fixture
def caches(data: Path, tmp_path: Path) -> list[Path]:
    """Directories with the words of the segments. Each has other hashes: no words collide in all
    of them.
    """
    made = [tmp_path / f"cache{number}" for number in range(8)]
    with LogManager.open(str(data), read_only=True) as manager:
        for cache in made:
            cache.mkdir()
            build_words(manager.log("t", 0), cache)
    return made


def left(data: Path, condition: str, caches: list[Path]) -> list[int]:
    """The segments that are read, by their numbers."""
    found: list[set[int]] = []
    with LogManager.open(str(data), read_only=True) as manager:
        parsed = parse(condition).of_partition("t", 0)
        for cache in caches:
            ranges = narrowed(manager.log("t", 0), 0, 2 * SEGMENTS, parsed, str(cache))
            found.append({offset // 2 for low, high in ranges for offset in range(low, high)})
    return sorted(set.intersection(*found))


@pytest.mark.parametrize(("count", "is_read"), [(256, False), (257, True)])
def test_many_keys_are_not_looked_up(count: int, is_read: bool) -> None:
    keys = ", ".join(f"'key{number}'" for number in range(count))
    parsed = parse(f"key in ({keys})").of_partition("t", 0)
    assert (query_of(parsed.part) == EVERYTHING) == is_read


SEGMENTS_READ = {
    "key = 'the key1'": [1, 3],
    "key in ('the key0', 'the key1')": [0, 1, 3],
    "key = 'key1'": [3],
    "key like 'the key1%'": [0, 1, 2, 3],
    "key like '%key1'": [0, 1, 2, 3],
    "key like '% key1'": [1, 3],
    "value = 'word1'": [1, 3],
    "value = 'WORD1'": [1, 3],
    "value in ('word1', 'x')": [1, 3],
    "value in ('word1', '-')": [0, 1, 2, 3],
    "value like '%word1%'": [0, 1, 2, 3],
    "value like '% word1 %'": [1, 3],
    "value like 'word1 %'": [1, 3],
    "value like '%x word1'": [1, 3],
    "value like 'word1_%'": [0, 1, 2, 3],
    "value like '% 10.0.0.2: %'": [2, 3],
    "value like '%ü%'": [3],
    "value like '%é%'": [0, 1, 2, 3],
    "header('h1') = 'in1'": [1, 3],
    "header('h1') = 'in2'": [3],
    "header('h1') = ''": [1, 3],
    "header('h1') is null": [0, 1, 2, 3],
    "value = 'word1' or key = 'the key2'": [1, 2, 3],
    "value like '% word1 %' and key = 'the key2'": [3],
    "value = 'word1' and offset < 2": [],
    "value = 'word1' or offset < 2": [0, 1, 2, 3],
    "value = 'word1' and offset < 6": [1],
    "topic = 'x' and value = 'word1' or value = 'word2'": [2, 3],
    "not value = 'word1'": [0, 1, 2, 3],
    "not value like '% word1 %'": [0, 1, 2, 3],
    "value > 'word1'": [0, 1, 2, 3],
    "value is not null": [0, 1, 2, 3],
}


def test_segments_without_the_words_are_not_read(data: Path, caches: list[Path]) -> None:
    found = {condition: left(data, condition, caches) for condition in SEGMENTS_READ}
    assert found == SEGMENTS_READ


def test_a_segment_is_read_if_its_words_are_not_valid(data: Path, caches: list[Path]) -> None:
    for cache in caches:
        shutil.copy(cache / f"{2:020}.words", cache / f"{0:020}.words")
    assert left(data, "value = 'word1'", caches) == [0, 1, 3]


def test_a_segment_is_looked_at_when_it_is_needed(data: Path) -> None:
    """Its words are those of that moment. A segment without ranges has an empty one."""
    condition = parse("value = 'from 10.0.0.1: word1' or value = 'words are missing'")
    with LogManager.open(str(data), read_only=True) as manager:
        log = manager.log("t", 0)
        build_words(log)
        found = narrowed(log, 0, 8, condition)
        assert [next(found) for _ in range(2)] == [(2, 2), (2, 4)]
        (data / "t-0" / f"{4:020}.words").unlink()
        assert list(found) == [(4, 6), (6, 8)]
        assert not any(segment.is_open for segment in log.segments[:-1])


def test_many_offsets_are_few_ranges(data: Path) -> None:
    offsets = ", ".join(map(str, range(0, 4 * MOST_RANGES, 2)))
    condition = parse(f"offset in ({offsets})").of_partition("t", 0)
    with LogManager.open(str(data), read_only=True) as manager:
        found = narrowed(manager.log("t", 0), 0, 8 * MOST_RANGES, condition)
        assert len(list(found)) == MOST_RANGES


def test_the_ranges_with_the_smallest_gaps_are_joined() -> None:
    offsets = [0]
    for gap in range(MOST_RANGES + 1, 0, -1):
        offsets.append(offsets[-1] + 1 + gap)
    ranges = [(offset, offset + 1) for offset in offsets]
    assert few(ranges[2:]) == ranges[2:]
    assert few(ranges) == [*ranges[:-3], (offsets[-3], offsets[-1] + 1)]
    assert few([(1, 1), (2, 4), (4, 5), (5, 5)]) == [(2, 5)]
    assert few([]) == []
