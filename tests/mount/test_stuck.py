"""A daemon that is stuck: who mounts or unmounts is told so, and --force and --lazy help."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kafkafs import mount_table
from tests.mount.mounting import check_data
from tests.mount.steering import ROOT, SteeredMount

# With less patience: nothing here depends on how long it is.
IMPATIENT = """
import sys
from kafkafs.cli import main
from kafkafs import mount_table
from kafkafs.fuse import mount_point

mount_point.ANSWER_S = 0.2
main(sys.argv[1:])
"""


def kafkafs(*arguments: object) -> tuple[int, str]:
    """Exit status, and what was said on standard error."""
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT, *map(str, arguments)],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


@contextlib.contextmanager
def ending_in_order(base: Path) -> Iterator[SteeredMount]:
    """A mount that has ended in order after the block, or does then."""
    mount = SteeredMount(base)
    try:
        mount.start()
        mount.topic()
        yield mount
        assert mount.process is not None
        assert mount.process.wait() == 0
    finally:
        mount.end()
    check_data(mount.data)


def test_who_mounts_is_told(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        number = mount.daemon.stick()
        status, said = kafkafs("mount", mount.data, mount.path)
        assert (status, said) == (
            1,
            f"kafkafs: {mount.path}: {mount.data} is mounted here already, by process {mount.pid}, "
            "which does not answer; kafkafs umount --force ends the mount\n",
        )
        assert mount.daemon.release(number)
        assert mount.topic("more").exists()
        assert kafkafs("umount", mount.path)[0] == 0


def test_who_unmounts_is_told(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        number = mount.daemon.stick()
        status, said = kafkafs("umount", mount.path)
        assert status == 1
        assert said.splitlines() == [
            f"kafkafs: {mount.path}: is unmounted; the daemon (process {mount.pid}) still writes",
            f"kafkafs: {mount.path}: is unmounted, but the daemon (process {mount.pid}) "
            "neither works nor ends",
        ]
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)


def test_force(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        descriptor = os.open(mount.path, os.O_RDONLY)
        number = mount.daemon.stick()
        status, said = kafkafs("umount", "--force", mount.path)
        assert status == 1
        assert said.endswith("neither works nor ends\n")
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)
        os.close(descriptor)


def test_lazy(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        number = mount.daemon.stick()
        assert kafkafs("umount", "--lazy", mount.path) == (0, "")
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)
