"""Where the machine or the rights of files refuse a mount, its line says what to type."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.machine import Machine
from tests.mount.mounting import needs_root

pytestmark = needs_root


@pytest.fixture
def machine() -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="kafkafs-machine-") as directory:
        Path(directory).chmod(0o755)
        yield Machine(Path(directory))


def mended(machine: Machine, break_it: str, options: str = "rw", *, by: str = "as root: ") -> str:
    """The line of a mount that fails after `break_it`; after what it says to type one succeeds."""
    done = machine.run(
        f"""
        {break_it}
        mounts() {{ as_nobody "$PYTHON" -c "$PROGRAM" mount -o {options} data mnt; }}
        mounts 2> said && exit 1 || [ $? = 78 ]
        sed -n 's/.*{by}//p' said > command
        . ./command > /dev/null
        mounts > /dev/null
        cat said
        """
    )
    assert (done.returncode, done.stderr) == (0, ""), (done, (machine.base / "said").read_text())
    (line,) = done.stdout.splitlines()
    return line.removeprefix("kafkafs: ")


def test_a_data_directory_of_another_user(machine: Machine) -> None:
    data = machine.data
    assert mended(machine, "chown nobody mnt") == (
        f"{data}/.lock: Permission denied: {data} belongs to root, but the daemon runs as nobody; "
        f"as root: chown -R nobody {data}"
    )


def test_a_mount_of_another_user(machine: Machine) -> None:
    """Which the kernel keeps even from root: every command says what root can type."""
    commands = ["create mnt new", "config mnt orders retention.ms=1d", "delete mnt orders"]
    tried = "".join(f'kafkafs {words} || echo "status $?"\n' for words in commands)
    done = machine.run(
        f"""
        chown nobody data mnt
        as_nobody "$PYTHON" -c "$PROGRAM" mount data mnt > /dev/null
        as_nobody mkdir mnt/orders
        {tried}
        """
    )
    assert (done.returncode, done.stdout) == (0, "status 3\n" * len(commands)), done
    assert done.stderr.splitlines() == [
        f"kafkafs: {machine.mount}: only the user who mounted it may use it. Try: "
        f"sudo -u nobody kafkafs {words}"
        for words in commands
    ]


def refused(machine: Machine, break_it: str, options: str = "rw") -> str:
    """The line of a mount by nobody that fails after `break_it`."""
    done = machine.run(
        f"""
        {break_it}
        as_nobody "$PYTHON" -c "$PROGRAM" mount -o {options} data mnt && exit 1 || [ $? = 78 ]
        """
    )
    assert (done.returncode, done.stdout) == (0, ""), done
    (line,) = done.stderr.splitlines()
    return line.removeprefix("kafkafs: ")


@pytest.mark.parametrize("options", ["rw", "ro"])
def test_a_directory_that_nobody_else_can_look_into(machine: Machine, options: str) -> None:
    """It may be anything, like root's home: it is not given away."""
    data = machine.data
    assert refused(machine, "chown nobody mnt; chmod 700 data", options) == (
        f"{data}: Permission denied: {data} belongs to root, but the daemon runs as nobody; "
        "mount it as root"
    )


def test_a_brokers_directory_stays_the_brokers(machine: Machine) -> None:
    data = machine.data
    line = refused(machine, "chown nobody mnt; chown -R daemon data; touch data/meta.properties")
    assert line == (
        f"{data}/.lock: Permission denied: {data} belongs to daemon, but the daemon runs as "
        "nobody; "
        "mount it as daemon"
    )


def test_a_brokers_directory_that_its_group_reads(machine: Machine) -> None:
    data = machine.data
    broken = "chown nobody mnt; mkdir data/orders-0; chown -R daemon:daemon data; chmod 750 data"
    assert refused(machine, broken, "ro") == (
        f"{data}: Permission denied: {data} belongs to daemon, but the daemon runs as nobody; "
        "as root: usermod -aG daemon nobody  (and log in again)"
    )
    member = "setpriv --reuid=nobody --regid=nogroup --groups=daemon"
    done = machine.run(f'{member} "$PYTHON" -c "$PROGRAM" mount -o ro data mnt; umount -i mnt')
    assert (done.returncode, done.stderr) == (0, "")


def test_ones_own_data_directory_without_the_right_to_write(machine: Machine) -> None:
    line = mended(machine, "chown nobody mnt data; chmod 500 data", by="denied: ")
    assert line == f"{machine.data}/.lock: Permission denied: chmod -R u+rwX {machine.data}"


def test_a_data_directory_that_another_user_must_make(machine: Machine) -> None:
    line = mended(machine, "chown nobody mnt; rmdir data", "create")
    assert line == (
        f"{machine.data}: cannot create it: Permission denied: "
        f"as root: install -d -m 750 -o nobody {machine.data}"
    )


def test_a_data_directory_on_a_read_only_file_system(machine: Machine) -> None:
    done = machine.run("mount --bind -o ro data data; kafkafs mount data mnt")
    assert done.returncode == os.EX_CONFIG
    assert done.stderr == (
        f"kafkafs: {machine.data}/.lock: Read-only file system: to mount it read-only: -o ro\n"
    )
    done = machine.run("mount --bind -o ro data data; kafkafs mount -o ro data mnt; umount -i mnt")
    assert done.returncode == 0, done


def test_a_mount_point_of_another_user(machine: Machine) -> None:
    assert mended(machine, "chown nobody data") == (
        f"{machine.mount}: cannot mount: fusermount3: user has no write access to mountpoint "
        f"{machine.mount}: as root: chown nobody {machine.mount}"
    )


def test_others_that_are_not_let_in(machine: Machine) -> None:
    line = mended(machine, "chown nobody data mnt; : > /etc/fuse.conf", "allow_other")
    assert re.fullmatch(
        rf"{machine.mount}: cannot mount: fusermount3: option allow_other only allowed if "
        "'user_allow_other' is set in /etc/fuse.conf: "
        "as root: echo user_allow_other >> /etc/fuse.conf",
        line,
    )


def test_a_device_that_may_not_be_opened(machine: Machine) -> None:
    """Doctor knows all about devices."""
    done = machine.run(
        """
        chown nobody data mnt
        chmod 600 /dev/fuse
        as_nobody "$PYTHON" -c "$PROGRAM" mount data mnt || true
        as_nobody "$PYTHON" -c "$PROGRAM" doctor | grep -A 1 ^wrong
        """
    )
    assert done.stderr.endswith("Permission denied. To find the cause: kafkafs doctor\n"), done
    assert done.stdout.splitlines() == [
        "wrong  fuse-device: /dev/fuse: Permission denied",
        "       sudo chmod 0666 /dev/fuse",
    ]


def test_without_fusermount3(machine: Machine) -> None:
    """Root can mount without it, and not unmount."""
    done = machine.run(
        """
        mount -t tmpfs -o mode=755 tmpfs /run
        mkdir -m 755 /run/upper /run/work
        bin=$(readlink -f /bin)
        mount -t overlay overlay -o "lowerdir=$bin,upperdir=/run/upper,workdir=/run/work" "$bin"
        rm "$bin/fusermount3"
        chown nobody data mnt
        as_nobody "$PYTHON" -c "$PROGRAM" mount data mnt || true
        kafkafs mount data mnt
        kafkafs umount mnt || true
        umount -i "$MNT"
        """
    )
    assert done.stderr.splitlines() == [
        f"kafkafs: {machine.mount}: cannot mount: fuse: failed to exec fusermount3: "
        "No such file or directory: as root: apt-get install fuse3",
        "kafkafs: fusermount3 is not installed. As root: apt-get install fuse3",
    ]
