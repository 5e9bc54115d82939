"""The daemon is stuck: mount and umount report this, and --force and --lazy help."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs import mount_table
from tests.mount.mounting import check_data, needs_root
from tests.mount.steering import ROOT, SteeredMount

# With less patience: nothing here depends on how long it is.
IMPATIENT = """
import sys
from kafkafs.cli import main
from kafkafs import mount_table
from kafkafs.fuse import mount_point

mount_point.ANSWER_S = 0.2
{before}
main(sys.argv[1:])
"""

# The kernel gives a free device number out again: to the mount of a stranger, who is still there
# while the command waits. The stranger ends with its standard input.
STRANGER = """
for number in $(seq 50); do
    mkdir -p "$BASE/$number"
    mount -t tmpfs none "$BASE/$number"
    if grep -q "^[0-9]* [0-9]* $DEVICE " /proc/self/mountinfo; then echo reused; break; fi
done
echo
cat
for place in "$BASE"/*; do umount "$place"; done
"""
REUSED = """
import os, subprocess
unmount = mount_point.unmount
def unmount_and_reuse(path, **options):
    device = mount_table.find(path).device
    unmount(path, **options)
    strangers = subprocess.Popen(
        {command}, env={{**os.environ, "BASE": {base!r}, "DEVICE": device}},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    print(strangers.stdout.readline().decode(), end="", file=sys.stderr)
mount_point.unmount = unmount_and_reuse
"""


def kafkafs(*arguments: object, before: str = "") -> tuple[int, str]:
    """Run kafkafs. Return its exit status and its standard error."""
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT.format(before=before), *map(str, arguments)],
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
            3,
            f"kafkafs: {mount.path}: {mount.data} is already mounted here, and its daemon "
            f"(process {mount.pid}) does not answer. To end the mount: kafkafs umount --force\n",
        )
        assert mount.daemon.release(number)
        assert mount.topic("more").exists()
        assert kafkafs("umount", mount.path)[0] == 0


def test_who_unmounts_is_told(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        number = mount.daemon.stick()
        status, said = kafkafs("umount", mount.path)
        assert status == 3
        assert said.splitlines() == [
            f"kafkafs: {mount.path}: unmounted; the daemon (process {mount.pid}) is still writing",
            f"kafkafs: {mount.path}: unmounted, but the daemon (process {mount.pid}) "
            "does nothing and does not exit",
        ]
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)


@needs_root
@pytest.mark.parametrize("namespace", [[], ["unshare", "--mount", "--propagation=private"]])
def test_a_stranger_with_the_same_device_number_is_not_named(
    tmp_path: Path, namespace: list[str]
) -> None:
    command = [*namespace, "sh", "-c", STRANGER]
    for attempt in range(5):
        base = tmp_path / str(attempt)
        (base / "strangers").mkdir(parents=True)
        before = REUSED.format(command=command, base=str(base / "strangers"))
        with ending_in_order(base) as mount:
            number = mount.daemon.stick()
            status, said = kafkafs("umount", mount.path, before=before)
            assert mount.daemon.release(number)
        first, *lines = said.splitlines()
        assert status == 3
        assert [line.split(")")[-1] for line in lines] == [
            " is still writing",
            " does nothing and does not exit",
        ]
        if first == "reused":  # else something else was mounted meanwhile, and has the number
            return
    raise AssertionError("no device number was given out again")


def test_force(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        descriptor = os.open(mount.path, os.O_RDONLY)
        number = mount.daemon.stick()
        status, said = kafkafs("umount", "--force", mount.path)
        assert status == 3
        assert said.endswith("does nothing and does not exit\n")
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)
        os.close(descriptor)


def test_lazy(tmp_path: Path) -> None:
    with ending_in_order(tmp_path) as mount:
        number = mount.daemon.stick()
        assert kafkafs("umount", "--lazy", mount.path) == (0, "")
        assert mount_table.find(str(mount.path)) is None
        assert mount.daemon.release(number)
