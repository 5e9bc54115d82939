"""All partitions of a mount: the tree's side of each log, and their periodic work.

It is the logs' listener, and passes each event to the log's partition. Where another process writes
the data directory it notices new and deleted partitions, and follows those that readers use. In the
background it measures logs that others have written, and saves line indexes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from kafkafs.line_index.lines_file import file_suffix
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.partition.partition import Partition, PeriodicWork
from kafkafs.tree.partition.partition_text import PartitionText
from storage import paths
from storage.directory.word_files import remove_stale
from storage.errors import SegmentGone, StorageError
from storage.follow.directory_watches import DirectoryWatches
from storage.groups.group import Group
from storage.log.append_queue import check_all_may_append
from storage.log.flush import FlushPlan
from storage.log.listener import LogListener
from storage.log.log import Log
from storage.manager import LogManager, Topic
from storage.segment.segment import Segment
from storage.waiting import anyway, may_wait

OWN_NAMES = (paths.ABOUT, paths.GROUPS)
"""The file system's own directories in the root."""

MEASURE_SLICE_S = 0.5
"""Seconds of measuring in the background at a time."""

SAVE_BYTES = 64 << 20
"""Bytes of unsaved log after which a view's line index is saved."""
SAVE_ALL_BYTES = 1 << 30
"""Bytes of unsaved log of all views: bounds the memory of their entries."""


