"""The mount, as everything in the tree knows it: the data directory, the options, the services.

At the bottom of the tree: it knows no partitions, files or directories. `filesystem` makes one and
passes it on.

It changes in three ways: `notices` is set once the kernel can receive them; `follows` and the
timeouts change when another process begins to write the directory (`follows_by_now`); `stopping`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from kafkafs.line_index import LineStore
from kafkafs.metrics import MountCounters
from kafkafs.mount_options import MountOptions
from kafkafs.tree.events import Events
from kafkafs.tree.inodes import KEEP_S, InodeTable, inode_number
from kafkafs.tree.jobs import Jobs
from kafkafs.tree.notices import Notices
from kafkafs.tree.permissions import Permissions
from kafkafs.tree.read_ahead import ReadAhead
from kafkafs.tree.recent_lookups import RecentLookups
from kafkafs.tree.unfinished import OpenTexts, Unfinished
from kafkafs.views import VIEWS, View
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.word_files import WordFiles
from storage.follow.follow_directory import DirectoryFollower
from storage.log.log import Log
from storage.manager import LogManager
from storage.verify.log_checker import LogChecker


class MountContext:
    """See the module. `follows`: another process writes the directory, which is read only here."""

    def __init__(
        self,
        manager: LogManager,
        options: MountOptions | None = None,
        *,
        follows: bool = False,
        notices: Notices | None = None,
        events: Events | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.manager = manager
        self.options = options = options or MountOptions()
        self.clock_ns = clock_ns
        self.events = events or Events(lambda: clock_ns() // 1_000_000)
        manager.duties.say = self.events
        self.notices = notices or Notices()
        self.stopping = False
        self.attr_timeout = 0.0 if follows else KEEP_S
        self.name_timeout = self.attr_timeout
        """How long the kernel may keep names that may lead to another inode later, in seconds; 0
        where it would get no notice.
        """
        self.follower: DirectoryFollower | None = None
        if manager.read_only:
            self.follower = DirectoryFollower(
                manager,
                until_high_watermark=options.until == "high-watermark",
                clock_ns=clock_ns,
            )
        self.follows = follows
        """Whether each stat follows its log, since another process writes the directory."""
        committed = options.isolation == "read_committed"
        self.views: tuple[View, ...] = tuple(make(committed) for make in VIEWS.values())
        """The first is the view of the topic's own files."""
        directories = [f".{name}" for name in VIEWS][1:]
        self.dot_views = dict(zip(directories, self.views[1:], strict=True))
        """The views by the names of their directories; the first has none."""
        self.unfinished = Unfinished(options.memory)
        self.open_texts = OpenTexts(options.memory)
        self.read_ahead = ReadAhead(options.memory)
        self.store = LineStore(manager.files, manager.duties)
        self.counters = MountCounters()
        self.permissions = Permissions(manager, options.uid, options.gid, options.umask)
        self.inodes = InodeTable()
        self.recent = RecentLookups()
        self.jobs = Jobs(manager.clock_ms, self.events)
        self.cleaner = LogCleaner(manager)
        self.checker = LogChecker(manager.logs, manager.clock_ms, manager.duties)
        self.word_files = WordFiles()
        self.abort_outcomes: dict[tuple[str, str], str] = {}
        """The last outcome of `.control/abort-transaction`, by topic and topic id."""

    @property
    def files_grow(self) -> bool:
        """Whether reads bypass the page cache, since files grow: the kernel fills a file's last
        page up with zeros, and would show them to a reader while the file grows.
        """
        return self.follows or not self.manager.read_only

    def follows_by_now(self) -> bool:
        """`follows`, after a look for a process that has begun to write. On the owner's thread."""
        if not self.follows and self.follower is not None and self.follower.is_written():
            self._begin_following()
        return self.follows

    def _begin_following(self) -> None:
        """A broker has started on the mounted directory: have the kernel drop all attributes and
        names, and keep none from now on.

        It keeps the pages of open files, and drops them by itself when their size changes.
        """
        self.follows = True
        self.attr_timeout = self.name_timeout = 0.0
        self.events(
            f"{self.manager.path}: another process now writes it; this mount shows its changes"
        )
        for inode in list(self.inodes.nodes):
            self.notices.attributes_changed(inode)
        self.notices.names_changed()

    def cache_directory(self, log: Log) -> str | None:
        """The directory for a partition's line indexes where its own is read-only, else None."""
        if not self.options.read_only and not log.read_only:
            return None
        return cache_directory(log)


def cache_directory(log: Log) -> str:
    """Return the directory for what is made for a partition whose own directory is not ours."""
    # Directories without topic ids, and copies of one directory, must not share indexes.
    return os.path.join(cache_root(), f"{inode_number(log.directory, log.topic_id):016x}")


def cache_root() -> str:
    """Return the directory for what kafkafs can make again, of this user."""
    cache = os.environ.get("XDG_CACHE_HOME")
    if not cache:
        cache = "/var/cache" if os.geteuid() == 0 else os.path.expanduser("~/.cache")
    # The user may have made it a symbolic link.
    return os.path.join(os.path.realpath(cache), "kafkafs")
