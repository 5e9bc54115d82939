"""A swap replaces only the segments that it has written, at once or at the next start."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from storage.files import Files
from storage.recovery.swap import finish_swaps, replace_closed

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
    # Without an offset index all of them are rebuilt, since some may not belong to the swap.
    assert names(tmp_path) == {*KEPT, f"{BASE}.log", f"{BASE}.timeindex"}


def test_an_undecided_swap_is_undone(tmp_path: Path) -> None:
    directory(tmp_path, ".swap")
    before = names(tmp_path)
    (tmp_path / f"{BASE}.txnindex.cleaned").touch()
    finish_swaps(Files(), str(tmp_path), sorted(names(tmp_path)))
    assert names(tmp_path) == {name for name in before if not name.endswith(".swap")}
    assert (tmp_path / f"{BASE}.index").read_text() == "old"
