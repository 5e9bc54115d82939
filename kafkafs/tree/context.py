"""What everything in the tree knows of its mount: the data directory, the options, the services.

At the bottom of the tree: nothing here knows partitions, files or directories. `filesystem` makes
one, and hands it to all that it makes.

What changes while the mount lasts: `notices`, once the kernel is there to be told; `follows` and
the timeouts, when another process begins to write the directory (`follows_by_now`); `stopping`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from kafkafs.config import MountOptions
from kafkafs.line_index import LineStore
from kafkafs.metrics import MountCounters
from kafkafs.tree.events import Events
from kafkafs.tree.inodes import KEEP_S, InodeTable, inode_number
from kafkafs.tree.jobs import Jobs
from kafkafs.tree.notices import NoNotices, Notices
from kafkafs.tree.permissions import Permissions
from kafkafs.views import View
from kafkafs.views.batches import Batches
from kafkafs.views.json_lines import JsonLines
from kafkafs.views.key_value import KeyValue
from kafkafs.views.values import Values
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.manager import LogManager
from storage.follow.follow_directory import DirectoryFollower
from storage.log.log import Log
from storage.verify.log_checker import LogChecker

ABOUT = ".kafkafs"
"""The directory in which the mount shows itself: no topic of that name is shown."""


class MountContext:
    """See the module."""

    def __init__(
        self,
        manager: LogManager,
        options: MountOptions,
        *,
        follows: bool = False,
        notices: Notices | None = None,
        events: Events | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.manager = manager
        self.options = options
        self.clock_ns = clock_ns
        self.started_ns = clock_ns()
        self.events = events or Events(lambda: clock_ns() // 1_000_000)
        manager.duties.say = self.events
        self.notices = notices or NoNotices()
        self.stopping = False
        self.attr_timeout = 0.0 if follows else KEEP_S
        self.name_timeout = self.attr_timeout
        """How long the kernel may keep names that can come to lead elsewhere, in seconds: not at
        all where it cannot be told of that.
        """
        self.follower: DirectoryFollower | None = None
        if manager.read_only:
            self.follower = DirectoryFollower(
                manager,
                until_high_watermark=options.until == "high-watermark",
                clock_ns=clock_ns,
            )
        self.follows = follows
        """Whether another process writes the directory, so that each stat looks for it."""
        committed = options.isolation == "read_committed"
        self.dot_views: dict[str, View] = {
            ".kv": KeyValue(committed),
            ".jsonl": JsonLines(committed),
            ".batches": Batches(),
        }
        """By the name of the directory that has their files."""
        self.views: tuple[View, ...] = (Values(committed), *self.dot_views.values())
        """The first is the one whose files stand in the topic itself."""
        self.store = LineStore(manager.files, manager.duties)
        self.counters = MountCounters()
        self.permissions = Permissions(manager, options.uid, options.gid, options.umask)
        self.inodes = InodeTable()
        self.jobs = Jobs(manager.clock_ms, self.events)
        self.cleaner = LogCleaner(manager)
        self.checker = LogChecker(manager.logs, manager.clock_ms, manager.duties)
        self.outcomes: dict[tuple[str, str, str], str] = {}
        """Of the last command that a control file was given, by topic, its id, name of the file."""

    @property
    def grows(self) -> bool:
        """Whether segments and partitions are read past the kernel's page cache, which fills up a
        file's last page with zeros and shows them to who reads there while the file grows.
        """
        return self.follows or not self.manager.read_only

    def follows_by_now(self) -> bool:
        """`follows`, where another process may have begun to write just now. On the owner's
        thread.
        """
        if not self.follows and self.follower is not None and self.follower.is_written():
            self._begin_following()
        return self.follows

    def _begin_following(self) -> None:
        """A broker has started on what was mounted while nobody wrote it.

        From now on nothing is kept by the kernel.  What it has of files is dropped; of those that
        are open it keeps pages, and drops them by itself when their size has changed.
        """
        self.follows = True
        self.attr_timeout = self.name_timeout = 0.0
        self.events(f"{self.manager.path}: another process writes it now, which is followed")
        for inode in list(self.inodes.nodes):
            self.notices.attributes_changed(inode)
        self.notices.names_changed()

    def cache_directory(self, log: Log) -> str | None:
        """Where a partition's view indexes go if its own directory may not be written."""
        if not self.options.read_only and not self.manager.read_only:
            return None
        cache = os.environ.get("XDG_CACHE_HOME")
        if not cache:
            cache = "/var/cache" if os.geteuid() == 0 else os.path.expanduser("~/.cache")
        # Directories without topic ids, and copies of one directory, must not share indexes.
        directory = f"{inode_number(log.directory, log.topic_id):016x}"
        # Through links, too: they are its owner's.
        return os.path.join(os.path.realpath(cache), "kafkafs", directory)
