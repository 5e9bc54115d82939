"""A swap replaces what it has written anew, at once or at the next start, and nothing else."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from storage import paths
from storage.files import Files
from storage.recovery.swap import finish_swaps, replace_closed
from tests.crash.moments import Found, Stops, Unsynced
from tests.storage.logs import NOW_MS, append, opened, values

BASE = f"{100:020}"
KEPT = (
    f"{BASE}.snapshot",
    f"{BASE}.log.7.cut",
    f"{0:020}.log",
    f"{200:020}.log",
    "partition.metadata",
)


def directory(path: Path, new: str) -> None:
    """A segment of base 100 and what lies beside it; ``new`` is the suffix of its new files."""
    for name in KEPT:
        (path / name).write_text(name)
    for suffix in (".log", ".index", ".timeindex", ".txnindex", ".lines"):
        (path / (BASE + suffix)).write_text("old")
    for suffix in (".log", ".index", ".timeindex"):
        (path / (BASE + suffix + new)).write_text("")


def names(path: Path) -> set[str]:
    return {child.name for child in path.iterdir()}


def test_publishing_takes_the_place_of_one_segment(tmp_path: Path) -> None:
    directory(tmp_path, ".cleaned")
    replace_closed(Files(), str(tmp_path), [100])
    assert names(tmp_path) == {*KEPT, f"{BASE}.log", f"{BASE}.index", f"{BASE}.timeindex"}
    assert (tmp_path / f"{BASE}.index").read_text() == ""


@pytest.mark.parametrize("gone", [".lines", ".words", ".log"])
def test_only_a_file_that_anybody_may_remove_can_vanish(tmp_path: Path, gone: str) -> None:
    class Removing(Files):
        def rename(self, old: str, new: str) -> None:
            if new.endswith(f"{gone}.deleted"):
                Path(old).unlink()
            super().rename(old, new)

    directory(tmp_path, ".cleaned")
    (tmp_path / f"{BASE}.words").touch()
    with pytest.raises(FileNotFoundError) if gone == ".log" else contextlib.nullcontext():
        replace_closed(Removing(), str(tmp_path), [100])
        assert names(tmp_path) == {*KEPT, f"{BASE}.log", f"{BASE}.index", f"{BASE}.timeindex"}


def test_a_decided_swap_is_finished_and_keeps_what_was_set_aside(tmp_path: Path) -> None:
    directory(tmp_path, ".swap")
    remaining = finish_swaps(Files(), str(tmp_path), sorted(names(tmp_path)))
    assert set(remaining) == names(tmp_path)
    # Without an offset index all of them are made anew: which of these are the swap's is not known.
    assert names(tmp_path) == {*KEPT, f"{BASE}.log", f"{BASE}.timeindex"}


def test_an_undecided_swap_is_undone(tmp_path: Path) -> None:
    directory(tmp_path, ".swap")
    before = names(tmp_path)
    (tmp_path / f"{BASE}.txnindex.cleaned").touch()
    finish_swaps(Files(), str(tmp_path), sorted(names(tmp_path)))
    assert names(tmp_path) == {name for name in before if not name.endswith(".swap")}
    assert (tmp_path / f"{BASE}.index").read_text() == "old"


def test_publishing_beside_a_power_cut(tmp_path: Path) -> None:
    """Nothing but syncs keeps names in order; old or new, all is there."""
    data = tmp_path / "data"
    data.mkdir()
    with opened(data) as manager:
        log = manager.create_topic("t", 1).partitions[0]
        for number in range(3):
            append(log, b"%d" % number)
            log.roll(NOW_MS)
        bases = [segment.base_offset for segment in log.segments[:-1]]
    directory = data / "t-0"
    for base in bases:
        for kind in (paths.LOG, paths.INDEX, paths.TIMEINDEX):
            made = directory / paths.file_name(base, kind)
            made.with_name(made.name + paths.CLEANED).write_bytes(made.read_bytes())
    (data / paths.CLEAN_SHUTDOWN).unlink()
    stops = Stops(data, seeds=range(-8, 4))
    replace_closed(stops.disk, str(directory), bases)
    stops.end()

    def check(path: Path, found: Found) -> None:
        with opened(path, Unsynced()) as manager:
            assert values(manager.log("t", 0)) == [b"0", b"1", b"2"]

    stops.judge(check, tmp_path / "found")
