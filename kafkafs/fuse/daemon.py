"""The daemon: starts and ends one mount.

Start: it refuses what looks like a mistake (a mount point or a data directory with others' files),
opens the data directory (lock, recovery), unmounts what a killed daemon left, mounts, and serves.
So the dead mount stays during recovery, and nobody writes into the directory underneath. It is
ready when the kernel has sent its first request, so a mount always answers. Then it
writes its process id and the mount point into the data directory (`storage.state.owner_file`).

End, by SIGTERM, SIGINT or SIGHUP: it makes records of unfinished lines, refuses later writes with
ESHUTDOWN, stops long work and flushes everything, while reads continue. Then it ends the session,
releases what is still open, closes the logs with their checkpoints and the clean-shutdown marker,
and unmounts. An unmount from
outside ends the session first, and the rest follows. The order matters: nobody serves requests
while descriptors close, the owner file goes after them, and the lock last.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import logging
import os
import resource
import select
import shlex
import signal
import stat
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyfuse3
import trio

from kafkafs import mount_table, service_manager
from kafkafs.data_directory import Mistake, contents_or_mistake, find_mistake, in_use
from kafkafs.fuse import mount_point, next_command, session_loop, utab
from kafkafs.fuse.housekeeping import Housekeeping
from kafkafs.fuse.mount_point import ConfigurationError, MountError, refusal
from kafkafs.fuse.notify import KernelNotices
from kafkafs.fuse.operations import Operations
from kafkafs.fuse.schedule import Schedule
from kafkafs.fuse.threads import JobThreads, in_thread
from kafkafs.mount_options import READ_AHEAD_KIB, MountOptions, kernel_options
from kafkafs.tree.context import MountContext
from kafkafs.tree.directories.topics import shown_topics
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.permissions import exposed_text
from storage import clock, paths
from storage.directory.contents import Contents, contents_of
from storage.directory.mirror import is_mirror
from storage.directory.open import Progress
from storage.directory.top_level import closing_command, others_may_write, others_text
from storage.errors import LogLocked, MirroredDirectory, StorageError
from storage.files import Files
from storage.manager import LogManager
from storage.plain_forms import plain_forms
from storage.state import owner_file
from storage.state.owner_file import OwnerProcess

#: How long a thread that computes may keep the interpreter from a request, in seconds.
SWITCH_S = 0.0005
#: The allocator maps what is larger on its own, and gives back what is free above that much. A
#: request and what is made of it are a few MiB: with the allocator's own limits these would go
#: back after each request, and the next one would get as many fresh, zeroed pages.
MAPPED_BYTES = 4 << 20
FREE_BYTES = 4 << 20
#: The signals that end the daemon in order.
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STANDARD_ERROR = 2


@dataclass(frozen=True, slots=True)
class Mount:
    """A mount to make. Both paths are absolute and without symbolic links."""

    data_directory: str
    path: str
    options: MountOptions
    foreground: bool = False


def run(
    mount: Mount, ready: Callable[[int, bool], None], progress: Callable[[Progress], None] | None
) -> int:
    """Serve a mount to its end; return the exit status. MountError if it cannot start.

    `ready`: called when the mount answers, with the number of listed topics and whether the mount
    is read-only: that of a mirror is.
    """
    sys.setswitchinterval(SWITCH_S)
    _keep_freed_memory()
    mount_point.take_name()
    events = Events(clock.wall_ms)
    events.forward = to_standard_error
    with _log_lines_to(events):
        try:
            manager = _open(mount, progress)
        except MirroredDirectory as error:
            events(f"{error}. The mount is read-only")
            mount = replace(mount, options=replace(mount.options, read_only=True))
            manager = _open(mount, progress)
        notices = KernelNotices(events)
        try:
            _keep_reserve(manager, events)
            follows = _written_by_another(manager)
            context = MountContext(
                manager, mount.options, follows=follows, notices=notices, events=events
            )
            tree = FileSystem(context)
            _name_exposed(context)
            _warn_of_others(manager, events)
            topics = partial(shown_topics, tree.root.place)
            daemon = Daemon(mount, tree, notices, lambda: ready(len(topics()), manager.read_only))
            mount_point.clean(mount.path)
            _check_mount_point(mount)
            # From the mount on a signal ends the daemon in order, even before it serves.
            signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
            daemon.mount()
        except BaseException:
            manager.close()
            raise
        return daemon.run()


class Daemon:
    """One mount, from the mount call to its end."""

    def __init__(
        self, mount: Mount, tree: FileSystem, notices: KernelNotices, ready: Callable[[], None]
    ) -> None:
        self._mount = mount
        self._tree = tree
        self._notices = notices
        self._ready = ready
        # The device number of the mount.
        self._device: str | None = None
        self._spinner = session_loop.Spinner()
        self._asked = trio.Event()
        tree.mount.manager.take_turns()
        self._operations = Operations(tree, self._spinner, self._asked.set)
        self._ticks = Housekeeping(tree, self._operations)
        self._workers = JobThreads(tree.mount, self._operations.turns)

    def mount(self) -> None:
        """Mount, without serving requests yet. MountError."""
        session_loop.install(pyfuse3, self._spinner, self._tree.mount.events)
        options = {"default_permissions", f"fsname={_source(self._mount)}", "subtype=kafkafs"}
        options |= kernel_options(self._mount.options)
        with _standard_error_kept() as lines:
            try:
                pyfuse3.init(self._operations, self._mount.path, options)
            except RuntimeError as error:
                # libfuse and fusermount3 write the reason to standard error.
                reason = next(iter(lines()), str(error))
                command = next_command.where_mounting_failed(reason, self._mount.path)
                # Of the device and its rights doctor knows all there is.
                more = f": {command}" if command else ". To find the cause: kafkafs doctor"
                kind = ConfigurationError if command else MountError
                raise kind(f"{self._mount.path}: cannot mount: {reason}{more}") from None
            said = lines()
        mounted = mount_table.find(self._mount.path)
        self._device = None if mounted is None else mounted.device
        for line in said:
            self._tree.mount.events(line)
        self._notices.start()
        if not self._notices.drops_names:
            self._tree.mount.name_timeout = 0.0

    def run(self) -> int:
        """Serve until the end, and end in order; return the exit status."""
        status = 0
        try:
            trio.run(self._serve)
        except BaseException:
            # A bug of ours: the daemon still flushes what it has acknowledged.
            self._tree.mount.events("the daemon failed", traceback.format_exc())
            status = 3
        finally:
            try:
                self._tell_end()
                if not self._tree.is_stopped:
                    self._tree.stop()
                self._tree.release_all()
                self._notices.stop()
                self._remove_owner()
            finally:
                status = self._close() or status or (3 if self._tree.has_lost_lines else 0)
        return status

    def _close(self) -> int:
        """Close the logs, and unmount; the exit status."""
        try:
            self._tree.mount.manager.close()
        except (OSError, StorageError) as error:
            self._tree.mount.events(f"the data directory was not closed cleanly: {error}")
            return 3
        finally:
            mounted = mount_table.find(self._mount.path)
            if mounted is None or mounted.device == self._device:
                pyfuse3.close()
                if mounted is not None:
                    utab.leave(self._mount.path)
            # Otherwise, this mount was removed from the path with --lazy. libfuse would unmount
            # the mount that is there now.
        return 0

    async def _serve(self) -> None:
        # A signal that the caller has ignored (nohup: SIGHUP) stays ignored, except SIGTERM: only
        # SIGKILL could end the daemon then.
        ends = {number for number in ENDS if signal.getsignal(number) != signal.SIG_IGN}
        ends.add(signal.SIGTERM)
        for number in ends:
            # After the session, trio restores this handler: no further signal stops the flushes.
            # (SIG_IGN would also discard a signal that has come before the session.)
            signal.signal(number, lambda *_: None)
        with trio.open_signal_receiver(*ends) as arrived:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
            async with trio.open_nursery() as nursery:
                await nursery.start(self._workers.run)
                nursery.start_soon(self._end_on_signal, arrived)
                nursery.start_soon(self._say_ready)
                nursery.start_soon(self._ticks.run)
                if self._mount.foreground:
                    nursery.start_soon(_feed_watchdog)
                if not self._tree.mount.manager.read_only:
                    nursery.start_soon(Schedule(self._tree, self._workers).run)
                await _session()
                nursery.cancel_scope.cancel()

    async def _say_ready(self) -> None:
        await self._asked.wait()
        mounted = mount_table.find(self._mount.path)
        if mounted is not None:
            # After the first request, whose answer sets the read-ahead.
            mount_point.raise_read_ahead(mounted.device, READ_AHEAD_KIB)
            await in_thread(None, lambda: utab.enter(mounted.source, mounted.path))
        if not self._mount.foreground:
            self._tree.mount.events.forward = None
        self._write_owner()
        # The objects of the start live as long as the daemon: the collector need not visit them.
        gc.freeze()
        gc.enable()
        self._ready()

    # -- the owner file ------------------------------------------------------------------------

    def _write_owner(self) -> None:
        """Write the file by which jobs find the mount of a data directory."""
        manager = self._tree.mount.manager
        if manager.read_only:
            return
        try:
            owner_file.write(
                manager.files, manager.path, OwnerProcess(os.getpid(), self._mount.path)
            )
        except OSError as error:
            self._tree.mount.events(
                f"cannot write {paths.OWNER}; Spark jobs cannot find this mount: {error.strerror}"
            )

    def _remove_owner(self) -> None:
        manager = self._tree.mount.manager
        if not manager.read_only:
            # A file that stays counts for nothing without the lock.
            with contextlib.suppress(OSError):
                owner_file.remove(manager.files, manager.path)

    async def _end_on_signal(self, arrived: AsyncIterator[int]) -> None:
        async for number in arrived:
            self._tree.mount.events(f"{signal.Signals(number).name}: shutting down")
            self._tree.mount.stopping = True
            self._tell_end()
            await self._operations.turns.end()
            self._tree.stop()
            self._workers.stop()
            await self._workers.stopped()
            await self._ticks.flush_all()
            pyfuse3.terminate()
            return

    def _tell_end(self) -> None:
        if self._mount.foreground:
            service_manager.tell("STOPPING=1", "STATUS=flushing and unmounting")


async def _feed_watchdog() -> None:
    """Send `WATCHDOG=1` when it is due, for ever: a task of the loop that serves requests.

    So it stops when that loop hangs, as it would not in a thread of its own.
    """
    interval_s = service_manager.watchdog_s()
    while interval_s is not None:
        service_manager.tell("WATCHDOG=1")
        await trio.sleep(interval_s)


async def _session() -> None:
    """Run pyfuse3's session. An abort of the connection from outside ends it without an error."""

    def is_end(error: BaseException) -> bool:
        ends = (errno.ENODEV, errno.ENOTCONN, errno.ECONNABORTED)
        return isinstance(error, OSError) and error.errno in ends

    try:
        await pyfuse3.main(session_loop.MIN_TASKS, session_loop.MAX_TASKS)
    except BaseExceptionGroup as group:
        _, others = group.split(is_end)
        if others is not None:
            raise others from None


