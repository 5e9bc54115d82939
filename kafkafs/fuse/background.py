"""Starts a daemon in the background, and waits until it is ready.

The caller's process forks and waits at a pipe. The child writes to the pipe that it is ready, or
why it cannot start, with one line each. It closes all files of the caller except the standard
streams. Until it is ready the child shows progress on the terminal's standard error; then it closes
all three standard streams.

When it is ready the child starts a session of its own. Until then it stays in the caller's process
group: if the mount point is an automount (autofs), the kernel lets only the automounter's process
group look at it, and all others wait until something is mounted there.

The caller must not start a thread before the fork, and takes what belongs to a process (fcntl
locks) after it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from kafkafs.fuse.mount_point import ConfigurationError, MountError
from kafkafs.printable import one_line

#: Runs to its end; calls its argument with a line for the caller when it is ready; raises
#: MountError if it cannot start.
Program = Callable[[Callable[[str], None]], int]

_READY = b"\0"
_STANDARD_ERROR = 2
#: The signals that end a waiting process, besides Ctrl-C.
_ENDS = (signal.SIGTERM, signal.SIGHUP)


def run_in_background(program: Program) -> str:
    """Start `program` in another process; return its line when it is ready. MountError."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    # A signal that ends the waiting process shall end the child too, from the fork on.
    signal.pthread_sigmask(signal.SIG_BLOCK, (*_ENDS, signal.SIGINT))
    try:
        pid = os.fork()
    except OSError as error:
        raise MountError(f"cannot start the daemon: {error.strerror}") from None
    if pid == 0:
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
            # Ctrl-C ends the child as SIGTERM does: the caller has the message.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDS, signal.SIGINT))
        os.close(reader)
        os._exit(_run_child(program, writer))
    os.close(writer)
    before = {number: signal.getsignal(number) for number in _ENDS}
    for number, handler in before.items():
        if handler != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _given_up)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDS, signal.SIGINT))
        with open(reader, "rb") as pipe:
            outcome = pipe.read()
    except BaseException:
        os.kill(pid, signal.SIGTERM)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if outcome.startswith(_READY):
        return outcome.removeprefix(_READY).decode(errors="surrogateescape")
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if outcome:
        kind = ConfigurationError if code == ConfigurationError.exit_status else MountError
        raise kind(outcome.decode(errors="replace"))
    how = f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"
    raise MountError(f"the daemon {how} before it was ready")


def _given_up(number: int, _: object) -> NoReturn:
    raise SystemExit(128 + number)


def _run_child(program: Program, pipe: int) -> int:
    """The child's whole life; the result is its exit status."""
    os.chdir("/")
    _close_files(pipe)
    waiting = True

    def ready(line: str) -> None:
        nonlocal waiting
        waiting = False
        os.setsid()
        sys.stdout.flush()
        sys.stderr.flush()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        os.close(null)
        os.write(pipe, _READY + line.encode(errors="surrogateescape"))
        os.close(pipe)

    try:
        return program(ready)
    except BaseException as error:
        if waiting:
            os.write(pipe, one_line(_what(error)).encode())
        return error.exit_status if isinstance(error, MountError) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _close_files(kept: int) -> None:
    """Close all files but the standard streams and `kept`.

    A caller's file would stay open as long as the mount: a lock on it (flock) would stay, and a
    reader of its pipe would get no end of the file.
    """
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > _STANDARD_ERROR and number != kept:
            with contextlib.suppress(OSError):
                os.close(number)


def _what(error: BaseException) -> str:
    if isinstance(error, MountError):
        return str(error)
    # A bug of ours: show the traceback.
    sys.excepthook(type(error), error, error.__traceback__)
    return f"unexpected error: {error!r}"
