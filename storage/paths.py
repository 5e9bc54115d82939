"""Names on disk: topics, partition directories, segment files.

`<topic>-<partition>/<20 digits><suffix>`, in Kafka 0.7 `<digits>.kafka`. A directory that a broker
is moving or deleting has a longer name, `<topic>-<partition>.<32 hex>-<kind>` with kind `delete`,
`stray` or `future`. With the first two, the topic is cut so that the whole name fits into 255
characters.

Sources: `Topic.java`, `LocalLog.java` (parseTopicPartitionName, logDeleteDirName),
`LogFileUtils.java`. Pure: no file is touched.

The rules are stricter than Kafka's for names that no broker makes: a partition number has no sign
and no leading zero, and its topic has a valid name.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from typing import NamedTuple

from storage.errors import InvalidTopic, PolicyViolation

# Suffixes of a segment's files.
LOG = ".log"
INDEX = ".index"
TIMEINDEX = ".timeindex"
TXNINDEX = ".txnindex"
SNAPSHOT = ".snapshot"
LINES = ".lines"
WORDS = ".words"
# A segment file of Kafka 0.7, named by its first byte's position in the partition.
OLD_LOG = ".kafka"
INDEX_SUFFIXES = (INDEX, TIMEINDEX, TXNINDEX)
# Files of the mount beside a segment, one for each view.
LINES_SUFFIXES = (
    *(LINES, ".uncommitted.lines"),
    *(".kv.lines", ".kv-uncommitted.lines"),
    *(".jsonl.lines", ".jsonl-uncommitted.lines"),
)
# Files beside a segment that can be rebuilt from its log.
REBUILT_SUFFIXES = (*INDEX_SUFFIXES, *LINES_SUFFIXES, WORDS)
# Suffixes appended to those: waiting for deletion, a cleaner's output before and during its swap,
# set aside by recovery.
DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
CUT = ".cut"
# Removed from the end of a log, as its leader has another history (`log.truncate`).
DIVERGED = ".diverged"
# A small file that could not be read (`bad_file`).
BAD = ".bad"
# Finished batches that wait for adoption by the log's owner.
STAGED = ".staged"

# Files of a partition directory.
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

# Files of a data directory.
LOCK = ".lock"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
META_PROPERTIES = "meta.properties"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
# The partitions whose log start is lost (`checkpoints`).
LOST_STARTS = "kafkafs.lost-log-starts"
# The process that has the directory open and shows it (`owner_file`).
OWNER = "kafkafs.owner"
# The owners of consumer groups (`groups/owners.py`).
GROUP_OWNERS = "kafkafs.groups"
# The owner and the mode of the mount's root (`directory/root_owner.py`).
ROOT_OWNER = "kafkafs.root"
# The state of a mirror (`mirror_file`): only `kafkafs mirror` writes the logs beside it.
MIRROR = "kafkafs.mirror"
# Its name after the end of the mirror, until the next start has finished that (`directory/mirror`).
MIRROR_ENDED = "kafkafs.mirror.ended"
# The prefix of the restore points of a mirror (`point_file`).
POINT = "kafkafs.point."
# In a partition's directory, after a failed fsync: its files are not trusted (`rescue`).
UNSYNCED = "kafkafs.unsynced"

# A broker's log of the decisions of its cluster.
METADATA_LOG = "__cluster_metadata-0"
# Appended to the names of a broker's own files when its directory becomes one of our own.
DETACHED = ".detached"
# Directories of a broker that are not partitions of ours; its log manager skips the first two.
BROKERS_OWN = frozenset({"remote-log-index-cache", METADATA_LOG, METADATA_LOG + DETACHED})
# The topics that a cluster makes for itself (`Topic.java`); their records refer to its other
# topics.
CONSUMER_OFFSETS = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({CONSUMER_OFFSETS, "__transaction_state", "__share_group_state"})
# The topics that a broker never moves to remote storage (KIP-405); the last one lists the moved
# segments.
NEVER_TIERED = INTERNAL_TOPICS | {"__remote_log_metadata"}
# The directory in which a mount shows itself; a topic of that name is hidden.
ABOUT = ".kafkafs"
# The directory in which a mount shows consumer groups.
GROUPS = ".groups"
# The settings that the former broker had set on its topics.
DETACHED_SETTINGS = "kafkafs-broker.properties"
# In the directory of a deleted topic's first partition (`deletion_file`).
DELETION = "kafkafs.deletion"
# A directory in a broker's data directory while topics are handed over to it (`handover`). No
# broker starts beside it.
HANDOVER = "kafkafs.handover"

MAX_TOPIC_LENGTH = 249
MAX_NAME_LENGTH = 255
MAX_OFFSET = 2**63 - 1
MAX_PARTITION = 2**31 - 1

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")
_ASIDE = re.compile(r"(\S+-\S+)\.\S+-(delete|future|stray)")
_BASE_OFFSET = re.compile(r"([0-9]{20})(?:\.|\Z)")
_OLD_LOG = re.compile(r"([0-9]{1,255})\.kafka")


class AsideDirectory(NamedTuple):
    """A partition directory that is not served; the topic may be cut short."""

    topic: str
    partition: int
    kind: str  # "delete", "stray" or "future"


def check_topic_name(topic: str) -> None:
    """Check a topic name by Kafka's rules. Errors: InvalidTopic, with the reason."""
    if not topic:
        raise InvalidTopic("a topic name must not be empty")
    if topic in (".", ".."):
        raise InvalidTopic(f"a topic name must not be {topic!r}")
    if len(topic) > MAX_TOPIC_LENGTH:
        raise InvalidTopic(
            f"a topic name has at most {MAX_TOPIC_LENGTH} characters, this one has {len(topic)}"
        )
    if _TOPIC.fullmatch(topic) is None:
        raise InvalidTopic(
            f"a topic name consists of letters, digits, '.', '_' and '-'; {topic!r} does not"
        )