def _keep_freed_memory() -> None:
    """Have the allocator keep what a request has freed for the next one."""
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    with contextlib.suppress(AttributeError):  # musl has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(mmap_threshold, MAPPED_BYTES)
        mallopt(trim_threshold, FREE_BYTES)


def _open(mount: Mount, progress: Callable[[Progress], None] | None) -> LogManager:
    """Check data directory and mount point, and open the data directory. MountError,
    MirroredDirectory.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    data, path = mount.data_directory, mount.path
    if os.path.commonpath([data, path]) in (data, path):
        raise ConfigurationError(f"{path}: the mount point and {data} must not contain each other")
    if not mount_point.is_dead(path):
        _check_mount_point(mount)
    _check_data_directory(mount)
    # The settings are read with it.
    plain_forms.budget = mount.options.memory
    try:
        return LogManager.open(
            data,
            read_only=mount.options.read_only,
            progress=progress,
            keeps_faulty=True,
            mount_point=path,
        )
    except OSError as error:
        command = next_command.where_opening_failed(
            error.errno or 0, data, read_only=mount.options.read_only
        )
        more = f": {command}" if command else ""
        raise refusal(error.errno, f"{error.filename or data}: {error.strerror}{more}") from error
    except LogLocked as error:
        raise MountError(in_use(error, path)) from error
    except MirroredDirectory:
        raise
    except StorageError as error:
        raise MountError(str(error)) from error


def _check_mount_point(mount: Mount) -> None:
    """MountError where nothing can be mounted, or the mount would cover files or another mount."""
    data, path = mount.data_directory, mount.path
    around = mount_table.find_around(path)
    if around is not None and around.type == mount_table.TYPE:
        if around.path == path:
            raise MountError(
                f"{path}: {around.source} is already mounted here. "
                f"To unmount it: kafkafs umount {shlex.quote(path)}"
            )
        raise ConfigurationError(
            f"{path}: inside the kafkafs mount {around.path}, which would detach the new mount; "
            "give another directory"
        )
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        reason = f"the mount point does not exist. To create it: mkdir {shlex.quote(path)}"
        raise ConfigurationError(f"{path}: {reason}") from None
    except OSError as error:
        clear = f"to remove a dead mount: fusermount3 -u {shlex.quote(path)}"
        more = f"; {clear}" if error.errno == errno.ENOTCONN else ""
        raise refusal(error.errno, f"{path}: {error.strerror}{more}") from None
    if not is_directory:
        raise ConfigurationError(f"{path}: not a directory; give a directory as the mount point")
    if mount.options.nonempty:
        return
    try:
        contents = contents_of(Files(), path)
    except OSError as error:
        raise refusal(error.errno, f"{path}: {error.strerror}") from None
    if contents is Contents.NOTHING:
        return
    if contents in (Contents.PARTITIONS, Contents.SMALL_FILES):
        swapped = f"kafkafs mount {shlex.quote(path)} {shlex.quote(data)}"
        raise ConfigurationError(f"arguments swapped? {path} is a data directory. Try: {swapped}")
    raise ConfigurationError(
        f"{path}: not empty; the mount would hide its files. To mount over them: -o nonempty"
    )


def _check_data_directory(mount: Mount) -> None:
    """MountError where the data directory is not there, or others' files are; `create` makes it."""
    data, may_make = mount.data_directory, mount.options.create
    # In a mount mkdir would make a topic.
    mistake = find_mistake(data)
    if may_make and mistake is not None and mistake.is_missing:
        try:
            os.mkdir(data, 0o750)
            Files().sync_directory(os.path.dirname(data))
        except OSError as error:
            command = next_command.where_making_failed(error.errno or 0, data)
            more = f": {command}" if command else ""
            said = f"{data}: cannot create it: {error.strerror}{more}"
            raise refusal(error.errno, said) from None
    contents = contents_or_mistake(data, writes=not mount.options.read_only)
    shown, quoted = f"{data}:", shlex.quote(data)
    if isinstance(contents, Mistake):
        more = ""
        if contents.instead is not None:
            more = f". Try: kafkafs mount {shlex.quote(contents.instead)} {shlex.quote(mount.path)}"
        elif contents.is_missing:
            more = f". To create it: mkdir {quoted}, or mount with -o create"
        elif os.path.isdir(data) and not os.access(data, os.R_OK | os.X_OK):
            is_read_only = mount.options.read_only
            command = next_command.where_opening_failed(errno.EACCES, data, read_only=is_read_only)
            more = f": {command}"
        raise refusal(contents.number, f"{shown} {contents.reason}{more}")
    if contents is Contents.LOG:
        parent = os.path.dirname(data)
        again = f"kafkafs mount {shlex.quote(parent)} {shlex.quote(mount.path)}"
        raise ConfigurationError(
            f"{shown} this is the directory of one partition, not a data directory. Try: {again}"
        )
    if contents is Contents.OTHERS and not may_make:
        why = "has files, but none of Kafka or kafkafs. Is it the right directory?"
        more = "" if mount.options.read_only else " To use it anyway: -o create"
        raise ConfigurationError(f"{shown} {why}{more}")


