"""Creates a topic in a data directory: by `mkdir` in the mount if a daemon owns the directory, else
by opening the directory here.
"""

from __future__ import annotations

import os
import time

from kafkafs.mount_options import PID_ATTRIBUTE
from kafkafs.spark.location.owner_client import OwnerNotReached
from storage import paths
from storage.directory.manager import LogManager
from storage.errors import LogLocked, TopicExists
from storage.files import Files
from storage.state import owner_file

# How long to wait for another process to close the directory, in seconds.
_PATIENCE_S = 10.0
_PAUSE_S = 0.05


def partitions_of(path: str, topic: str) -> int:
    """How many partitions a topic has in a data directory; 0: no such topic. OSError."""
    parsed = (
        paths.parse_partition_directory(name)
        for name, is_directory in Files(path).scan(path)
        if is_directory
    )
    return sum(each is not None and each[0] == topic for each in parsed)


def create_topic(path: str, topic: str, partitions: int) -> None:
    """Create the topic unless it exists.

    InvalidTopic, TopicExists if its name collides with another; OwnerNotReached; OSError.
    """
    path = os.path.realpath(path)
    deadline = time.monotonic() + _PATIENCE_S
    while not partitions_of(path, topic):
        if _created(path, topic, partitions):
            return
        if time.monotonic() > deadline:
            pid = Files(path).locked_by(os.path.join(path, paths.LOCK))
            raise OwnerNotReached(
                f"process {pid} has the data directory open and creates no topics for others; "
                "create it there, or stop the process",
                pid,
                path=path,
            )
        time.sleep(_PAUSE_S)


def _created(path: str, topic: str, partitions: int) -> bool:
    files = Files(path)
    pid = files.locked_by(os.path.join(path, paths.LOCK))
    if pid is None:
        try:
            with LogManager.open(path) as manager:
                if topic not in manager.topics:
                    manager.create_topic(topic, partitions)
        except (LogLocked, TopicExists):
            if not partitions_of(path, topic) and files.locked_by(os.path.join(path, paths.LOCK)):
                return False
            raise
        return True
    owner = owner_file.read(files, path)
    if owner is None or owner.pid != pid:
        return False
    try:
        if os.getxattr(owner.mount, PID_ATTRIBUTE) != str(pid).encode():
            return False
    except OSError:
        return False
    directory = os.path.join(owner.mount, topic)
    os.mkdir(directory)
    for number in range(partitions_of(path, topic), partitions):
        os.close(os.open(os.path.join(directory, str(number)), os.O_WRONLY | os.O_CREAT, 0o644))
    return True
