"""mount(8), umount(8) and fstab with kafkafs, through the programs in /sbin."""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.machine import Machine
from tests.mount.mounting import check_data, needs_root

pytestmark = needs_root

MARKER = ".kafka_cleanshutdown"


@pytest.fixture
def machine() -> Iterator[Machine]:
    # Not tmp_path: that lies in a directory that is open to root alone.
    with tempfile.TemporaryDirectory(prefix="kafkafs-machine-") as directory:
        Path(directory).chmod(0o755)
        yield Machine(Path(directory))


def test_by_type(machine: Machine) -> None:
    assert machine.lines(
        """
        mount -t kafkafs data mnt
        findmnt --noheadings --raw --output FSTYPE,SOURCE "$MNT"
        mkdir mnt/orders
        echo kept >> mnt/orders/0
        umount mnt
        ls mnt
        mount -v -t fuse.kafkafs data mnt
        cat mnt/orders/0
        umount -v mnt
        """
    ) == [
        f"fuse.kafkafs {machine.data}",
        f"mounted {machine.data} on {machine.mount}, 1 topic, read-write",
        "kept",
        f"{machine.mount} unmounted",
    ]
    check_data(machine.data)


#: Prints the daemons that run.
RUNNING = "ps --format stat=,comm= -C kafkafs | grep -v ^Z || true"


@pytest.mark.parametrize(
    ("start", "end"),
    [
        ("mount -t kafkafs", 'umount "$MNT"'),
        ("kafkafs mount", "umount --force mnt"),
    ],
)
def test_umount_returns_when_all_is_written_and_the_daemon_has_ended(
    machine: Machine, start: str, end: str
) -> None:
    assert machine.lines(
        f"""
        {start} data mnt > /dev/null
        mkdir mnt/orders
        seq 100000 >> mnt/orders/0
        {end}
        {RUNNING}
        ls data/{MARKER}
        [ ! -s /run/mount/utab ]
        """
    ) == [f"data/{MARKER}"]
    check_data(machine.data)


def test_umount_of_one_place_of_two_waits_for_no_end(machine: Machine) -> None:
    """By a bind mount, or in another mount namespace: the daemon goes on for that."""
    done = machine.run(
        f"""
        mount -t kafkafs data mnt
        daemon=$(pgrep --exact kafkafs)
        mkdir mnt/orders bound
        mount --bind mnt bound
        umount bound
        echo kept >> mnt/orders/0
        mkfifo entered
        unshare --mount --propagation private sh -c 'echo > entered; exec sleep infinity' &
        container=$!
        read -r < entered
        umount mnt
        kill $container
        tail --pid="$daemon" -f /dev/null
        {RUNNING}
        echo "$daemon $container"
        """
    )
    assert done.returncode == 0, done
    daemon, container = done.stdout.split()
    at = machine.base
    goes_on = f"unmounted; the daemon (process {daemon}) still serves {at}/mnt"
    assert done.stderr.splitlines() == [
        f"kafkafs: {at}/bound: {goes_on}",
        f"kafkafs: {at}/mnt: {goes_on} (as process {container} sees it)",
    ]
    assert (machine.data / MARKER).exists()


def test_a_lazy_umount_returns_at_once(machine: Machine) -> None:
    assert machine.lines(
        """
        mount -t kafkafs data mnt
        mkdir mnt/orders
        exec 3>> mnt/orders/0
        umount --lazy "$MNT"
        ls mnt
        echo kept >&3
        daemon=$(pgrep --exact kafkafs)
        exec 3>&-
        tail --pid="$daemon" -f /dev/null
        mount -t kafkafs data mnt
        cat mnt/orders/0
        """
    ) == ["kept"]


def test_what_an_ended_or_killed_daemon_left(machine: Machine) -> None:
    """The next mount and umount work, and libmount's table has one line for a mount."""
    assert machine.lines(
        """
        for how in -TERM -KILL -KILL; do
            mount -t kafkafs data mnt
            [ "$(wc --lines < /run/mount/utab)" = 1 ]
            mkdir -p mnt/orders
            echo $how >> mnt/orders/0
            daemon=$(pgrep --exact kafkafs)
            kill $how "$daemon"
            tail --pid="$daemon" -f /dev/null
        done
        umount mnt
        ls mnt
        [ ! -s /run/mount/utab ]
        mount -t kafkafs data mnt
        cat mnt/orders/0
        """
    ) == ["-TERM", "-KILL", "-KILL"]


