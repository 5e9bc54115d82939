"""The root object of the tree: what `kafkafs.fuse.operations` talks to.

It holds the tables of inodes and handles, the partitions with their views, who owns what, and what
is recent (`events`). A request is answered by the node or handle that its number leads to; this
object adds what belongs to none of them: statfs, periodic work, shutdown. As the logs' listener it
passes on what a log tells to its partition.

Owners: uid, gid and mode of topics and partitions are settings of the data directory, or, where
they were never set, the data directory's own; a partition's come from its topic.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kafkafs.config import MountOptions
from kafkafs.line_index import LineStore
from kafkafs.line_index.lines_file import file_suffix
from kafkafs.metrics import MountCounters
from kafkafs.tree.append.append_handle import AppendHandle
from kafkafs.tree.directories.about import ABOUT, texts
from kafkafs.tree.directories.root import Root
from kafkafs.tree.events import Events
from kafkafs.tree.files.start_file import StartNames
from kafkafs.tree.files.virtual_file import Owner
from kafkafs.tree.handles import HandleTable
from kafkafs.tree.inodes import (
    KEEP_S,
    Change,
    Directory,
    InodeTable,
    Node,
    file_mode,
    inode_number,
)
from kafkafs.tree.jobs import Jobs
from kafkafs.tree.notices import NoNotices, Notices
from kafkafs.tree.owner.owner_requests import OwnerRequests
from kafkafs.tree.partition.partition import Partition
from kafkafs.tree.partition.unsaved import Unsaved
from kafkafs.views import View
from kafkafs.views.batches import Batches
from kafkafs.views.json_lines import JsonLines
from kafkafs.views.key_value import KeyValue
from kafkafs.views.values import Values
from storage import paths
from storage.compaction.log_cleaner import LogCleaner
from storage.directory.manager import LogManager, Topic
from storage.errors import SegmentGone, StorageError
from storage.follow.follow_directory import DirectoryFollower
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.segment.segment import Segment
from storage.verify.log_checker import LogChecker

FOLLOW_TURNS = 60
"""For how many turns what another process writes is followed when nobody has it open any more."""

MEASURE_SLICE_S = 0.5
"""How long measuring in the background goes on at a time."""


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Mount options that change what the tree shows."""

    read_only: bool = False
    show_dot: bool = False
    """readdir lists the dot names too."""
    uid: int | None = None
    gid: int | None = None
    """Shown as everything's owner, whatever chown has set."""
    umask: int = 0
    """Permission bits that nothing shows."""
    isolation: str = "read_committed"
    until_high_watermark: bool = False
    """A log ends at the high watermark that its broker has written down."""
    out_of_range: str = "reset"
    """`error`: an offset outside of the log is no file (`N@OFFSET`)."""
    attr_timeout: float = KEEP_S
    """Seconds; 0 where another process appends and nobody tells us."""


