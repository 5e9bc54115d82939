"""pyfuse3's requests, answered from the tree.

A handler finds the node or handle of the kernel's number, calls it, and turns its answer or its
exception into FUSE's. Handlers are part of every request, so they cost little:

- The common ones (lookup, getattr, read, write) do not checkpoint unless they have to wait. A
  handler that only reads calls the tree with `at_once` (`storage.waiting`), and again on a worker
  thread if that raises BlockingIOError. Writes go to the page cache on this thread, in the order
  in which they arrive; a worker thread examines a batch first that takes long to check. fsync has
  its own threads, so that slow ones leave room for reads.
- Changes of the tree (mkdir, create, rmdir, setattr, settings) run in a worker thread, one at a
  time, under `structural`. Code that walks over topics on the trio thread across an await takes
  that lock too.

Rules of attributes: the kernel keeps them for as long as `Attributes` says, and `notify` tells it
of changes. So there is no await between reading a node's attributes and the reply: a change in
between would come before the kernel knows what to forget. The kernel takes the attributes in the
answer to a setattr or create even if a notice has overtaken them, so those must not be kept.

Errors: `answers` has the errno of a StorageError, an OSError has its own. Any other exception is a
bug of ours: the answer is EIO, the traceback a line in the log of events, and the daemon continues.
The kernel checks permissions (mount option default_permissions) by the mode and owner that we show.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NoReturn, TypeVar, TypeVarTuple, cast

import pyfuse3
import trio

from kafkafs.fuse.answers import EVERYDAY, UNCOMMON, Entries
from kafkafs.fuse.listing import Listing
from kafkafs.fuse.refusals import FACTS_ONLY, NO_LINKS, NO_SUCH_FILES, Refused
from kafkafs.fuse.session_loop import Spinner
from kafkafs.fuse.threads import Turns, in_thread, job_ended
from kafkafs.mount_options import (
    DIRECTORY_ATTRIBUTE,
    MOUNT_ATTRIBUTE,
    PID_ATTRIBUTE,
    directory_identity,
    written,
)
from kafkafs.tree.errnos import errno_of
from kafkafs.tree.events import FAULTS, is_logged
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.handles import Handle, NotExamined, Opener
from kafkafs.tree.inodes import Attributes, Caller, Change, InodeTable, Node
from kafkafs.tree.open_files import OpenTable
from storage.errors import NoThread, SegmentGone, StorageError, reason_of
from storage.log.append_queue import MustQueue
from storage.log.flush import FlushPlan, run_all
from storage.log.log import Log
from storage.task import Task
from storage.waiting import at_once

_STATVFS = (
    *("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail"),
    *("f_files", "f_ffree", "f_favail", "f_namemax"),
)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

#: How many worker threads wait for a disk, and how many others for fsync.
READ_THREADS = 32
SYNC_THREADS = 64
#: How often to try what another process is just rewriting, and the pauses in seconds: the second
#: and the longest one (the first retry comes at once).
TRIES = 20
PAUSE_S = 0.001, 0.5
#: How long such a lookup may measure a file, in seconds: others wait for the directory.
PREPARE_S = 0.25
#: How long a write waits for its jobs, in seconds: a process that waits in FUSE cannot be killed.
JOB_S = 10.0
#: How many refused unlinks are remembered.
REFUSED = 1024
#: How long after a refused unlink in a topic the same process cannot remove the topic, in seconds.
REFUSED_S = 2.0
#: The pause before starting a thread again, in seconds, where no caller can get the error.
THREAD_AGAIN_S = 1.0


def _request(
    subject: Callable[[Operations, Any], Node | None], *, named: bool = False
) -> Callable[[F], F]:
    """Make a method a handler of requests: count them, and log and answer its errors.

    Messages name the node that `subject` finds by the first argument, and the name in it, the
    second argument of a `named` request. lookup, getattr, read and write do this themselves, which
    takes less time.
    """

    def decorate(method: F) -> F:
        operation = method.__name__

        @functools.wraps(method)
        async def handler(self: Operations, number: Any, *rest: Any) -> Any:
            self._requests[operation] += 1
            node = subject(self, number)
            try:
                return await method(self, number, *rest)
            except Exception as error:
                self._fail(operation, error, node, rest[0] if named else b"")

        return cast(F, handler)

    return decorate


_of_inode = _request(lambda self, inode: self._inodes.find(inode))
_of_name = _request(lambda self, parent: self._inodes.find(parent), named=True)
_of_file = _request(lambda self, fh: self._open_files.node(fh))
_of_listing = _request(lambda self, fh: self._listings[fh].directory)
_of_nothing = _request(lambda self, ctx: None)


def _refusal(operation: str, number: int, why: str, of: Callable[[Any], Any] = _of_inode) -> Any:
    """The handler of a request that this file system does not serve; pyfuse3's answers ENOSYS."""

    async def refuse(self: Operations, inode: int, *rest: Any) -> NoReturn:
        raise OSError(number, why)

    refuse.__name__ = operation
    return of(refuse)


