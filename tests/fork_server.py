"""Starts kafkafs for tests by fork, from a process that has imported it once.

Importing kafkafs takes some tenths of a second of processor time, and the tests start it about two
thousand times. `install` replaces `subprocess.Popen`, so `subprocess.run` and its like start
`PROGRAMS` by fork, too. All other programs start as usual.

The fork server is `python -m tests.fork_server`. It has one thread, opens no file, and ends when
the test process ends. For each program it forks twice, and the process in between ends at once.
At that moment the test process adopts orphans (PR_SET_CHILD_SUBREAPER), so the program becomes its
child: `wait`, `poll`, `kill` and the processor time of children work as usual.

The program gets what a fresh one has: standard streams, environment, working directory, umask,
limits, session, signals, random numbers, arguments and `__main__`. Three things are the server's:
/proc/PID/cmdline, /proc/PID/environ and the modules that are loaded. A test of these starts another
command line, for example `python -m kafkafs`.

KAFKAFS_TESTS_START=fresh in the environment switches the server off.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import inspect
import io
import os
import pickle
import pkgutil
import random
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
#: The programs that start by fork, as Python's arguments name them.
PROGRAMS = (
    ("-c", "from kafkafs.cli import main; main()"),
    ("-m", "tests.mount.line_writer"),
    ("-m", "tests.mount.steered_daemon"),
    ("-m", "tests.kafkafs.fuse.bare_file_system"),
    ("-m", "tests.start_facts"),
)
#: The command line of kafkafs.
KAFKAFS = [sys.executable, *PROGRAMS[0]]
#: Variables that the dynamic linker, the C library and Python read before a program begins.
_START = re.compile(r"PYTHON.*|LD_.*|LANG|LC_.*|MALLOC_.*|GLIBC_.*")


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if _START.fullmatch(name)}


#: The server starts with these values. A program that is given others starts fresh.
_USUAL = _at_start(os.environ)


def with_usual_start(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with which a program can start by fork."""
    others = {name: environment[name] for name in environment.keys() - _at_start(environment)}
    return {**others, **_USUAL}


_LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
_PR_SET_CHILD_SUBREAPER = 36  # prctl.h
_lock = threading.Lock()


# -- the test process ------------------------------------------------------------------------------


def install() -> None:
    """Start `PROGRAMS` by fork in this process from now on."""
    if os.environ.get("KAFKAFS_TESTS_START") != "fresh":
        subprocess.Popen = _Popen  # type: ignore[misc]


class _Popen(subprocess.Popen[Any]):
    """A `subprocess.Popen` that starts `PROGRAMS` by fork."""

    def _execute_child(self, *given: Any) -> None:
        fresh = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(fresh).bind(*given).arguments
        program = _program(**asked)
        if program is None:
            fresh(*given)
            return
        sys.audit("subprocess.Popen", asked["args"][0], asked["args"], asked["cwd"], asked["env"])
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        streams = [number if fd == -1 else fd for number, fd in enumerate(streams)]
        program["is_open"] = [_is_open(fd) for fd in streams]
        opened = [fd for fd in streams if _is_open(fd)]
        directory = os.open(asked["cwd"] or ".", os.O_PATH | os.O_DIRECTORY)
        try:
            with _lock:
                self.pid = _server(os.getpid()).start(program, [directory, *opened])
        finally:
            os.close(directory)
        self._child_created = True
        ends = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[end] for end in ends))  # type: ignore[attr-defined]


def _program(
    args: Any, env: Any, umask: int, start_new_session: bool, process_group: int, **others: Any
) -> dict[str, Any] | None:
    """Return what the server needs to start a program; None if the program starts fresh."""
    unusual = ("executable", "preexec_fn", "shell", "pass_fds", "uid", "gid", "gids")
    if any(others[name] for name in unusual) or not others["close_fds"]:
        return None
    if not isinstance(args, list | tuple) or tuple(args[1:3]) not in PROGRAMS:
        return None
    environment = {
        os.fsdecode(name): os.fsdecode(value)
        for name, value in (os.environ if env is None else env).items()
    }
    if args[0] != sys.executable or _at_start(environment) != _USUAL:
        return None
    return {
        "arguments": [os.fsdecode(word) for word in args],
        "environment": environment,
        "umask": _umask() if umask < 0 else umask,
        "limits": [(limit, resource.getrlimit(limit)) for limit in _LIMITS],
        "session": start_new_session,
        "group": process_group,
    }


