"""`kafkafs doctor`: each finding is provoked, and named with what mends it."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from kafkafs import mount_table
from kafkafs.cli import LazyGroup, main
from storage import LogManager
from storage.state import mirror_file
from storage.state.mirror_file import MirroredPartition, MirrorFile
from tests import metadata_log as made
from tests.file_systems import file_system, fill_bytes
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, ending, kafkafs
from tests.metadata_log import MetadataLog
from tests.mount.mounting import needs_root
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.logs import append

#: A user of no name.
USER = 54321
Findings = dict[str, list[tuple[str, str, str]]]


def read(done: subprocess.CompletedProcess[str]) -> Findings:
    """Check -> (state, what, mend) of each finding; of a check that finds nothing, none."""
    assert done.stderr == "", done.stderr
    said: dict[str, Any] = json.loads(done.stdout)["result"]
    found: Findings = {}
    for row in said["checks"]:
        finding = (row["state"], row["what"], row["mend"])
        found.setdefault(row["check"], []).extend([finding] if row["state"] != "ok" else [])
    states = [state for each in found.values() for state, _, _ in each]
    assert (said["wrong"], said["hints"]) == (states.count("wrong"), states.count("hint"))
    assert done.returncode == (1 if said["wrong"] else 0)
    return found


def doctor(*arguments: object, before: str = "", user: int | None = None) -> Findings:
    """Run doctor. A script `before` runs first in its shell, in a mount namespace of its own."""
    command = [*KAFKAFS, "doctor", "--json", *map(str, arguments)]
    if before or user is not None:
        as_user = "" if user is None else f"setpriv --reuid={user} --regid={user} --clear-groups "
        script = f'set -e\n{before}\nexec {as_user}"$@"'
        command = ["unshare", "--mount", "sh", "-c", script, "sh", *command]
    return read(subprocess.run(command, capture_output=True, text=True, cwd=ROOT))


def one(found: Findings, check: str) -> tuple[str, str, str]:
    """The only finding of a check."""
    (finding,) = found[check]
    return finding


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory with a topic."""
    directory = tmp_path / "data"
    directory.mkdir()
    with LogManager.open(str(directory)) as manager:
        manager.create_topic("orders", 1)
    return directory


# -- where nothing is wrong ------------------------------------------------------------------------


