"""Every moment at which a machine may stop, out of one run.

``Moments`` is a simulated disk that, before each operation which changes something, hands out what
the machine may be found like if it stopped there: as a dead process leaves it, also in the middle
of a write, and as a power cut may.  The run goes on, so that one is enough, and what was found is
judged when it is over (in its midst locks may be held).
"""

from __future__ import annotations

import copy
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from storage import LogManager
from storage.files import Files
from tests.crash.disk import SimulatedDisk
from tests.crash.disk_model import DirectoryModel, Draw, FileModel
from tests.storage.logs import write_settings

State: TypeAlias = "dict[str, bytes | State]"
"""A directory: files with their bytes, directories with theirs."""


class Choice(NamedTuple):
    """Which stops are judged: each `every`-th; the first one is number `start` modulo `every`.

    `seeds`: those of more power cuts, where a test makes any.
    """

    every: int = 1
    start: int = 0
    seeds: range = range(0)

    def of(self, found: list[Found], one_of: int) -> list[Found]:
        every = min(self.every * one_of, max(len(found), 1))
        return found[self.start % every :: every]


choice = Choice()
"""Of the test that runs: tests/crash/conftest.py sets it."""


def chosen_numbers() -> Iterator[int]:
    """Count from 1, with the steps of `choice`: the operations at which a test lets a disk fail."""
    return itertools.count(1 + choice.start % choice.every, choice.every)


KEPT = 1
"""The seed with which nothing is lost: the process died, and not the machine."""


class Unsynced(Files):
    """A disk that never fails, for who looks at what was found: its syncs take no time."""

    def fsync(self, fd: int) -> None:
        pass

    def fdatasync(self, fd: int) -> None:
        pass


