"""Commands on a mount whose daemon is stopped or was killed: none of them waits for the daemon.

Commands that only read use the data directory instead. All others fail and print what to type.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, ending, kafkafs
from tests.kafkafs.cli.mounting.test_mount import stopped
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

#: Commands that only read, and their arguments for a mount.
READERS = {
    "ls": ["MNT"],
    "ls --json": ["MNT"],
    "describe": ["MNT/orders"],
    "groups ls": ["MNT"],
    "cat": ["MNT", "orders"],
    "cat --view kv": ["MNT/orders/0@-1"],
    "cat by a link": ["LINK/orders/0"],
    "grep two of a partition": ["MNT/orders/0"],
    "config": ["MNT/orders"],
    "compact --dry-run": ["MNT/users"],
    "prune --dry-run": ["MNT"],
    "fetch": ["MNT/orders/0:earliest:1000"],
    "repair --indexes": ["MNT"],
    "verify": ["MNT"],
    "words": ["MNT/orders"],
}
#: Commands that need the daemon.
OTHERS = {
    "append": ["MNT/orders"],
    "append by a link": ["LINK/orders/0"],
    "create": ["MNT", "made"],
    "delete": ["MNT/orders"],
    "undelete": ["MNT", "orders"],
    "compact": ["MNT/users"],
    "prune": ["MNT/orders"],
    "config": ["MNT/orders", "retention.ms=7d"],
    "append --view batches": ["MNT/orders/0"],
    "ls --rates": ["MNT"],
    "consume": ["MNT/orders"],
    "groups reset -g group --to earliest": ["MNT/orders"],
    "dump": ["MNT/orders/.raw/0/00000000000000000000.log"],
    "tail": ["MNT/orders/0", "MNT/users/0"],
    "wait": ["MNT/orders/.control/compaction"],
}
#: Jobs that send requests to a running daemon. Without a daemon they open the directory themselves.
JOBS = {
    "spark compact": ["MNT/users"],
    "spark import": ["MNT", "orders", os.devnull],
}


class Silent(NamedTuple):
    """A mount whose daemon does not answer."""

    place: Place
    why: str
    """The message about the mount and its daemon."""
    shown: dict[str, str]
    """The output of each command that only reads, while the daemon still answered."""
    is_dead: bool


def words(place: Place, command: str, arguments: list[str]) -> list[str]:
    name = command.partition(" of ")[0].partition(" by ")[0]
    link = place.path.parent / "link"
    replaced = (
        each.replace("MNT", str(place.path)).replace("LINK", str(link)) for each in arguments
    )
    return [*name.split(), *replaced]


def run(place: Place, command: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KAFKAFS, *words(place, command, arguments)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="latin-1",
        cwd=ROOT,
        timeout=HANG_S,
    )


@pytest.fixture(scope="module", params=["stopped", "dead"])
def silent(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Silent]:
    place = Place(tmp_path_factory.mktemp("silent"))
    (place.path.parent / "link").symlink_to("mnt")
    place.mount()
    pid = place.pid
    try:
        for topic in ("orders", "users"):
            assert kafkafs("create", place.path, topic).returncode == 0
        (place.path / "users/.config").write_text("cleanup.policy=compact\n")
        with open(place.path / "orders/0", "ab") as file:
            file.write(b"one\ntwo\n")
        shown = {name: run(place, name, READERS[name]).stdout for name in READERS}
        again = f"kafkafs mount {place.data} {place.path}"
        with contextlib.ExitStack() as stack:
            if request.param == "stopped":
                why = f"its daemon, process {pid}, is stopped. To continue it: kill -CONT {pid}"
                stack.enter_context(stopped(pid))
            else:
                why = f"its daemon has exited. To mount it again: {again}"
                with ending(pid):
                    os.kill(pid, signal.SIGKILL)
            yield Silent(place, f"{place.path}: {why}", shown, request.param == "dead")
    finally:
        place.end()


@pytest.mark.parametrize("command", READERS)
def test_what_only_reads_has_the_data_directory(silent: Silent, command: str) -> None:
    done = run(silent.place, command, READERS[command])
    assert (done.returncode, done.stdout) == (0, silent.shown[command])
    if command.split()[0] in ("cat", "describe", "groups", "ls"):
        data = silent.place.data
        assert done.stderr == f"kafkafs: reading {data} instead of the mount: {silent.why}\n"
    else:
        assert silent.why not in done.stderr


@pytest.mark.parametrize("command", OTHERS)
def test_what_needs_the_daemon_says_what_to_type(silent: Silent, command: str) -> None:
    done = run(silent.place, command, OTHERS[command])
    status = 1 if command.startswith("dump") else 3
    assert (done.returncode, done.stdout, done.stderr) == (status, "", f"kafkafs: {silent.why}\n")


@pytest.mark.parametrize("command", JOBS)
@pytest.mark.parametrize("silent", ["stopped"], indirect=True)
def test_a_job_says_what_to_type(silent: Silent, command: str) -> None:
    done = run(silent.place, command, JOBS[command])
    assert (done.returncode, done.stdout, done.stderr) == (3, "", f"kafkafs: {silent.why}\n")


def test_the_data_directory_of_a_dead_mount_is_changed(silent: Silent) -> None:
    """… and that of a stopped daemon is not."""
    done = kafkafs("create", silent.place.data, "other")
    if silent.is_dead:
        assert (done.returncode, done.stderr) == (0, "")
        assert kafkafs("delete", silent.place.data, "other").returncode == 0
    else:
        assert (done.returncode, done.stderr) == (3, f"kafkafs: {silent.why}\n")