def test_umount_of_a_busy_mount_names_who_uses_it(machine: Machine) -> None:
    done = machine.run(
        """
        mount -t kafkafs data mnt
        mkdir mnt/orders
        exec 3>> mnt/orders/0
        umount mnt && exit 1
        echo "status $?"
        """
    )
    assert (done.returncode, done.stdout) == (0, "status 32\n"), done
    (line,) = done.stderr.splitlines()
    assert "busy" in line
    assert "bash " in line
    assert "(process 1: orders/0)" in line, "and what it has started"
    assert line.endswith(". To unmount when they end: --lazy")


def test_what_mount_hands_on(machine: Machine) -> None:
    shown = machine.lines(
        """
        shown() { findmnt --noheadings --output OPTIONS mnt; grep "$1" mnt/.kafkafs/config; }
        mount -t kafkafs data mnt; shown show_dot; umount mnt
        mount -t kafkafs -o defaults,auto,nofail,_netdev,user,x-foo=1,show_dot,allow_other data mnt
        shown show_dot; umount mnt
        mount -r -s -t kafkafs -o noatime,nosuch,nosuch=2 data mnt; shown ^ro; umount mnt
        mount -f -t kafkafs -o ro data mnt
        ls mnt
        """
    )
    options, configured = [set(line.split(",")) for line in shown[::2]], shown[1::2]
    plain, fstab, read_only = options
    assert {"rw", "nosuid", "nodev"} <= plain
    assert not {"noexec", "allow_other"} & plain
    assert {"rw", "noexec", "nosuid", "nodev", "allow_other"} <= fstab, "`user` means three of them"
    assert {"ro", "noatime", "nosuid", "nodev"} <= read_only
    assert configured == ["# show_dot=false (default)", "show_dot=true", "ro=true"]


def test_an_unknown_option_is_refused_and_all_are_listed(machine: Machine) -> None:
    done = machine.run(
        """
        mount -t kafkafs -o nosuch=2 data mnt || echo "status $?"
        findmnt mnt || echo nothing
        """
    )
    assert done.stdout.splitlines() == ["status 1", "nothing"], done
    meant = "did you mean 'nosuid'? (valid: ro, rw, until=, "
    assert f"unknown mount option 'nosuch=2': {meant}" in done.stderr
    assert list(machine.data.iterdir()) == []


def test_what_cannot_be_mounted_is_one_line(machine: Machine) -> None:
    done = machine.run('mount -t kafkafs "$BASE/none" mnt || echo "status $?"')
    assert done.stdout == "status 32\n", done
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"kafkafs: {machine.base}/none: ")


def test_remount_is_refused_and_starts_no_second_daemon(machine: Machine) -> None:
    done = machine.run(
        """
        mount -t kafkafs data mnt
        mkdir mnt/orders
        mount -o remount,ro mnt && exit 1
        echo "status $?"
        pgrep --exact --count kafkafs
        findmnt --noheadings --raw --output FSTYPE mnt
        echo kept >> mnt/orders/0
        """
    )
    assert done.stdout.splitlines() == ["status 1", "1", "fuse.kafkafs"], done
    assert done.returncode == 0
    assert "the options of a mount cannot be changed. Unmount it, and mount it again" in done.stderr


def test_fstab(machine: Machine) -> None:
    machine.fstab.write_text(
        f"{machine.data} {machine.mount} kafkafs nofail,show_dot,x-systemd.automount 0 0\n"
    )
    assert machine.lines(
        """
        mount --all
        mkdir mnt/orders
        ls -A mnt
        mount --all
        pgrep --exact --count kafkafs
        umount mnt
        ls mnt
        """
    ) == [".groups", ".kafkafs", "orders", "1"]


def test_fstabs_user_mounts_and_unmounts(machine: Machine) -> None:
    machine.fstab.write_text(f"{machine.data} {machine.mount} kafkafs user,noauto 0 0\n")
    assert machine.lines(
        """
        chown nobody data mnt
        as_nobody mount "$MNT"
        as_nobody mkdir mnt/orders
        findmnt --noheadings --raw --output FSTYPE mnt
        ps --format user= -C kafkafs
        as_nobody umount "$MNT"
        ! pgrep --exact kafkafs
        ls mnt
        """
    ) == ["fuse.kafkafs", "nobody"]
    assert (machine.data / MARKER).exists()


