"""Errors of the system in the command line itself: one line and a status, and no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place
from tests.kafkafs.cli.mounting.test_mount_mistakes import fill
from tests.kafkafs.cli.test_mistakes import FAILED, TAKE_A_DIRECTORY, all_commands
from tests.waits import HANG_S

pytestmark = pytest.mark.programs

FULL = "kafkafs: standard output: No space left on device\n"
CLOSED = "kafkafs: standard output: Bad file descriptor\n"


def each(
    lines: Sequence[Sequence[str]], cwd: Path, stdout: str = os.devnull
) -> Iterator[tuple[Sequence[str], int, str]]:
    """Run command lines; yields each with its status and what it has said on standard error."""
    for line in lines:
        with open(stdout, "wb") as out:
            done = subprocess.run(
                [*KAFKAFS, *line],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.PIPE,
                text=True,
                errors="surrogateescape",
                cwd=cwd,
                timeout=HANG_S,
            )
        assert "Traceback" not in done.stderr, (line, done.stderr)
        yield line, done.returncode, done.stderr


def words_of(command: str, directory: str, topic: str = "orders") -> list[str]:
    """A command that takes a directory, with such a one."""
    name, *options = command.split(" --")
    given = TAKE_A_DIRECTORY[command](directory)
    return [
        *name.split(),
        *(each.replace("orders", topic) for each in given),
        *(word for option in options for word in f"--{option}".split()),
    ]


def test_a_full_disk_behind_every_help(tmp_path: Path) -> None:
    lines = [[*name.split(), "--help"] for name in sorted(all_commands())]
    lines += [["--help"], ["--version"], ["version"], ["spark", "--help"]]
    for line, status, said in each(lines, tmp_path, "/dev/full"):
        assert (status, said) == ({"dump": 1, "grep": 2}.get(line[0], 3), FULL), line


@pytest.mark.soak
def test_a_full_disk_behind_what_is_printed(tmp_path: Path) -> None:
    """… or nothing at all; with and without Python's buffer."""
    place = Place(tmp_path)
    try:
        fill(place.data)
        place.mount()
        data, mnt = str(place.data), str(place.path)
        lines = [
            *(["ls", mnt], ["ls", data, "--json"], ["verify", mnt], ["config", mnt]),
            *(
                ["mounts"],
                ["mounts", "--json"],
                ["doctor", mnt],
                ["top", mnt, "--once", "-d", "0.1"],
            ),
            *(["cat", mnt, "orders"], ["cat", data, "orders", "--where", "offset >= 0"]),
            *(["tail", f"{mnt}/orders/0"], ["consume", f"{mnt}/orders"]),
            *(["grep", "", data], ["grep", "-c", "", mnt, "orders"], ["grep", "", data, "--json"]),
            ["dump", f"{data}/orders-0/{0:020}.log"],
            ["wait", f"{mnt}/orders/.control/compaction"],
        ]
        for line, status, said in each(lines, ROOT, "/dev/full"):
            assert (status, said) == (FAILED.get(line[0], 3), FULL), line
        for line in lines:
            for shell, why in (
                ('PYTHONUNBUFFERED=1 "$@" > /dev/full', FULL),
                ('"$@" >&-', CLOSED),
            ):
                done = subprocess.run(
                    ["sh", "-c", shell, "sh", *KAFKAFS, *line],
                    capture_output=True,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONUNBUFFERED": ""},
                    timeout=HANG_S,
                )
                status = FAILED.get(line[0], 3)
                assert (done.returncode, done.stderr) == (status, why), line
    finally:
        place.end()


def test_all_streams_are_closed(place: Place) -> None:
    """… no file of a mount's daemon gets their numbers."""
    call = f'"$@" mount {place.data} {place.path} <&- >&- 2>&-; "$@" umount {place.path}'
    done = subprocess.run(["sh", "-c", call, "sh", *KAFKAFS], cwd=ROOT, timeout=HANG_S)
    assert done.returncode == 0
    assert place.was_closed_cleanly()


def test_a_working_directory_that_is_deleted(tmp_path: Path) -> None:
    directory = tmp_path / "deleted"
    directory.mkdir()
    deleted = os.open(directory, os.O_PATH)
    directory.rmdir()
    cwd = Path(f"/proc/self/fd/{deleted}")
    others = ["consume", "dump", "doctor", "tail", "top --once", "umount", "wait"]
    lines = [words_of(name, ".") for name in TAKE_A_DIRECTORY if not name.startswith("spark")]
    lines += [[*name.split(), "."] for name in others]
    for line, status, said in each(lines, cwd):
        assert status == FAILED.get(line[0], 3), line
        if line[0] not in ("doctor", "top", "umount"):
            assert said == "kafkafs: the working directory was deleted\n", line
    data = tmp_path / "data"
    data.mkdir()
    fill(data)
    lines = [["ls", str(data)], ["cat", str(data), "orders"], ["verify", str(data)]]
    for line, status, said in each(lines, cwd):
        assert (status, said) == (0, ""), line
    os.close(deleted)


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "mounted").mkdir()
    place = Place(tmp_path / "mounted")
    try:
        fill(place.data)
        place.mount()
        odd = os.fsdecode(b"\xff")
        commands = [name for name in TAKE_A_DIRECTORY if not name.startswith("spark")]
        lines = [words_of(command, odd) for command in commands]
        for n, command in enumerate(commands):
            lines.append(words_of(command, str(place.path if n % 2 else tmp_path), odd))
        lines += [["undelete", str(place.path), "orders", "--id", odd]]
        lines += [["config", str(place.path), "orders", f"cleanup.policy={odd}"]]
        lines += [[name, odd] for name in ("consume", "doctor", "dump", "tail", "umount", "wait")]
        for _ in each(lines, tmp_path):
            pass
    finally:
        place.end()


def test_ctrl_c_while_the_modules_are_imported(tmp_path: Path) -> None:
    """… ends it by the signal, silently."""
    (tmp_path / "click.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise AssertionError\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "kafkafs", "version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        cwd=tmp_path,
        timeout=HANG_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
