"""`kafkafs mounts`. Others may have mounts on this machine, so each test looks at its own line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, ending, kafkafs
from tests.kafkafs.cli.mounting.test_mount import stopped
from tests.waits import HANG_S

pytestmark = pytest.mark.programs


def listed(place: Place, *options: str) -> dict[str, Any]:
    """The line of this mount."""
    done = kafkafs("mounts", "--json", *options)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = [
        each for each in json.loads(done.stdout)["result"] if each["mount"] == str(place.path)
    ]
    assert isinstance(found, dict)
    return found


def test_what_is_mounted_is_listed_with_its_daemon(place: Place) -> None:
    before_s = time.time()
    place.mount("-o", "show_dot,noexec", "-o", "umask=027,memory=1M")
    found = listed(place)
    # The kernel tells the time of its boot in whole seconds.
    assert before_s - 2 <= datetime.fromisoformat(found.pop("since")).timestamp() <= time.time() + 2
    assert found == {
        "data": str(place.data),
        "mount": str(place.path),
        "pid": place.pid,
        "state": "serving",
        "options": "rw,memory=1048576,show_dot,umask=27,noexec",
    }


def test_a_daemon_in_another_pid_namespace_has_no_process_id(place: Place) -> None:
    place.mount()
    command = [*KAFKAFS, "mounts", "--json"]
    inside = ["unshare", "--pid", "--fork", "--mount-proc", *command]
    done = subprocess.run(inside, capture_output=True, text=True, cwd=ROOT, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    (found,) = [
        each for each in json.loads(done.stdout)["result"] if each["mount"] == str(place.path)
    ]
    assert (found["state"], found["pid"], found["since"]) == ("serving", None, None)


def test_for_people_it_is_a_table(place: Place) -> None:
    place.mount("-o", "ro")
    done = kafkafs("mounts")
    assert (done.returncode, done.stderr) == (0, "")
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["data", "mount", "pid", "since", "state", "options"]
    (line,) = [line.split() for line in lines if str(place.path) in line]
    assert line[:3] == [str(place.data), str(place.path), str(place.pid)]
    assert line[4:] == ["serving", "ro"]


def test_daemons_that_do_not_serve(place: Place) -> None:
    place.mount()
    pid = place.pid
    with stopped(pid):
        found = listed(place)
        assert (found["pid"], found["state"]) == (pid, "stopped")
    with ending(pid):
        os.kill(pid, signal.SIGKILL)
    found = listed(place)
    assert (found["data"], found["state"]) == (str(place.data), "dead")
    assert [found[name] for name in ("pid", "since", "options")] == [None] * 3
    place.umount()
    with pytest.raises(ValueError, match="not enough values"):
        listed(place)


def test_a_data_directory_whose_name_the_mount_table_does_not_have(tmp_path: Path) -> None:
    base = tmp_path / "día, \\"
    base.mkdir()
    place = Place(base)
    try:
        place.mount()
        assert listed(place)["data"] == str(place.data)
    finally:
        place.end()
