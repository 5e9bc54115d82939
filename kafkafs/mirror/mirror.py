"""A mirror: its topics, its sessions with the data directory, and the loop.

A session has the directory open. It begins with the metadata of the cluster:

1. The copies of topics that were created again get other names (`topics.set_aside`).
2. The starts of new copies are written to `kafkafs.mirror`, durably.
3. The directory is opened, and missing topics and partitions are created.

A session ends with the run, or when a topic is found to be created again, or to have got an id.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kafka_client.cluster import Cluster, Metadata, TopicPartition
from kafka_client.consume import Consumer
from kafka_client.errors import ClientError
from kafka_client.requests import EARLIEST
from kafkafs.mirror import groups, rules, topics
from kafkafs.mirror.compaction import Compaction
from kafkafs.mirror.copier import Copier
from kafkafs.mirror.facts import Facts
from kafkafs.mirror.groups import GroupFacts
from kafkafs.mirror.housekeeping import Housekeeping
from kafkafs.mirror.lookups import Found, Lookups, look_up, settings_of
from kafkafs.mirror.points import Asked, Points
from storage import paths
from storage.directory.lock import alone
from storage.directory.open import Progress
from storage.directory.retain import delete_records, kept_starts
from storage.errors import StorageError
from storage.files import Files
from storage.manager import LogManager
from storage.state import mirror_file
from storage.state.mirror_file import NO_ID, MirroredPartition, MirrorFile
from storage.task import Task

# Between two requests for the metadata; how many of them are also for the settings of all topics,
# and for the offsets of groups.
_LOOK_MS: Final = 10_000
_SETTINGS_EACH: Final = 6
_GROUPS_EACH: Final = 3
# Of a partition in an answer: a small answer costs as much work in Python as a large one.
_FETCH_BYTES: Final = 4 << 20
# A duty.
_WRITING: Final = f"writing of {paths.MIRROR}"


@dataclass(frozen=True, slots=True)
class Options:
    """What to mirror. `start`: where the first copies begin: EARLIEST, LATEST, or a time in ms.

    `source`: the address of the cluster without secrets, for users. `follow_deletes`: delete what
    the cluster deletes at the start of logs; `accept_loss`: skip damaged records. `consumer`:
    further options of `Consumer`.
    """

    source: str
    patterns: tuple[str, ...] = ("*",)
    start: int = EARLIEST
    follow_deletes: bool = False
    accept_loss: bool = False
    consumer: dict[str, Any] = field(default_factory=dict)


class Mirror:
    """A mirror of a cluster. `run` copies. Its calls of `stop` may read the facts."""

    _until_caught_up: bool
    _stop: Callable[[], bool]
    _manager: LogManager
    _copier: Copier

    def __init__(
        self, cluster: Cluster, data_dir: str, options: Options, report: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._path = os.path.abspath(data_dir)
        self._options = options
        self.facts = Facts(report)
        # The partitions whose copies could not begin at the last look.
        self._without_start: set[TopicPartition] = set()

    def run(
        self,
        until_caught_up: bool,
        stop: Callable[[], bool],
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """Copy until `stop` returns True, or until the copies have what the cluster had at first.

        `stop`: called when the directory is open, after each round of answers, and in a round that
        takes long. `progress`: for `LogManager.open`. After the start, a cluster that cannot be
        reached is no error. Errors: MirrorRefused, ClientError; those of `LogManager.open` and
        OSError of the directory.
        """
        self._until_caught_up, self._stop = until_caught_up, stop
        os.makedirs(self._path, exist_ok=True)
        self._cluster.refresh()
        while not self._session(progress):
            pass

    def _session(self, progress: Callable[[Progress], None] | None) -> bool:
        """Copy until the run ends, or a new session has to begin; return whether the run ends."""
        facts, metadata = self.facts, self._cluster.metadata
        of_groups = self._begin(metadata)
        # Without ids, another topic of the name may be found each time that a leader is found.
        has_ids = NO_ID not in facts.status.ids.values()
        with (
            LogManager.open(self._path, mirrors=True, progress=progress) as self._manager,
            Consumer(
                *(self._cluster, {}),
                retries=has_ids,
                partition_bytes=_FETCH_BYTES,
                **self._options.consumer,
            ) as consumer,
            closing(Lookups[Found](self._cluster)) as lookups,
            closing(Lookups[Asked](self._cluster)) as asking,
            closing(Compaction(self._manager)) as compaction,
            closing(Housekeeping(self._manager)) as housekeeping,
        ):
            facts.copies.clear()
            points = Points(self._manager, asking, facts)
            self._copier = Copier(
                *(self._cluster, self._manager, consumer, points, facts, self._stop),
                self._options.accept_loss,
            )
            self._create(metadata)
            if facts.new_ids:
                return False
            if of_groups is not None:
                self._take_groups(of_groups)
            if self._until_caught_up:
                self._copier.set_targets(facts.copies.keys() - facts.waiting.keys())
            try:
                return self._copy(lookups, points, compaction, housekeeping)
            finally:
                self._copier.write_status()

    def _copy(
        self,
        lookups: Lookups[Found],
        points: Points,
        compaction: Compaction,
        housekeeping: Housekeeping,
    ) -> bool:
        manager, copier, facts = self._manager, self._copier, self.facts
        looks, next_look = 0, manager.monotonic_ms() + _LOOK_MS
        has_point = False
        while not self._stop():
            is_caught_up = self._until_caught_up and copier.is_caught_up
            if is_caught_up and not compaction.begin() and not points.is_under_way:
                if has_point:
                    # The copies have all, also if a later look has failed.
                    facts.end_fault("cluster")
                    self._follow_deletes()
                    break
                has_point = True
                points.begin(self._cluster.metadata.topics)
            copier.poll()
            housekeeping.run()
            compaction.run()
            points.run(self._cluster.metadata.topics)
            now_ms = manager.monotonic_ms()
            if (found := lookups.take()) is not None and self._look(found):
                return False
            if now_ms >= next_look and not lookups.is_under_way:
                looks, next_look = looks + 1, now_ms + _LOOK_MS
                names = set() if looks % _SETTINGS_EACH else {*facts.status.ids}
                with_groups = not facts.copies_groups and not looks % _GROUPS_EACH
                known = {*facts.status.partitions}
                lookups.begin(partial(look_up, facts.patterns, known, names, with_groups))
        return True

    # -- topics ------------------------------------------------------------------------------------

    def _begin(self, metadata: Metadata) -> GroupFacts | None:
        """Read or begin `kafkafs.mirror`, with the starts of all copies. Return what the cluster
        says about groups; None: their topic is copied.
        """
        facts = self.facts
        given = mirror_file.read(Files(self._path), self._path)
        with alone(self._path, mirrors=given is not None) as files:
            if given is None:
                topics.begin(files, self._path)
                given = MirrorFile(metadata.cluster_id or NO_ID, "", ())
            facts.status = given
            is_first = not given.topics
            self._check_cluster(metadata)
            if facts.new_ids:
                topics.take_ids(files, self._path, given, facts.new_ids)
                facts.new_ids.clear()
            given.source, given.topics = self._options.source, self._options.patterns
            of_groups = self._ask_groups(files)
            found = topics.wanted(metadata, facts.patterns)
            for name in topics.created_again(files, self._path, given, found):
                kept = topics.set_aside(files, self._path, given, name)
                facts.report(
                    f"{name}: the topic was created again; the copy of the old one is {kept}"
                )
            new = topics.without_copies(metadata, facts.patterns, given.partitions)
            start = self._options.start if is_first else EARLIEST
            offsets = topics.start_offsets(self._cluster, new, start)
            self._add_starts(files, metadata, offsets, is_first=is_first)
        return of_groups

    def _check_cluster(self, metadata: Metadata) -> None:
        if self.facts.status.cluster != (metadata.cluster_id or NO_ID):
            reason = f"this directory mirrors cluster {self.facts.status.cluster}"
            reason += f", but {self._options.source} is cluster {metadata.cluster_id}"
            raise topics.MirrorRefused(reason, path=self._path)

    def _ask_groups(self, files: Files) -> GroupFacts | None:
        """Ask about groups, unless their topic is copied. Errors: MirrorRefused, OSError."""
        name, status = paths.CONSUMER_OFFSETS, self.facts.status
        has_own = name not in status.ids and name in paths.partitions_in(files.listing(self._path))
        if has_own and name in status.topics:
            reason = f"this mirror has a topic {name} of its own, with the offsets that groups had "
            reason += "in the cluster. To copy the topic of the cluster, begin a new mirror"
            raise topics.MirrorRefused(reason, path=self._path)
        if name in {*status.ids, *status.topics}:
            self.facts.copies_groups = True
            return None
        found = groups.ask(self._cluster)
        self._choose_source_of_groups(found, has_own=has_own)
        return found

    def _choose_source_of_groups(self, found: GroupFacts, *, has_own: bool = False) -> None:
        """Decide whether the topic of committed offsets is copied, unless that is known. `has_own`:
        the mirror writes one itself.
        """
        if self.facts.copies_groups is not None:
            return
        self.facts.copies_groups = False if has_own else found.may_read
        if self.facts.copies_groups is False:
            reason = "may not read the topic"
            if found.may_read:
                reason = "did before. To copy the topic, which may be read now, begin a new mirror"
            self.facts.report(
                f"{paths.CONSUMER_OFFSETS}: this mirror asks for the offsets of groups every 30 s, "
                f"as it {reason}"
            )

    def _take_groups(self, found: GroupFacts) -> None:
        """Commit the offsets that groups have in the cluster, unless their topic is copied."""
        failed = ""
        if not self.facts.copies_groups and isinstance(found.offsets, ClientError):
            failed = str(found.offsets)
        elif self.facts.copies_groups is False:
            assert not isinstance(found.offsets, ClientError)
            reasons = groups.commit_all(self._manager, found.offsets)
            failed = "; ".join(f"{name!r}: {reason}" for name, reason in reasons.items())
        if failed:
            self.facts.add_fault("groups", f"the offsets of groups cannot be copied: {failed}")
        else:
            self.facts.end_fault("groups")

    def _add_starts(
        self,
        files: Files,
        metadata: Metadata,
        offsets: Mapping[TopicPartition, int | ClientError],
        *,
        is_first: bool,
    ) -> None:
        """Write the starts of copies, and name the partitions that have none yet. If a topic was
        created again, and the copy of the old one cannot be renamed, the copy gets no partitions.
        Errors: OSError; the copies have no starts yet.
        """
        status = self.facts.status
        ids, partitions = dict(status.ids), dict(status.partitions)
        offsets = {
            each: offset
            for each, offset in offsets.items()
            if not topics.is_another(status, metadata.topics[each.topic])
        }
        for each in self._without_start - offsets.keys():
            self.facts.end_fault(str(each))
        self._without_start.clear()
        for each, offset in offsets.items():
            if isinstance(offset, ClientError):
                self._without_start.add(each)
                self.facts.add_fault(str(each), f"{each}: waits: {rules.reason_of(offset)}")
                continue
            self.facts.end_fault(str(each))
            ids.setdefault(each.topic, topics.id_text(metadata.topics[each.topic].id))
            partitions[each] = MirroredPartition(start=offset)
        if is_first or partitions.keys() > status.partitions.keys():
            changed = replace(status, ids=ids, partitions=partitions)
            mirror_file.write(files, self._path, changed)
            status.ids, status.partitions = ids, partitions

    def _create(self, metadata: Metadata) -> None:
        """Create the topics and partitions that are missing here, and read from all."""
        facts, status, copier = self.facts, self.facts.status, self._copier
        found = topics.wanted(metadata, facts.patterns)
        for name in status.topics:
            is_name = not any(letter in name for letter in "*?[")
            if name in found:
                facts.end_fault(name)
            elif is_name and name not in status.ids:
                facts.add_fault(name, f"the cluster has no topic {name}, or it may not be read")
        new = found.keys() & status.ids.keys() - copier.policies.keys()
        copier.take_settings(settings_of(self._cluster, sorted(new)))
        made: set[str] = set()
        for name, number in sorted(status.partitions):
            each = TopicPartition(name, number)
            if each in facts.copies or not topics.is_wanted(name, facts.patterns):
                continue
            try:
                is_here = name in found and not topics.is_another(status, found[name])
                if is_here and name not in made:
                    known = self._manager.topics.get(name)
                    topic_id = known.id if known is not None else status.ids[name]
                    count = max(found[name].partitions) + 1
                    is_offsets = name == paths.CONSUMER_OFFSETS
                    settings = self._manager.offsets_topic_settings if is_offsets else {}
                    given_id = None if topic_id == NO_ID else topic_id
                    self._manager.create_mirrored_topic(name, given_id, count, settings)
                    made.add(name)
                copier.add(each)
                facts.end_fault(str(each))
            except (OSError, StorageError) as error:
                facts.add_fault(str(each), f"{each}: {error}")

    def _look(self, found: Found | ClientError) -> bool:
        """Look at the metadata; return whether a new session has to begin."""
        if isinstance(found, ClientError):
            self.facts.add_fault("cluster", str(found))
        else:
            self.facts.end_fault("cluster")
            self._cluster.metadata = found.metadata
            self._check_cluster(found.metadata)
            if found.groups is not None:
                self._choose_source_of_groups(found.groups)
            wanted = topics.wanted(found.metadata, self.facts.patterns)
            if topics.created_again(self._manager.files, self._path, self.facts.status, wanted):
                return True
            files = self._manager.files
            with self._manager.duties.attempt(_WRITING):
                self._add_starts(files, found.metadata, found.starts, is_first=False)
            self._copier.take_settings(found.settings)
            self._create(found.metadata)
            if found.groups is not None:
                self._take_groups(found.groups)
        self._copier.retry()
        self._follow_deletes()
        with self._manager.duties.attempt(_WRITING):
            self._copier.write_status()
        return bool(self.facts.new_ids)

    def _follow_deletes(self) -> None:
        """Raise log starts to those of the cluster, if that is wanted."""
        if not self._options.follow_deletes:
            return
        with self._manager.duties.attempt("deletion as in the cluster"):
            kept = kept_starts(self._manager)
            for copy in self.facts.copies.values():
                log = copy.log
                offset = min(copy.source_start, log.log_end_offset)
                if offset > log.log_start_offset and log.topic not in paths.INTERNAL_TOPICS:
                    with self._manager.duties.attempt("deletion as in the cluster", log.name):
                        delete_records(self._manager, log, offset, Task(), kept)
