"""Restore points are written to the byte and read strictly; most are not kept for long."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import paths
from storage.errors import CorruptCheckpoint, InvalidConfig
from storage.files import Files
from storage.state import point_file
from storage.state.point_file import (
    DAY_MS,
    HOUR_MS,
    MONTH_MS,
    Point,
    Position,
    Range,
    keep,
    name_at,
    names,
    surplus,
    thin,
    time_of,
)

files = Files()
TIME_MS = 1_790_000_000_123
NAME = "20260921T141320Z"
HEAD = "version 0\ntime 5\ncluster C\nstate valid\n"
TEXT = f"""\
version 0
time {TIME_MS}
cluster C
state split producer 7 in \\udce9
topic a eV5C2xLoR3ehQ0NFt2aPvA
topic b -
setting a cleanup.policy=compact,%20delete
partition a 0 start 7 end 812
partition a 10 start 0 end 0
partition b 0 start 3 end 4
group %25 b 0 4 -1 %
group a%20%FF a 0 800 4 x%0Ay
"""
VALUE = Point(
    TIME_MS,
    "C",
    "split",
    "producer\n 7 in \udce9",
    {"b": "-", "a": "eV5C2xLoR3ehQ0NFt2aPvA"},
    {"a": {"cleanup.policy": "compact, delete"}},
    {("b", 0): Range(3, 4), ("a", 10): Range(0, 0), ("a", 0): Range(7, 812)},
    {
        "%": {("b", 0): Position(4)},
        "a \udcff": {("a", 0): Position(800, 4, "x\ny")},
    },
)


def test_the_bytes_and_reading_them(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert point_file.write(files, path, VALUE) == NAME
    assert [each.name for each in tmp_path.iterdir()] == [f"{paths.POINT}{NAME}"]
    assert (tmp_path / f"{paths.POINT}{NAME}").read_text() == TEXT
    found = point_file.read(files, path, NAME)
    assert found.state_text == r"split: producer 7 in \udce9"
    found.reason = VALUE.reason
    assert found == VALUE


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", None),
        ("version 0\n", None),
        (HEAD[:-1], None),
        (HEAD.replace("version 0", "version 1"), 1),
        (HEAD.replace("time 5", "time +5"), 2),
        (HEAD.replace("cluster C", "cluster"), 3),
        (HEAD.replace("valid", "fine"), 4),
        (HEAD.replace("valid", "valid "), 4),
        (HEAD + "later 1\n", 5),
        (HEAD + "topic ../a -\n", 5),
        (HEAD + "partition a 0 start 0 end 0\n", 5),
        (HEAD + "setting a x=1\n", 5),
        *(
            (HEAD + f"group {line}\n", 5)
            for line in ("g a 0 1 0", "g ../a 0 1 0 %", "g a 0 -1 0 %")
        ),
        *((HEAD + f"group {word} a 0 1 0 %\n", 5) for word in ("%2c", "a'", "%25%", "%%")),
        (HEAD + "group g a 0 1 0 %\ngroup g a 0 1 0 %\n", 6),
        *(
            (HEAD + f"topic a -\n{line}\n", 6)
            for line in (
                "topic a -",
                "partition a 0 start 2 end 1",
                "partition a 0 start -1 end 1",
                "partition a -1 start 0 end 1",
                "partition a 2147483648 start 0 end 1",
                "partition a 0 start 0 end 9223372036854775808",
            )
        ),
    ],
)
def test_other_contents_are_named(tmp_path: Path, text: str, line: int | None) -> None:
    path = tmp_path / f"{paths.POINT}p"
    path.write_text(text)
    with pytest.raises(CorruptCheckpoint) as e:
        point_file.read(files, str(tmp_path), "p")
    assert (e.value.path, e.value.line) == (str(path), line)


@pytest.mark.parametrize(
    "value",
    [
        Point(5, ""),
        Point(5, "C", groups={"g": {("a", 0): Position(-1)}}),
        Point(5, "C", groups={"g": {("../a", 0): Position(1)}}),
    ],
)
def test_a_value_that_could_not_be_read_is_not_written(tmp_path: Path, value: Point) -> None:
    with pytest.raises(CorruptCheckpoint):
        point_file.write(files, str(tmp_path), value)
    assert list(tmp_path.iterdir()) == []


def test_points_that_are_named_while_others_are_thinned(tmp_path: Path) -> None:
    class Racing(Files):
        """Another process names a point just before it is read or removed."""

        def read_whole(self, path: str) -> bytes:
            self.name(path, "read")
            return super().read_whole(path)

        def unlink(self, path: str) -> None:
            self.name(path, "removed")
            super().unlink(path)

        def name(self, path: str, name: str) -> None:
            if name not in names(files, str(tmp_path)):
                keep(files, str(tmp_path), path.rpartition(".")[2], name)

    path = str(tmp_path)
    for minute in range(4):
        point_file.write(files, path, Point(minute * MINUTE, "C"))
    thin(Racing(), path, DAY_MS * 3)
    assert {"read", "removed"} <= set(names(files, path))
    assert len(names(files, path)) == 3


def test_a_named_point_is_not_replaced(tmp_path: Path) -> None:
    class Racing(Files):
        """Another process has just named its point alike."""

        def exists(self, path: str) -> bool:
            return False

    path = str(tmp_path)
    for time_ms in (0, 5000):
        point_file.write(files, path, Point(time_ms, "C"))
    keep(files, path, name_at(0), "mine")
    with pytest.raises(FileExistsError):
        keep(Racing(), path, name_at(5000), "mine")
    assert point_file.read(files, path, "mine").time_ms == 0
    assert names(files, path) == [name_at(5000), "mine"]


def test_names(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert (name_at(TIME_MS), time_of(NAME)) == (NAME, TIME_MS // 1000 * 1000)
    assert time_of("20261321T141320Z") is None
    for time_ms in (TIME_MS, 5000):
        point_file.write(files, path, Point(time_ms, "C"))
    (tmp_path / f"{paths.POINT}x.tmp").touch()
    (tmp_path / f"{paths.POINT}directory").mkdir()
    keep(files, path, NAME, "before-upgrade")
    assert names(files, path) == ["19700101T000005Z", "before-upgrade"]
    assert point_file.read(files, path, "before-upgrade").time_ms == TIME_MS
    for name in ("", "a.b", "../a", "-x", NAME, "x" * 101):
        with pytest.raises(InvalidConfig):
            keep(files, path, "19700101T000005Z", name)
    with pytest.raises(FileExistsError):
        keep(files, path, "19700101T000005Z", "before-upgrade")
    with pytest.raises(FileNotFoundError):
        keep(files, path, NAME, "other")
    point_file.remove(files, path, "before-upgrade")
    assert names(files, path) == ["19700101T000005Z"]


NOW = 400 * DAY_MS
MINUTE = 60_000


@pytest.mark.parametrize(
    ("ages", "invalid", "removed"),
    [
        ([], [], []),
        ([DAY_MS, DAY_MS - MINUTE, 0, -MINUTE], [], []),
        # One an hour, of the hours of the clock: the first one.
        ([DAY_MS + MINUTE * n for n in (120, 119, 61, 60, 59, 1)], [], [119, 61, 59, 1]),
        # ... that is valid.
        ([DAY_MS + MINUTE * n for n in (120, 119, 61, 60)], [120, 60], [120, 61]),
        ([DAY_MS + MINUTE * n for n in (120, 119, 61)], [120, 119, 61], [119, 61]),
        # One a day.
        ([MONTH_MS + HOUR_MS * n for n in (48, 47, 25, 24, 1)], [], [47, 25, 1]),
        ([MONTH_MS + HOUR_MS * n for n in (1, 0, -1)], [], []),
    ],
)
def test_points_are_thinned(ages: list[int], invalid: list[int], removed: list[int]) -> None:
    unit = HOUR_MS if ages and ages[0] > MONTH_MS else MINUTE
    since = MONTH_MS if unit == HOUR_MS else DAY_MS

    def is_valid(time_ms: int) -> bool:
        return (NOW - since - time_ms) // unit not in invalid

    doomed = surplus([NOW - age for age in ages], NOW, is_valid)
    assert [(NOW - since - time) // unit for time in doomed] == removed


def test_thinning_each_minute_keeps_the_same(tmp_path: Path) -> None:
    """… as thinning once does."""
    times = [NOW - DAY_MS + MINUTE * 7 * n for n in range(60)]
    kept = list(times)
    for now in range(NOW, NOW + 9 * HOUR_MS, MINUTE):
        doomed = surplus(kept, now, lambda time: time % (3 * MINUTE) == 0)
        kept = [time for time in kept if time not in doomed]
    once = surplus(times, NOW + 9 * HOUR_MS, lambda time: time % (3 * MINUTE) == 0)
    assert kept == [time for time in times if time not in once]
    path = str(tmp_path)
    for time_ms in times:
        state = "valid" if time_ms % (3 * MINUTE) == 0 else "split"
        point_file.write(files, path, Point(time_ms, "C", state))
    (tmp_path / f"{paths.POINT}{name_at(times[1])}").write_text("damaged\n")
    keep(files, path, name_at(times[2]), "kept")
    assert set(thin(files, path, NOW + 9 * HOUR_MS)) == {name_at(each) for each in once} - {
        name_at(times[2])
    }
    assert "kept" in names(files, path)
