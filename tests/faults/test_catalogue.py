"""Every fault of the catalogue fits the code of today, leaves it Python, and can be taken back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.faults.catalogue import FAULTS
from tests.faults.fault import ROOT, Fault, Misfit


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_fits_the_code(fault: Fault, tmp_path: Path) -> None:
    copy = tmp_path / fault.file
    copy.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / fault.file, copy)
    fault.apply(tmp_path)
    compile(copy.read_text(), fault.file, "exec")
    fault.undo(tmp_path)
    assert copy.read_text() == (ROOT / fault.file).read_text()
    for test in fault.tests:
        assert (ROOT / test.partition("::")[0]).exists(), test


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
