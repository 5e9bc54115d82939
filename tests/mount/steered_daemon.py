"""`kafkafs.fuse.daemon` under the control of a test, which can block and fail disk operations.

Run as a program: `python -m tests.mount.steered_daemon DATA MOUNT [-o OPTIONS]… [--no-epochs]
[--own-clock]`.
It reports that it is ready as the real daemon does (sd_notify). Then it reads commands from
standard input, one a line, as JSON: `["NAME", [ARGUMENT, …]]`. It answers each with a line of JSON:
`{"answer": …}` or `{"error": "…"}`. The commands are the methods of `Commands`. It ends as the real
daemon does, or at the end of its input. With `--no-epochs` it does not use FUSE_NOTIFY_INC_EPOCH,
as on a kernel without it. With `--own-clock` the daemon measures appends as the real one does.

A test can also delete the oldest segments or replace segments by a command. This happens on the
log's thread, as in retention and compaction. Everything else is the code of the real daemon.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import errno
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pyfuse3
import trio
import trio.testing

from kafkafs import service_manager
from kafkafs.fuse import daemon, mount_point, operations
from kafkafs.fuse.notify import KernelNotices
from kafkafs.fuse.operations import Operations
from kafkafs.mount_options import MountOptions, parse_mount_options
from kafkafs.tree.context import MountContext
from kafkafs.tree.directories.directory import Listed, Row
from kafkafs.tree.directories.topics import TopicPlace
from kafkafs.tree.events import Events
from kafkafs.tree.files.control_file import CommandEffects, TextCommands, taking
from kafkafs.tree.files.text_file import TextFile
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.inodes import Node
from kafkafs.tree.names import TOPIC
from kafkafs.tree.partition.partitions import Partitions
from storage.files import Files, is_temporary
from storage.log.log import Log
from storage.manager import LogManager
from tests.kafkafs.trees import clean
from tests.no_threads import no_free_threads
from tests.storage.logs import remove_head
from tests.waits import HANG_S, until

FOR_EVER = 1 << 62


class Disk(Files):
    """The real disk. Single operations can block or fail. Counts the bytes that are read.

    `now_ns`: a clock that only slow writes advance.
    """

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.bytes_read = 0
        self.now_ns = 0
        self._slow: dict[str, int] = {}
        self._paths: dict[int, str] = {}
        self._held: list[list[Any]] = []
        self._failing: list[list[Any]] = []

    def hold(
        self, operation: str, suffix: str, after: int, release: threading.Event
    ) -> threading.Event:
        """Block the next call on a path with this suffix, after `after` such calls.

        Return an event that is set when the call blocks.
        """
        reached = threading.Event()
        self._held.append([operation, suffix, release, reached, after])
        return reached

    def fail(self, operation: str, suffix: str, error: int, times: int, after: int) -> None:
        """Fail `times` calls on paths with this suffix, after `after` such calls.

        EAGAIN: not in the page cache.
        """
        self._failing.append([operation, suffix, error, times, after])

    def slow(self, suffix: str, ns: int) -> None:
        """From now on each write to a path with this suffix advances `now_ns` by `ns`."""
        self._slow[suffix] = ns

    def _enter(self, operation: str, path: str) -> None:
        for held in self._held:
            if held[0] == operation and path.endswith(held[1]):
                if held[4]:
                    held[4] -= 1
                    continue
                self._held.remove(held)
                held[3].set()
                held[2].wait()
                break
        for failing in self._failing:
            if failing[0] == operation and path.endswith(failing[1]) and failing[3]:
                if failing[4]:
                    failing[4] -= 1
                    continue
                failing[3] -= 1
                raise OSError(failing[2], os.strerror(failing[2]), path)

    def open(self, path: str, flags: int, mode: int = 0o644) -> int:
        self._enter("open", path)
        fd = super().open(path, flags, mode)
        directory, name = os.path.split(path)
        if is_temporary(name):  # what nobody can guess is left out of it
            path = os.path.join(directory, name.split("-", 1)[1])
        self._paths[fd] = path
        return fd

    def _open_directory(self, path: str) -> int:
        fd = super()._open_directory(path)
        self._paths[fd] = path
        return fd

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, position: int) -> None:
        path = self._paths[fd]
        self.now_ns += sum(ns for suffix, ns in self._slow.items() if path.endswith(suffix))
        self._enter("pwrite", path)
        super().pwrite(fd, data, position)

    def rename(self, source: str, target: str) -> None:
        self._enter("rename", target)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._enter("unlink", path)
        super().unlink(path)

    def fsync(self, fd: int) -> None:
        self._enter("fsync", self._paths[fd])
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self._enter("fdatasync", self._paths[fd])
        super().fdatasync(fd)

    def preadv(self, fd: int, buffer: bytearray | memoryview, position: int) -> int:
        self._enter("preadv", self._paths[fd])
        count = super().preadv(fd, buffer, position)
        self.bytes_read += count
        return count

    def preadv_nowait(self, fd: int, buffer: bytearray | memoryview, position: int) -> int | None:
        try:
            self._enter("preadv_nowait", self._paths[fd])
        except BlockingIOError:
            return None
        count = super().preadv_nowait(fd, buffer, position)
        self.bytes_read += count or 0
        return count

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self._enter("pread", self._paths[fd])
        data = super().pread(fd, size, position)
        self.bytes_read += len(data)
        return data


class CountingOperations(Operations):
    """Counts what the kernel asks, by the names of handlers."""

    requests: ClassVar[collections.Counter[str]] = collections.Counter()

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self.requests["lookup"] += 1
        return await super().lookup(parent_inode, name, ctx)

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        self.requests["getattr"] += 1
        return await super().getattr(inode, ctx)

    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: int, off: int, size: int
    ) -> bytes | bytearray | memoryview:
        self.requests["read"] += 1
        return await super().read(fh, off, size)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        self.requests["write"] += 1
        return await super().write(fh, off, buf)

    async def fsync(self, fh: int, datasync: bool) -> None:
        self.requests["fsync"] += 1
        await super().fsync(fh, datasync)


class _Hold:
    """Somebody is held. It ends by itself before everybody who waits for him hangs for ever."""

    def __init__(self, begin: Callable[[threading.Event], threading.Event]) -> None:
        self._release = threading.Event()
        self._expired = False
        self.reached = begin(self._release)
        self._timer = threading.Timer(HANG_S, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        self._expired = True
        self._release.set()

    def end(self) -> bool:
        self._timer.cancel()
        self._release.set()
        return not self._expired


def keep_house_one_by_one(partitions: Partitions) -> None:
    """Let the periodic work be started at any time, also while it runs."""
    working, housekeeping = threading.Lock(), partitions.housekeeping

    def kept() -> None:
        with working:
            housekeeping()

    vars(partitions)["housekeeping"] = kept


class Commands:
    """Each runs on a thread of its own; what touches the tree goes to the thread that owns it."""

    def __init__(self, tree: FileSystem, disk: Disk) -> None:
        self._tree = tree
        self._disk = disk
        self._token: trio.lowlevel.TrioToken | None = None
        self._holds: list[_Hold] = []
        self._taken = contextlib.ExitStack()

    def begin(self) -> None:
        """On the trio thread, when the mount is ready."""
        self._token = trio.lowlevel.current_trio_token()
        threading.Thread(target=self._serve, daemon=True).start()
        service_manager.tell("READY=1")

    def _serve(self) -> None:
        for line in sys.stdin:
            name, arguments = json.loads(line)
            try:
                answer = {"answer": getattr(self, name)(*arguments)}
            except Exception:
                answer = {"error": traceback.format_exc()}
            print(json.dumps(answer), flush=True)
        for hold in self._holds:
            hold.end()

    def _owner(self, function: Callable[[], Any]) -> Any:
        return trio.from_thread.run_sync(function, trio_token=self._token)

    def _log(self, topic: str, partition: int = 0) -> Log:
        return self._tree.mount.manager.log(topic, partition)

    # -- what happens to logs ------------------------------------------------------------------

    def roll(self, topic: str) -> None:
        self._owner(lambda: self._log(topic).roll(self._tree.mount.manager.clock_ms()))

    def remove_head(self, topic: str, count: int) -> None:
        """Prepare it in this thread, as retention does."""
        log, now_ms = self._log(topic), self._tree.mount.manager.monotonic_ms()
        removed = log.segments[:count]
        self._owner(lambda: log.prepare_replacement(removed, ()))()
        self._owner(lambda: remove_head(log, count, now_ms))
        log.end_change(removed, ())

    def clean(self, topic: str, count: int, drop: str) -> None:
        """Replace the first `count` segments by one without the records whose value has `drop`."""

        def dropped(record: Any) -> bool:
            return drop.encode() in (record.value or b"")

        self._owner(lambda: clean(self._log(topic), count, dropped))

    def keep_text(self) -> None:
        """Do the daemon's periodic work: read the texts to be kept before records are deleted."""
        self._tree.partitions.housekeeping()

    def delete_retired(self) -> None:
        """Delete all files that wait for file.delete.delay.ms, as if the delay had passed."""
        self.keep_text()
        remove = self._owner(lambda: self._tree.mount.manager.sweep(FOR_EVER))
        if remove is not None:
            remove()

    def close_files(self) -> None:
        """Close the segments' files, as if nothing had used them for a while."""
        for _ in range(2):
            for log in list(self._tree.mount.manager.logs()):
                self._owner(log.age_descriptors)

    def rest(self) -> None:
        """Nothing has grown for a while."""
        for _ in range(2):
            self._owner(self._tree.partitions.tick)

    def segments(self, topic: str) -> list[int]:
        return [segment.base_offset for segment in self._log(topic).segments]

    # -- the disk ------------------------------------------------------------------------------

    def hold(self, operation: str, suffix: str, after: int = 0) -> int:
        """Hold the next call on a path that ends so, when there were `after` of them; the number is
        for `reached` and `release`.
        """
        return self._hold(lambda release: self._disk.hold(operation, suffix, after, release))

    def _hold(self, begin: Callable[[threading.Event], threading.Event]) -> int:
        self._holds.append(_Hold(begin))
        return len(self._holds) - 1

    def reached(self, number: int) -> bool:
        return self._holds[number].reached.wait(HANG_S)

    def release(self, number: int) -> bool:
        """False where that is long over: whoever was to be held has been waited for too long."""
        return self._holds[number].end()

    def fail(self, operation: str, suffix: str, error: str, times: int = 1, after: int = 0) -> None:
        """Let calls on a path that ends so fail, with an errno by its name."""
        self._disk.fail(operation, suffix, getattr(errno, error), times, after)

    def slow(self, suffix: str, ms: int) -> None:
        """From now on each write to a path that ends so takes so long, by the clock of appends."""
        self._disk.slow(suffix, ms * 1_000_000)

    def bytes_read(self) -> int:
        """Since the last call."""
        count, self._disk.bytes_read = self._disk.bytes_read, 0
        return count

    # -- the rest ------------------------------------------------------------------------------

    def requests(self) -> dict[str, int]:
        """Requests by handler since the last call."""

        def take() -> dict[str, int]:
            counted = dict(CountingOperations.requests)
            CountingOperations.requests.clear()
            return counted

        counted: dict[str, int] = self._owner(take)
        return counted

    def job_patience(self, seconds: float) -> None:
        """How long a write waits for the job that it has begun."""
        operations.JOB_S = seconds

    def until_cancelled(self, topic: str, kind: str) -> None:
        """Return when the running job has been cancelled."""
        job = self._owner(
            lambda: next(
                job
                for job in self._tree.mount.jobs.running
                if job.kind.name == kind and job.topic is not None and job.topic.name == topic
            )
        )
        until(lambda: job.task.cancelled)

    def terminate(self) -> None:
        """As a service manager does."""
        os.kill(os.getpid(), signal.SIGTERM)

    def stick(self) -> int:
        """The thread that answers requests is held; the number is for `release`."""
        number = self._hold(self._stick)
        assert self.reached(number)
        return number

    def _stick(self, release: threading.Event) -> threading.Event:
        reached = threading.Event()

        def stick() -> None:
            reached.set()
            release.wait()

        assert self._token is not None
        self._token.run_sync_soon(stick)
        return reached

    def take_threads(self) -> None:
        """From now on no thread is left, and none can be started."""
        while not self._owner(self._take_threads):
            time.sleep(0.001)

    def _take_threads(self) -> bool:
        """False where one is at work, and would be free later."""
        if trio.testing.active_thread_count():
            return False
        self._taken.enter_context(no_free_threads())
        return True

    def give_threads(self) -> None:
        """There are threads again."""
        self._taken.close()


