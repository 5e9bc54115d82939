"""The page of all names in the mount: who may see each, when the kernel drops it, what makes it.

Each directory has a `Page` of rows, one for each name. The inode number of a name follows from its
place (`Place.number`). A file of records says itself how long the kernel may keep its attributes;
the kernel keeps those of no text.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial

from kafkafs.tree.control import abort_transaction
from kafkafs.tree.control.abort_transaction import AbortTransactions, transactions_text
from kafkafs.tree.control.compaction import COMPACTION
from kafkafs.tree.control.delete_records import DELETE_RECORDS
from kafkafs.tree.control.flush_and_roll import FLUSH, ROLL
from kafkafs.tree.control.job_file import JobCommands, JobFile, state_text
from kafkafs.tree.control.retention import RETENTION
from kafkafs.tree.control.topic_commands import DirectoryCommands
from kafkafs.tree.control.topic_config import ConfigCommands, config_text
from kafkafs.tree.control.verify import VERIFY
from kafkafs.tree.directories import about, topics
from kafkafs.tree.directories import group_directories as groups
from kafkafs.tree.directories.about import AboutPlace
from kafkafs.tree.directories.directory import (
    Listed,
    Page,
    Place,
    Row,
    directory,
    directory_of,
    never,
    refuse,
    text,
    until_appended,
)
from kafkafs.tree.directories.group_directories import (
    GroupPlace,
    GroupsPlace,
    PositionPlace,
    PositionsPlace,
)
from kafkafs.tree.directories.help_text import HELP
from kafkafs.tree.directories.topics import (
    ApartInTopic,
    InTopic,
    PartitionPlace,
    RootPlace,
    TopicPlace,
)
from kafkafs.tree.files import meta
from kafkafs.tree.files.text_file import Content
from kafkafs.tree.groups.claim_file import NAME as CLAIMS
from kafkafs.tree.groups.claim_file import ClaimCommands, claims_text
from kafkafs.tree.groups.group_facts import all_lags_text
from kafkafs.tree.groups.group_files import ALL, LAG, CommitCommands
from kafkafs.tree.inodes import Node
from kafkafs.tree.owner.adopt_file import AdoptCommands
from kafkafs.views import VIEWS
from storage.modes import Ownership
from storage.paths import ABOUT as ABOUT_NAME
from storage.paths import GROUPS as GROUPS_NAME

# -- access ----------------------------------------------------------------------------------------


def everybody(place: Place) -> Ownership:
    """Each user who may look into the mount."""
    mode, uid, gid = place.mount.permissions.default
    return mode & 0o555, uid, gid


def everybody_reads(place: Place) -> Ownership:
    """The same, of a file."""
    mode, uid, gid = everybody(place)
    return mode & 0o444, uid, gid


def mounting_user(place: Place) -> Ownership:
    """The user who has mounted, and the data directory's group: the text names what users store."""
    mode, _, gid = everybody(place)
    uid = place.mount.options.uid
    return mode & 0o440, os.geteuid() if uid is None else uid, gid


def mounting_user_writes(place: AboutPlace) -> Ownership:
    """The same, and that user writes unless the mount is read-only."""
    mode, uid, gid = mounting_user(place)
    return mode | (0o200 if place.is_written else 0), uid, gid


def daemon_alone(place: Place) -> Ownership:
    """The user of the daemon: a request may append records to any topic."""
    return 0o600, os.geteuid(), os.getegid()


def root(place: Place) -> Ownership:
    return place.mount.permissions.root


def topic(place: TopicPlace) -> Ownership:
    return place.mount.permissions.topic(place.topic.name)


def topic_readers(place: TopicPlace) -> Ownership:
    """Each user who may read the topic."""
    mode, uid, gid = topic(place)
    return mode & 0o555, uid, gid


def whole_topic(place: TopicPlace) -> Ownership:
    """Each user who may do this in the topic and in all of its partitions."""
    mode, uid, gid = place.mount.permissions.whole_topic(place.topic)
    return mode & 0o666, uid, gid


def whole_topic_writers(place: TopicPlace) -> Ownership:
    """The same, and each user who may read the topic reads."""
    mode, uid, gid = whole_topic(place)
    return mode & ~0o444 | topic(place)[0] & 0o444, uid, gid


def partition_readers(place: PartitionPlace) -> Ownership:
    """Each user who may read the partition."""
    mode, uid, gid = place.partition.owner
    return mode & 0o444, uid, gid