def _keep_reserve(manager: LogManager, events: Events) -> None:
    """Make the reserve, or say that the disk has no room for it."""
    if manager.read_only:
        return
    try:
        whole = manager.reserve.keep(manager.settings.broker.kafkafs_reserve_bytes)
    except OSError as error:
        events(f"{manager.path}: cannot create the disk reserve: {error.strerror}")
        return
    if not whole:
        events(f"{manager.path}: the disk is full; appends are refused until there is free space")


def _name_exposed(context: MountContext) -> None:
    """Write one line of the private partitions whose files can be read without the mount."""
    logs = context.manager.logs()
    found = context.permissions.exposed((log.topic, log.partition) for log in logs)
    if found:
        what, close = exposed_text(context.manager.path, found)
        context.events(f"{what}. To close them: {close}")


def _warn_of_others(manager: LogManager, events: Events) -> None:
    """Write one line if other users may write the directory of a mount that writes it."""
    path = manager.path
    if not manager.read_only and others_may_write(manager.files, path):
        more = "To let all users create topics, chmod 1777 the mount point instead"
        events(f"{others_text(path)}. To prevent it: {closing_command(path)}. {more}")


def _written_by_another(manager: LogManager) -> bool:
    """Whether another process has the data directory's lock, or may have it for a moment only: a
    mirror.
    """
    files, lock = manager.files, os.path.join(manager.path, paths.LOCK)
    return manager.read_only and (files.is_locked(lock) or is_mirror(files, manager.path))