def _remove_head_file(topic: TopicPlace, name: str) -> Node:
    """`.remove-head`: a count of segments written to it is dropped inside the write."""

    class RemoveHead(TextCommands):
        structural = True

        def carry_out(self, lines: Sequence[str]) -> CommandEffects:
            log = topic.topic.partitions[0]
            for line in lines:
                # Control files act in a worker thread; a log belongs to the trio thread.
                trio.from_thread.run_sync(remove_head, log, int(line), log.monotonic_ms())
            return CommandEffects()

    take = taking(lambda: RemoveHead(topic.mount, ".remove-head"))
    inode = topic.number(name)
    return TextFile(inode, lambda: "", lambda: (0o600, 0, 0), topic.mount.clock_ns, take=take)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("path")
    parser.add_argument("-o", action="append", default=[], dest="options")
    parser.add_argument("--no-epochs", action="store_true")
    parser.add_argument("--own-clock", action="store_true")
    arguments = parser.parse_args()
    data, path = os.path.realpath(arguments.data), os.path.realpath(arguments.path)
    options = parse_mount_options(arguments.options)
    TOPIC.rows[".remove-head"] = Row(_remove_head_file, Listed.NEVER)
    vars(daemon)["Operations"] = CountingOperations
    mount = daemon.Mount(data, path, options, foreground=True)
    mount_point.take_name()
    mount_point.clean(path)
    events = Events(lambda: time.time_ns() // 1_000_000)
    disk = Disk(data)
    manager = LogManager.open(data, files=disk, read_only=options.read_only)
    notices = KernelNotices(events, epochs=not arguments.no_epochs)
    shown = MountOptions(read_only=options.read_only)
    tree = FileSystem(MountContext(manager, shown, notices=notices, events=events))
    keep_house_one_by_one(tree.partitions)
    commands = Commands(tree, disk)
    served = daemon.Daemon(mount, tree, notices, commands.begin)
    if not arguments.own_clock:
        manager.take_turns(lambda: disk.now_ns)
    served.mount()
    sys.exit(served.run())


if __name__ == "__main__":
    main()
