"""Sends requests to the owner of a data directory: a mount's daemon, else this process itself.

The owner is the process that holds `.lock`. If no process does, the client opens the directory,
carries the request out and closes the directory. If a mount's daemon is the owner
(`storage.state.owner_file`), the client writes a line into `.kafkafs/adopt` of the mount, and reads
the outcome from that file. While another job has the directory open, or a daemon starts or ends,
the client tries again. It gives up after `PATIENCE_S` without an owner that takes requests.

The client never guesses an outcome. If the owner dies or unmounts before it reports the outcome,
the client sends the request again, to the new owner. For the new owner, a batch that was adopted
before is a duplicate.

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
from collections.abc import Callable, Iterator
from typing import TypeVar

from kafkafs.mount_options import PID_ATTRIBUTE
from kafkafs.tree.control.topic_commands import create_line
from kafkafs.tree.files.group_names import file_name, is_shown
from kafkafs.tree.owner.adopt_file import LONGEST_LINE
from kafkafs.tree.partition.partitions import keeping_history
from storage import paths
from storage.adopt.adoptions import NeededTopics
from storage.directory.mirror import refuse_mirror
from storage.errors import InvalidRecord, LogLocked, StorageError, TopicExists
from storage.files import Files
from storage.manager import LogManager
from storage.owner.request_kinds import (
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

_REQUESTS = os.path.join(".kafkafs", "adopt")
_TOPICS = os.path.join(".kafkafs", "topics")
_TOPIC_MODE = 0o755
_GROUPS = ".groups"
PATIENCE_S = 60.0
"""The time to wait for an owner that takes requests, in seconds."""
CHECK_PATIENCE_S = 5.0
"""The same time for `check_owner`: longer than the short moment of another job."""
TOPIC_PATIENCE_S = 10.0
"""The same time for `create_topic`."""
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


def ask_owner(
    path: str,
    kind: RequestKind[R, A],
    request: R,
    *,
    task: Task | None = None,
    patience_s: float = PATIENCE_S,
) -> A:
    """Ask the owner to carry out a request, and return its answer.

    Errors: OwnerNotReached; those of `LogManager.open` and of the request's kind. After an OSError
    it is unknown whether the owner has carried the request out: send the same request again.
    """
    client = _Client(path, patience_s, task or Task())
    return client.retry(lambda: client.ask(kind, request))


def check_owner(path: str) -> None:
    """Wait for an owner that takes requests, before work that needs one.

    OwnerNotReached if the owner, such as a broker, takes no requests.
    """
    client = _Client(path, CHECK_PATIENCE_S, Task())
    client.retry(client.find_owner)


def create_topic(path: str, topic: str, partitions: int) -> None:
    """Create the topic unless it exists. On return all of its partitions exist.

    Another process may be creating the topic, one directory after the other. If this process finds
    only some of them, it asks the owner, or waits until no process has the data directory open.

    Errors: InvalidTopic, PolicyViolation, TopicExists; OwnerNotReached; OSError.
    """
    client = _Client(path, TOPIC_PATIENCE_S, Task())
    try:
        client.retry(lambda: client.create_topic(topic, partitions))
    except OwnerNotReached as error:
        raise OwnerNotReached(
            f"process {error.pid} has the data directory open and creates no topics on request. "
            "Stop the process, or create the topic in it",
            error.pid,
            path=client.directory,
        ) from None


def make_group(path: str, group: str) -> None:
    """Create a consumer group in the daemon that owns the directory.

    Call this before the first request to commit offsets. That request would create the group and
    the topic of groups, and the daemon would answer no other request meanwhile. If no daemon is the
    owner, or the mount does not show the group, the request creates them. OwnerNotReached, OSError.
    """
    client = _Client(path, TOPIC_PATIENCE_S, Task())
    client.retry(lambda: client.make_group(group))


class _Gone(Exception):  # noqa: N818 - no error yet: the client tries again
    """The owner takes no requests now; `pid` is its process id, if known."""

    def __init__(self, why: str, pid: int | None) -> None:
        super().__init__(why)
        self.pid = pid


class _Client:
    """Sends one request until it has the outcome. `directory` has no symbolic links."""

    def __init__(self, path: str, patience_s: float, task: Task) -> None:
        self.directory = os.path.realpath(path)
        self._patience_s = patience_s
        self._task = task
        self._files = Files(self.directory)
        refuse_mirror(self.directory)
        self._be_patient()

    def _be_patient(self) -> None:
        self._deadline = time.monotonic() + self._patience_s

    def retry(self, attempt: Callable[[], A]) -> A:
        """Call `attempt` until it raises no _Gone. OwnerNotReached."""
        pauses_s = _pauses_s()
        while True:
            self._task.check()
            try:
                return attempt()
            except _Gone as gone:
                if time.monotonic() > self._deadline:
                    raise OwnerNotReached(str(gone), gone.pid, path=self.directory) from None
            time.sleep(next(pauses_s))

    def find_owner(self) -> OwnerProcess | None:
        """Return the daemon that owns the directory; None: no process does. _Gone."""
        pid = self._files.locked_by(os.path.join(self.directory, paths.LOCK))
        if pid is None:
            return None
        if pid == os.getpid():
            raise _Gone("this process itself has the data directory open", pid)
        owner = owner_file.read(self._files, self.directory)
        if owner is None or owner.pid != pid:
            who = f"process {pid}" if pid > 0 else "a process in another container"
            raise _Gone(
                f"{who} has the data directory open and takes no requests. Stop it (a broker, a "
                "long command), or mount the directory with kafkafs mount",
                pid,
            )
        return owner

    # -- requests ------------------------------------------------------------------------------

    def ask(self, kind: RequestKind[R, A], request: R) -> A:
        """Send the request to the present owner. _Gone if it reports no outcome."""
        owner = self.find_owner()
        if owner is not None:
            return self._ask_daemon(owner, kind, request)
        _allow_many_descriptors()
        with (
            self._open(lambda adoptions: kind.topics(adoptions, request)) as manager,
            keeping_history(manager),
        ):
            answer = kind.carry_out(manager, request, self._task, time.time_ns)
            wanted = {(file[0], file[1], file[2]) for file in kind.staged(request)}
            with contextlib.suppress(StorageError, OSError):
                remove_orphans(manager, self._task, lambda *file: file in wanted)
        return answer

    def create_topic(self, topic: str, partitions: int) -> None:
        """Ask the present owner to create the topic unless it exists. _Gone."""
        there = partitions_of(self.directory, topic)
        if len(there) >= partitions:
            return
        paths.check_new_name(topic)
        owner = self.find_owner()
        if owner is None:
            if there:
                return  # no process creates it any more
            with self._open() as manager:
                if topic not in manager.topics:
                    manager.create_topic(topic, partitions)
            return
        self._check_mount(owner)
        line = create_line(topic, partitions, (os.geteuid(), os.getegid(), _TOPIC_MODE), ())
        try:
            with self._reaching(owner):
                _write(os.path.join(owner.mount, _TOPICS), f"{line}\n".encode())
        except FileExistsError:
            if not partitions_of(self.directory, topic):
                raise TopicExists(
                    f"topic {topic!r} collides with another one: '.' and '_' are the same in the "
                    "names of Kafka's metrics",
                    path=self.directory,
                ) from None

    def make_group(self, group: str) -> None:
        """Ask the present owner to create the group, if it is a daemon. _Gone."""
        owner = self.find_owner()
        if owner is not None and is_shown(group):
            self._check_mount(owner)
            with self._reaching(owner), contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(owner.mount, _GROUPS, file_name(group)))

    def _open(self, needs: NeededTopics | None = None) -> LogManager:
        try:
            return LogManager.open(self.directory, needs=needs, keeps_faulty=True)
        except LogLocked as error:
            raise _Gone("other processes keep opening the data directory", error.pid) from None

    def _ask_daemon(self, owner: OwnerProcess, kind: RequestKind[R, A], request: R) -> A:
        requests = os.path.join(owner.mount, _REQUESTS)
        request_id = str(uuid.uuid4())
        self._check_mount(owner)
        with self._reaching(owner):
            _write(requests, encode(kind, request, request_id).encode() + b"\n")
        self._be_patient()
        pauses_s = _pauses_s()
        while True:
            with self._reaching(owner):
                outcome = _outcome(requests, request_id)
            if outcome is None:
                raise _Gone(f"process {owner.pid} does not report the outcome", owner.pid)
            if outcome["state"] not in _PENDING:
                break
            # The daemon continues even if this task is cancelled.
            self._task.check()
            self._task.phase = str(outcome.get("phase", ""))
            self._task.done, self._task.total = outcome.get("done", 0), outcome.get("total", 0)
            time.sleep(next(pauses_s))
        self._be_patient()
        if outcome["state"] == RequestState.CANCELLED:
            raise _Gone(f"process {owner.pid} is shutting down", owner.pid)
        if outcome["state"] in (RequestState.REFUSED, RequestState.FAILED):
            raise error_of(outcome)
        return kind.decode_answer(outcome)

    def _check_mount(self, owner: OwnerProcess) -> None:
        """Raise _Gone if another directory, or none, is mounted there now."""
        with self._reaching(owner):
            if os.getxattr(owner.mount, PID_ATTRIBUTE) != str(owner.pid).encode():
                raise _Gone(_no_answer(owner), owner.pid)

    @contextlib.contextmanager
    def _reaching(self, owner: OwnerProcess) -> Iterator[None]:
        """Turn errors of the mount into errors with a remedy."""
        try:
            yield
        except OSError as error:
            if error.errno in _GONE:
                raise _Gone(_no_answer(owner), owner.pid) from None
            if error.errno in _FORBIDDEN:
                raise OwnerNotReached(
                    f"process {owner.pid} has the data directory mounted at {owner.mount!r}, and "
                    "takes requests only from the user who has mounted it: run as that user",
                    owner.pid,
                    path=self.directory,
                ) from None
            if error.errno == errno.EMSGSIZE:
                raise InvalidRecord(
                    f"the request is too long for the daemon ({LONGEST_LINE >> 20} MiB at most): "
                    "it names too many staged files. Write with fewer tasks, or smaller batches",
                    path=self.directory,
                ) from None
            if error.errno == errno.EINVAL:
                log = os.path.join(owner.mount, ".kafkafs", "log")
                raise InvalidRecord(
                    f"the daemon does not understand the request; see {log!r}",
                    path=self.directory,
                ) from None
            raise


def _allow_many_descriptors() -> None:
    """Raise the limit of descriptors: each partition that the owner writes to needs three.

    The limit is not lowered again, because another thread may own another directory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _pauses_s() -> Iterator[float]:
    pause_s = _FIRST_PAUSE_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


def partitions_of(path: str, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions in a data directory, ascending. OSError."""
    return paths.partitions_in(Files(path).listing(path)).get(topic, [])


def _no_answer(owner: OwnerProcess) -> str:
    return (
        f"process {owner.pid} has the data directory open, but does not answer at {owner.mount!r}, "
        "its mount point. If the mount is in another container, run there. If it was unmounted by "
        "force, stop the process"
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
    """Return the file's line about a request; None: no such line."""
    with open(path, "rb", buffering=0) as file:
        text = file.read()
    for line in reversed(text.splitlines()):
        if request_id.encode() in line:
            facts: RequestOutcome = json.loads(line)
            if facts["id"] == request_id:
                return facts
    return None