class FileSystem(LogListener):
    """See the module. `notices` is replaced by the mount when the kernel is there to be told;
    `mounted_with` is what its user said.
    """

    def __init__(
        self,
        manager: LogManager,
        options: TreeOptions | None = None,
        *,
        notices: Notices | None = None,
        events: Events | None = None,
        mounted_with: MountOptions | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.manager = manager
        self.options = options or TreeOptions()
        self.clock_ns = clock_ns
        self.started_ns = clock_ns()
        self.events = events or Events(lambda: clock_ns() // 1_000_000)
        manager.duties.say = self.events
        self.notices = notices or NoNotices()
        self.stopping = False
        self.attr_timeout = self.options.attr_timeout
        self.name_timeout = self.attr_timeout
        """How long the kernel may keep names that can come to lead elsewhere, in seconds: not at
        all where it cannot be told of that.
        """
        self.follower: DirectoryFollower | None = None
        if manager.read_only:
            self.follower = DirectoryFollower(
                manager,
                until_high_watermark=self.options.until_high_watermark,
                clock_ns=clock_ns,
            )
        self.follows = manager.read_only and self.attr_timeout == 0
        """Whether another process writes the directory, so that each stat looks for it."""
        committed = self.options.isolation == "read_committed"
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
        self.mounted_with = mounted_with or MountOptions()
        self.about: dict[str, Callable[[], str]] = texts(self)
        self.jobs = Jobs(manager.clock_ms, self.events)
        self.owner_requests = OwnerRequests(self)
        self.cleaner = LogCleaner(manager)
        self.checker = LogChecker(manager.logs, manager.clock_ms, manager.duties)
        self.outcomes: dict[tuple[str, str, str], str] = {}
        """Of the last command that a control file was given, by topic, its id, name of the file."""
        self.growing: set[Partition] = set()
        """Those of which the kernel keeps no sizes at present."""
        # Those to which something has happened that `tick`, or `housekeeping`, has to look at.
        self._stirred: set[Partition] = set()
        self._untidy: set[Partition] = set()
        self._partitions: dict[Log, Partition] = {}
        self._unsaved = Unsaved()
        # Those that are followed by the clock, too: for how many turns without being looked at.
        self._looked_at: dict[Partition, int] = {}
        # What is still to be followed since `follow_all` began with all.
        self._to_follow: list[Log] = []
        # What is left to be measured in the background; None before it is known.
        self._unmeasured: list[Partition] | None = None
        self.default_owner = self._default_owner()
        self.inodes = InodeTable()
        self.root = Root(self)
        self.inodes.remember(self.root)
        self.handles = HandleTable()
        self.start_names = StartNames()
        manager.listeners.append(self)
        # Whether the log says of a topic that it is not shown.
        self._hidden_named = False
        self._name_hidden()

    def lookup(self, parent: int, name: str, wait: bool) -> Node:
        """ENOENT, ENOTDIR. The caller asks for `attributes`, then `inodes.remember(node)`."""
        node = self.inodes.get(parent)
        if len(os.fsencode(name)) > paths.MAX_NAME_LENGTH:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        return node.lookup(name, wait)

    def statfs(self) -> os.statvfs_result:
        """The disk's figures (statvfs of the data directory)."""
        return os.statvfs(self.manager.path)

    @property
    def grows(self) -> bool:
        """Whether segments and partitions are read past the kernel's page cache, which fills up a
        file's last page with zeros and shows them to who reads there while the file grows.
        """
        return self.follows or not self.manager.read_only

    # -- partitions ----------------------------------------------------------------------------

    def find_partition(self, topic: Topic, name: str) -> Partition | None:
        """The partition of a topic whose name this is.  FaultyPartition."""
        if not (name.isascii() and name.isdecimal()) or len(name) > 10 or str(int(name)) != name:
            return None
        topic.check(int(name))
        log = topic.partitions.get(int(name))
        return None if log is None else self.partition(log)

    def partition(self, log: Log) -> Partition:
        """The tree's side of a log, made when first asked for."""
        found = self._partitions.get(log)
        if found is None:
            log.history_directory = self._prepared_cache(log)
            found = self._partitions.setdefault(log, Partition(self, log))
        return found

    def stirred(self, partition: Partition) -> None:
        """Something has happened to a partition that periodic work looks at. In any thread."""
        self._stirred.add(partition)
        self._untidy.add(partition)

    def partitions(self) -> list[Partition]:
        """All that were asked for yet."""
        return list(self._partitions.values())

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

    def _prepared_cache(self, log: Log) -> str | None:
        """The directory of `cache_directory`, where it can be made, without what a kill left."""
        cache = self.cache_directory(log)
        if cache is not None:
            with contextlib.suppress(OSError):
                os.makedirs(cache, exist_ok=True)
                for name, _ in log.files.scan(cache):
                    if name.endswith(paths.DELETED):
                        log.files.unlink(os.path.join(cache, name))
        return cache

    # -- owners --------------------------------------------------------------------------------

    def _default_owner(self) -> Owner:
        found = os.stat(self.manager.path)
        return self._shown((found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)))

    def _shown(self, owner: tuple[int, int, int]) -> Owner:
        """(uid, gid, mode) of the settings as the mount options have it shown."""
        uid, gid, mode = owner
        options = self.options
        return (
            mode & ~options.umask,
            uid if options.uid is None else options.uid,
            gid if options.gid is None else options.gid,
        )

    def topic_owner(self, topic: str) -> Owner:
        """(permission bits, uid, gid) of a topic's directory."""
        settings = self.manager.settings
        owner = settings.get_owner(topic, None)
        if not settings.owners_known(topic):
            # It may have been taken from everybody else.
            mode, uid, gid = self.default_owner
            return mode & 0o700, uid, gid
        return self.default_owner if owner is None else self._shown(owner)

    def partition_owner(self, log: Log) -> Owner:
        """(mode, uid, gid) of a partition's file; as its topic's where it has none of its own."""
        owner = self.manager.settings.get_owner(log.topic, log.partition)
        mode, uid, gid = self.topic_owner(log.topic) if owner is None else self._shown(owner)
        return file_mode(mode & (0o666 if owner is None else 0o7777)), uid, gid

    def set_owner(self, log: Log, change: Change) -> None:
        """chmod and chown of a partition; durable."""
        if not change.is_touch:
            mode, uid, gid = self.partition_owner(log)
            self._set_owner(log.topic, log.partition, (mode, uid, gid), change)
            self.partition(log).owner_changed()

    def set_topic_owner(self, topic: Topic, inode: int, change: Change) -> None:
        """chmod and chown of a topic; durable. Partitions without owners of their own follow."""
        if change.size is not None:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not change.is_touch:
            self._set_owner(topic.name, None, self.topic_owner(topic.name), change)
            for log in topic.partitions.values():
                self.partition(log).owner_changed()

    def _set_owner(self, topic: str, partition: int | None, now: Owner, change: Change) -> None:
        if self.manager.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mode, uid, gid = now
        self.manager.settings.set_owner(
            topic,
            partition,
            uid if change.uid is None else change.uid,
            gid if change.gid is None else change.gid,
            stat.S_IMODE(mode if change.mode is None else change.mode),
        )

    # -- what the logs tell --------------------------------------------------------------------

    def appended(
        self, log: Log, segment: Segment, position: int, data: bytes | bytearray | memoryview
    ) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.appended(segment, position, data)

    def stabilized(self, log: Log) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.stabilized()

    def rolled(self, log: Log, sealed: Segment, active: Segment) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.rolled(sealed, active)

    def preparing(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], log_start: int
    ) -> Callable[[], None] | None:
        return self.partition(log).preparing(old, new, log_start)

    def removing(self, log: Log, segments: Sequence[Segment]) -> None:
        self.partition(log).removing(segments)

    def removed(self, log: Log, segment: Segment) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.removed(segment)
            if log.closed and segment is log.active:
                # The last one of a deleted topic: who still has it open has all that is left.
                partition.vanish()
                self._unsaved.forget(partition.views.values())
                del self._partitions[log]

    def swapping(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.partition(log).swapping(old, new)

    def swapped(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.partition(log).swapped(old, new)

    def log_start_moved(self, log: Log) -> None:
        self.partition(log).log_start_moved()

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        partition = self.partition(log)
        partition.truncated(old, offset)
        self._measure_soon(partition)

    # -- what another process does -------------------------------------------------------------

    def look_for_partitions(self) -> None:
        """See which partitions the process that writes the directory has made and deleted.

        On the owner's thread.
        """
        if self.follower is None or not self.follows:
            return
        try:
            appeared = self.follower.look_for_partitions()
        except OSError as error:
            self.events(f"{self.manager.path}: cannot be looked into: {error.strerror}")
            return
        self._name_hidden()
        for log in appeared:
            self._measure_soon(self.partition(log))

    def _name_hidden(self) -> None:
        """Say once that a topic has the name of what the file system shows of itself."""
        there = ABOUT in self.manager.topics
        if there and not self._hidden_named:
            self.events(f"the topic {ABOUT!r} is not shown: its name is the file system's own")
        self._hidden_named = there

    def follow_all(self, until: float) -> None:
        """See what another process has appended, until that is known or `until` (time.monotonic)
        is reached; the next time it goes on from there. On the owner's thread.
        """
        if not self.follows:
            return
        self.look_for_partitions()
        if not self._to_follow:
            self._to_follow = list(self.manager.logs())
        while self._to_follow and time.monotonic() < until:
            log = self._to_follow.pop()
            if not log.closed:
                self.partition(log).look()

    def followed(self, partition: Partition) -> None:
        """Somebody has looked at a partition that another process writes."""
        self._looked_at[partition] = FOLLOW_TURNS

    def _measure_soon(self, partition: Partition) -> None:
        """Measure its main view in the background, before any other."""
        if self._unmeasured is not None and partition.log.size:
            partition.view(self.views[0])
            self._unmeasured.append(partition)

    def _follow(self) -> None:
        """Once a second: what nobody asks for is noticed too, and that somebody begins to write."""
        follower = self.follower
        if follower is None or not self.follows_by_now():
            return
        self.look_for_partitions()
        for partition, turns in list(self._looked_at.items()):
            if partition.log.closed or not (turns or partition.is_open):
                del self._looked_at[partition]
            else:
                self._looked_at[partition] = max(turns - 1, 0)
                partition.look()
        try:
            follower.look_at_log_starts()
        except OSError as error:
            self.events(f"{self.manager.path}: log starts cannot be followed: {error.strerror}")

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

    # -- periodic work and the end -------------------------------------------------------------

    def tick(self) -> None:
        """On the owner's thread, once a second or so: save view indexes that have grown.

        Only partitions to which something has happened are looked at.
        """
        self._follow()
        happened = {*self.growing, *_taken(self._stirred)}
        for partition in list(self.growing):
            partition.rest()
        if self._unmeasured is None:
            self._unmeasured = self._foreign()
        for partition in happened:
            if partition.log in self._partitions:
                self._unsaved.look(partition.views.values())
                self._untidy.add(partition)
        self._unsaved.save()

    def _foreign(self) -> list[Partition]:
        """Partitions that others have written, the smallest last."""
        logs = sorted(self.manager.logs(), key=lambda log: log.size, reverse=True)
        partitions = [self.partition(log) for log in logs if log.size and self._is_foreign(log)]
        for partition in partitions:
            partition.view(self.views[0])
        return partitions

    def housekeeping(self) -> None:
        """In a worker thread, once a second or so: what waits for the disk, for a moment."""
        for partition in _taken(self._untidy):
            partition.keep_house(time.monotonic() + MEASURE_SLICE_S)
        self._measure_some(time.monotonic() + MEASURE_SLICE_S)

    def _measure_some(self, until: float) -> None:
        while self._unmeasured and time.monotonic() < until:
            partition = self._unmeasured[-1]
            try:
                partition.nonce(True)
                partition.view(self.views[0]).prepare(True, until)
            except BlockingIOError:
                return
            except SegmentGone:
                pass  # Its writer has rewritten it: who asks for it has what is there measured.
            except (StorageError, OSError) as error:
                log = partition.log
                self.events(f"{log.topic}/{log.partition}: cannot be measured: {error}")
            # Another one may be the last by now.
            self._unmeasured.remove(partition)

    def _is_foreign(self, log: Log) -> bool:
        """Whether the log has no view indexes beside it, as those that we have written have."""
        first = log.segments[0]
        lines = first.file_path(file_suffix(self.views[0].name))
        return self.manager.read_only or not log.files.exists(lines)

    def stop(self) -> None:
        """Orderly shutdown: unfinished lines become records, view indexes are saved.

        Writes are ESHUTDOWN from now on; reading goes on.
        """
        self.stopping = True
        for handle in list(self.handles.handles.values()):
            if isinstance(handle, AppendHandle):
                try:
                    handle.release()
                except (StorageError, OSError):
                    # Its line in the log is there already.
                    continue
        for partition in list(self._partitions.values()):
            partition.last_look()
            for view in partition.views.values():
                view.give_up_pending()
                view.save()


def _taken(partitions: set[Partition]) -> list[Partition]:
    """Empty a set that other threads may add to; what was in it."""
    taken = []
    while partitions:
        with contextlib.suppress(KeyError):
            taken.append(partitions.pop())
    return taken