class Moments(SimulatedDisk):
    """See the module.  Calls ``visit`` with each operation before it is done, once ``armed``."""

    def __init__(self, root: str, visit: Callable[[str], None]) -> None:
        super().__init__(root)
        self.armed = True
        self._visit = visit

    def _mutate(self, what: str, path: str) -> None:
        if self.armed:
            self._visit(f"{what} {self._relative(path)}")
        super()._mutate(what, path)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.armed and len(data) > 1:
            model = self._model(fd)
            before = copy.deepcopy(model.__dict__)
            model.write(position, bytes(data[: len(data) // 2]))
            self._visit(f"half of pwrite {position} {self._relative(self._path(fd))}")
            model.__dict__ = before
        super().pwrite(fd, data, position)

    def state(self, seed: int) -> State:
        """Return a directory that the next process may find if the machine stops now."""
        return _state(self._tree, None if seed == KEPT else Draw(seed))


def _state(directory: DirectoryModel, draw: Draw | None) -> State:
    """``draw`` None: nothing is lost."""
    found: State = {}
    names = directory.entries if draw is None else directory.survive(draw)
    for name, model in sorted(names.items(), key=lambda entry: entry[0]):
        if isinstance(model, FileModel):
            found[name] = model.content(draw)
        else:
            found[name] = _state(model, draw)
    return found


def put(state: State, path: Path) -> None:
    """Make ``path`` this directory."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, content in state.items():
        if isinstance(content, bytes):
            (path / name).write_bytes(content)
        else:
            put(content, path / name)


def _hashable(state: State) -> tuple[object, ...]:
    return tuple(
        (name, content if isinstance(content, bytes) else _hashable(content))
        for name, content in state.items()
    )


class Found(NamedTuple):
    """A state in which a stopped machine may be found.

    ``expected``: what was known then; ``lost``: whether a power cut may have taken what was not
    synced; ``where``: for people.
    """

    state: State
    expected: tuple[Any, ...]
    lost: bool
    where: str


def judge(stops: Iterable[Found], check: Callable[[Path, Found], None], where: Path) -> None:
    for found in stops:
        put(found.state, where)
        try:
            check(where, found)
        except BaseException as error:
            error.add_note(found.where)
            raise


class Stops:
    """Collects, during one run on its ``disk``, everything that may be found where it stops.

    ``expected`` returns the facts that must hold at an operation. ``seeds`` are those of the power
    cuts, beside the death of the process. ``more``: with those of `choice`, if there are any.
    """

    def __init__(
        self,
        data: Path,
        *,
        seeds: Iterable[int] = (),
        more: bool = True,
        expected: Callable[[], tuple[object, ...]] = tuple,
        new_disk: Callable[[str, Callable[[str], None]], Moments] = Moments,
    ) -> None:
        self.disk = new_disk(str(data), self._visit)
        self.moments: list[str] = []
        self.found: list[Found] = []
        cuts = tuple(seeds)
        self._seeds = (KEPT, *cuts, *(choice.seeds if cuts and more else ()))
        self._expected = expected
        self._seen: set[tuple[object, ...]] = set()

    def _visit(self, operation: str) -> None:
        self.moments.append(operation)
        expected = self._expected()
        for seed in self._seeds:
            lost = seed != KEPT
            if lost and operation.startswith("half"):
                continue  # what a power cut leaves of a write are whole pages
            state = self.disk.state(seed)
            key = (_hashable(state), expected, lost)
            if key not in self._seen:
                self._seen.add(key)
                where = f"stopped before {len(self.moments)} {operation}, seed {seed}"
                self.found.append(Found(state, expected, lost, where))

    def end(self) -> None:
        """Nothing more is collected, and the process is dead."""
        self.disk.armed = False
        self.disk.kill()

    @property
    def power_cuts(self) -> list[Found]:
        """Return what power cuts leave, without what kills leave."""
        return [found for found in self.found if found.lost]

    def judge(self, check: Callable[[Path, Found], None], where: Path, *, one_of: int = 1) -> None:
        """Let `check` look at the stops of this test's `choice`, each at the path `where`.

        If the check takes long, it looks only at every `one_of`-th of them.
        """
        judge(choice.of(self.found, one_of), check, where)

    def judge_all(self, check: Callable[[Path, Found], None], where: Path) -> None:
        judge(self.found, check, where)


class Life:
    """Something that is run on a disk, in the directory ``data``.

    ``kinds``: each of these texts is in some operation of the run.
    """

    kinds: tuple[str, ...] = ()

    def __init__(self, data: Path) -> None:
        self.data = data

    def build(self) -> None:
        """Write the files with which the run begins."""
        self.data.mkdir()
        write_settings(self.data, log_index_size_max_bytes=240)

    def run(self, files: Files) -> None:
        raise NotImplementedError

    def expected(self) -> tuple[object, ...]:
        """Return the facts that must hold at this moment of the run."""
        return ()

    def stops(self, seeds: Iterable[int] = ()) -> Stops:
        """Return everything that may be found where the run stops."""
        self.build()
        stops = Stops(self.data, seeds=seeds, expected=self.expected)
        self.run(stops.disk)
        stops.end()
        for kind in self.kinds:
            assert any(kind in moment for moment in stops.moments)
        return stops


def after_reboot(
    check: Callable[[Path, Found], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Path, Found], None]:
    """The same check, in another boot of the machine if a power cut has ended the first one."""

    def checked(path: Path, found: Found) -> None:
        with monkeypatch.context() as patch:
            if found.lost:
                patch.setattr("storage.state.history.boot_id", lambda: "another")
            check(path, found)

    return checked


def during_opening(
    check: Callable[[Path, Found], None],
    *,
    seeds: Iterable[int] = (),
    **options: object,
) -> Callable[[Path, Found], None]:
    """The same check, after an opening that was itself stopped everywhere.

    Openings after neighbouring stops leave the same contents. If the same is known of them, they
    are checked once.
    """
    checked: set[tuple[object, ...]] = set()

    def is_new(found: Found) -> bool:
        key = _hashable(found.state), found.expected, found.lost
        is_new = key not in checked
        checked.add(key)
        return is_new

    def stopped(path: Path, found: Found) -> None:
        stops = Stops(path, seeds=seeds, more=False)
        manager = LogManager.open(str(path), files=stops.disk, **options)  # type: ignore[arg-type]
        stops.disk.armed = False
        manager.abandon()
        stops.end()
        again = [found._replace(state=each.state, where=each.where) for each in stops.found]
        judge(filter(is_new, again), check, path.with_name(path.name + "-again"))

    return stopped