def check_new_name(topic: str) -> None:
    """Check the name of a new topic; existing topics of a reserved name are served. Errors:
    InvalidTopic; PolicyViolation, with the reason, for a reserved name.
    """
    check_topic_name(topic)
    if topic in INTERNAL_TOPICS or partition_directory(topic, 0) == METADATA_LOG:
        reason = "only a cluster creates this topic"
    elif topic in (ABOUT, GROUPS):
        reason = "a mount uses this name for its own files"
    elif topic.endswith(("-delete", "-stray", "-future")):
        reason = "a broker uses such names for partitions that it deletes or moves"
    else:
        return
    raise PolicyViolation(f"topic {topic!r}: {reason}. Choose another name")


def check_takes_records(topic: str) -> None:
    """Check that a topic takes records of users. Errors: PolicyViolation for the topic of committed
    offsets: a broker understands only its own records there, and only `groups` writes them.
    """
    if topic == CONSUMER_OFFSETS:
        raise PolicyViolation(
            "this topic takes no records. To commit an offset: echo OFFSET > "
            f"{GROUPS}/GROUP/TOPIC/N"
        )


def check_may_change(topic: str) -> None:
    """Check that users may change a topic. Errors: PolicyViolation for the topic of committed
    offsets, which only `groups` changes.
    """
    if topic == CONSUMER_OFFSETS:
        raise PolicyViolation(
            f"topic {topic!r} contains the committed offsets of all groups. To delete those of "
            f"one group: rmdir {GROUPS}/GROUP. Its settings are offsets.topic.num.partitions "
            "and offsets.topic.segment.bytes in kafkafs.properties"
        )


def is_topic_name(topic: str) -> bool:
    """Return whether `check_topic_name` accepts the name."""
    try:
        check_topic_name(topic)
    except InvalidTopic:
        return False
    return True


def partition_directory(topic: str, partition: int) -> str:
    """Return the name of a partition's directory."""
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a directory's name, or None if it is no partition's.

    The last `-` divides: a topic may contain others.
    """
    topic, dash, number = name.rpartition("-")
    if not dash or not is_topic_name(topic) or _PARTITION.fullmatch(number) is None:
        return None
    partition = int(number)
    return (topic, partition) if partition <= MAX_PARTITION else None


def is_partition_directory(name: str) -> bool:
    """Return whether a directory's name is a partition's, and not one that only a broker uses."""
    return name not in BROKERS_OWN and parse_partition_directory(name) is not None


def partitions_in(entries: Iterable[tuple[str, str]]) -> dict[str, list[int]]:
    """Return the partition numbers in a data directory, ascending, by topic.

    `entries`: its names, and the kind of each (`Files.listing`). A link, or the like, with the name
    of a partition counts: opening the partition reports the problem.
    """
    found: dict[str, list[int]] = {}
    for name, kind in entries:
        if kind != "file" and is_partition_directory(name):
            topic, _, number = name.rpartition("-")
            found.setdefault(topic, []).append(int(number))
    return {topic: sorted(numbers) for topic, numbers in found.items()}


def deleted_directory_name(topic: str, partition: int) -> str:
    """Return a new name, different each time, for the directory of a partition being deleted."""
    suffix = f"-{partition}.{uuid.uuid4().hex}-delete"
    return topic[: MAX_NAME_LENGTH - len(suffix)] + suffix


def parse_aside_directory(name: str) -> AsideDirectory | None:
    """Return the partition of a `-delete`, `-stray` or `-future` directory, or None.

    A broker refuses to start on a name with such an ending that does not parse.
    """
    match = _ASIDE.fullmatch(name)
    if match is None:
        return None
    parsed = parse_partition_directory(match[1])
    return None if parsed is None else AsideDirectory(*parsed, match[2])


def file_name(base_offset: int, suffix: str) -> str:
    """Return a segment file's name: its base offset in 20 digits, and a suffix of this module."""
    return f"{base_offset:020d}{suffix}"


def base_offset_of(name: str) -> int | None:
    """Return the number before the first dot of a segment file's name, or None."""
    return _offset_in(_BASE_OFFSET.match(name))


def log_bases(names: Iterable[str]) -> list[int]:
    """Return the base offsets of the segments whose logs are among these files, ascending."""
    return sorted(
        base for name in names if name.endswith(LOG) and (base := base_offset_of(name)) is not None
    )


def old_base_offset_of(name: str) -> int | None:
    """Return the number that names a segment file of Kafka 0.7, or None.

    0.7 writes 20 digits; its documentation, and copies made by hand, have other counts.
    """
    return _offset_in(_OLD_LOG.fullmatch(name))


def _offset_in(match: re.Match[str] | None) -> int | None:
    if match is None:
        return None
    base_offset = int(match[1])
    return base_offset if base_offset <= MAX_OFFSET else None


def is_log(name: str) -> bool:
    """Return whether a file's name is that of a segment's log, of any format."""
    if name.endswith(LOG):
        return base_offset_of(name) is not None
    return old_base_offset_of(name) is not None
