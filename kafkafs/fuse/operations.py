"""pyfuse3's requests, answered from the tree.

Each handler finds the node or handle of the kernel's number, asks it, and turns its answer or its
exception into FUSE's. What it costs is part of every request, so:

- The common handlers (lookup, getattr, read, write) do not checkpoint when they need not wait.
  They ask with `at_once` (`storage.waiting`) and, where that raises BlockingIOError, ask again in
  a worker thread. fsync has its own threads, so that slow ones leave room for reads.
- What changes the tree (mkdir, create, rmdir, setattr, settings) runs in a worker thread, one at
  a time, under `structural`; whoever walks over topics on the trio thread across an await takes
  that lock too.

Rules of attributes: the kernel keeps them for as long as `Attributes` says and is told of changes
by `notify`. So between asking a node for its attributes and the reply there is no await: a change
in between would come before the kernel knows what to forget. What comes with the answer to a
setattr or create it takes even where a notice has overtaken it, so that is not kept.

Errors: StorageError by the table of `answers`, OSError by its errno, anything else is our bug: EIO,
and the traceback is a line in the log; the daemon lives on. Permissions are the kernel's business
(mount option default_permissions), from the mode and owner that we show.

What this does not do: decide anything about names, content or history (`kafkafs.tree`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar, TypeVarTuple

import pyfuse3
import trio

from kafkafs.config import PID_ATTRIBUTE
from kafkafs.fuse.answers import WORTH_A_LINE, entry_of, errno_of, first_entry_of, reason_of
from kafkafs.fuse.listing import Listing
from kafkafs.fuse.refusals import RefusedOperations
from kafkafs.fuse.session_loop import Spinner
from kafkafs.fuse.threads import in_thread
from kafkafs.tree.filesystem import FileSystem
from kafkafs.tree.handles import FlushPlan, Handle, LoggedError
from kafkafs.tree.inodes import Attributes, Caller, Change, Directory, Node
from storage.errors import NoThread, SegmentGone, StorageError
from storage.log.log import Log
from storage.task import Task
from storage.waiting import at_once

_Kinds = tuple[type[Exception], ...]
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

#: Worker threads for what waits for a disk, and apart from them for fsync.
READ_THREADS = 32
SYNC_THREADS = 64
#: How often something is asked for that another process is just rewriting, and the pauses before
#: that in seconds: the second and the longest one (the first try again comes at once).
TRIES = 20
PAUSE_S = 0.001, 0.5
#: How long such a lookup measures what it leads to, in seconds: others wait for the directory.
PREPARE_S = 0.25
#: How long a write waits for what it has begun, in seconds: who waits in FUSE cannot be killed.
JOB_S = 10.0
#: How long to wait for a thread that cannot be started yet, where nobody could be told, in seconds.
THREAD_AGAIN_S = 1.0


class Operations(RefusedOperations):
    """See the module. `on_init` is called when the kernel has begun to send requests."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(
        self,
        tree: FileSystem,
        spinner: Spinner,
        on_init: Callable[[], None],
    ) -> None:
        super().__init__(tree.mount.counters)
        self.structural = trio.Lock()
        self._tree = tree
        self._mount = tree.mount
        self._inodes = tree.inodes
        self._handles = tree.handles
        self._spinner = spinner
        self._on_init = on_init
        self._listings: dict[int, Listing] = {}
        self._listings_opened = 0
        self._readers = trio.CapacityLimiter(READ_THREADS)
        self._syncers = trio.CapacityLimiter(SYNC_THREADS)

    def init(self) -> None:
        self._on_init()

    # -- how handlers wait and fail ------------------------------------------------------------

    async def _in_thread(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        with self._spinner.elsewhere():
            return await in_thread(self._readers, function, *arguments)

    async def _alone(self, function: Callable[[*Ts], T], *arguments: *Ts) -> T:
        """A change of the tree: in a worker thread, one at a time."""
        async with self.structural:
            return await self._in_thread(function, *arguments)

    async def _alone_at_last(self, function: Callable[[], T]) -> T:
        """The same, as soon as there is a thread for it."""
        while True:
            try:
                return await self._alone(function)
            except NoThread:
                await trio.sleep(THREAD_AGAIN_S)

    async def sync(self, plan: FlushPlan) -> None:
        """Run a flush plan: its fsyncs in a thread, what follows from them here."""
        try:
            with self._spinner.elsewhere():
                await in_thread(self._syncers, plan.run)
        finally:
            plan.finish()

    async def rescue(self, log: Log) -> None:
        """Have what is left of a log on the disk, after an fsync that failed."""
        task = Task(self._mount.jobs.by_owner)
        await in_thread(self._syncers, self._mount.manager.rescue, log, task)

    async def _sync(self, handle: Handle) -> None:
        plan = handle.sync_plan()
        if plan is not None:
            await self.sync(plan)

    def _fail(self, what: str, error: Exception, told: _Kinds = ()) -> NoReturn:
        """Answer with an error. Those of the kinds `told` the tree has named in the log already.

        `what` begins with the operation's name.
        """
        number = errno_of(error)
        self._count_error(what.partition(" ")[0], number or errno.EIO)
        if number is None:
            number = errno.EIO
            lines = "".join(traceback.format_exception(error)).rstrip()
            self._mount.events(f"{what}: unforeseen, answered with EIO\n{lines}")
        elif number in WORTH_A_LINE and (
            isinstance(error, NoThread) or not isinstance(error, told)
        ):
            self._mount.events(f"{what}: {reason_of(error)}")
        raise pyfuse3.FUSEError(number) from None

    async def _attributes(self, node: Node) -> Attributes:
        """Attributes as they are now; no await follows after they were taken."""
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            waited = await self._waited(node, node.attributes)
        try:
            return at_once(node.attributes)
        except BlockingIOError:
            # Still not at hand: what we got may be old by now, so the kernel shall not keep it.
            return waited._replace(attr_timeout=0.0)

    async def _waited(self, node: Node, ask: Callable[[], T]) -> T:
        """Ask a node in a worker thread; again where what it reads there was just removed."""
        tries = 0
        while True:
            try:
                return await self._in_thread(ask)
            except SegmentGone as error:
                tries = await self._try_again(error, tries)
                # The owner's thread, this one, looks at what is there instead.
                with contextlib.suppress(BlockingIOError):
                    at_once(node.attributes)

    async def _try_again(self, error: Exception, tries: int) -> int:
        """Wait for the next try at something, `tries` of which another process has spoilt before;
        returns how many it has by now. Raises `error` where it was something else, or too many.
        """
        is_stale = errno_of(error) == errno.ESTALE and self._mount.follows_by_now()
        if not is_stale or tries == TRIES - 1:
            raise error
        with self._spinner.elsewhere():
            await trio.sleep(min(tries and PAUSE_S[0] * 2 ** (tries - 1), PAUSE_S[1]))
        return tries + 1

    async def _entry(self, node: Node) -> pyfuse3.EntryAttributes:
        """The entry that hands a node to the kernel: counts a lookup."""
        entry = first_entry_of(node, await self._attributes(node))
        self._inodes.remember(node)
        return entry

    def _listed(self, node: Node) -> pyfuse3.EntryAttributes:
        """The same without waiting: a size that takes its time is left to getattr.

        During a lookup the kernel lets nobody else look up or list names in the directory, unless
        FUSE_PARALLEL_DIROPS is on, which libfuse 3.14 never asks for.
        """
        entry = first_entry_of(node, node.listed_attributes())
        self._inodes.remember(node)
        return entry

    def _directory(self, inode: int) -> Directory:
        node = self._inodes.get(inode)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory")
        return node

    # -- names and attributes ------------------------------------------------------------------

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._requests["lookup"] += 1
        try:
            return await self._looked_up(parent_inode, os.fsdecode(name))
        except Exception as error:
            self._fail(f"lookup of {name!r}", error)

    async def _looked_up(self, parent_inode: int, name: str) -> pyfuse3.EntryAttributes:
        """Where a name leads.

        If another process rewrites that meanwhile, it is looked up again: the kernel does so once,
        but a cleaner may be quick. Who has looked a file up finds the history that it had then,
        once that is measured; so what is quickly measured is, before it can be another one.
        """
        tries = 0
        while True:
            try:
                try:
                    node = at_once(self._tree.lookup, parent_inode, name)
                except BlockingIOError:
                    node = await self._in_thread(self._tree.lookup, parent_inode, name)
                if self._mount.follows and not node.is_prepared:
                    is_measured = await self._in_thread(node.prepare, PREPARE_S)
                    if is_measured and not node.is_prepared:
                        raise SegmentGone("rewritten since it was measured")
                return self._listed(node)
            except (SegmentGone, OSError) as error:
                tries = await self._try_again(error, tries)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        self._requests["forget"] += 1
        for inode, count in inode_list:
            try:
                self._inodes.forget(inode, count)
            except Exception:
                # There is nobody to answer; raising would end the session.
                self._mount.events(f"forget of inode {inode}\n{traceback.format_exc().rstrip()}")

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        self._requests["getattr"] += 1
        try:
            return entry_of(await self._attributes(self._inodes.get(inode)))
        except Exception as error:
            self._fail("getattr", error)

    async def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        self._requests["setattr"] += 1
        try:
            node = self._inodes.get(inode)
            change = Change(
                mode=attr.st_mode if fields.update_mode else None,
                uid=attr.st_uid if fields.update_uid else None,
                gid=attr.st_gid if fields.update_gid else None,
                size=attr.st_size if fields.update_size else None,
                times=fields.update_atime or fields.update_mtime,
            )
            await self._alone(node.set_attributes, change)
            return _not_kept(entry_of(await self._attributes(node)))
        except Exception as error:
            self._fail("setattr", error)

    async def access(self, inode: int, mode: int, ctx: pyfuse3.RequestContext) -> bool:
        return True  # default_permissions: the kernel has looked already

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        self._requests["statfs"] += 1
        try:
            figures = await self._in_thread(self._tree.statfs)
        except Exception as error:
            self._fail("statfs", error)
        answer = pyfuse3.StatvfsData()
        answer.f_bsize = figures.f_bsize
        answer.f_frsize = figures.f_frsize
        answer.f_blocks = figures.f_blocks
        answer.f_bfree = figures.f_bfree
        answer.f_bavail = figures.f_bavail
        answer.f_files = figures.f_files
        answer.f_ffree = figures.f_ffree
        answer.f_favail = figures.f_favail
        answer.f_namemax = figures.f_namemax
        return answer

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        self._requests["getxattr"] += 1
        try:
            text = os.fsdecode(name)
            if text == PID_ATTRIBUTE and inode == pyfuse3.ROOT_INODE:
                return str(os.getpid()).encode()
            node = self._inodes.get(inode)
            try:
                return at_once(node.xattr, text)
            except BlockingIOError:
                return await self._waited(node, lambda: node.xattr(text))
        except Exception as error:
            self._fail(f"getxattr of {name!r}", error)

    async def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> Sequence[bytes]:
        self._requests["listxattr"] += 1
        try:
            return [os.fsencode(name) for name in self._inodes.get(inode).xattr_names()]
        except Exception as error:
            self._fail("listxattr", error)

    # -- directories ---------------------------------------------------------------------------

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        self._requests["opendir"] += 1
        try:
            listing = Listing(self._directory(inode), self._inodes, self._in_thread)
        except Exception as error:
            self._fail("opendir", error)
        self._listings_opened += 1
        self._listings[self._listings_opened] = listing
        return self._listings_opened

    async def releasedir(self, fh: int) -> None:
        self._requests["releasedir"] += 1
        self._listings.pop(fh, None)

    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        # Names are durable when the request that made them is answered.
        self._requests["fsyncdir"] += 1

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        self._requests["readdir"] += 1
        try:
            listing = self._listings[fh]
            if start_id == 0:
                listing.rewind()
            await listing.reply(start_id, token)
        except Exception as error:
            self._fail("readdir", error)

    async def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        self._requests["mkdir"] += 1
        try:
            directory = self._directory(parent_inode)
            caller = Caller(ctx.uid, ctx.gid)
            node = await self._alone(directory.mkdir, os.fsdecode(name), mode, caller)
            return await self._entry(node)
        except Exception as error:
            self._fail(f"mkdir of {name!r}", error, (StorageError, PermissionError))

    async def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._requests["rmdir"] += 1
        try:
            directory = self._directory(parent_inode)
            await self._alone(directory.rmdir, os.fsdecode(name))
        except Exception as error:
            self._fail(f"rmdir of {name!r}", error, (StorageError, PermissionError))

    async def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        self._requests["create"] += 1
        try:
            directory = self._directory(parent_inode)
            caller = Caller(ctx.uid, ctx.gid)
            node, handle = await self._alone(
                directory.create, os.fsdecode(name), mode, flags, caller
            )
            entry = await self._entry(node)
            return self._opened(handle), _not_kept(entry)
        except Exception as error:
            self._fail(f"create of {name!r}", error, (StorageError, PermissionError))

    async def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        self._requests["unlink"] += 1
        try:
            self._directory(parent_inode).unlink(os.fsdecode(name))
        except Exception as error:
            self._fail(f"unlink of {name!r}", error, (PermissionError,))

    # -- files ---------------------------------------------------------------------------------

    def _opened(self, handle: Handle) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(
            fh=self._handles.add(handle),
            direct_io=handle.direct_io,
            keep_cache=handle.keep_cache,
        )

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        self._requests["open"] += 1
        try:
            node = self._inodes.get(inode)
            try:
                handle = at_once(node.open, flags)
            except BlockingIOError:
                handle = await self._waited(node, lambda: node.open(flags))
            return self._opened(handle)
        except Exception as error:
            self._fail("open", error)

    async def read(  # type: ignore[override]  # pyfuse3 takes any buffer
        self, fh: int, off: int, size: int
    ) -> bytes | bytearray | memoryview:
        self._requests["read"] += 1
        try:
            handle = self._handles.get(fh)
            try:
                data = at_once(handle.read, off, size)
            except BlockingIOError:
                data = await self._in_thread(handle.read, off, size)
            self._counters.bytes_read += len(data)
            return data
        except Exception as error:
            self._fail("read", error, (LoggedError,))

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        self._requests["write"] += 1
        try:
            handle = self._handles.get(fh)
            if handle.structural:
                written = await self._alone(handle.write, off, buf)
            else:
                try:
                    written = handle.write(off, buf)
                except BlockingIOError:
                    written = await self._write_examined(handle, off, buf)
                if handle.sync_due:
                    await self._sync(handle)
                if handle.awaited:
                    await self._jobs_ended(handle)
            self._counters.bytes_written += written
            return written
        except Exception as error:
            self._fail("write", error, (StorageError, OSError))

    async def _write_examined(self, handle: Handle, off: int, buf: bytes) -> int:
        """The kernel sends no other write of this file before this one is answered."""
        while True:
            await self._in_thread(handle.examine, buf)
            with contextlib.suppress(BlockingIOError):
                return handle.write(off, buf)

    async def _jobs_ended(self, handle: Handle) -> None:
        """Wait for what a write has begun, for a while, and raise what has become of it."""
        with self._spinner.elsewhere(), trio.move_on_after(JOB_S):
            for job in handle.awaited:
                ended = trio.Event()
                job.when_ended(ended.set)
                await ended.wait()
        handle.awaited_over()

    async def flush(self, fh: int) -> None:
        self._requests["flush"] += 1
        try:
            self._handles.get(fh).flush()
        except Exception as error:
            self._fail("flush", error, (StorageError, OSError))

    async def fsync(self, fh: int, datasync: bool) -> None:
        self._requests["fsync"] += 1
        try:
            await self._sync(self._handles.get(fh))
        except Exception as error:
            self._fail("fsync", error)

    async def release(self, fh: int) -> None:
        self._requests["release"] += 1
        try:
            handle = self._handles.remove(fh)
            if handle.structural:
                await self._alone_at_last(handle.release)
            else:
                # Before the first await: who opens the file next sees the last line.
                handle.release()
        except Exception as error:
            self._fail("release", error, (StorageError, OSError))


def _not_kept(entry: pyfuse3.EntryAttributes) -> pyfuse3.EntryAttributes:
    """The kernel shall ask for the attributes again at their next use."""
    entry.attr_timeout = 0.0
    return entry