def partition_directory(place: PartitionPlace) -> Ownership:
    """The same, of a directory."""
    mode, uid, gid = partition_readers(place)
    return mode | mode >> 2, uid, gid


# -- .kafkafs: the daemon --------------------------------------------------------------------------

ABOUT = Page[AboutPlace](
    access=everybody,
    rows={
        "adopt": text(
            lambda place: place.requests.text(),
            daemon_alone,
            takes=lambda place, path: AdoptCommands(place.requests),
            exists=lambda place: place.is_written,
        ),
        "config": text(about.config_text, mounting_user),
        "help": text(lambda place: HELP, everybody_reads),
        "log": text(lambda place: place.mount.events.text(), mounting_user),
        "metrics": text(about.metrics_text, mounting_user, is_long=True),
        "topics": text(
            about.topics_text,
            mounting_user_writes,
            takes=lambda place, path: DirectoryCommands(place.mount, path),
            writable=lambda place: place.is_written,
            is_long=True,
        ),
        "version": text(about.version_text, everybody_reads),
    },
)

# -- a topic ---------------------------------------------------------------------------------------


def _job(file: JobFile) -> Row[TopicPlace]:
    return text(
        lambda place: state_text(place.mount, place.topic, file),
        whole_topic,
        takes=lambda place, path: JobCommands(place.mount, path, place.topic, file),
    )


_in_topic = partial(
    Page[TopicPlace], access=topic_readers, mtime_ns=lambda place: place.topic.extended_ns
)

CONTROL = _in_topic(
    rows={
        abort_transaction.NAME: text(
            lambda place: transactions_text(place.mount, place.topic),
            whole_topic,
            takes=lambda place, path: AbortTransactions(place.partitions, path, place.topic),
        ),
        **{
            file.kind.name: _job(file)
            for file in (COMPACTION, DELETE_RECORDS, FLUSH, RETENTION, ROLL, VERIFY)
        },
    }
)


def _meta(make: Callable[[PartitionPlace], str | Content]) -> Row[PartitionPlace]:
    return text(make, partition_readers, mtime_ns=lambda place: place.partition.mtime_ns)


META_OF_PARTITION = Page[PartitionPlace](
    access=partition_directory,
    mtime_ns=lambda place: place.partition.log.created_ns,
    refresh=topics.follow_partition,
    rows={
        "offsets": _meta(lambda place: meta.offsets(place.partition.log)),
        "segments": _meta(topics.segments_text),
        "index": _meta(lambda place: meta.EntryTable(place.partition.log, meta.OFFSET_INDEX)),
        "timeindex": _meta(lambda place: meta.EntryTable(place.partition.log, meta.TIME_INDEX)),
        "txnindex": _meta(lambda place: meta.aborted_transactions(place.partition.log)),
        "producers": _meta(lambda place: meta.producers(place.partition.log)),
    },
)

RAW_OF_PARTITION = Page[PartitionPlace](
    access=partition_directory,
    # That of the last append, with which the files come.
    mtime_ns=lambda place: place.partition.mtime_ns,
    keep_s=until_appended,
    find=topics.find_raw,
    others=topics.raw_names,
)

SNAPSHOT = _in_topic(
    has_snapshots=True,
    find=topics.find_snapshot,
    others=topics.partition_names,
    create=refuse("new files cannot be created in a snapshot", errno.EROFS),
)

VIEW = _in_topic(
    find=topics.find_partition,
    others=topics.partition_names,
    rows={
        ".snapshot": directory(SNAPSHOT, InTopic),
        "append": Row(
            topics.append_file, Listed.WITH_SHOW_DOT, exists=lambda place: place.view.is_text
        ),
    },
)

FOLLOW = _in_topic(find=topics.find_follow, others=topics.partition_names)
RAW = _in_topic(find=topics.find_directory(RAW_OF_PARTITION), others=topics.partition_names)
META = _in_topic(find=topics.find_directory(META_OF_PARTITION), others=topics.partition_names)

