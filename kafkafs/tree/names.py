"""The page of all names in the mount: who may see each, when the kernel drops it, what makes it.

Each directory has a `Page` of rows, one for each name. The inode number of a name follows from its
place (`Place.number`). Where the kernel may keep the attributes of a file, the file says so itself;
it keeps those of no text.
"""

from __future__ import annotations

import os

from kafkafs.tree.control.topic_commands import DirectoryCommands
from kafkafs.tree.directories import about
from kafkafs.tree.directories.about import AboutPlace
from kafkafs.tree.directories.directory import Page, Place, text
from kafkafs.tree.directories.help_text import HELP
from kafkafs.tree.owner.adopt_file import AdoptCommands
from storage.modes import Ownership

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


# -- the daemon ------------------------------------------------------------------------------------

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
