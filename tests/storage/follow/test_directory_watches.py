"""Directories are watched as soon as the system has a watch for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.programs import program

# Runs in a user namespace of its own, where it can change the limits of inotify.
SCRIPT = """
import os, select, sys
from pathlib import Path
from storage.follow.directory_watches import DirectoryWatches

instances, many = Path("/proc/sys/user/max_inotify_instances"), "1000"
watches_left = Path("/proc/sys/user/max_inotify_watches")
said = []
first, second, third = map(Path, sys.argv[1:])

def changed():
    return sorted(watches.changed())

def write():
    for each in (first, second, third):
        (each / "file").write_text("")

def is_ready():
    return bool(select.select([watches.fd], [], [], 0)[0])

instances.write_text("0")
watches = DirectoryWatches(said.append)
assert not said
watches.watch("first", str(first))
watches.watch("second", str(second))
watches.try_again()
assert len(said) == 1 and said[0].startswith(f"{first}: cannot watch"), said
assert said[0].endswith("Too many open files"), said
write()
assert not is_ready() and changed() == []

instances.write_text(many)
watches.try_again()
assert not is_ready()
write()
assert is_ready() and changed() == ["first", "second"]

watches_left.write_text("2")
watches.watch("third", str(third))
assert len(said) == 2 and "No space left" in said[1], said
watches.forget("first")
watches.try_again()
watches.changed()
write()
assert is_ready() and changed() == ["second", "third"]
watches.forget("second")
watches.forget("third")
watches.forget("third")
assert changed() == []
write()
assert not is_ready()
watches.close()
assert len(said) == 2, said
"""


@pytest.mark.programs
def test_what_could_not_be_watched_is_watched_once_the_system_can(tmp_path: Path) -> None:
    directories = [tmp_path / name for name in ("1", "2", "3")]
    for directory in directories:
        directory.mkdir()
    done = subprocess.run(
        [program("unshare"), "--user", "--map-root-user", sys.executable, "-c", SCRIPT]
        + [str(directory) for directory in directories],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
