"""Every fault of the catalogue fits the code of today, leaves it Python, and can be taken back.

How functions are found, faults are made, and tests are chosen, on small examples.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults import matrix, reach, recorder
from tests.faults.catalogue import FAULTS
from tests.faults.fault import ROOT, Fault, Misfit
from tests.faults.functions import changed, functions_in, is_compiled
from tests.faults.sample import DROPPED, EARLY, NEGATED, OFF_BY_ONE, SWAPPED, drawn, edits_of

PYTHON = '''\
"""A module."""

from __future__ import annotations

LIMIT = 3


class Log:
    def append(self, size: int) -> None:
        """Append."""
        if size < LIMIT:
            self.write(size, 1)

        def inner() -> int: return size + 1
        self.end = inner()


async def last() -> None:
    """Return nothing."""
'''
CYTHON = """\
# cython: boundscheck=False
cdef int limit(int size)

cdef inline int clipped(
    int size, int most
) noexcept nogil:
    if size > most:
        return most + 1
    return size


cdef class Map:
    def put(self, int size):
        return clipped(size, limit(3))

    def __dealloc__(self):
        pass


def room(int size):
    return size
"""


FILES = sorted({fault.file for fault in FAULTS})


@pytest.mark.parametrize("file", FILES)
def test_faults_fit_the_code(file: str, tmp_path: Path) -> None:
    copy = tmp_path / file
    copy.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / file, copy)
    before = copy.read_text()
    for fault in FAULTS:
        if fault.file == file:
            fault.apply(tmp_path)
            if not is_compiled(file):
                compile(copy.read_text(), fault.name, "exec")
            fault.undo(tmp_path)
            assert copy.read_text() == before, fault.name
            for test in fault.tests:
                assert (ROOT / test.partition("::")[0]).is_file(), (fault.name, test)


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_what_does_not_fit_once_is_named(tmp_path: Path) -> None:
    (tmp_path / "twice").write_text("one two one")
    for old in ("one", "three"):
        fault = Fault("no such line", "twice", old, "four", "nothing", ())
        with pytest.raises(Misfit, match="no such line"):
            fault.apply(tmp_path)
    assert (tmp_path / "twice").read_text() == "one two one"


def test_a_fault_is_taken_back(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one two")
    fault = Fault("another line", "file", "two", "four", "nothing", ())
    fault.apply(tmp_path)
    assert (tmp_path / "file").read_text() == "one four"
    fault.undo(tmp_path)
    assert (tmp_path / "file").read_text() == "one two"


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("a.py", PYTHON, [("Log.append", 11), ("Log.append.inner", 14), ("last", None)]),
        ("a.pyx", CYTHON, [("clipped", None), ("put", 14), ("__dealloc__", None), ("room", 21)]),
    ],
)
def test_functions_and_where_their_bodies_begin(
    file: str, text: str, expected: list[tuple[str, int | None]]
) -> None:
    found = functions_in(file, text)
    assert [(each.name, each.line) for each in found] == expected


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        ("a.py", "size < LIMIT", "size <= LIMIT", ["Log.append"]),
        (
            "a.py",
            "size + 1\n        self.end = inner",
            "size\n        self.end = inner",
            ["Log.append.inner"],
        ),
        ("a.py", "LIMIT = 3", "LIMIT = 4", ["Log.append", "Log.append.inner"]),
        ("a.pyx", "return most + 1", "return most", ["put"]),
        ("a.pyx", "    return size\n\n\ncdef class", "    return most\n\n\ncdef class", ["put"]),
    ],
)
def test_functions_that_a_fault_changes(
    file: str, old: str, new: str, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / file).write_text(PYTHON if file == "a.py" else CYTHON)
    fault = Fault("", f"storage/{file}", old, new, "", ())
    assert [each.name for each in changed(fault, tmp_path)] == expected


def test_each_function_records_its_number_first(tmp_path: Path) -> None:
    (tmp_path / "storage").mkdir()
    for file, text in (("storage/a.py", PYTHON), ("storage/a.pyx", CYTHON)):
        (tmp_path / file).write_text(text)
        functions = [each for each in functions_in(file, text) if each.line is not None]
        reach.insert(tmp_path, functions)
    written = (tmp_path / "storage/a.py").read_text()
    compile(written, "a.py", "exec")
    assert "annotations\nfrom storage._reached import reached as _reached\n" in written
    assert '"""Append."""\n        _reached(0)\n        if size' in written
    assert "int: _reached(1); return size + 1\n" in written
    written = (tmp_path / "storage/a.pyx").read_text()
    assert written.startswith("# cython: boundscheck=False\nfrom storage._reached import")
    assert "put(self, int size):\n        _reached(0)\n        return" in written
    assert written.count("_reached(") == 2


def test_a_function_is_recorded_once_for_a_process_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(recorder.VARIABLE, str(tmp_path))
    monkeypatch.setattr(recorder, "_current", None)
    monkeypatch.setattr(recorder, "_recorded", set())
    recorder.reached(1)  # before pytest begins
    recorder.pytest_configure()
    for file in ("tests/test_a.py", "tests/test_b.py"):
        for test in ("test_1", "test_2[a::b]"):
            recorder.pytest_runtest_logstart(f"{file}::{test}")
            recorder.reached(7)
    (written,) = tmp_path.glob("*.reached")
    assert written.read_text() == "7 tests/test_a.py\n7 tests/test_b.py\n"


def test_what_is_reached_is_read_as_it_is_written() -> None:
    reached = {
        "storage/a.py:f": {"tests/test_top.py", "tests/crash/test_a.py", "tests/crash/test_b.py"},
        "storage/a.py:g": set(),
    }
    text = reach.written(reached)
    assert text.splitlines() == ["storage/a.py:f", "  : top", "  crash: a b", "storage/a.py:g"]
    assert reach.read(text) == reached


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "a.py",
            PYTHON,
            {
                (NEGATED, "if (not (size < LIMIT)):"),
                (OFF_BY_ONE, "if size <= LIMIT:"),
                (OFF_BY_ONE, "def inner() -> int: return size + 2"),
                (DROPPED, "pass"),
                (SWAPPED, "self.write(1, size)"),
                (EARLY, "return"),
            },
        ),
        (
            "a.pyx",
            CYTHON,
            {
                (NEGATED, "if (not (size > most)):"),
                (OFF_BY_ONE, "if size >= most:"),
                (OFF_BY_ONE, "return most + 2"),
            },
        ),
    ],
)
def test_faults_that_are_made(file: str, text: str, expected: set[tuple[str, str]]) -> None:
    found = set()
    for what, start, end, new in edits_of(file, text):
        changed = (text[:start] + new + text[end:])[: start + len(new)] + text[end:]
        line = changed.count("\n", 0, start)
        found.add((what, changed.splitlines()[line].strip()))
    assert found == expected


def test_a_seed_draws_the_same_faults_and_each_of_them_fits(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(PYTHON)
    chosen = drawn("1", "room", [("a.py", PYTHON)], 5)
    assert len({fault.breaks for fault in chosen}) == len(chosen) == 5
    assert drawn("1", "room", [("a.py", PYTHON)], 5) == chosen
    assert drawn("2", "room", [("a.py", PYTHON)], 5) != chosen
    for fault in chosen:
        fault.apply(tmp_path)
        fault.undo(tmp_path)
    assert (tmp_path / "a.py").read_text() == PYTHON


def test_each_layer_runs_the_named_tests_first_and_then_the_cheapest() -> None:
    table = [
        "file,test,own_s,children_s,wall_s",
        "tests/crash/test_a.py,,3.0,0.5,9.0",
        "tests/crash/test_a.py,tests/crash/test_a.py::test_one,0.1,0.0,0.1",
        "tests/crash/test_b.py,,1.0,1.0,1.0",
    ]
    costs = matrix.times(table)
    assert costs == {"tests/crash/test_a.py": 3.5, "tests/crash/test_b.py": 2.0}
    found = matrix.layers(
        ["tests/crash/test_c.py::test_it"],
        [
            *("tests/crash/test_a.py", "tests/crash/test_b.py", "tests/mount/contract/test_d.py"),
            *("tests/mount/test_e.py", "tests/kafkafs/dump/test_f.py", "tests/test_g.py"),
        ],
        costs,
    )
    assert found == {
        "crash": [
            "tests/crash/test_c.py::test_it",
            "tests/crash/test_b.py",
            "tests/crash/test_a.py",
        ],
        "contract": ["tests/mount/contract/test_d.py"],
        "mount": ["tests/mount/test_e.py"],
        "views": ["tests/kafkafs/dump/test_f.py"],
    }


def test_each_layer_has_a_folder() -> None:
    assert [folder for folder in matrix.LAYERS if not (ROOT / folder).is_dir()] == []


def test_the_last_result_of_a_pair_counts(tmp_path: Path) -> None:
    results = tmp_path / "matrix.tsv"
    assert matrix.rows(results) == {}
    results.write_text("f\tcrash\tnot known\t12\nf\tcrash\tunseen\t34\nf\tcli\tunseen\t56\n")
    assert matrix.rows(results) == {
        ("f", "crash"): ("unseen", "34"),
        ("f", "cli"): ("unseen", "56"),
    }