def _source(mount: Mount) -> str:
    """The mount table's name of the data directory, escaped for libfuse."""
    if not mount.data_directory.isascii():
        return "kafkafs"  # pyfuse3 takes nothing else
    return mount.data_directory.replace("\\", "\\\\").replace(",", "\\,")


def to_standard_error(message: str) -> None:
    """Write a line, or as much of it as standard error takes now. Thread-safe.

    The mount continues if the disk of standard error is full, or its reader has stopped or ended.
    """
    left = f"kafkafs: {message}\n".encode(errors="backslashreplace")
    with contextlib.suppress(OSError):
        # A pipe that is ready takes this much without waiting.
        while left and select.select([], [_STANDARD_ERROR], [], 0)[1]:
            left = left[os.write(_STANDARD_ERROR, left[: select.PIPE_BUF]) :]


@contextlib.contextmanager
def _log_lines_to(events: Events) -> Iterator[None]:
    """Write the log messages of the storage and pyfuse3 into the log of events."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            events(record.getMessage())

    handler = Handler(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)


@contextlib.contextmanager
def _standard_error_kept() -> Iterator[Callable[[], list[str]]]:
    """Catch what C code and its children write to standard error; yield a function to read it."""
    sys.stderr.flush()
    real = os.dup(2)
    kept = os.memfd_create("stderr")
    os.dup2(kept, 2)
    try:
        yield lambda: os.pread(kept, 4096, 0).decode(errors="replace").splitlines()
    finally:
        os.dup2(real, 2)
        os.close(real)
        os.close(kept)
