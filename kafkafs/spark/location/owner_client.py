"""Sends requests to the owner of a data directory: a mount's daemon, else this process itself.

The owner is the process that holds `.lock`. If no process does, the client opens the directory,
carries the request out and closes the directory. If a mount's daemon does
(`storage.state.owner_file`), the client writes a line into `.kafkafs/adopt` of the mount, and reads
the outcome from that file. While another job has the directory open, or a daemon starts or ends,
the client tries again; it gives up after `PATIENCE_S` without an owner that takes requests.

The client never guesses an outcome. If the owner dies or unmounts before it tells the outcome, the
client sends the request again, to the owner of that moment; for that one a batch that is already
adopted is a duplicate.

`storage.owner` has the requests. This module needs neither pyspark nor pyarrow.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import time
import uuid
from collections.abc import Iterator
from typing import Generic, TypeVar

from kafkafs.mount_options import PID_ATTRIBUTE
from storage import paths
from storage.adopt.adopt import Adopted
from storage.adopt.staged import AdoptRequest
from storage.directory.manager import LogManager
from storage.errors import InvalidRecord, LogLocked, StorageError
from storage.files import Files
from storage.owner.request_kinds import (
    ADOPT,
    RequestKind,
    RequestOutcome,
    RequestState,
    encode,
    error_of,
)
from storage.owner.staged_orphans import remove_orphans
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess
from storage.task import Task

R = TypeVar("R")
A = TypeVar("A")

REQUESTS = os.path.join(".kafkafs", "adopt")
PATIENCE_S = 60.0
"""How long to wait for an owner that takes no requests, in seconds."""
CHECK_PATIENCE_S = 5.0
"""As `PATIENCE_S`, for `check_owner`: longer than another job has the directory for a moment."""
_FIRST_PAUSE_S = 0.002
_LONGEST_PAUSE_S = 0.25
# The errors of a mount whose daemon has ended, is ending or is starting.
_GONE = frozenset(
    {
        *(errno.ENOTCONN, errno.ECONNABORTED, errno.ENODEV, errno.ESHUTDOWN, errno.EINTR),
        *(errno.ENOENT, errno.ENOTDIR, errno.ENODATA, errno.EOPNOTSUPP, errno.ESTALE),
    }
)
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM})
_PENDING = frozenset({RequestState.QUEUED, RequestState.RUNNING})


class OwnerNotReached(StorageError):  # noqa: N818 - as the storage names its errors
    """The owner of the data directory takes no requests; `pid` is its process id, if known."""

    def __init__(self, message: str, pid: int | None, *, path: str) -> None:
        super().__init__(message, path=path)
        self.pid = pid


def ask(
    path: str, request: AdoptRequest, *, task: Task | None = None, patience_s: float = PATIENCE_S
) -> Adopted:
    """Ask the owner to adopt staged files. Raises as `ask_owner`.

    After an OSError they may be adopted or not: ask again, with the same request.
    """
    return ask_owner(path, ADOPT, request, task=task, patience_s=patience_s)


def ask_owner(
    path: str,
    kind: RequestKind[R, A],
    request: R,
    *,
    task: Task | None = None,
    patience_s: float = PATIENCE_S,
) -> A:
    """Ask the owner to carry out a request, and return its answer.

    OwnerNotReached; the errors of `LogManager.open` and of the request's kind.
    """
    return _Client(os.path.realpath(path), kind, request, task or Task(), patience_s).run()


def check_owner(path: str, *, patience_s: float | None = None) -> None:
    """Wait for an owner that takes requests, before work that needs one.

    OwnerNotReached if the owner takes none, such as a broker.
    """
    directory = os.path.realpath(path)
    deadline = time.monotonic() + (CHECK_PATIENCE_S if patience_s is None else patience_s)
    while True:
        try:
            _find_owner(Files(directory), directory)
        except _Gone as gone:
            if time.monotonic() > deadline:
                raise OwnerNotReached(str(gone), gone.pid, path=directory) from None
        else:
            return
        time.sleep(_LONGEST_PAUSE_S)


class _Gone(Exception):  # noqa: N818 - no error yet: the client tries again
    """The owner takes no requests now; `pid` is its process id, if known."""

    def __init__(self, why: str, pid: int | None) -> None:
        super().__init__(why)
        self.pid = pid


def _find_owner(files: Files, directory: str) -> OwnerProcess | None:
    """The daemon that owns the directory; None: no process does. _Gone."""
    pid = files.locked_by(os.path.join(directory, paths.LOCK))
    if pid is None:
        return None
    if pid == os.getpid():
        raise _Gone("this process itself has the data directory open", pid)
    owner = owner_file.read(files, directory)
    if owner is None or owner.pid != pid:
        who = f"process {pid}" if pid > 0 else "a process of another container"
        raise _Gone(
            f"{who} has the data directory open and takes no requests; stop it (a broker, a long "
            "command), or mount the directory with kafkafs mount",
            pid,
        )
    return owner


class _Client(Generic[R, A]):
    """One request, until its outcome. `directory` has no symbolic links."""

    def __init__(
        self, directory: str, kind: RequestKind[R, A], request: R, task: Task, patience_s: float
    ) -> None:
        self._directory = directory
        self._kind = kind
        self._request = request
        self._task = task
        self._patience_s = patience_s
        self._deadline = 0.0
        self._files = Files(directory)

    def run(self) -> A:
        self._be_patient()
        pause_s = _FIRST_PAUSE_S
        while True:
            self._task.check()
            try:
                return self._ask()
            except _Gone as gone:
                if time.monotonic() > self._deadline:
                    raise OwnerNotReached(str(gone), gone.pid, path=self._directory) from None
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)

    def _be_patient(self) -> None:
        self._deadline = time.monotonic() + self._patience_s

    def _ask(self) -> A:
        """Send the request to the present owner. _Gone if there is no outcome."""
        owner = _find_owner(self._files, self._directory)
        return self._carry_out() if owner is None else self._ask_daemon(owner)

    # -- without an owner ----------------------------------------------------------------------

    def _carry_out(self) -> A:
        """Open the directory and carry the request out."""
        _have_many_descriptors()
        try:
            manager = LogManager.open(self._directory)
        except LogLocked as error:
            raise _Gone("other processes keep opening the data directory", error.pid) from None
        with manager:
            answer = self._kind.carry_out(manager, self._request, self._task, time.time_ns)
            wanted = {(file[0], file[1], file[2]) for file in self._kind.staged(self._request)}
            with contextlib.suppress(StorageError, OSError):
                remove_orphans(manager, self._task, lambda *file: file in wanted)
        return answer

    # -- a daemon owns it ----------------------------------------------------------------------

    def _ask_daemon(self, owner: OwnerProcess) -> A:
        requests = os.path.join(owner.mount, REQUESTS)
        request_id = str(uuid.uuid4())
        line = encode(self._kind, self._request, request_id).encode() + b"\n"
        with self._reaching(owner):
            # By now another directory may be mounted there.
            if os.getxattr(owner.mount, PID_ATTRIBUTE) != str(owner.pid).encode():
                raise _Gone(_not_there(owner), owner.pid)
            _write(requests, line)
        self._be_patient()
        pause_s = _FIRST_PAUSE_S
        while True:
            with self._reaching(owner):
                facts = _outcome(requests, request_id)
            if facts is None:
                raise _Gone(f"process {owner.pid} does not tell the outcome", owner.pid)
            if facts["state"] not in _PENDING:
                break
            self._follow(facts)
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        self._be_patient()
        if facts["state"] == RequestState.CANCELLED:
            raise _Gone(f"process {owner.pid} is about to end", owner.pid)
        if facts["state"] in (RequestState.REFUSED, RequestState.FAILED):
            raise error_of(facts)
        return self._kind.decode_answer(facts)

    def _follow(self, facts: RequestOutcome) -> None:
        """Take the daemon's progress over. TaskCancelled; the daemon continues all the same."""
        task = self._task
        task.check()
        task.phase = str(facts.get("phase", ""))
        task.done, task.total = facts.get("done", 0), facts.get("total", 0)

    @contextlib.contextmanager
    def _reaching(self, owner: OwnerProcess) -> Iterator[None]:
        """Turn errors of the mount into errors that say what to do."""
        try:
            yield
        except OSError as error:
            if error.errno in _GONE:
                raise _Gone(_not_there(owner), owner.pid) from None
            if error.errno in _FORBIDDEN:
                raise OwnerNotReached(
                    f"process {owner.pid} has the data directory mounted at {owner.mount!r}, "
                    "where only the user who has mounted it may ask: run as that user",
                    owner.pid,
                    path=self._directory,
                ) from None
            if error.errno in (errno.EINVAL, errno.EMSGSIZE):
                log = os.path.join(owner.mount, ".kafkafs", "log")
                raise InvalidRecord(
                    f"the daemon does not understand the request, {log!r} says why",
                    path=self._directory,
                ) from None
            raise


def _have_many_descriptors() -> None:
    """Raise the limit of descriptors: each partition that it writes takes three.

    The limit stays: another thread may own another directory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _not_there(owner: OwnerProcess) -> str:
    return (
        f"process {owner.pid} has the data directory open and does not answer at {owner.mount!r}, "
        "where it says that it has mounted it; if that is in another container, or was unmounted "
        "by force, run where the mount can be seen, or stop the process"
    )


def _write(path: str, line: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        with memoryview(line) as rest:
            done = 0
            while done < len(line):
                done += os.write(fd, rest[done:])
    finally:
        os.close(fd)


def _outcome(path: str, request_id: str) -> RequestOutcome | None:
    """The file's line about a request; None: it has none."""
    with open(path, "rb", buffering=0) as file:
        text = file.read()
    for line in reversed(text.splitlines()):
        if request_id.encode() in line:
            facts: RequestOutcome = json.loads(line)
            if facts["id"] == request_id:
                return facts
    return None
