"""If a mount refuses a request, the command line prints the reason for that very request."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, kafkafs
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

NO_KEY = "a compacted topic requires a key in each record"


def refusal(*words: object, stdin: str = "") -> str:
    """Run a command that must fail, and return the one line that it prints."""
    done = subprocess.run(
        [*KAFKAFS, *map(str, words)],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1), done
    return done.stderr.removeprefix("kafkafs: ").removesuffix("\n")


@pytest.fixture
def mount(place: Place) -> Path:
    place.mount()
    assert kafkafs("create", place.path, "orders").returncode == 0
    assert kafkafs("create", place.path, "users", "cleanup.policy=compact").returncode == 0
    return place.path


def test_a_line_without_a_key(mount: Path) -> None:
    for name in ("users", "users/0"):
        for _ in range(2):  # the log counts the second one
            assert refusal("append", mount / name, stdin="hi\n") == (
                f"line 1 of standard input: {NO_KEY}; nothing was appended"
            )


def test_the_reason_is_not_that_of_another_request(mount: Path) -> None:
    """… which came before, or is about something else."""
    why = "found: the files of a deleted topic are removed after file.delete.delay.ms"
    refusal("append", mount / "users", stdin="hi\n")
    assert refusal("undelete", mount, "nope") == f"{mount}: no deleted topic 'nope' {why}"
    refusal("append", mount / "users", stdin="hi\n")
    assert refusal("undelete", mount, "other") == f"{mount}: no deleted topic 'other' {why}"
    assert refusal("append", mount / "users", stdin="hi\n").endswith(
        f"{NO_KEY}; nothing was appended"
    )


def test_a_brokers_directory(place: Place) -> None:
    (place.data / "meta.properties").write_text("version=1\nnode.id=1\n")
    assert kafkafs("mount", place.data, place.path).returncode == 0
    said = refusal("create", place.path, "made")
    assert said.startswith(f"{place.path}: this is the directory of a broker")
    assert said.endswith(f"kafkafs detach {place.data}")
