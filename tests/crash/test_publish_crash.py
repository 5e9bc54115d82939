"""A power cut at every operation of a swap of closed segments (``swap.replace_closed``).

Names that were not synced are kept in any order.  The next start finds all of the segments as they
were or all of them new, and none that is made of both.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from storage import paths
from storage.files import Files
from storage.recovery.swap import finish_swaps, replace_closed
from tests.crash import moments
from tests.crash.moments import Found, Unsynced

BASES = (0, 7, 15)
OLD_KINDS = (paths.LOG, paths.INDEX, paths.TIMEINDEX, paths.TXNINDEX)
NEW_KINDS = (paths.LOG, paths.INDEX, paths.TIMEINDEX)


class Life(moments.Life):
    """Replaces three segments. Each file contains `old` or `new`.

    The content of the new files is synced; their names are not.
    """

    kinds: tuple[str, ...] = (".cleaned", ".swap", ".deleted")

    def build(self) -> None:
        self.data.mkdir()
        (self.data / "t-0").mkdir()
        for base in BASES:
            for kind in OLD_KINDS:
                (self.data / "t-0" / paths.file_name(base, kind)).write_bytes(b"old")

    def run(self, files: Files) -> None:
        directory = str(self.data / "t-0")
        for base in BASES:
            for kind in NEW_KINDS:
                made = self.data / "t-0" / (paths.file_name(base, kind) + paths.CLEANED)
                files.replace_atomically(str(made), b"new", sync=False)
                fd = files.open(str(made), 0)
                files.fsync(fd)
                files.close(fd)
        replace_closed(files, directory, BASES)


class Opening(Life):
    """The next start, after a swap that was decided when the process was killed."""

    kinds: tuple[str, ...] = (".swap",)

    def build(self) -> None:
        (self.data / "t-0").mkdir(parents=True)
        for base in BASES:
            for kind in NEW_KINDS:
                name = paths.file_name(base, kind) + paths.SWAP
                (self.data / "t-0" / name).write_bytes(b"new")

    def run(self, files: Files) -> None:
        finish_in(files, self.data / "t-0")


class Undoing(Opening):
    """The next start, after a swap that was not decided when the process was killed."""

    kinds = (".cleaned", ".swap")

    def build(self) -> None:
        Life.build(self)
        for base in BASES:
            for kind in NEW_KINDS:
                name = paths.file_name(base, kind) + (paths.SWAP if base else paths.CLEANED)
                (self.data / "t-0" / name).write_bytes(b"new")

    def run(self, files: Files) -> None:
        super().run(files)
        # The start goes on: the power is also cut before its next operation.
        files.sync_directory(str(self.data / "t-0"))


def finish_in(files: Files, directory: Path) -> None:
    finish_swaps(files, str(directory), sorted(each.name for each in directory.iterdir()))


def check(path: Path, _: Found) -> None:
    directory = path / "t-0"
    finish_in(Unsynced(), directory)
    found = {each.name: each.read_bytes() for each in directory.iterdir()}
    logs = {found.get(paths.file_name(base, paths.LOG)) for base in BASES}
    assert logs in ({b"old"}, {b"new"}), found
    (of,) = logs
    # An index may be missing: opening makes it again. One of the other log is none of this one.
    kept = {name for name in found if not name.endswith(".tmp")}
    assert {found[name] for name in kept} == {of}, found


@pytest.mark.parametrize("kind", [Life, Opening, Undoing])
def test_a_power_cut_at_every_operation(tmp_path: Path, kind: type[Life]) -> None:
    stops = kind(tmp_path / "data").stops(range(-60, 0))
    stops.found = stops.power_cuts
    stops.judge(check, tmp_path / "found")
