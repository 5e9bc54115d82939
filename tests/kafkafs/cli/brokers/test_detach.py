"""`kafkafs detach` says what it does, or would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from storage import LogManager
from tests.kafkafs.cli.conftest import kafkafs
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.directory.test_taking_over import described
from tests.storage.logs import opened

pytestmark = pytest.mark.programs

NAMES = ["meta.properties", "__cluster_metadata-0"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A broker's directory, whose broker's file is not named."""
    path = tmp_path / "data"
    path.mkdir()
    described(path, [], None)
    return path


def content(data: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(data)): path.read_bytes() for path in data.rglob("*") if path.is_file()
    }


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(data: Path) -> None:
    with opened(data):  # it takes no lock
        before = content(data)
        done = kafkafs("detach", "--dry-run", data)
        assert content(data) == before
    assert (done.returncode, set(done.stdout.splitlines())) == (
        0,
        {f"{name} would be renamed to {name}.detached" for name in NAMES},
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("kafkafs: orders: ")
    assert line.endswith(f"kafkafs config {data} --broker-config FILE")

    done = kafkafs("detach", data)
    assert (done.returncode, set(done.stdout.splitlines())) == (
        0,
        {f"{name} renamed to {name}.detached" for name in NAMES},
    )
    before = content(data)
    done = kafkafs("detach", "--dry-run", "--undo", "--json", data)
    found = json.loads(done.stdout)["result"]
    assert (found["dry_run"], found["undo"], set(found["names"])) == (True, True, set(NAMES))
    assert content(data) == before


def test_a_dry_run_says_what_is_in_the_way(data: Path) -> None:
    done = kafkafs("detach", "--dry-run", "--undo", data)
    assert done.returncode == 3
    assert "was not detached from a broker" in done.stderr
    kafkafs("detach", data)
    with opened(data) as manager:
        manager.create_topic("new", 1)
    done = kafkafs("detach", "--dry-run", "--undo", data)
    assert done.returncode == 3
    assert (
        "the broker would set aside partitions that were created after the detach: new-0"
        in done.stderr
    )


def test_the_end_of_a_mirror(tmp_path: Path) -> None:
    make_mirror(tmp_path)
    with LogManager.open(str(tmp_path), mirrors=True) as manager:
        manager.create_topic("orders")
        done = kafkafs("detach", tmp_path)
        assert done.returncode == 3
        assert "in use by process" in done.stderr
        assert done.stderr.endswith("used by a running kafkafs mirror. Stop it first\n")
    before = content(tmp_path)
    done = kafkafs("detach", "--dry-run", tmp_path)
    what = f"the mirror; then every command can write {tmp_path}\n"
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"kafkafs.mirror would be removed, which would end {what}",
        "",
    )
    assert content(tmp_path) == before
    done = kafkafs("detach", "--json", tmp_path)
    assert json.loads(done.stdout)["result"]["names"] == ["kafkafs.mirror"]
    assert content(tmp_path) == {
        name: data for name, data in before.items() if name != "kafkafs.mirror"
    }
    assert kafkafs("create", tmp_path, "more").returncode == 0
    done = kafkafs("detach", "--undo", tmp_path)
    assert done.returncode == 3
    assert "was not detached from a broker" in done.stderr


def test_a_mirror_whose_file_is_damaged_can_be_ended(tmp_path: Path) -> None:
    (tmp_path / "kafkafs.mirror").write_text("version 1\n")
    done = kafkafs("detach", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "kafkafs.mirror removed: this ends the mirror" in done.stdout
