"""`.kafkafs`: the daemon as files.

    version, help, log   short texts
    config               the mount options and the settings for all topics, as in `.config`
    topics               a header line and a line per topic, in columns of fixed width; `#` lines
                         name the topics from which nothing is deleted, what is only in remote
                         storage, faults and losses, and what can be undeleted; takes commands,
                         where the mount may write
                         (`topic_commands`)
    metrics              Prometheus text (`metrics_text`)
    adopt                takes requests to the owner of the directory (`adopt_file`); only where
                         the mount may write

`help` and `version` are for all who may look into the mount. The others name what users keep in it,
so they are for the user who has mounted and the data directory's group.

`topics` and `metrics` grow with the number of partitions, so a worker thread makes them for each
open. It reads each number when it needs it: no two have to be of the same moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial

from kafkafs import mount_options
from kafkafs.tree.control.topic_commands import DirectoryCommands
from kafkafs.tree.control.topic_config import defaults_text
from kafkafs.tree.directories.help_text import HELP
from kafkafs.tree.directories.tree_directory import TreeDirectory
from kafkafs.tree.files.control_file import Take, taking
from kafkafs.tree.files.text_file import TextFile, text_table
from kafkafs.tree.inodes import Node, inode_number, missing
from kafkafs.tree.open_files import OpenTable
from kafkafs.tree.owner.adopt_file import NAME as ADOPT
from kafkafs.tree.owner.adopt_file import AdoptCommands
from kafkafs.tree.owner.owner_requests import OwnerRequests
from kafkafs.tree.partition.partitions import Partitions
from storage.manager import LogManager, Topic
from storage.modes import Ownership
from storage.paths import ABOUT
from storage.plural import counted
from storage.settings.config import format_value
from storage.settings.settings import SETTINGS_FILE, Settings
from storage.state.deletion_file import Deletion

FOLLOW_S = 0.02
"""Seconds that the owner's thread follows another process at most before such an open."""


class AboutDirectory(TreeDirectory):
    """See the module."""

    __slots__ = ("_open_files", "_partitions", "files")

    def __init__(
        self, partitions: Partitions, open_files: OpenTable, requests: OwnerRequests
    ) -> None:
        mount = partitions.mount
        super().__init__(mount, inode_number(ABOUT))
        self._partitions = partitions
        self._open_files = open_files
        is_written = not (mount.manager.read_only or mount.options.read_only)
        commands = partial(DirectoryCommands, mount, f"{ABOUT}/topics")
        take = taking(commands) if is_written else None
        self.files = {
            "config": self._short(
                "config", lambda: config_text(mount.manager.settings, mount.options)
            ),
            "help": self._short("help", lambda: HELP, for_all=True),
            "log": self._short("log", mount.events.text),
            "metrics": self._made("metrics", self._metrics_text),
            "topics": self._made("topics", lambda: topics_text(mount.manager), take),
            "version": self._short("version", version_text, for_all=True),
        }
        if is_written:
            self.files[ADOPT] = TextFile(
                inode_number(ABOUT, ADOPT),
                requests.text,
                lambda: (0o600, os.geteuid(), os.getegid()),
                mount.clock_ns,
                take=taking(partial(AdoptCommands, requests)),
                path=f"{ABOUT}/{ADOPT}",
            )

    def _short(self, name: str, make: Callable[[], str], *, for_all: bool = False) -> TextFile:
        """A file whose short text the owner's thread makes. `for_all`: it says nothing of what
        others keep here.
        """
        inode = inode_number(ABOUT, name)
        owner = self._for_all if for_all else self._file_owner
        return TextFile(inode, make, owner, self.mount.clock_ns, path=f"{ABOUT}/{name}")

    def _made(self, name: str, make: Callable[[], str], take: Take | None = None) -> TextFile:
        """A file whose text a worker thread makes.  Who may change it is the user of the daemon."""

        def owner() -> Ownership:
            mode, uid, gid = self._file_owner()
            return mode | (0o200 if take else 0), uid, gid

        return TextFile(
            inode_number(ABOUT, name),
            make,
            owner,
            self.mount.clock_ns,
            prepare=lambda: self._partitions.follow_all(time.monotonic() + FOLLOW_S),
            take=take,
            path=f"{ABOUT}/{name}",
        )

    @property
    def path(self) -> str:
        return ABOUT

    def _metrics_text(self) -> str:
        from kafkafs.tree.directories.metrics_text import metrics_text

        handles = [file.handle for file in list(self._open_files.files.values())]
        return metrics_text(self._partitions, handles)

    def _file_owner(self) -> Ownership:
        # Who mounts a directory that is another user's may see what comes of it.
        mode, uid, gid = self.owner()
        return mode & 0o440, os.geteuid() if self.mount.options.uid is None else uid, gid

    def _for_all(self) -> Ownership:
        mode, uid, gid = self.owner()
        return mode & 0o444, uid, gid

    def lookup(self, name: str) -> Node:
        if name not in self.files:
            raise missing(name)
        return self.files[name]

    def names(self) -> list[str]:
        return sorted(self.files)


def version_text() -> str:
    # Slow to import, and only who reads the file needs it.
    from importlib.metadata import version

    return version("kafkafs") + "\n"


def config_text(settings: Settings, mounted_with: mount_options.MountOptions) -> str:
    """Two lists, each below a line that names its source: mount options, then settings.

    `name=value` for what is given there; `# name=value (where it comes from)` for all others.
    """
    given, rest = mount_options.explain(mounted_with)
    lines = ["# mount -o"]
    lines += [f"{name}={value}" for name, value in given]
    lines += [f"# {name}={value} (default)" for name, value in rest]
    lines.append(f"# {SETTINGS_FILE}")
    return "".join(line + "\n" for line in lines) + defaults_text(settings)


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


def topics_text(manager: LogManager) -> str:
    """A line for each topic. `offsets` counts from the log starts to the log ends: the records,
    where nothing was compacted and no transaction has ended. `last_append` is ms since 1970, or -1.
    `#` lines at the end name the topics from which nothing is deleted or compacted (a read-only
    mount deletes nothing anyway), what of a topic is only in remote storage, the partitions that
    could not be opened, the losses, and the deleted topics that can be undeleted.
    """
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
