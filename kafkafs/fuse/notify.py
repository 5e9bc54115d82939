"""Tells the kernel what it must forget: `kafkafs.tree.notices.Notices` on pyfuse3.

Attributes are dropped at once: it takes microseconds and is safe inside a handler. Entries go
through one thread with a queue, since dropping one waits for the directory's lock, which the
kernel holds while it waits for our answer to a lookup or create there. Who must not answer before
the kernel has forgotten (a write that publishes a new generation) awaits `settled`; a request
that itself holds a directory's lock (create, mkdir, rmdir, lookup) must not.

Invariants: entries are dropped in the order in which they were announced; after `stop` nothing
reaches pyfuse3 any more, which must be so before its session is closed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pyfuse3
import trio

_Task = Callable[[], None]

#: How long the end waits for entries that are still being dropped, in seconds.
STOP_S = 1.0


class KernelNotices:
    """Both announcements may come from any thread; neither raises.

    `announced` counts the entries: who sees it grow has one to wait for.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._live = False
        self._announcing = threading.Lock()
        self.announced = 0
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        """From now on there is a kernel to be told; call it once, when the mount is there."""
        self._live = True
        self._thread.start()

    def stop(self) -> None:
        """No more of it.

        The thread may hang in an entry whose directory the kernel holds for a request that is
        not answered any more; the unmount frees it, so it is not waited for longer than a moment.
        """
        if self._live:
            self._live = False
            self._queue.put(None)
            self._thread.join(STOP_S)

    def attributes_changed(self, inode: int) -> None:
        """Drop the kernel's attributes of an inode; its pages stay."""
        if self._live:
            try:
                pyfuse3.invalidate_inode(inode, attr_only=True)
            except FileNotFoundError:
                pass  # the kernel has forgotten the inode by itself
            except OSError as error:
                self._failed(f"inode {inode}", error)

    def entry_changed(self, parent: int, name: str) -> None:
        """Drop the kernel's entry `name` of the directory `parent`, soon."""
        if self._live:
            with self._announcing:
                self.announced += 1
                self._queue.put(lambda: self._drop_entry(parent, os.fsencode(name)))

    async def settled(self) -> None:
        """Wait until every entry announced so far has been dropped. On the trio thread only."""
        token = trio.lowlevel.current_trio_token()
        settled = trio.Event()
        self._queue.put(lambda: token.run_sync_soon(settled.set))
        await settled.wait()

    def _run(self) -> None:
        while (task := self._queue.get()) is not None:
            task()

    def _drop_entry(self, parent: int, name: bytes) -> None:
        if not self._live:
            return
        try:
            pyfuse3.invalidate_entry(parent, name)
        except FileNotFoundError:
            pass  # the kernel has no such entry
        except OSError as error:
            self._failed(f"entry {os.fsdecode(name)!r} of inode {parent}", error)

    def _failed(self, what: str, error: OSError) -> None:
        self._say(f"the kernel could not be told to forget {what}: {error}")