TOPIC = Page[TopicPlace](
    kind="topic",
    access=topic,
    mtime_ns=lambda place: place.topic.extended_ns,
    refresh=topics.look_for_partitions,
    find=topics.find_partition,
    others=topics.partition_names,
    chmod=lambda place, change: place.mount.permissions.change_topic(place.topic.name, change),
    create=topics.create_partition,
    unlink=topics.refuse_unlink,
    rows={
        **{f".{name}": directory(VIEW, InTopic) for name in list(VIEWS)[1:]},
        ".append": Row(topics.append_file, Listed.WITH_SHOW_DOT),
        ".config": text(
            lambda place: config_text(place.mount.manager.settings, place.topic.name),
            whole_topic_writers,
            takes=lambda place, path: ConfigCommands(place.mount, path, place.topic),
            listed=Listed.WITH_SHOW_DOT,
        ),
        ".control": directory(CONTROL, ApartInTopic),
        ".follow": directory(FOLLOW, InTopic),
        ".meta": directory(META, ApartInTopic),
        ".raw": directory(RAW, ApartInTopic),
        ".ship": directory(FOLLOW, InTopic),
        ".snapshot": directory(SNAPSHOT, InTopic),
    },
)

# -- .groups: consumer groups ----------------------------------------------------------------------

# Another process may write groups at any moment, and offsets expire: the kernel keeps nothing.
_no_create = refuse("only existing partitions have committed offsets")

_position: Row[PositionPlace] = text(
    lambda place: place.of.text(*place.numbers),
    lambda place: place.of.access(place.numbers),
    takes=lambda place, path: CommitCommands(place.of, path, place.numbers),
    mtime_ns=lambda place: place.of.mtime_ns(*place.numbers),
)


def _position_in(place: PositionsPlace, name: str) -> Node:
    return _position.node(PositionPlace(place, groups.position_number(place, name)), name)


POSITIONS = Page[PositionsPlace](
    kind="group",
    appends=True,
    access=groups.positions_access,
    keep_s=never,
    find=_position_in,
    others=groups.position_names,
    create=_no_create,
    unlink=groups.remove_position,
    rows={
        ALL: text(
            lambda place: "",
            groups.committers,
            takes=lambda place, path: CommitCommands(place.of, path, place.of.numbers),
            listed=Listed.NEVER,
        )
    },
)


def _positions_in(place: GroupPlace, name: str) -> Node | None:
    topics.look_at_once_for_partitions(place)
    found = groups.found_topic(place, name)
    return None if found is None else directory_of(POSITIONS, PositionsPlace(place, found))


_lag = text(groups.lag_text, groups.lag_readers, is_long=True)


def _lag_of_group(place: GroupPlace, name: str) -> Node:
    place.found()  # the mode follows from the group, which may have to be read
    return _lag.node(place, name)


GROUP = Page[GroupPlace](
    kind="group",
    appends=True,
    access=groups.group_access,
    keep_s=never,
    find=_positions_in,
    others=groups.topic_names,
    chmod=lambda place, change: place.mount.permissions.change_group(place.group, change),
    create=_no_create,
    rmdir=groups.remove_topic,
    rows={
        CLAIMS: text(
            lambda place: claims_text(place.claims, place.group),
            groups.claims_access,
            takes=lambda place, path: ClaimCommands(
                place.partitions, place.claims, place.group, path
            ),
            listed=Listed.NEVER,
        ),
        LAG: Row(_lag_of_group, Listed.NEVER),
    },
)


def _group(place: GroupsPlace, name: str) -> Node | None:
    group = groups.found_group(place, name)
    return None if group is None else directory_of(GROUP, GroupPlace(place, group))


GROUPS = Page[GroupsPlace](
    kind="group",
    appends=True,
    access=groups.groups_access,
    keep_s=never,
    find=_group,
    others=groups.group_names,
    mkdir=groups.make_group,
    create=_no_create,
    rmdir=groups.remove_group,
    rows={
        LAG: text(
            lambda place: all_lags_text(place.mount.manager),
            mounting_user,
            is_long=True,
            listed=Listed.NEVER,
        )
    },
)

# -- the mount point -------------------------------------------------------------------------------


def _topic(place: RootPlace, name: str) -> Node | None:
    topics.look_at_once_for_partitions(place)
    found = place.mount.manager.topics.get(name)
    return None if found is None else directory_of(TOPIC, TopicPlace(place, found))


ROOT = Page[RootPlace](
    kind="mount",
    access=root,
    find=_topic,
    others=topics.topic_names,
    chmod=lambda place, change: place.mount.permissions.change_root(change),
    mkdir=topics.create_topic,
    rmdir=topics.delete_topic,
    rows={
        GROUPS_NAME: directory(GROUPS, lambda place, name: place.groups),
        ABOUT_NAME: directory(ABOUT, lambda place, name: place.about),
    },
)
