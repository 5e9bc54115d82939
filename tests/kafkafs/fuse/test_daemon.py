"""Why the daemon cannot mount; how it begins and ends else is shown by the commands' tests."""

from __future__ import annotations

from pathlib import Path

import pyfuse3
import pytest
import trio

from kafkafs.fuse.daemon import Daemon, Mount
from kafkafs.fuse.mount_point import MountError
from kafkafs.fuse.notify import KernelNotices
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from storage import LogManager


def test_what_libfuse_says_against_a_mount_is_the_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    events = Events(lambda: 0)
    notices = KernelNotices(events)
    with LogManager.open(str(tmp_path)) as manager:
        tree = FileSystem(MountContext(manager, notices=notices, events=events))
        daemon = Daemon(Mount(str(tmp_path), missing, MountOptions()), tree, notices, lambda: None)
        try:
            with pytest.raises(MountError) as raised:
                daemon.mount()
        finally:
            vars(pyfuse3)["trio"] = trio
    assert str(raised.value).startswith(f"{missing}: cannot mount: fuse: ")
    assert str(raised.value).endswith(
        "No such file or directory. To find the cause: kafkafs doctor"
    )
    assert events.text() == ""
