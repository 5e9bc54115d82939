"""What the system refuses to the command line itself: a line and a status, and no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.hang import HANG_S
from tests.kafkafs.cli.conftest import PROGRAM, ROOT, Place
from tests.kafkafs.cli.test_mistakes import TAKE_A_DIRECTORY, all_commands
from tests.kafkafs.cli.test_mount_mistakes import fill

FULL = "kafkafs: standard output: No space left on device\n"
CLOSED = "kafkafs: standard output: Bad file descriptor\n"
TRACEBACK = 99
#: Runs command lines, each in a process of its own; says how they end on standard error.
EACH = f"""
import json, os, sys, traceback
import click
import kafkafs.tree.filesystem  # which is needed often
from kafkafs.cli import main

for name in main.helps:
    main.get_command(click.Context(main), name)
given = json.loads(sys.argv[1])
if given["gone"]:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
ended = []
for words in given["lines"]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writer, 2)
        try:
            main(words)
        except SystemExit as error:
            os._exit(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit({TRACEBACK})
    os.close(writer)
    with open(reader, errors="surrogateescape") as pipe:
        said = pipe.read()
    ended.append((os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said))
json.dump(ended, sys.stderr)
"""


def each(
    lines: Sequence[Sequence[str]], cwd: Path, stdout: str = os.devnull, *, gone: bool = False
) -> Iterator[tuple[Sequence[str], int, str]]:
    """Run command lines; yields each with its status and what it has said on standard error.

    `gone`: in a working directory that is deleted.
    """
    with open(stdout, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", EACH, json.dumps({"lines": lines, "gone": gone})],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=HANG_S,
        )
    assert done.returncode == 0, done.stderr
    for line, (status, said) in zip(lines, json.loads(done.stderr), strict=True):
        assert status != TRACEBACK, (line, said)
        yield line, status, said


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
        assert (status, said) == (1, FULL), line


def test_a_full_disk_behind_what_is_printed(tmp_path: Path) -> None:
    """… or nothing at all; with and without Python's buffer."""
    place = Place(tmp_path)
    try:
        fill(place.data)
        place.mount()
        data, mnt = str(place.data), str(place.path)
        lines = [
            *(["topics", mnt], ["topics", data, "--json"], ["verify", mnt], ["config", mnt]),
            *(
                ["mounts"],
                ["mounts", "--json"],
                ["doctor", mnt],
                ["top", mnt, "--once", "-d", "0.1"],
            ),
            *(["cat", mnt, "orders"], ["cat", data, "orders", "--where", "offset >= 0"]),
            *(["tail", f"{mnt}/orders/0"], ["consume", f"{mnt}/orders"]),
            ["dump", f"{data}/orders-0/{0:020}.log"],
            ["wait", f"{mnt}/orders/.control/compaction"],
        ]
        for line in lines:
            for shell, why in (
                ('"$@" > /dev/full', FULL),
                ('PYTHONUNBUFFERED=1 "$@" > /dev/full', FULL),
                ('"$@" >&-', CLOSED),
            ):
                done = subprocess.run(
                    ["sh", "-c", shell, "sh", *PROGRAM, *line],
                    capture_output=True,
                    text=True,
                    cwd=ROOT,
                    env={**os.environ, "PYTHONUNBUFFERED": ""},
                    timeout=HANG_S,
                )
                assert (done.returncode, done.stderr) == (1, why), line
    finally:
        place.end()


def test_all_streams_are_closed(place: Place) -> None:
    """… no file of a mount's daemon gets their numbers."""
    call = f'"$@" mount {place.data} {place.path} <&- >&- 2>&-; "$@" umount {place.path}'
    done = subprocess.run(["sh", "-c", call, "sh", *PROGRAM], cwd=ROOT, timeout=HANG_S)
    assert done.returncode == 0
    assert place.was_closed_cleanly()


def test_a_working_directory_that_is_deleted(tmp_path: Path) -> None:
    others = ["consume", "dump", "doctor", "tail", "top --once", "umount", "wait"]
    lines = [words_of(name, ".") for name in TAKE_A_DIRECTORY if not name.startswith("spark")]
    lines += [[*name.split(), "."] for name in others]
    for line, status, said in each(lines, tmp_path, gone=True):
        assert status == 1, line
        if line[0] not in ("doctor", "top", "umount"):
            assert said == "kafkafs: the working directory was deleted\n", line
    data = tmp_path / "data"
    data.mkdir()
    fill(data)
    lines = [["topics", str(data)], ["cat", str(data), "orders"], ["verify", str(data)]]
    for line, status, said in each(lines, tmp_path, gone=True):
        assert (status, said) == (0, ""), line


def test_names_that_are_no_utf_8(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "mounted").mkdir()
    place = Place(tmp_path / "mounted")
    try:
        fill(place.data)
        place.mount()
        odd = os.fsdecode(b"\xff")
        lines = [
            words_of(command, directory, topic)
            for command in TAKE_A_DIRECTORY
            if not command.startswith("spark")
            for directory in (str(tmp_path), str(place.path), odd)
            for topic in ("orders", odd)
            if odd in (directory, topic)
        ]
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
