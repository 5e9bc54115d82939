"""Starting in the background: a program for each outcome."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kafkafs.fuse.conftest import ROOT
from tests.waits import HANG_S

START = """
import os, signal, sys
from kafkafs.fuse.background import run_in_background
from kafkafs.fuse.mount_point import ConfigurationError, MountError

def program(ready):
    {body}

try:
    line = run_in_background(program)
except MountError as error:
    print(f"not started: {{error}}", file=sys.stderr)
    sys.exit(error.exit_status)
print("started:", line)
"""


# Root may start as many as it likes: this becomes a user of its own.
LIMITED = """
import os, resource
import kafkafs.fuse.background
if not os.geteuid():
    os.setresuid(1_000_000 + os.getpid(), 1_000_000 + os.getpid(), 1_000_000 + os.getpid())
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
"""


def start(body: str) -> subprocess.CompletedProcess[str]:
    program = START.format(body=body.replace("\n", "\n    "))
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANG_S,
    )


def test_the_caller_returns_when_the_daemon_is_ready(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    os.mkfifo(ended)
    done = start(
        # Only the processes of this group may look at an automount while it is mounted.
        "print('before', os.getpgrp() == os.getpgid(os.getppid()), file=sys.stderr)\n"
        "ready('says who')\n"
        "print('after'); print('after', file=sys.stderr)\n"
        f"open({str(ended)!r}, 'w').write(f'{{os.getcwd()}} {{os.getpid() == os.getsid(0)}}')\n"
        "return 0"
    )
    # It has returned, though the daemon still runs: it waits for a reader of the pipe.
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "started: says who\n",
        "before True\n",
    )
    assert ended.read_text() == "/ True"


def test_what_keeps_it_from_starting_is_one_line() -> None:
    done = start("raise MountError('it rains')")
    assert (done.returncode, done.stderr) == (3, "not started: it rains\n")
    done = start("raise ConfigurationError('it never rains')")
    assert (done.returncode, done.stderr) == (os.EX_CONFIG, "not started: it never rains\n")


def test_a_bug_shows_its_traceback_too() -> None:
    done = start("1 / 0")
    assert done.returncode == 3
    assert "Traceback" in done.stderr
    assert done.stderr.endswith(
        "not started: unexpected error: ZeroDivisionError('division by zero')\n"
    )


def test_an_end_without_a_word() -> None:
    done = start("return 3")
    assert done.stderr == "not started: the daemon exited with status 3 before it was ready\n"
    done = start("os.kill(os.getpid(), signal.SIGKILL)")
    assert done.stderr == "not started: the daemon was killed by signal 9 before it was ready\n"


def test_no_process_can_be_started() -> None:
    program = LIMITED + START.format(body="return 0")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    refused = f"cannot start the daemon: {os.strerror(errno.EAGAIN)}\n"
    assert (done.returncode, done.stderr) == (3, f"not started: {refused}")


@pytest.mark.parametrize("send", [os.kill, os.killpg])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_gives_up_waiting_ends_it(
    tmp_path: Path, number: signal.Signals, send: Callable[[int, int], None]
) -> None:
    """A terminal sends Ctrl-C to the process group."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    os.mkfifo(started)
    os.mkfifo(ended)
    body = (
        f"open({str(started)!r}, 'w').close()\n"
        # Nobody writes; it has a reader for as long as this process lives.
        f"open({str(ended)!r}, 'r').read()"
    )
    program = START.format(body=body.replace("\n", "\n    "))
    with subprocess.Popen(
        [sys.executable, "-c", program], stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True
    ) as caller:
        started.read_text()
        with ended.open("w") as writer:
            send(caller.pid, number)
            _, errors = caller.communicate(timeout=HANG_S)
            poller = select.poll()
            poller.register(writer, 0)
            assert poller.poll(HANG_S * 1000) == [(writer.fileno(), select.POLLERR)]
    assert caller.returncode == (-number if number == signal.SIGINT else 128 + number)
    assert errors.count(b"Traceback") == (number == signal.SIGINT), "the caller's alone"