class Partitions(LogListener[Log]):
    """See the module."""

    def __init__(self, mount: MountContext) -> None:
        self.mount = mount
        self._follower = mount.follower
        self._partitions: dict[Log, Partition] = {}
        # Bytes of log whose index entries are in memory only.
        self._unsaved: dict[PartitionText, int] = {}
        # The logs that `follow_all` has still to follow in this round.
        self._to_follow: list[Log] = []
        # The partitions still to be measured in the background; None before the first `tick`.
        self._unmeasured: list[Partition] | None = None
        self.watches = DirectoryWatches[Partition](mount.events)
        """Tells of what another process writes, where a process waits for it in poll(2)."""
        self._work = PeriodicWork(self.watches)
        # The hidden topics that the event log already has a line about.
        self._hidden_named: set[str] = set()
        mount.manager.log_group.listeners.append(self)
        self._name_hidden()

    def __iter__(self) -> Iterator[Partition]:
        """All partitions that were used so far."""
        return iter(list(self._partitions.values()))

    def find(self, topic: Topic, name: str) -> Partition | None:
        """The partition of this name; None where the topic has none. FaultyPartition."""
        if not (name.isascii() and name.isdecimal()) or len(name) > 10 or str(int(name)) != name:
            return None
        topic.check(int(name))
        log = topic.partitions.get(int(name))
        return None if log is None else self.of(log)

    def of(self, log: Log) -> Partition:
        """The tree's side of a log, made at first use."""
        found = self._partitions.get(log)
        if found is None:
            log.history_directory = self._cache_of(log)
            found = self._partitions.setdefault(log, Partition(self.mount, log, self._work))
        return found

    def _cache_of(self, log: Log) -> str | None:
        """Make the log's cache directory, if it has one. Delete what a kill has left in it, and
        words of segments that do not exist.
        """
        cache = self.mount.cache_directory(log)
        if cache is not None:
            with contextlib.suppress(OSError):
                os.makedirs(cache, mode=0o700, exist_ok=True)
                names = log.files.names(cache)
                for name in names:
                    if name.endswith(paths.DELETED):
                        log.files.unlink(os.path.join(cache, name))
                if any(name.endswith(paths.WORDS) for name in names):
                    remove_stale(log, cache)
        return cache

    # -- events of the logs --------------------------------------------------------------------

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
        return self.of(log).preparing(old, new, log_start)

    def change_ended(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.change_ended(old, new)

    def removing(self, log: Log, segments: Sequence[Segment]) -> None:
        self.of(log).removing(segments)

    def removed(self, log: Log, segment: Segment) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.removed(segment)
            if log.closed and segment is log.active:
                # The last segment of a deleted topic.
                partition.vanish()
                for text in partition.texts.values():
                    self._unsaved.pop(text, None)
                del self._partitions[log]

    def swapping(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.of(log).swapping(old, new)

    def swapped(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.of(log).swapped(old, new)

    def preparing_repack(self, log: Log, old: Segment, new: Segment) -> Callable[[], None] | None:
        return self.of(log).preparing_repack(old, new)

    def repacking(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.of(log).repacking(old, new)

    def repacked(self, log: Log, old: Sequence[Segment], new: Sequence[Segment]) -> None:
        self.of(log).repacked(old, new)

    def repack_ended(self, log: Log) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.repack_ended()

    def moving_log_start(self, log: Log, log_start: int) -> None:
        self.of(log).moving_log_start(log_start)

    def log_start_moved(self, log: Log) -> None:
        self.of(log).log_start_moved()

    def retired(self, log: Log) -> None:
        partition = self._partitions.get(log)
        if partition is not None:
            partition.wake()

    def truncating(self, log: Log) -> None:
        self.of(log).truncating()

    def truncated(
        self, log: Log, old: Sequence[Segment], new: Sequence[Segment], offset: int
    ) -> None:
        partition = self.of(log)
        partition.truncated(old, offset)
        self._measure_soon(partition)

    # -- following another process -------------------------------------------------------------

    def look_for_partitions(self) -> None:
        """Find the partitions that the process that writes the directory has made or deleted.

        On the owner's thread.
        """
        if self._follower is None or not self.mount.follows:
            return
        try:
            appeared = anyway(self._follower.look_for_partitions)
        except OSError as error:
            self.mount.events(f"{self.mount.manager.path}: cannot read it: {error.strerror}")
            return
        self._name_hidden()
        for log in appeared:
            self._measure_soon(self.of(log))

    def _name_hidden(self) -> None:
        """Write one line when a topic has the name of one of the file system's directories."""
        there = {name for name in OWN_NAMES if name in self.mount.manager.topics}
        for name in sorted(there - self._hidden_named):
            self.mount.events(f"topic {name!r} is not shown: the file system uses its name")
        self._hidden_named = there

    def look_at_changed(self) -> None:
        """Look at the watched partitions that their writer has changed. On the owner's thread."""
        changed = self.watches.changed()
        if any(is_moved for is_moved in changed.values()):
            self.look_for_partitions()
        for partition in changed:
            # Else the next poll or read looks.
            if partition.is_awaited and not partition.log.closed:
                partition.look()

    def follow_all(self, until: float) -> None:
        """Follow all logs that another process writes, until `until` (time.monotonic); the next
        call continues with the rest. On the owner's thread.
        """
        if not self.mount.follows:
            return
        self.look_for_partitions()
        if not self._to_follow:
            self._to_follow = list(self.mount.manager.logs())
        while self._to_follow and time.monotonic() < until:
            log = self._to_follow.pop()
            if not log.closed:
                self.of(log).look()

    # -- groups --------------------------------------------------------------------------------

    def group_names(self) -> list[str]:
        """The groups that there are by now, sorted. BlockingIOError, StorageError, OSError."""
        self._follow_groups()
        return self.mount.manager.groups.names()

    def group(self, name: str) -> Group | None:
        """The group of this name as it is by now; errors as `group_names`."""
        self._follow_groups()
        return self.mount.manager.groups.find(name)

    def _follow_groups(self) -> None:
        """Look at what another process has written of groups. Only on the owner's thread."""
        if self.mount.follows and not may_wait():
            self.look_for_partitions()
            for log in self.mount.manager.groups.logs:
                self.of(log).look()

    def _measure_soon(self, partition: Partition) -> None:
        """Measure its main view in the background, before any other."""
        if self._unmeasured is not None and partition.log.size:
            partition.text(self.mount.views[0])
            self._unmeasured.append(partition)

    def _follow(self) -> None:
        """Once a second: follow the partitions in use; notice a process that begins to write."""
        follower, has_followed = self._follower, self.mount.follows
        if follower is None or not self.mount.follows_by_now():
            return
        if not has_followed:
            for partition in self:
                if partition.is_polled:
                    partition.watch()
                    partition.follow()
        self.watches.try_again()
        self.look_for_partitions()
        followed = self._work.followed
        for partition, turns in list(followed.items()):
            if partition.log.closed or not (turns or partition.is_open):
                del followed[partition]
            else:
                followed[partition] = max(turns - 1, 0)
                partition.look()
        try:
            follower.look_at_log_starts()
        except OSError as error:
            self.mount.events(
                f"{self.mount.manager.path}: cannot read the log start offsets: {error.strerror}"
            )

    # -- periodic work ----------------------------------------------------------------------

    def tick(self) -> None:
        """On the owner's thread, once a second or so: look at the partitions that have changed, and
        save line indexes that have grown.
        """
        self._follow()
        self.mount.recent.expire()
        growing = self._work.growing
        happened = {*growing, *_taken(self._work.changed)}
        for partition in list(growing):
            partition.rest()
        if self._unmeasured is None:
            self._unmeasured = self._foreign()
        for partition in happened:
            if partition.log in self._partitions:
                self._unsaved.update((text, text.unsaved) for text in partition.texts.values())
                self._work.untidy.add(partition)
        self._save_lines()

    def _save_lines(self) -> None:
        """Save the line indexes with many unsaved entries, the largest first; others, too, while
        all of them have too many. One that the disk refuses is saved the next time.
        """
        sizes = self._unsaved
        total = sum(sizes.values())
        if total < SAVE_ALL_BYTES and max(sizes.values(), default=0) < SAVE_BYTES:
            return
        for text in sorted(sizes, key=sizes.__getitem__, reverse=True):
            if sizes[text] < SAVE_BYTES and total < SAVE_ALL_BYTES:
                break
            text.save()
            total += text.unsaved - sizes[text]
            sizes[text] = text.unsaved

    def _foreign(self) -> list[Partition]:
        """Partitions that others have written, the smallest last."""
        logs = sorted(self.mount.manager.logs(), key=lambda log: log.size, reverse=True)
        partitions = [self.of(log) for log in logs if log.size and self._is_foreign(log)]
        for partition in partitions:
            partition.text(self.mount.views[0])
        return partitions

    def housekeeping(self) -> None:
        """In a worker thread, once a second or so: the periodic work that waits for the disk."""
        for partition in _taken(self._work.untidy):
            partition.keep_house(time.monotonic() + MEASURE_SLICE_S)
        self._measure_some(time.monotonic() + MEASURE_SLICE_S)

    def _measure_some(self, until: float) -> None:
        while self._unmeasured and time.monotonic() < until:
            partition = self._unmeasured[-1]
            try:
                partition.nonce()
                partition.text(self.mount.views[0]).measure(until)
            except BlockingIOError:
                return
            except SegmentGone:
                pass  # its writer has rewritten it; the next reader measures the new text
            except (StorageError, OSError) as error:
                self.mount.events(f"{partition.log.name}: cannot index it: {error}")
            # Another thread may have added one.
            self._unmeasured.remove(partition)

    def _is_foreign(self, log: Log) -> bool:
        """Whether the log has no line index beside it: another program has written it."""
        first = log.segments[0]
        lines = first.file_path(file_suffix(self.mount.views[0].name))
        return log.read_only or not log.files.exists(lines)

    def stop(self) -> None:
        """Look at each log once more, write the histories, and save the line indexes."""
        for partition in self:
            partition.last_look()
            for text in partition.texts.values():
                text.give_up_pending()
                if not partition.log.closed:
                    text.save()
        self.watches.close()


def _taken(partitions: set[Partition]) -> list[Partition]:
    """Empty a set that other threads may add to; its members."""
    taken = []
    while partitions:
        with contextlib.suppress(KeyError):
            taken.append(partitions.pop())
    return taken


def flush_plans(partitions: Iterable[Partition]) -> list[FlushPlan]:
    """The plans of several partitions, as `Partition.flush_plans`; after an error there is none."""
    partitions = list(partitions)
    check_all_may_append(partition.log.append_queue for partition in partitions)
    plans: list[FlushPlan] = []
    try:
        for partition in partitions:
            plans += partition.flush_plans()
    except BaseException:
        for plan in plans:
            plan.finish()
        raise
    return plans


@contextlib.contextmanager
def keeping_history(manager: LogManager) -> Iterator[None]:
    """While a command deletes or rewrites records of an unmounted directory: write each change of
    the logs' past into their histories.

    The next mount then shows the changed logs under new nonces, and `.follow` with the same inode
    and positions as before.
    """
    partitions = Partitions(MountContext(manager, MountOptions()))
    # No process can read `.kafkafs/log`.
    partitions.mount.events.forward = logging.getLogger(__name__).warning
    try:
        yield
    finally:
        manager.log_group.listeners.remove(partitions)
        partitions.stop()