def _umask() -> int:
    found = re.search(r"^Umask:\s*(\d+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1], 8)


class _Server:
    """The fork server of this process."""

    def __init__(self) -> None:
        self._socket, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with end:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fork_server", str(end.fileno())],
                cwd=ROOT,
                env={**os.environ, **_USUAL},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[end.fileno()],
            )
        atexit.register(self._end)

    def start(self, program: dict[str, Any], descriptors: Sequence[int]) -> int:
        """Start a program and return its process id.

        `descriptors`: its working directory and its open standard streams.
        """
        reader, writer = os.pipe()
        with open(reader) as reply, open(os.memfd_create("program"), "wb") as file:
            pickle.dump(program, file)
            file.flush()
            prctl = ctypes.CDLL(None).prctl
            prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                try:
                    socket.send_fds(self._socket, [b"."], [writer, file.fileno(), *descriptors])
                finally:
                    os.close(writer)
                pid = reply.read()
            finally:
                prctl(_PR_SET_CHILD_SUBREAPER, 0)
        assert pid, "the fork server has failed"
        return int(pid)

    def _end(self) -> None:
        self._socket.close()
        self._process.wait()


@functools.cache
def _server(pid: int) -> _Server:
    """Return the server of this process. A process that a test forks gets a server of its own."""
    return _Server()


def _is_open(fd: int) -> bool:
    try:
        os.get_inheritable(fd)
    except OSError:
        return False
    return True


# -- the fork server -------------------------------------------------------------------------------


def _load() -> None:
    """Import what the programs import, but nothing of Spark."""
    for package in ("storage", "kafka_client", "kafkafs"):
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if ".spark" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for option, name in PROGRAMS:
        if option == "-m":
            importlib.import_module(name)
            del sys.modules[name]  # it runs as __main__


def _serve(requests: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Start a process for each request. In that process, return the request and its descriptors."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(requests, 1, 6)
        if not descriptors:
            os._exit(0)
        between = os.fork()
        if between == 0:
            # This process ends at once, so the test process adopts the program.
            pid = os.fork()
            if pid == 0:
                requests.close()
                with open(descriptors[1], "rb", closefd=False) as file:
                    file.seek(0)
                    return pickle.load(file), descriptors
            os.write(descriptors[0], str(pid).encode())
            os._exit(0)
        os.waitpid(between, 0)
        for each in descriptors:
            os.close(each)


def _become(program: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Give this process what a fresh one has. Then close `descriptors`: the caller waits for it."""
    _, _, directory, *opened = descriptors
    if program["session"]:
        os.setsid()
    if program["group"] >= 0:
        os.setpgid(0, program["group"])
    os.umask(program["umask"])
    for limit, value in program["limits"]:
        if resource.getrlimit(limit) != value:
            resource.setrlimit(limit, value)
    os.fchdir(directory)
    left = iter(opened)
    for number, is_open in enumerate(program["is_open"]):
        if is_open:
            os.dup2(next(left), number)
        else:
            os.close(number)
    # Python sets some variables at its start, for example in the C locale.
    environment = {**program["environment"], **_at_start(os.environ)}
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, name, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for each in descriptors:
        os.close(each)


def _stream(number: int, name: str, like: io.TextIOWrapper) -> io.TextIOWrapper | None:
    """Return a standard stream as Python opens it at its start; None if it is closed."""
    mode = "w" if number else "r"
    try:
        raw: Any = io.FileIO(number, mode, closefd=False)
    except OSError:
        return None
    raw.name = f"<{name}>"
    buffered = not like.write_through  # else PYTHONUNBUFFERED
    buffer = raw
    if number == 0:
        buffer = io.BufferedReader(raw)
    elif buffered:
        buffer = io.BufferedWriter(raw)
    stream: Any = io.TextIOWrapper(
        buffer,
        like.encoding,
        like.errors,
        newline="\n",
        line_buffering=buffered and (number == 2 or raw.isatty()),
        write_through=like.write_through,
    )
    stream.mode = mode
    return stream  # type: ignore[no-any-return]


def _run(arguments: list[str]) -> None:
    """Run the program that these arguments of a process name."""
    sys.orig_argv = arguments
    _, option, program, *rest = arguments
    sys.argv = [option, *rest]
    if option == "-m":
        sys.path[0] = os.getcwd()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = ""
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program, "<string>", "exec"), vars(sys.modules["__main__"]))


class _End:
    """Ends a process without destroying the modules, whose memory it shares with the server.

    This exit function runs last. If anything is unusual, Python ends the process as always.
    """

    def __init__(self) -> None:
        self.status: object = None
        atexit.register(self)

    def __call__(self) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
            if isinstance(self.status, int):
                os._exit(self.status & 0xFF)


def main() -> None:
    end = _End()  # before any module registers an exit function
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # Ctrl-C ends the test process
    _load()
    gc.collect()
    generators = [each for each in gc.get_objects() if isinstance(each, random.Random)]
    gc.freeze()
    program, descriptors = _serve(socket.socket(fileno=int(sys.argv[1])))
    _become(program, descriptors)
    for each in generators:
        each.seed()
    try:
        _run(program["arguments"])
        end.status = 0
    except SystemExit as error:
        end.status = 0 if error.code is None else error.code
        raise


if __name__ == "__main__":
    main()