@pytest.mark.programs
def test_nothing_is_wrong(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    for given in (place.data, place.path, place.path / "orders"):
        found = doctor(given)
        assert not any(found.values()), found
        assert {"fuse-device", "file-system", "lock", f"mount {place.path}"} <= found.keys()
    done = kafkafs("doctor", place.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"{len(found)} checks: 0 wrong, 0 hints"
    link = place.path.parent / "link"
    link.symlink_to(place.path)
    assert f"mount {place.path}" in doctor(link)


@pytest.mark.programs
def test_what_is_wrong_is_said_with_the_line_that_mends_it(data: Path) -> None:
    wrong = data.parent / "nowhere"
    done = kafkafs("doctor", wrong)
    assert done.returncode == 1
    *_, what, mend, count = done.stdout.splitlines()
    assert what == f"wrong  data-directory: {wrong}: no such data directory"
    assert mend == f"       mkdir {wrong}"
    assert count.endswith("checks: 1 wrong, 0 hints")
    assert not {"space", "lock", "settings"} & doctor(wrong).keys()


# -- this machine ----------------------------------------------------------------------------------


# (Each of these starts takes long, so each machine has several faults.)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory for $PATH that has no fusermount3."""
    path = tmp_path / "programs"
    path.mkdir()
    shutil.copy(sys.executable, path)
    for name in ("sh", "setpriv"):
        shutil.copy(shutil.which(name) or name, path)
    for directory in (tmp_path, *tmp_path.parents[:-2]):
        directory.chmod(0o755)
    return path


def broken(programs: Path, make: str, user: int | None = None) -> Findings:
    """Run doctor with only /dev/null in /dev, an empty fuse.conf and these programs.

    `make`: shell commands that run first.
    """
    conf = programs / "fuse.conf"
    conf.touch()
    before = f"mount --bind {conf} /etc/fuse.conf; mount -t tmpfs none /dev; "
    before += f"mknod -m 666 /dev/null c 1 3; {make}; export PATH={programs}"
    return doctor(before=before, user=user)


@needs_root
@pytest.mark.programs
def test_a_machine_without_fuse(programs: Path) -> None:
    program = "import pyfuse3; print(open('/proc/self/maps').read())"
    maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    library = next(line.split()[-1] for line in maps.splitlines() if "libfuse3" in line)
    (empty := programs / "empty").touch()
    found = broken(programs, f"mount --bind {empty} {library}; ulimit -n 500; ulimit -f 1000")
    state, what, mend = one(found, "fuse-device")
    assert (state, "No such file or directory" in what) == ("wrong", True)
    in_container = any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv")))
    assert "modprobe fuse" in mend or (in_container and "--device /dev/fuse" in mend)
    assert one(found, "fusermount3") == (
        *("wrong", "fusermount3 is not in $PATH"),
        "apt-get install fuse3",
    )
    state, what, mend = one(found, "libfuse")
    assert (state, "libfuse3" in what) == ("wrong", True)
    assert "apt-get install fuse3" in mend
    assert found["allow-other"] == [], "root may"
    state, what, mend = one(found, "open-files")
    assert (state, "at most 500 files" in what, "prlimit" in mend) == ("wrong", True, True)
    state, what, mend = one(found, "file-size")
    assert (state, "KiB: appends beyond that" in what, "prlimit" in mend) == ("wrong", True, True)


@needs_root
@pytest.mark.programs
def test_another_device_and_a_fusermount_for_root(programs: Path) -> None:
    (programs / "fusermount3").write_text("#!/bin/sh\n")
    (programs / "fusermount3").chmod(0o755)
    found = broken(programs, "touch /dev/fuse")
    state, what, mend = one(found, "fuse-device")
    assert (state, "is not the FUSE device" in what) == ("wrong", True)
    assert "mknod -m 0666 /dev/fuse c 10 229" in mend
    assert found["fusermount3"] == []


@needs_root
@pytest.mark.programs
def test_a_user_who_may_not_mount(programs: Path) -> None:
    (programs / "fusermount3").write_text("#!/bin/sh\n")
    (programs / "fusermount3").chmod(0o755)
    (programs / "fuse.conf").write_text("#user_allow_other\n")
    found = broken(programs, "mknod -m 600 /dev/fuse c 10 229", user=USER)
    state, what, mend = one(found, "fuse-device")
    assert (state, "Permission denied" in what) == ("wrong", True)
    assert "chmod 0666 /dev/fuse" in mend
    state, what, mend = one(found, "fusermount3")
    assert (state, what.split(":")[0]) == (
        "wrong",
        f"{programs}/fusermount3 is not setuid root, so only root can mount",
    )
    assert mend.startswith("sudo ")
    state, what, mend = one(found, "allow-other")
    assert (state, "user_allow_other" in what) == ("hint", True)
    assert "echo user_allow_other >> /etc/fuse.conf" in mend
    (programs / "fuse.conf").write_text("mount_max = 10\nuser_allow_other\n")
    assert broken(programs, "true", user=USER)["allow-other"] == []


@needs_root
@pytest.mark.parametrize(
    ("without", "what", "mend"),
    [
        (
            "--bounding-set=-sys_admin",
            "mounting requires CAP_SYS_ADMIN, which this process does not have",
            "start the container with: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
        (
            f"--reuid={USER} --clear-groups --bounding-set=-sys_admin",
            "mounting requires CAP_SYS_ADMIN, which this process does not have",
            "start the container with: --device /dev/fuse --cap-add SYS_ADMIN",
        ),
        (
            f"--reuid={USER} --clear-groups --no-new-privs",
            "fusermount3 cannot mount: this process has NoNewPrivs set",
            "in a unit: NoNewPrivileges=no; in a container: --security-opt no-new-privileges=false",
        ),
    ],
)
@pytest.mark.programs
def test_the_right_to_mount(without: str, what: str, mend: str) -> None:
    before = f'set -- setpriv {without} "$@"'
    assert one(doctor(before=before), "mount-right") == ("wrong", what, mend)


# -- mounts ----------------------------------------------------------------------------------------


@pytest.mark.programs
def test_a_mount_whose_daemon_has_ended(place: Place) -> None:
    place.mount()
    with ending(pid := place.pid):
        os.kill(pid, signal.SIGKILL)
    mend = f"kafkafs umount {place.path}"
    for given in ([], [place.path], [place.data]):
        state, what, mends = one(doctor(*given), f"mount {place.path}")
        assert (state, mends) == ("wrong", mend)
        assert "has exited; the mount is dead" in what
    assert kafkafs(*mend.split()[1:]).returncode == 0
    assert mount_table.find(str(place.path)) is None


@pytest.mark.programs
def test_a_mount_whose_daemon_is_stopped(place: Place) -> None:
    place.mount()
    pid = place.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        found = doctor(place.path)
        assert one(found, f"mount {place.path}") == (
            *("wrong", f"the daemon of {place.path}, process {pid}, is stopped"),
            f"kill -CONT {pid}",
        )
        assert one(found, "lock")[2] == f"kill -CONT {pid}"
        assert doctor(place.data / ".." / "mnt") == found
    finally:
        os.kill(pid, signal.SIGCONT)
    assert doctor(place.path)["lock"] == []


@needs_root
@pytest.mark.programs
def test_read_ahead(place: Place) -> None:
    place.mount()
    mounted = mount_table.find(str(place.path))
    assert mounted is not None
    setting = Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb")
    setting.write_text("128")
    state, what, mend = one(doctor(place.path), f"mount {place.path}")
    assert (state, "is 128 KiB instead" in what) == ("hint", True)
    assert subprocess.run(["sh", "-c", mend.replace("sudo ", "")], capture_output=True).stdout
    assert setting.read_text() == "1024\n"


# -- a data directory ------------------------------------------------------------------------------


@pytest.mark.programs
def test_what_is_no_data_directory(data: Path, tmp_path: Path) -> None:
    state, what, mend = one(doctor(data / "orders-0"), "data-directory")
    assert (state, mend) == ("wrong", f"kafkafs doctor {data}")
    others = tmp_path / "others"
    others.mkdir()
    (others / "a letter").touch()
    state, what, _ = one(doctor(others), "data-directory")
    assert (state, "none of Kafka or kafkafs" in what) == ("wrong", True)
    assert doctor(data)["data-directory"] == []


@needs_root
@pytest.mark.programs
def test_a_directory_of_another_user(data: Path) -> None:
    for directory in (data, *data.parents[:-2]):
        directory.chmod(0o755)
    state, what, mend = one(doctor(data, user=USER), "data-directory")
    assert (state, "no permission to write it; it belongs to user 0" in what) == ("wrong", True)
    assert mend == f"sudo kafkafs mount {data} MOUNT  (or: -o ro)"
    os.chown(data, USER + 1, -1)
    assert one(doctor(data, user=USER), "data-directory")[2].startswith(f"sudo -u '#{USER + 1}' ")
    os.chown(data, pwd.getpwnam("daemon").pw_uid, -1)
    data.chmod(0o700)
    state, what, mend = one(found := doctor(data, user=USER), "data-directory")
    assert (state, what) == ("wrong", f"{data}: Permission denied")
    assert mend == f"sudo -u daemon kafkafs doctor {data}"
    assert not {"space", "lock", "settings"} & found.keys()


@pytest.mark.programs
def test_a_directory_that_others_may_write(data: Path) -> None:
    data.chmod(0o1777)
    state, what, mend = one(doctor(data), "other-users")
    assert (state, what.partition(":")[0], mend) == ("wrong", str(data), f"chmod o-w {data}")
    data.chmod(0o775)
    assert doctor(data)["other-users"] == []


@pytest.mark.programs
def test_a_mirror(data: Path) -> None:
    make_mirror(data)
    assert one(doctor(data), "mirror") == (
        *("hint", f"{data}: the mirror of kafka://one:9092 is not running"),
        f"kafkafs mirror kafka://one:9092 {data}",
    )
    with LogManager.open(str(data), mirrors=True) as manager:
        assert doctor(data)["mirror"] == []
        waits = MirroredPartition(state="waiting", reason="wrong CRC")
        parts = {("a", 0): MirroredPartition(), ("a", 1): waits}
        source = MirrorFile("C", "kafka://one:9092", ("*",), {"a": "-"}, parts)
        mirror_file.write(manager.files, str(data), source)
        assert one(doctor(data), "mirror") == (
            *("wrong", "a:1: the mirror copies nothing: wrong CRC"),
            f"kafkafs describe {data} a",
        )
    (data / "kafkafs.mirror").write_text("version 1\n")
    assert one(doctor(data), "mirror")[2] == f"kafkafs detach {data}  (ends the mirror)"


def tells_at_once(path: Path) -> bool:
    """Whether its file system knows what is in the page cache."""
    with path.open("rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            return False
    return True


@needs_root
@pytest.mark.programs
def test_a_file_system_that_cannot_be_written_or_is_slow_to_tell(tmp_path: Path) -> None:
    with file_system("tmpfs", tmp_path, 8 << 20) as disk:
        (disk / "file").write_text("x")
        tells = tells_at_once(disk / "file")
        found = doctor(disk)["file-system"]
        assert [state for state, *_ in found] == ([] if tells else ["hint"])
        assert all("RWF_NOWAIT" in what and "ext4" in mend for _, what, mend in found)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        state, what, mend = doctor(disk)["file-system"][0]
        assert (state, what) == ("wrong", f"{disk} (tmpfs) is mounted read-only")
        assert mend.startswith(f"mount -o remount,rw {disk}")


@needs_root
@pytest.mark.parametrize(
    ("settings", "said", "mend"),
    [
        # One large segment, and nothing that limits it.
        ({}, "retention.bytes and retention.ms are not set", r" retention\.ms=3600000  \(frees 28"),
        # Two segments: half of it can go.
        (
            {"segment.bytes": "16000000"},
            "28.6MiB are in 2 segments",
            r" retention\.bytes=\d+ && kafkafs prune \S+ orders  \(frees 1",
        ),
        # Something goes already.
        ({"retention.bytes": "20000000"}, " now", r"^kafkafs prune \S+  \(frees [\d.]+MiB\)$"),
        ({"cleanup.policy": "none"}, "deletes nothing by age", r"^kafkafs delete \S+ orders  "),
        # Commands do not change a mirror.
        (None, " are free", r"^echo log\.retention\.bytes=BYTES >> \S+/kafkafs\.properties  "),
    ],
)
@pytest.mark.programs
def test_what_frees_room_on_a_full_disk(
    tmp_path: Path, settings: dict[str, str] | None, said: str, mend: str
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with file_system("ext4", base, 64 << 20, inodes=1000) as disk:
        data = disk / "data"
        data.mkdir()
        with LogManager.open(str(data)) as manager:
            log = manager.create_topic("orders", 1).partitions[0]
            manager.change_topic_settings("orders", settings or {})
            for _ in range(30):
                append(log, b"x" * 1_000_000, timestamp_ms=time.time_ns() // 1_000_000)
            (Path(log.directory) / f"{0:020}.words").write_bytes(bytes(100_000))
        if settings is None:
            make_mirror(data)
        fill_bytes(disk)
        state, what, line = one(doctor(data), "space")
        assert (state, said in what) == ("wrong", True), what
        assert f"the .words files have 97.7KiB (kafkafs words --remove {data} deletes them)" in what
        assert re.search(mend, line), line


@needs_root
@pytest.mark.programs
def test_a_full_disk_and_what_is_kept_for_it(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    with file_system("ext4", base, 64 << 20, inodes=1000) as disk:
        here = Place(disk)
        here.mount()
        try:
            assert doctor(here.data)["reserve"] == []
            parts = sorted(here.data.glob("kafkafs.reserve.*"))
            parts[0].unlink()
            filler = fill_bytes(disk)
            found = doctor(here.path)
            state, what, mend = one(found, "reserve")
            assert (state, what.split(" are")[0]) == ("wrong", "1 of 8 parts of the disk reserve")
            assert mend == f"du -xhd1 {disk} | sort -h", "there is nothing of ours to delete"
            assert one(found, "space")[0] == "wrong"
            filler.unlink()
            with filler.open("wb") as file:
                found_free = os.statvfs(disk)
                os.posix_fallocate(
                    file.fileno(), 0, found_free.f_bavail * found_free.f_frsize - (2 << 20)
                )
            state, what, _ = one(doctor(here.path), "space")
            assert (state, re.match(r"[0-9.]+MiB of [0-9.]+MiB are free", what) is not None) == (
                "hint",
                True,
            )
            filler.unlink()
            while os.statvfs(disk).f_favail:
                (disk / f"file-{os.statvfs(disk).f_favail}").touch()
            state, what, mend = one(doctor(here.path), "inodes")
            assert (state, "inodes are free on" in what) == ("wrong", True)
            assert mend.startswith("du --inodes")
        finally:
            here.end()


@pytest.mark.programs
def test_a_lock_without_a_mount(place: Place) -> None:
    place.mount()
    pid = place.pid
    (place.path / "orders").mkdir()
    with ending(pid), (place.path / "orders/0").open("rb"):
        assert kafkafs("umount", "--lazy", place.path).returncode == 0
        state, what, mend = one(doctor(place.data), "lock")
        assert (state, mend) == ("wrong", f"kill {pid}")
        assert f"its mount at {place.path} was unmounted" in what
    assert doctor(place.data)["lock"] == []


@pytest.mark.programs
def test_a_clock_that_is_behind(data: Path) -> None:
    log = next((data / "orders-0").glob("*.log"))
    future = time.time() + 3600
    os.utime(log, (future, future))
    state, what, mend = one(doctor(data), "clock")
    assert (state, what.startswith(f"{log} was written 3")) == ("wrong", True)
    assert "timedatectl set-ntp true" in mend


@pytest.mark.programs
def test_settings_of_a_broker_that_are_not_known(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with LogManager.open(str(data)) as manager:
        topic_id = manager.create_topic("orders", 1).id
    (data / "meta.properties").write_text("version=1\nnode.id=1\n")
    state, what, mend = one(doctor(data), "settings")
    assert (state, "nothing is deleted or compacted in orders" in what) == ("wrong", True)
    MetadataLog(data).append(made.topic("orders", topic_id))
    state, what, mend = one(doctor(data), "settings")
    server = tmp_path / "server.properties"
    server.touch()
    assert mend == f"kafkafs config {data} --broker-config FILE"
    assert kafkafs(*mend.replace("FILE", str(server)).split()[1:]).returncode == 0
    assert doctor(data)["settings"] == []


@pytest.mark.programs
def test_settings_that_cannot_be_read(data: Path) -> None:
    (data / "kafkafs.properties").write_text("retention.ms=never\n")
    found = doctor(data)
    state, what, mend = one(found, "settings")
    assert (state, "kafkafs.properties" in what) == ("wrong", True)
    assert mend == f"${{EDITOR:-vi}} {data}/kafkafs.properties"
    assert "private-topics" not in found


@pytest.mark.programs
def test_private_topics_in_open_files(place: Place) -> None:
    place.mount()
    (place.path / "secret").mkdir(mode=0o700)
    (place.path / "orders").mkdir()
    assert doctor(place.data)["private-topics"] == []
    directory = place.data / "secret-0"
    for path in (place.data, directory, *directory.iterdir()):
        path.chmod(0o755)
    state, what, mend = one(doctor(place.data), "private-topics")
    assert (state, "private partitions (1)" in what) == ("wrong", True)
    assert mend == f"chmod go= {directory}"
    subprocess.run(mend.split(), check=True)
    assert doctor(place.data)["private-topics"] == []


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A file system that never answers again."""
    path = tmp_path / "hanging"
    path.mkdir()
    program = [sys.executable, "-m", "tests.kafkafs.fuse.bare_file_system", str(path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mounted\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        try:
            yield path
        finally:
            process.kill()
            subprocess.run(["fusermount3", "-u", "-z", str(path)], check=True)


@pytest.mark.programs
def test_a_disk_that_hangs_is_named(hanging: Path) -> None:
    found = doctor(hanging / "data")
    for check in ("data-directory", "file-system", "space", "lock"):
        state, what, _ = one(found, check)
        assert (state, f"{hanging}" in what, "does not answer" in what) == ("wrong", True, True)
    assert found["open-files"] == []


def test_every_mending_command_is_one() -> None:
    """Each `kafkafs` command that doctor suggests exists."""
    words = set()
    for path in (ROOT / "kafkafs/cli/mounting/doctor").glob("*.py"):
        words |= set(re.findall(r"\"kafkafs ([a-z]+)", path.read_text()))
    assert isinstance(main, LazyGroup)
    assert words <= set(main.list_commands(click.Context(main)))