class Operations(pyfuse3.Operations):
    """See the module. Calls `on_init` when the kernel sends its first request."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        tree: FileSystem,
        spinner: Spinner,
        on_init: Callable[[], None],
    ) -> None:
        super().__init__()
        self._counters = tree.mount.counters
        self._requests = self._counters.requests
        self._entries = Entries()
        self.structural = trio.Lock()
        # For writes that take a multiple of their bytes while they are checked and appended.
        self._large_write = trio.Lock()
        self.turns = Turns(spinner, self.structural)
        self._tree = tree
        self._mount = tree.mount
        self._inodes: InodeTable = tree.inodes
        self._open_files: OpenTable = tree.open_files
        self._spinner = spinner
        self._on_init = on_init
        self._listings: dict[int, Listing] = {}
        self._listings_opened = 0
        # The last refused unlinks: when, by the thread and the directory's path.
        self._refused_unlinks: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._readers = trio.CapacityLimiter(READ_THREADS)
        self._syncers = trio.CapacityLimiter(SYNC_THREADS)

    def init(self) -> None:
        self._on_init()

    mknod = _refusal("mknod", errno.EPERM, NO_SUCH_FILES, _of_name)
    symlink = _refusal("symlink", errno.EPERM, NO_LINKS, _of_name)
    readlink = _refusal("readlink", errno.EINVAL, NO_LINKS)
    setxattr = _refusal("setxattr", errno.EOPNOTSUPP, FACTS_ONLY)
    removexattr = _refusal("removexattr", errno.EOPNOTSUPP, FACTS_ONLY)

    # -- how handlers wait and fail ------------------------------------------------------------

    async def _in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        with self._spinner.elsewhere():
            return await in_thread(self._readers, function, *arguments)

    async def _alone(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """Change the tree in a worker thread, one change at a time."""
        async with self.structural:
            return await self._in_thread(function, *arguments)

    async def _alone_at_last(self, function: Callable[[], T]) -> T:
        """As `_alone`, as soon as a thread can start."""
        while True:
            try:
                return await self._alone(function)
            except NoThread:
                await trio.sleep(THREAD_AGAIN_S)

    async def sync(self, plans: Sequence[FlushPlan]) -> None:
        """Run flush plans: their fsyncs in a thread, the rest on this one."""
        try:
            with self._spinner.elsewhere():
                await in_thread(self._syncers, run_all, plans)
        finally:
            for plan in plans:
                plan.finish()

    async def rescue(self, log: Log) -> None:
        """Rescue a log after a failed fsync."""
        task = Task(self._mount.jobs.on_log_thread)
        await in_thread(self._syncers, self._mount.manager.rescue, log, task)

    async def _sync(self, handle: Handle) -> None:
        began_ns = time.monotonic_ns()
        plans = await self.turns.call(handle.sync_plans)
        if plans:
            await self.sync(plans)
            self._counters.fsyncs.add(time.monotonic_ns() - began_ns)

    def _count_error(self, operation: str, number: int) -> None:
        name = errno.errorcode.get(number, str(number))
        self._counters.errors[operation, name] += 1

    def _fail(
        self,
        operation: str,
        error: Exception,
        node: Node | None = None,
        name: bytes = b"",
        target: bytes = b"",
    ) -> NoReturn:
        """Log an error, and answer with it. `node`: the subject of the request, or the directory of
        `name`. `target`: the other name of a rename or a link.
        """
        number = errno_of(error)
        self._count_error(operation, number or errno.EIO)
        is_common = number in EVERYDAY and not isinstance(error, UNCOMMON)
        if not (is_common or is_logged(error)):
            what = Refused(operation, node, os.fsdecode(name), os.fsdecode(target))
            if number is None:
                lines = "".join(traceback.format_exception(error))
                self._mount.events(f"{what}: unexpected error, answered with EIO", lines)
            elif number in FAULTS:
                self._mount.events.of_request(f"{what}: {reason_of(error)}", number)
            else:
                self._mount.events.of_request(what.line(error))
        # A file may keep the error. The tracebacks have what the request wrote, in cycles with it.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        raise pyfuse3.FUSEError(number or errno.EIO) from None

    async def _attributes(self, node: Node) -> Attributes:
        """The present attributes; no await follows after reading them."""
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            waited = await self._waited(node, node.attributes)
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            # `at_once` fails again: these attributes may be old, so the kernel must not keep them.
            return waited._replace(attr_timeout=0.0)

    async def _look(self, node: Node, ask: Callable[[], T]) -> T:
        """Call `ask` after the queued changes of the node's log; on a worker if it has to wait."""
        if self.turns.queues:
            await self.turns.passed(node.append_queue)
        try:
            return at_once(ask)
        except BlockingIOError:
            return await self._waited(node, ask)

    async def _waited(self, node: Node, ask: Callable[[], T]) -> T:
        """Call `ask` in a worker thread; again if another process has just removed its files."""
        tries = 0
        while True:
            try:
                return await self._in_thread(ask)
            except SegmentGone as error:
                tries = await self._try_again(error, tries)
                # This thread, the owner's, takes over the files that replace them.
                with contextlib.suppress(BlockingIOError):
                    at_once(node.attributes)

    async def _try_again(self, error: Exception, tries: int) -> int:
        """Wait before a retry, and return `tries` + 1.

        Raises `error` if it does not come from another process's rewriting, or after `TRIES`.
        """
        is_stale = errno_of(error) == errno.ESTALE and self._mount.follows_by_now()
        if not is_stale or tries == TRIES - 1:
            raise error
        with self._spinner.elsewhere():
            await trio.sleep(min(tries and PAUSE_S[0] * 2 ** (tries - 1), PAUSE_S[1]))
        return tries + 1

    async def _entry(self, node: Node) -> pyfuse3.EntryAttributes:
        """The entry that hands a node to the kernel; counts a lookup."""
        entry = self._entries.first_of(node, await self._attributes(node))
        self._inodes.remember(node)
        return entry

    # -- names and attributes ------------------------------------------------------------------

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._requests["lookup"] += 1
        try:
            return await self._looked_up(parent_inode, os.fsdecode(name), ctx.pid)
        except Exception as error:
            self._fail("lookup", error, self._inodes.find(parent_inode), name)

    async def _looked_up(
        self, parent_inode: int, name: str, thread: int
    ) -> pyfuse3.EntryAttributes:
        """The entry of a name; leaves a size that takes long to measure to getattr.

        During a lookup the kernel lets nobody else look up or list names in the directory, unless
        FUSE_PARALLEL_DIROPS is on, which libfuse 3.14 never requests.

        If another process rewrites the log meanwhile, it looks the name up again: the kernel does
        that once, but a cleaner may be quick. A file keeps the past of its lookup once it is
        measured; so the lookup measures it, if that is quick, before the past changes again. It
        does so, too, where the kernel keeps pages, which another size would drop.
        """
        tries = 0
        has_passed = False
        process = self._tree.asking(parent_inode, name, thread)
        while True:
            try:
                try:
                    node = at_once(self._tree.lookup, parent_inode, name, process)
                except BlockingIOError:
                    node = await self._in_thread(self._tree.lookup, parent_inode, name, process)
                if node.is_passing and node.append_queue in self.turns.queues and not has_passed:
                    # A lookup decides what the file shows. So look the name up again after the
                    # changes that are queued now; later ones need not be waited for.
                    await self.turns.passed(node.append_queue)
                    has_passed = True
                    continue
                if (self._mount.follows or node.is_fixed) and not node.is_measured:
                    is_measured = await self._in_thread(node.measure, PREPARE_S)
                    if is_measured and not node.is_measured:
                        raise SegmentGone("rewritten since it was indexed")
                entry = self._entries.first_of(node, node.listed_attributes())
                self._tree.answered(parent_inode, name, process, node)
                return entry
            except (SegmentGone, OSError) as error:
                tries = await self._try_again(error, tries)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self._requests["forget"] += 1
        for inode, count in inode_list:
            try:
                self._inodes.forget(inode, count)
            except Exception:
                # The kernel expects no answer; raising would end the session.
                self._mount.events(f"forget of inode {inode} failed", traceback.format_exc())

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        self._requests["getattr"] += 1
        try:
            node = self._inodes.get(inode)
            if self.turns.queues:
                await self.turns.passed(node.append_queue)
            return self._entries.of(await self._attributes(node))
        except Exception as error:
            self._fail("getattr", error, self._inodes.find(inode))

    @_of_inode
    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        node = self._inodes.get(inode)
        change = Change(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            size=attr.st_size if fields.update_size else None,
            times=fields.update_atime or fields.update_mtime,
        )
        await self._alone(self._set_attributes, node, change)
        return _not_kept(self._entries.of(await self._attributes(node)))

    def _set_attributes(self, node: Node, change: Change) -> None:
        if change.is_content:
            node.set_attributes(change)
        else:
            with self._entries.owner_changes():
                node.set_attributes(change)

    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        return True  # default_permissions: the kernel has checked already

    def _about_mount(self) -> bytes:
        """The value of `MOUNT_ATTRIBUTE`."""
        mount = self._tree.mount
        facts = {"pid": os.getpid(), "data": mount.manager.path, "options": written(mount.options)}
        return json.dumps(facts).encode()

    def _directory_identity(self) -> bytes:
        """The value of `DIRECTORY_ATTRIBUTE`: of the open directory, also after it was moved."""
        manager = self._tree.mount.manager
        return directory_identity(manager.files.file_stat(manager.path))

    @_of_nothing
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        figures = await self._in_thread(self._tree.statfs)
        answer = pyfuse3.StatvfsData()
        for name in _STATVFS:
            setattr(answer, name, getattr(figures, name))
        return answer

    @_of_inode
    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        text = os.fsdecode(name)
        if text == PID_ATTRIBUTE and inode == pyfuse3.ROOT_INODE:
            return str(os.getpid()).encode()
        if text == MOUNT_ATTRIBUTE and inode == pyfuse3.ROOT_INODE:
            return self._about_mount()
        if text == DIRECTORY_ATTRIBUTE and inode == pyfuse3.ROOT_INODE:
            return await self._in_thread(self._directory_identity)
        node = self._inodes.get(inode)
        return await self._look(node, lambda: node.xattr(text))

    @_of_inode
    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        return [os.fsencode(name) for name in self._inodes.get(inode).xattr_names()]

    # -- directories ---------------------------------------------------------------------------

    @_of_inode
    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        directory = self._inodes.directory(inode)
        process = self._tree.asking(inode, "", ctx.pid)
        listing = Listing(self._tree, directory, process, self._in_thread, self._entries)
        self._listings_opened += 1
        self._listings[self._listings_opened] = listing
        return self._listings_opened

    async def releasedir(self, fh: int) -> None:
        self._requests["releasedir"] += 1
        self._listings.pop(fh, None)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        # The request that makes a name makes it durable.
        self._requests["fsyncdir"] += 1

    @_of_listing
    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        listing = self._listings[fh]
        if start_id == 0:
            try:
                at_once(listing.rewind)
            except BlockingIOError:
                await self._in_thread(listing.rewind)
        await listing.reply(start_id, token)

    @_of_name
    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        directory = self._inodes.directory(parent_inode)
        caller = Caller(ctx.uid, ctx.gid)
        node = await self._alone(directory.mkdir, os.fsdecode(name), mode, caller)
        return await self._entry(node)

    @_of_name
    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self._inodes.directory(parent_inode)
        if directory.inode == pyfuse3.ROOT_INODE:
            self._check_no_refused_unlink(os.fsdecode(name), ctx.pid)
        caller = Caller(ctx.uid, ctx.gid, _groups(ctx.pid))
        arguments = os.fsdecode(name), caller
        if directory.appends:
            await self.turns.change(directory.rmdir, *arguments)
        else:
            await self._alone(directory.rmdir, *arguments)

    @_of_name
    async def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        directory = self._inodes.directory(parent_inode)
        caller = Caller(ctx.uid, ctx.gid)
        node, handle = await self._alone(directory.create, os.fsdecode(name), mode, flags, caller)
        entry = await self._entry(node)
        return self._opened(node, handle, ctx), _not_kept(entry)

    @_of_name
    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        directory = self._inodes.directory(parent_inode)
        try:
            await self.turns.call(directory.unlink, os.fsdecode(name))
        except PermissionError:
            self._refused_unlinks[ctx.pid, directory.path] = time.monotonic()
            if len(self._refused_unlinks) > REFUSED:
                self._refused_unlinks.popitem(last=False)
            raise

    def _check_no_refused_unlink(self, topic: str, thread: int) -> None:
        """Refuse to remove a topic whose partitions the same thread could not remove. ENOTEMPTY.

        Such a program, as `find -delete`, counts on rmdir to keep a directory that has files.
        """
        when = self._refused_unlinks.get((thread, topic))
        if when is not None and time.monotonic() - when < REFUSED_S:
            raise OSError(
                errno.ENOTEMPTY,
                "the same process could not remove the partitions. To delete the topic with all "
                f"its records: rmdir {topic}",
            )

    async def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> NoReturn:
        self._requests["rename"] += 1
        why = OSError(errno.EPERM, "files here cannot be renamed")
        self._fail("rename", why, self._inodes.find(parent_inode_old), name_old, name_new)

    async def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> NoReturn:
        self._requests["link"] += 1
        why = OSError(errno.EPERM, NO_LINKS)
        self._fail("link", why, self._inodes.find(inode), target=new_name)

    # -- files ---------------------------------------------------------------------------------

    def _opened(self, node: Node, handle: Handle, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        groups = _groups(ctx.pid) if handle.asks_groups else ()
        handle.opened_by(Opener(ctx.uid, ctx.gid, groups, ctx.pid))
        return pyfuse3.FileInfo(
            fh=self._open_files.add(node, handle, ctx.uid),
            direct_io=handle.direct_io,
            keep_cache=handle.keep_cache,
        )

    @_of_inode
    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        node = self._inodes.get(inode)
        handle = await self._look(node, lambda: node.open(flags))
        self._tree.opened(node, flags, ctx.pid)
        return self._opened(node, handle, ctx)

    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: int, off: int, size: int
    ) -> bytes | bytearray | memoryview:
        self._requests["read"] += 1
        try:
            handle = self._open_files.get(fh)
            if self.turns.queues:
                await self.turns.passed(handle.append_queue)
            try:
                data = at_once(handle.read, off, size)
            except BlockingIOError:
                data = await self._read_in_thread(fh, off, size)
            self._counters.bytes_read += len(data)
            if handle.traffic is not None:
                handle.traffic.bytes_read += len(data)
            return data
        except Exception as error:
            self._fail("read", error, self._open_files.node(fh))

    async def _read_in_thread(self, fh: int, off: int, size: int) -> bytes | bytearray | memoryview:
        """Read in a worker thread; again if another process has just repacked the segment."""
        read = functools.partial(self._open_files.get(fh).read, off, size)
        try:
            return await self._in_thread(read)
        except SegmentGone:
            node = self._open_files.node(fh)
            if node is None or not self._mount.follows:
                raise
            # This thread, the owner's, takes over the files that replace them. The read has its
            # own errors.
            with contextlib.suppress(StorageError, OSError):
                at_once(node.attributes)
            return await self._in_thread(read)

    @_of_inode
    async def poll(
        self,
        inode: int,
        fh: int,
        poll_handle: pyfuse3.PollHandle | None,
        ctx: pyfuse3.RequestContext,
    ) -> int:
        return self._open_files.get(fh).poll(poll_handle)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        self._requests["write"] += 1
        try:
            handle = self._open_files.get(fh)
            written: int | None
            if handle.structural:
                written = await self._alone(handle.write, off, buf)
            else:
                try:
                    written = handle.write(off, buf)
                except (NotExamined, MustQueue):
                    # Nothing is awaited here: the traceback has copies of the batches.
                    written = None
                if written is None:
                    written = await self._write_again(handle, off, buf)
                if handle.sync_due:
                    await self._sync(handle)
                if handle.awaited:
                    await self._jobs_ended(handle)
            self._counters.bytes_written += written
            return written
        except Exception as error:
            self._fail("write", error, self._open_files.node(fh))

    async def _write_again(self, handle: Handle, off: int, buf: bytes) -> int:
        """Write in turn, and examined where that takes long; the kernel sends no other write of
        this file meanwhile.
        """
        alone: contextlib.AbstractAsyncContextManager[object] = contextlib.nullcontext()
        try:
            return await self.turns.call(handle.write, off, buf)
        except NotExamined as unexamined:
            if unexamined.is_large:
                alone = self._large_write
        async with alone:
            while True:
                await self._in_thread(handle.examine, buf)
                with contextlib.suppress(NotExamined):
                    return await self.turns.call(handle.write, off, buf)

    async def _jobs_ended(self, handle: Handle) -> None:
        """Wait up to `JOB_S` for the jobs of a write, and raise their errors."""
        with self._spinner.elsewhere(), trio.move_on_after(JOB_S):
            for job in handle.awaited:
                await job_ended(job)
        handle.awaited_over()

    @_of_file
    async def flush(self, fh: int) -> None:
        await self.turns.call(self._open_files.get(fh).flush)

    @_of_file
    async def fsync(self, fh: int, datasync: bool) -> None:
        await self._sync(self._open_files.get(fh))

    @_of_file
    async def release(self, fh: int) -> None:
        handle = self._open_files.remove(fh)
        if handle.structural:
            await self._alone_at_last(handle.release)
        else:
            # At once, or queued before the next open, which so sees the last line.
            await self.turns.call(handle.release)


def _groups(pid: int) -> Collection[int]:
    """A process's supplementary groups; none where it cannot be seen."""
    try:
        return pyfuse3.get_sup_groups(pid)
    except (OSError, RuntimeError):
        return ()


def _not_kept(entry: pyfuse3.EntryAttributes) -> pyfuse3.EntryAttributes:
    """The entry, with attributes that the kernel does not keep."""
    entry.attr_timeout = 0.0
    return entry
