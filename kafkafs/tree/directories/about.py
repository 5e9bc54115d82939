"""The texts of `.kafkafs`, the daemon as files.

`config` has the mount options and the settings for all topics, as in `.config`. `topics` has a
header line and a line for each topic, in columns of fixed width; its `#` lines name the topics from
which nothing is deleted, parts that are only in remote storage, faults and losses, and the topics
that can be undeleted. `metrics` is Prometheus text (`metrics_text`).

`topics` and `metrics` grow with the number of partitions, so a worker thread makes them for each
open. It reads each number when it needs it: no two have to be of the same moment.
"""

from __future__ import annotations

from kafkafs import mount_options
from kafkafs.tree.control.topic_config import defaults_text
from kafkafs.tree.directories.directory import Place
from kafkafs.tree.files.text_file import text_table
from kafkafs.tree.inodes import inode_number
from kafkafs.tree.open_files import OpenTable
from kafkafs.tree.owner.owner_requests import OwnerRequests
from kafkafs.tree.partition.partitions import Partitions
from storage.manager import LogManager, Topic
from storage.paths import ABOUT
from storage.plural import counted
from storage.settings.config import format_value
from storage.settings.settings import SETTINGS_FILE
from storage.state.deletion_file import Deletion


class AboutPlace(Place):
    """The daemon."""

    def __init__(
        self, partitions: Partitions, open_files: OpenTable, requests: OwnerRequests
    ) -> None:
        super().__init__(partitions, ABOUT, inode_number(ABOUT))
        self.open_files = open_files
        self.requests = requests

    @property
    def is_written(self) -> bool:
        """Whether the mount may write."""
        return not (self.mount.manager.read_only or self.mount.options.read_only)


def metrics_text(place: AboutPlace) -> str:
    # Slow to import.
    from kafkafs.tree.directories.metrics_text import metrics_text

    handles = [file.handle for file in list(place.open_files.files.values())]
    return metrics_text(place.partitions, handles)


def version_text(place: Place) -> str:
    # Slow to import.
    from importlib.metadata import version

    return version("kafkafs") + "\n"


def config_text(place: Place) -> str:
    """Two lists, each below a line that names its source: mount options, then settings.

    `name=value` for what is given there; `# name=value (where it comes from)` for all others.
    """
    given, rest = mount_options.explain(place.mount.options)
    lines = ["# mount -o"]
    lines += [f"{name}={value}" for name, value in given]
    lines += [f"# {name}={value} (default)" for name, value in rest]
    lines.append(f"# {SETTINGS_FILE}")
    return "".join(line + "\n" for line in lines) + defaults_text(place.mount.manager.settings)


# -- topics --------------------------------------------------------------------------------------

_TOPIC_COLUMNS = (
    ("partitions", 10),
    ("offsets", 20),
    ("bytes", 20),
    ("segments", 10),
    ("last_append", 20),
    ("cleanup.policy", 14),
    ("id", 22),
)


def topics_text(place: Place) -> str:
    """A line for each topic. `offsets` counts from the log starts to the log ends: the records,
    where nothing was compacted and no transaction has ended. `last_append` is ms since 1970, or -1.
    `#` lines at the end name the topics from which nothing is deleted or compacted (a read-only
    mount deletes nothing anyway), what of a topic is only in remote storage, the partitions that
    could not be opened, the losses, and the deleted topics that can be undeleted.
    """
    manager = place.mount.manager
    topics = sorted(manager.topics.items())
    names = ["topic", *(name for name, _ in topics)]
    width = max(map(len, names))
    rows = text_table(_TOPIC_COLUMNS, [_topic_facts(manager, topic) for _, topic in topics])
    lines = [f"{name:<{width}} {row}" for name, row in zip(names, rows, strict=True)]
    if not manager.read_only:
        lines += [f"# {line}" for line in manager.kept_topics()]
    lines += [f"# {line}" for line in manager.remote_lines()]
    lines += [f"# {reason}" for _, topic in topics for reason in topic.faults.copy().values()]
    lines += [f"# {log.name}: {loss}" for log in manager.logs() for loss in log.losses]
    lines += [f"# {deleted_line(manager, *each)}" for each in list(manager.deleted.topics.items())]
    return "".join(f"{line}\n" for line in lines)


def deleted_line(manager: LogManager, deletion: Deletion, due_ms: int) -> str:
    """Say that a topic can be undeleted, and for how long."""
    left_s = max(due_ms - manager.monotonic_ms(), 0) / 1000
    return (
        f"{deletion.topic} was deleted, {counted(len(deletion.partitions), 'partition')}. "
        f"To restore it within {left_s:.0f} s: undelete {deletion.topic} {deletion.id}"
    )


def _topic_facts(manager: LogManager, topic: Topic) -> tuple[object, ...]:
    logs = list(topic.partitions.values())
    config = manager.settings.log_config(topic.name)
    unknown = "cleanup.policy" in config.unknown
    return (
        len(topic.numbers),
        sum(log.log_end_offset - log.log_start_offset for log in logs),
        sum(log.size for log in logs),
        sum(len(log.segments) for log in logs),
        max((log.last_written.date(0) for log in logs if log.log_end_offset), default=-1)
        // 1_000_000,
        "unknown" if unknown else format_value(config.cleanup_policy),
        topic.id,
    )
