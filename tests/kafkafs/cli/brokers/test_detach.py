"""`kafkafs detach` says what it does, or would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kafkafs.cli.conftest import kafkafs
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
