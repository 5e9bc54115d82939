"""Starting in the background: a program for each outcome."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.kafkafs.fuse.conftest import PATIENCE_S, ROOT

START = """
import os, signal, sys
from kafkafs.fuse.background import run_in_background
from kafkafs.fuse.mount_point import MountError

def program(ready):
    {body}

try:
    run_in_background(program)
except MountError as error:
    sys.exit(f"not started: {{error}}")
print("started")
"""


def start(body: str) -> subprocess.CompletedProcess[str]:
    program = START.format(body=body.replace("\n", "\n    "))
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE_S,
    )


def test_the_caller_returns_when_the_daemon_is_ready(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    os.mkfifo(ended)
    done = start(
        "print('before', file=sys.stderr)\n"
        "ready()\n"
        "print('after'); print('after', file=sys.stderr)\n"
        f"open({str(ended)!r}, 'w').write(f'{{os.getcwd()}} {{os.getpid() == os.getsid(0)}}')\n"
        "return 0"
    )
    # It has returned, though the daemon still runs: it waits for a reader of the pipe.
    assert (done.returncode, done.stdout, done.stderr) == (0, "started\n", "before\n")
    assert ended.read_text() == "/ True"


def test_what_keeps_it_from_starting_is_one_line() -> None:
    done = start("raise MountError('it rains')")
    assert (done.returncode, done.stderr) == (1, "not started: it rains\n")


def test_a_bug_shows_its_traceback_too() -> None:
    done = start("1 / 0")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert done.stderr.endswith("not started: unforeseen: ZeroDivisionError('division by zero')\n")


def test_an_end_without_a_word() -> None:
    done = start("return 3")
    assert done.stderr == "not started: the daemon ended with status 3 before it was ready\n"
    done = start("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.stderr == "not started: the daemon was ended by signal 9 before it was ready\n"
