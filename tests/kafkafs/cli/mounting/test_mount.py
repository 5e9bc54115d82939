"""`kafkafs mount` and `umount`: how a mount begins and ends."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import pty
import re
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs import mount_table
from kafkafs.fuse import mount_point
from tests.file_systems import unmount
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, ending, kafkafs
from tests.storage.directory.test_taking_over import described
from tests.waits import HANG_S

pytestmark = pytest.mark.programs


def failed(done: subprocess.CompletedProcess[str], status: int = 3) -> str:
    """The one line that a failed command has for the user."""
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.stderr.removesuffix("\n")


def misconfigured(done: subprocess.CompletedProcess[str]) -> str:
    """The same where trying again changes nothing: nobody's service manager should."""
    return failed(done, os.EX_CONFIG)


# -- beginning -----------------------------------------------------------------------------------


def test_mount_returns_when_the_mount_answers_and_umount_when_all_is_written(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    with open(place.path / "orders/0", "a") as partition:
        partition.write("hello\n")
    assert not place.was_closed_cleanly()
    with ending(place.pid):
        place.umount()
        assert place.was_closed_cleanly()
    assert os.listdir(place.path) == []
    place.mount()
    assert (place.path / "orders/0").read_text() == "hello\n"


def test_mount_says_what_it_did(place: Place) -> None:
    def said(*options: str) -> str:
        done = kafkafs("mount", place.data, place.path, *options)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.removeprefix(f"mounted {place.data} on {place.path}, ")

    assert said() == "0 topics, read-write\n"
    for topic in ("orders", "payments"):
        (place.path / topic).mkdir()
    # A topic that no listing has does not count.
    (place.path / ".groups/g").mkdir()
    (place.path / ".groups/g/orders/0").write_text("0\n")
    assert (place.path / "__consumer_offsets").is_dir()
    place.umount()
    assert said("-o", "ro") == "2 topics, read-only\n"
    place.umount()
    with place.foreground() as process:
        process.terminate()
        _, lines = process.communicate(timeout=HANG_S)
    assert f"kafkafs: mounted {place.data} on {place.path}, 2 topics, read-write\n" in lines


def test_the_mount_table_names_type_and_data_directory(place: Place) -> None:
    place.mount()
    mounted = mount_table.find(str(place.path))
    assert mounted is not None
    assert (mounted.type, mounted.source) == ("fuse.kafkafs", str(place.data))


def test_odd_names_of_directories(tmp_path: Path) -> None:
    for name in ("a, b\\", "día"):
        base = tmp_path / name
        base.mkdir()
        place = Place(base)
        try:
            place.mount()
            (place.path / "orders").mkdir()
            place.umount()
        finally:
            place.end()
        assert (place.data / "orders-0").is_dir()


def test_a_locale_with_another_encoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "día"
    base.mkdir()
    place = Place(base)
    place.mount()
    try:
        with monkeypatch.context() as environment:
            for name in ("PYTHONUTF8", "PYTHONCOERCECLOCALE"):
                environment.setenv(name, "0")
            environment.setenv("LC_ALL", "C")  # whose encoding is ASCII
            second = kafkafs("mount", place.data, place.path)
            listed = kafkafs("mounts")
            ended = kafkafs("umount", place.path)
    finally:
        place.end()
    assert "is already mounted here" in second.stderr
    assert (listed.returncode, listed.stderr) == (0, "")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_the_daemon_is_in_the_background(place: Place) -> None:
    place.mount()
    pid = place.pid
    assert os.getsid(pid) == pid != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert {os.readlink(f"/proc/{pid}/fd/{stream}") for stream in (0, 1, 2)} == {"/dev/null"}
    assert Path(f"/proc/{pid}/comm").read_text() == "kafkafs\n", "for ps, pgrep and top"


def test_limits_and_read_ahead_are_raised(place: Place) -> None:
    place.mount()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert resource.prlimit(place.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    mounted = mount_table.find(str(place.path))
    assert mounted is not None
    read_ahead = Path(f"/sys/class/bdi/{mounted.device}/read_ahead_kb")
    assert read_ahead.read_text() == "1024\n"


def test_a_second_mount_of_a_data_directory_names_the_holder(place: Place, tmp_path: Path) -> None:
    place.mount()
    other = tmp_path / "other"
    other.mkdir()
    line = failed(kafkafs("mount", place.data, other))
    assert f"in use by process {place.pid}" in line
    assert "in use by process" in failed(kafkafs("mount", "-f", place.data, other))


def test_the_daemon_keeps_no_file_of_its_caller_open(place: Place, tmp_path: Path) -> None:
    """Otherwise, a script that holds a lock while it mounts would never release it."""
    lock = tmp_path / "lock"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        command = [sys.executable, "-m", "kafkafs", "mount", str(place.data), str(place.path)]
        subprocess.run(command, check=True, capture_output=True, pass_fds=[file.fileno()], cwd=ROOT)
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


IGNORING = """
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.executable, [sys.executable, "-m", "kafkafs", *sys.argv[1:]])
"""


def test_a_caller_that_ignores_the_ends_of_children(place: Place, tmp_path: Path) -> None:
    """Commands inherit that, and still learn how the daemon and fusermount3 have ended."""

    def run(*words: object) -> str:
        command = [sys.executable, "-c", IGNORING, *map(str, words)]
        return failed(subprocess.run(command, capture_output=True, text=True, cwd=ROOT))

    place.mount()
    (place.path / "orders").mkdir()
    other = tmp_path / "other"
    other.mkdir()
    assert f"in use by process {place.pid}" in run("mount", place.data, other)
    with open(place.path / "orders/0"):
        assert "used by" in run("umount", place.path)


def test_a_mount_point_in_use_is_left_alone(place: Place, tmp_path: Path) -> None:
    place.mount()
    other = tmp_path / "other"
    other.mkdir()
    line = failed(kafkafs("mount", other, place.path))
    assert line == (
        f"kafkafs: {place.path}: {place.data} is already mounted here. "
        f"To unmount it: kafkafs umount {place.path}"
    )
    assert os.listdir(other) == []


def test_what_cannot_be_mounted(place: Place, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    file = tmp_path / "file"
    file.touch()
    inside = place.data / "inside"
    inside.mkdir()
    for wrong in (missing, file):
        line = misconfigured(kafkafs("mount", wrong, place.path))
        assert line.startswith(f"kafkafs: {wrong}: ")
        line = misconfigured(kafkafs("mount", place.data, wrong))
        assert line.startswith(f"kafkafs: {wrong}: ")
    for data, path in ((place.data, inside), (inside, place.data), (place.data, place.data)):
        assert "must not contain each other" in misconfigured(kafkafs("mount", data, path))
    assert not (place.data / ".lock").exists()


def test_settings_that_make_no_sense_are_one_line_and_change_nothing(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    place.umount()
    settings = place.data / "kafkafs.properties"
    settings.write_text("log.segment.bytes=x\n")
    done = kafkafs("mount", place.data, place.path)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stdout == f"mounted {place.data} on {place.path}, 1 topic, read-write\n"
    assert "nothing is deleted or compacted in orders" in done.stderr
    assert "line 1: log.segment.bytes=x is not a whole number" in done.stderr
    assert str(settings) in done.stderr
    with open(place.path / "orders/0", "a") as partition:
        partition.write("hello\n")
    for change in ((place.path / "more").mkdir, (place.path / "orders").rmdir):
        with pytest.raises(OSError, match="Input/output error"):
            change()
    place.umount()
    assert settings.read_text() == "log.segment.bytes=x\n"
    assert not (place.data / "more-0").exists()
    settings.write_text("log.segment.bytes=1048576\n")
    place.mount()
    assert (place.path / "orders/0").read_text() == "hello\n"
    (place.path / "more").mkdir()


def test_an_unknown_option_is_refused(place: Place) -> None:
    done = kafkafs("mount", place.data, place.path, "-o", "alow_other")
    assert done.returncode == 2
    assert (
        "unknown mount option 'alow_other': did you mean 'allow_other'? (valid: ro" in done.stderr
    )
    done = kafkafs("mount", place.data, place.path, "-o", "ro,no_such_option")
    assert done.returncode == 2
    assert "unknown mount option 'no_such_option'" in done.stderr
    assert mount_table.find(str(place.path)) is None


def test_what_a_killed_daemon_left_is_cleaned_at_the_next_mount(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    descriptor = os.open(place.path / "orders/0", os.O_WRONLY | os.O_APPEND)
    os.write(descriptor, b"survives\nis lost")
    pid = place.pid
    with ending(pid):
        os.kill(pid, signal.SIGKILL)
    place.mount()
    assert place.pid != pid
    assert (place.path / "orders/0").read_text() == "survives\n"
    with pytest.raises(OSError, match="endpoint"):
        os.close(descriptor)


def test_umount_in_a_dead_mount_that_was_removed(place: Place) -> None:
    place.mount()
    with ending(place.pid):
        script = (
            'cd "$1"; kill -KILL "$2"; fusermount3 -u -z "$1"; read -r again; shift 2; exec "$@"'
        )
        command = ["sh", "-c", script, "sh", str(place.path), str(place.pid)]
        # -I: Python imports nothing from the working directory.
        umount = [sys.executable, "-I", *KAFKAFS[1:], "umount", str(place.path)]
        inside = subprocess.Popen(
            [*command, *umount], stdin=subprocess.PIPE, stderr=subprocess.PIPE
        )
    with inside:
        while mount_table.find(str(place.path)) is not None:
            os.sched_yield()
        place.mount()
        _, said = inside.communicate(b"\n", HANG_S)
    assert (inside.returncode, said) == (0, b"")
    assert mount_table.find(str(place.path)) is None


def test_progress_of_a_slow_opening_is_shown_on_a_terminal(place: Place) -> None:
    place.mount()
    for topic in ("a", "b", "c"):
        (place.path / topic).mkdir()
    place.umount()
    (place.data / ".kafka_cleanshutdown").unlink()
    impatient = (
        "from kafkafs import progress\nfrom kafkafs.cli import main\nprogress.PATIENCE_S = 0\n"
        f"main(['mount', {str(place.data)!r}, {str(place.path)!r}])"
    )
    terminal, end = pty.openpty()
    with subprocess.Popen([KAFKAFS[0], "-c", impatient], stderr=end, cwd=ROOT) as process:
        os.close(end)
        shown = b""
        while chunk := _read(terminal):
            shown += chunk
        assert process.wait(HANG_S) == 0
    os.close(terminal)
    assert b"reading partitions" in shown
    assert b"/3" in shown


def _read(terminal: int) -> bytes:
    """The output on the terminal; empty when no process has it open."""
    with contextlib.suppress(OSError):
        return os.read(terminal, 4096)
    return b""


# -- options -------------------------------------------------------------------------------------


def test_read_only_takes_no_lock_and_writes_nothing(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    with open(place.path / "orders/0", "a") as partition:
        partition.write("hello\n")
    place.umount()

    def contents() -> dict[str, tuple[int, int]]:
        return {
            str(file): (file.stat().st_size, file.stat().st_mtime_ns)
            for file in place.data.rglob("*")
        }

    before = contents()
    place.mount("-o", "ro")
    assert (place.path / "orders/0").read_text() == "hello\n"
    with pytest.raises(OSError, match="Read-only"):
        (place.path / "more").mkdir()
    with pytest.raises(OSError, match="Read-only"):
        os.open(place.path / "orders/0", os.O_WRONLY | os.O_APPEND)
    place.umount()
    assert contents() == before


def test_owner_and_mask_of_everything(place: Place) -> None:
    place.mount("-o", "uid=12,gid=34", "-o", "umask=077,show_dot")
    (place.path / "orders").mkdir()
    for path in (place.path, place.path / "orders", place.path / "orders/0"):
        status = path.stat()
        assert (status.st_uid, status.st_gid) == (12, 34)
        assert stat.S_IMODE(status.st_mode) & 0o077 == 0
    assert ".kafkafs" in os.listdir(place.path)


# -- ending --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_in_order(place: Place, number: signal.Signals) -> None:
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        descriptor = os.open(place.path / "orders/0", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"whole\nunfinished")
        process.send_signal(number)
        _, lines = process.communicate(timeout=HANG_S)
        assert process.returncode == 0
        mounted, shutting_down = lines.splitlines()
        assert mounted.startswith(f"kafkafs: mounted {place.data} on {place.path}, ")
        assert shutting_down == f"kafkafs: {number.name}: shutting down"
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.write(descriptor, b"too late\n")
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.close(descriptor)
    assert place.was_closed_cleanly()
    assert mount_table.find(str(place.path)) is None
    place.mount()
    assert (place.path / "orders/0").read_text() == "whole\nunfinished\n"


@pytest.mark.parametrize("ignored", ["HUP", "HUP,INT,TERM"])
def test_a_signal_that_is_ignored_stays_ignored(place: Place, ignored: str) -> None:
    """… except SIGTERM."""
    with place.foreground(under=["env", f"--ignore-signal={ignored}"]) as process:
        process.send_signal(signal.SIGHUP)
        (place.path / "orders").mkdir()
        process.terminate()
        _, lines = process.communicate(timeout=HANG_S)
        assert lines.endswith("kafkafs: SIGTERM: shutting down\n")
        assert "SIGHUP" not in lines


def test_an_unmount_from_outside_ends_it_in_order(place: Place) -> None:
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        with open(place.path / "orders/0", "a") as partition:
            partition.write("hello\n")
        unmount(place.path)
        assert process.wait(HANG_S) == 0
    assert place.was_closed_cleanly()


def test_a_lazy_unmount_ends_it_when_the_last_file_is_closed(place: Place) -> None:
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        with open(place.path / "orders/0", "a") as partition:
            subprocess.run(["fusermount3", "-uz", str(place.path)], check=True)
            partition.write("still\n")
            partition.flush()
            assert process.poll() is None
        assert process.wait(HANG_S) == 0
    place.mount()
    assert (place.path / "orders/0").read_text() == "still\n"


def test_a_forced_unmount_ends_it_in_order(place: Place) -> None:
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        subprocess.run(["umount", "-f", str(place.path)], check=True)
        assert process.wait(HANG_S) == 0
    assert place.was_closed_cleanly()


libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def mapped_alone(descriptor: int) -> int:
    """The address of a file's first page, mapped; unlike Python's own, without a descriptor."""
    address = libc.mmap(None, mmap.PAGESIZE, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    assert isinstance(address, int)
    assert address != 2**64 - 1
    return address


def test_umount_of_a_busy_mount_names_who_holds_what_and_changes_nothing(place: Place) -> None:
    place.mount()
    for topic in ("orders", "payments"):
        (place.path / topic).mkdir()

    def used_by(count: int = 1) -> list[str]:
        line = failed(kafkafs("umount", place.path))
        assert line.startswith(f"kafkafs: fusermount3: failed to unmount {place.path}: ")
        users = line.partition("busy: used by ")[2].partition(". To unmount")[0].split("), ")
        assert len(users) == count
        return [user.removesuffix(")") for user in users]

    with open(place.path / "orders/0", "a") as partition:
        (user,) = used_by()
        assert user.endswith(f" (process {os.getpid()}: orders/0")
        partition.write("hello\n")
    with open(place.path / "orders/.snapshot/0", "rb") as file:
        mapped = mapped_alone(file.fileno())
    (user,) = used_by()
    assert user.endswith(f" (process {os.getpid()}: orders/.snapshot/0")
    libc.munmap(mapped, mmap.PAGESIZE)
    held = "exec 3>> orders/0 4>> payments/0 5< orders 6< orders/.meta; cd orders; echo; read line"
    shell = ["bash", "-c", held]
    with (
        subprocess.Popen(["cat"], cwd=place.path, stdin=subprocess.PIPE) as there,
        subprocess.Popen(
            shell, cwd=place.path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as inside,
    ):
        assert inside.stdout is not None
        inside.stdout.readline()
        assert sorted(used_by(2)) == [
            f"bash -c 'exec 3>> orders/0 4>> payments/0 5< orders 6< orde… "
            f"(process {inside.pid}: working directory orders, orders/0, payments/0 and 2 more",
            f"cat (process {there.pid}: working directory",
        ]
        for process in (there, inside):
            assert process.stdin is not None
            process.stdin.close()
    assert (place.path / "orders/0").read_text() == "hello\n"


def test_further_signals_do_not_stop_an_end_in_order(place: Place) -> None:
    """A terminal that closes, a service manager and an impatient user send several."""
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            process.send_signal(number)
        assert process.wait(HANG_S) == 0
    assert place.was_closed_cleanly()
    assert mount_table.find(str(place.path)) is None


def test_a_directory_that_cannot_be_closed_cleanly(place: Place) -> None:
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        with open(place.path / "orders/0", "a") as partition:
            partition.write("hello\n")
        make_unclosable(place)
        process.send_signal(signal.SIGTERM)
        _, lines = process.communicate(timeout=HANG_S)
        assert process.returncode == 3
        assert "was not closed cleanly" in lines
    assert not place.was_closed_cleanly()
    assert mount_table.find(str(place.path)) is None


def make_unclosable(place: Place) -> None:
    """Make the write of the checkpoints fail: nothing can be renamed over a directory."""
    checkpoint = place.data / "recovery-point-offset-checkpoint"
    checkpoint.unlink(missing_ok=True)
    checkpoint.mkdir()


def tells_exit_status() -> bool:
    """Whether the kernel tells every process how a process has ended (Linux 6.15)."""
    return tuple(map(int, re.findall(r"[0-9]+", os.uname().release)[:2])) >= (6, 15)


def umount_fails(place: Place, pid: int, how: str) -> None:
    line = failed(kafkafs("umount", place.path))
    assert line == (
        f"kafkafs: {place.path}: unmounted, but the daemon (process {pid}) {how}, and may not have "
        "written everything. To check the records: kafkafs verify DATA"
    )


def test_umount_fails_if_the_daemon_could_not_write_everything(place: Place) -> None:
    """… also where the daemon's parent has not asked for its exit status yet."""
    with place.foreground() as process:
        make_unclosable(place)
        umount_fails(place, process.pid, "exited with status 3")
    if tells_exit_status():
        (place.data / "recovery-point-offset-checkpoint").rmdir()
        place.mount()
        make_unclosable(place)
        umount_fails(place, place.pid, "exited with status 3")


def test_umount_waits_for_a_daemon_in_another_pid_namespace(place: Place) -> None:
    """… whose process id is another one there: 1, which is the machine's own first process here."""
    with place.foreground(under=["unshare", "--pid", "--fork", "--kill-child"]) as process:
        assert place.pid == 1
        place.umount()
        assert place.was_closed_cleanly()
        assert process.wait(HANG_S) == 0


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    while not mount_point.is_stopped(pid):
        os.sched_yield()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_neither_mount_nor_umount_waits_for_a_stopped_daemon(place: Place) -> None:
    place.mount()
    pid = place.pid
    mounted = mount_table.find(str(place.path))
    with stopped(pid):
        assert f"process {pid}) is stopped" in failed(kafkafs("umount", place.path))
        line = failed(kafkafs("mount", place.data, place.path))
        assert f"is already mounted here, and its daemon (process {pid}) is stopped" in line
        assert mount_table.find(str(place.path)) == mounted, "nothing has changed"
    place.umount()


def test_a_stopped_daemon_that_another_pid_namespace_does_not_show(place: Place) -> None:
    place.mount()
    mounted, before = mount_table.find(str(place.path)), ["unshare", "--pid", "--fork"]
    with stopped(place.pid):
        for words in (["mount", str(place.data)], ["umount"]):
            command = [*before, "--mount-proc", *KAFKAFS, *words, str(place.path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
            assert (done.returncode, done.stdout) == (3, "")
            assert "does not answer. To end " in done.stderr
    assert mount_table.find(str(place.path)) == mounted
    assert place.pid


def test_a_stopped_daemon_is_unmounted_by_force(place: Place) -> None:
    place.mount()
    pid = place.pid
    descriptor = os.open(place.path, os.O_RDONLY)
    with ending(pid), stopped(pid):
        line = failed(kafkafs("umount", "--force", place.path))
        assert f"(process {pid}) is stopped. To let it exit: kill -CONT {pid}" in line
        assert mount_table.find(str(place.path)) is None
        with contextlib.suppress(OSError):
            os.close(descriptor)
    assert place.was_closed_cleanly()


def test_umount_by_force_while_files_are_open(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    with ending(place.pid):
        descriptor = os.open(place.path / "orders/0", os.O_WRONLY | os.O_APPEND)
        os.write(descriptor, b"hello\n")
        done = kafkafs("umount", "--force", place.path)
        assert (done.returncode, done.stderr) == (0, "")
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.write(descriptor, b"more\n")
        with pytest.raises(OSError, match=r"not connected|abort"):
            os.close(descriptor)
    assert place.was_closed_cleanly()


def test_a_lazy_umount_returns_at_once(place: Place) -> None:
    place.mount()
    (place.path / "orders").mkdir()
    with ending(place.pid), open(place.path / "orders/0", "ab", buffering=0) as partition:
        done = kafkafs("umount", "--lazy", place.path)
        assert (done.returncode, done.stderr) == (0, "")
        assert mount_table.find(str(place.path)) is None
        line = failed(kafkafs("mount", place.data, place.path))
        assert "was unmounted with --lazy while files were open. To end it: kill " in line
        partition.write(b"hello\n")
    assert place.was_closed_cleanly()


def test_the_end_of_a_lazily_unmounted_daemon_leaves_a_later_mount_alone(place: Place) -> None:
    other = place.data.parent / "other"
    other.mkdir()
    with place.foreground() as process:
        (place.path / "orders").mkdir()
        descriptor = os.open(place.path / "orders/0", os.O_RDONLY)
        assert kafkafs("umount", "--lazy", place.path).returncode == 0
        assert kafkafs("mount", other, place.path).returncode == 0
        later = mount_table.find(str(place.path))
        # No command that is given the first directory acts on the second one.
        (place.path / "orders").mkdir()
        line = failed(kafkafs("config", place.data, "orders", "retention.ms=1"))
        assert f"in use by process {process.pid}" in line
        assert "retention.ms=1\n" not in (place.path / "orders/.config").read_text()
        process.terminate()
        assert process.wait(HANG_S) == 0
    with pytest.raises(OSError, match=r"not connected"):
        os.close(descriptor)
    assert mount_table.find(str(place.path)) == later
    place.umount()


def test_what_ends_unknown_settings_works_in_the_mount(place: Place) -> None:
    """The remedy for a directory that is not mounted would send the user in a circle."""
    described(place.data, [], None)
    server = place.data.parent / "server.properties"
    server.touch()
    wanted = "cleanup.policy=... retention.ms=... retention.bytes=..."
    config = f"kafkafs config {place.data} --broker-config FILE"
    by_file = f", or unmount, run {config}, and mount again"

    def remedy(topic: str) -> str:
        return f"write {wanted} to {place.path}/{topic}/.config{by_file}\n"

    done = kafkafs("mount", place.data, place.path)
    assert done.stderr.endswith(remedy("TOPIC"))
    assert (place.path / ".kafkafs" / "topics").read_text().endswith(remedy("TOPIC"))
    (found,) = (
        line for line in kafkafs("doctor", place.data).stdout.splitlines() if wanted in line
    )
    assert found.strip() + "\n" == remedy("TOPIC")
    assert kafkafs("prune", place.path / "orders").stderr.endswith(remedy("orders"))
    (place.path / "orders" / ".config").write_text(
        "cleanup.policy=delete\nretention.ms=-1\nretention.bytes=-1\n"
    )
    assert "#" not in (place.path / ".kafkafs" / "topics").read_text()
    (place.path / "orders" / ".config").write_text(
        "cleanup.policy=\nretention.ms=\nretention.bytes=\n"
    )
    assert "# nothing is deleted" in (place.path / ".kafkafs" / "topics").read_text()
    place.umount()
    assert kafkafs(*config.replace("FILE", str(server)).split()[1:]).returncode == 0
    done = kafkafs("mount", place.data, place.path)
    assert done.stderr == ""
    place.umount()


def test_a_read_only_mount_deletes_nothing_anyway(place: Place) -> None:
    described(place.data, [], None)
    done = kafkafs("mount", "-o", "ro", place.data, place.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "#" not in (place.path / ".kafkafs" / "topics").read_text()
    place.umount()
