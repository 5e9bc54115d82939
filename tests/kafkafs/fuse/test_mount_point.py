"""What is mounted where; the rest is shown by the daemon's tests."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafs.fuse import mount_point
from tests.kafkafs.fuse.conftest import BareMount


def test_a_directory_on_which_nothing_is_mounted(tmp_path: Path) -> None:
    assert mount_point.find(str(tmp_path)) is None
    assert not mount_point.is_dead(str(tmp_path))
    mount_point.clean(str(tmp_path))
    with pytest.raises(mount_point.MountError, match="no kafkafs is mounted here"):
        mount_point.unmount_and_wait(str(tmp_path))


def test_a_mount_is_found_and_a_foreign_one_left_alone(
    bare_mount: Callable[..., BareMount],
) -> None:
    mount = bare_mount()
    path = str(mount.path)
    found = mount_point.find(path)
    assert found is not None
    assert found.path == path
    assert found.source == "bare"
    assert found.type == "fuse"
    status = os.stat(path)
    assert found.device == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    assert not mount_point.is_dead(path)
    with pytest.raises(mount_point.MountError, match="no kafkafs is mounted here"):
        mount_point.unmount_and_wait(path)
    with open(f"{path}/file", "rb"), pytest.raises(mount_point.MountError, match="busy"):
        mount_point.unmount(path)
    mount_point.unmount(path)
    mount.ended()


def test_what_a_killed_daemon_left_is_cleaned(bare_mount: Callable[..., BareMount]) -> None:
    mount = bare_mount("--subtype", "kafkafs")
    path = str(mount.path)
    os.stat(path)
    descriptor = os.open(f"{path}/file", os.O_RDONLY)
    mount.process.kill()
    mount.process.wait()
    assert mount_point.is_dead(path)
    mount_point.clean(path)
    with contextlib.suppress(OSError):
        os.close(descriptor)
    assert mount_point.find(path) is None
    assert os.listdir(path) == []


def test_names_in_the_mount_table_are_unescaped(tmp_path: Path) -> None:
    odd = tmp_path / "a b\\040\tc"
    odd.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "a source", str(odd)], check=True)
    try:
        found = mount_point.find(str(odd))
    finally:
        subprocess.run(["umount", str(odd)], check=True)
    assert found is not None
    assert (found.type, found.source) == ("tmpfs", "a source")


def test_read_ahead_where_it_is_not_permitted() -> None:
    assert not mount_point.raise_read_ahead("0:999999", 1024)