def test_root_mounts_as_a_user(machine: Machine) -> None:
    machine.fstab.write_text(
        f"{machine.data} {machine.mount} kafkafs setuid=nobody,allow_other 0 0\n"
    )
    assert machine.lines(
        """
        chown nobody data mnt
        mount --all
        ps --format user=,group=,supgrp= -C kafkafs
        mkdir mnt/orders
        echo kept >> mnt/orders/0
        stat --format=%U data/orders-0
        umount mnt
        """
    ) == ["nobody   nogroup  nogroup", "nobody"]
    assert (machine.data / MARKER).exists()
    done = machine.run("mount -t kafkafs -o setuid=nosuch data mnt || as_nobody $0 || true")
    assert done.stderr == (
        "kafkafs: setuid=nosuch: no such user. To create it: useradd --system nosuch\n"
    )
    done = machine.run('as_nobody $PYTHON -c "$PROGRAM" mount -o setuid=root data mnt || true')
    assert done.stderr == "kafkafs: setuid=root: only root may mount as another user\n"


def test_a_python_that_the_user_cannot_read_is_named_in_one_line(machine: Machine) -> None:
    """It is installed below a directory that is open to root alone, such as /root."""
    done = machine.run(
        """
        mkdir closed
        chmod 700 closed
        chown nobody data mnt
        "$PYTHON" -m venv --without-pip closed/venv
        packages=$(echo closed/venv/lib/python3.*/site-packages)
        ln -s "$PACKAGES"/* "$PYTHONPATH"/{kafka_client,kafkafs,storage} "$packages"
        rm "$packages"/*.pth
        unset PYTHONPATH
        for start in "" --foreground; do
            closed/venv/bin/python -c "$PROGRAM" mount $start -o setuid=nobody data mnt && exit 9
        done
        ls -A data mnt
        """,
        PACKAGES=sysconfig.get_path("purelib"),
    )
    closed = f"{machine.base}/closed"
    assert done.stderr.splitlines() == 2 * [
        f"kafkafs: setuid=nobody: nobody cannot read Python's modules below {closed}. Install "
        f"Python and kafkafs in another directory, such as /opt, or as root: chmod o+x {closed}"
    ]
    assert done.stdout == "data:\n\nmnt:\n"


def test_roots_environment_is_not_shown_to_the_user(machine: Machine) -> None:
    """The user may read the environment with which the daemon's process began."""
    kept = ["HOME", "LC_ALL", "LOGNAME", "NOTIFY_SOCKET", "PATH", "TZ", "USER", "XDG_CACHE_HOME"]
    shown = machine.lines(
        """
        chown nobody data mnt
        kafkafs mount -o setuid=nobody,allow_other data mnt > /dev/null
        as_nobody cat /proc/$(pgrep --exact kafkafs)/environ | tr '\\0' '\\n'
        """,
        SECRET="not for nobody",
        AWS_SECRET_ACCESS_KEY="neither",
        **{name: f"/{name}" for name in kept if name not in ("LC_ALL", "PATH")},
    )
    found = dict(line.split("=", 1) for line in shown)
    assert sorted(found) == kept
    assert (found["USER"], found["TZ"]) == ("nobody", "/TZ")


def test_the_environment_loads_no_code_into_the_helpers(machine: Machine) -> None:
    (machine.base / "code").mkdir()
    (machine.base / "code/kafkafs.py").write_text("raise SystemExit('loaded')\n")
    assert (
        machine.lines(
            """
        cd code
        mount -t kafkafs ../data ../mnt
        umount ../mnt
        ls ../mnt
        """,
            PYTHONPATH=machine.base / "code",
            PYTHONHOME="/nowhere",
        )
        == []
    )


def test_allow_root_lets_root_in_and_nobody_else(machine: Machine) -> None:
    done = machine.run(
        """
        chown nobody data mnt
        seen() {
            ls mnt > /dev/null && echo root
            setpriv --reuid=12345 --regid=12345 --clear-groups ls mnt > /dev/null && echo others
            echo -
        }
        for option in allow_root allow_other; do
            as_nobody "$PYTHON" -c "$PROGRAM" mount -o $option data mnt
            seen
            as_nobody "$PYTHON" -c "$PROGRAM" umount mnt
        done
        """
    )
    seen = [line for line in done.stdout.splitlines() if not line.startswith("mounted")]
    assert seen == ["root", "-", "root", "others", "-"], done
