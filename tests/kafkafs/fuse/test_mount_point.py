"""Mount points: finding mounts and their daemons, and unmounting.

The tests of the daemon show the rest.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kafkafs import mount_table
from kafkafs.fuse import mount_point
from tests.file_systems import unmount
from tests.kafkafs.fuse.conftest import ROOT, BareMount, RunningMount, serving
from tests.kafkafs.fuse.test_background import LIMITED


def test_a_directory_on_which_nothing_is_mounted(tmp_path: Path) -> None:
    assert mount_table.find(str(tmp_path)) is None
    mount_point.clean(str(tmp_path))
    with pytest.raises(mount_point.MountError, match="not a kafkafs mount"):
        mount_point.unmount_and_wait(str(tmp_path), print)


def test_a_mount_is_found_and_a_foreign_one_left_alone(
    bare_mount: Callable[..., BareMount],
) -> None:
    mount = bare_mount()
    path = str(mount.path)
    found = mount_table.find(path)
    assert found is not None
    assert found.path == path
    assert found.source == "bare"
    assert found.type == "fuse"
    status = os.stat(path)
    assert found.device == f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    assert found.user == os.getuid()
    assert mount_point.ask(path) == (mount_point.Answer.GIVEN, None)
    with pytest.raises(mount_point.MountError, match="not a kafkafs mount"):
        mount_point.unmount_and_wait(path, print)
    with open(f"{path}/file", "rb"), pytest.raises(mount_point.MountError, match="busy"):
        mount_point.unmount(path)
    mount_point.unmount(path)
    mount.ended()


def test_a_mount_that_somebody_looked_at_is_unmounted(
    bare_mount: Callable[..., BareMount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `umount` of another mount does when it names who keeps that busy."""
    mount = bare_mount()
    first, really = tmp_path / "bin/fusermount3", shutil.which("fusermount3")
    first.parent.mkdir()
    first.write_text(
        f'#!/bin/sh\nrm "$0"\nexec 3< {mount.path}/file\n{really} "$@"\n'  # and ends
    )
    first.chmod(0o755)
    monkeypatch.setenv("PATH", f"{first.parent}:{os.environ['PATH']}")
    mount_point.unmount(str(mount.path))
    mount.ended()


def test_what_a_killed_daemon_left_is_cleaned(bare_mount: Callable[..., BareMount]) -> None:
    mount = bare_mount("--subtype", "kafkafs")
    path = str(mount.path)
    os.stat(path)
    descriptor = os.open(f"{path}/file", os.O_RDONLY)
    mount.process.kill()
    mount.process.wait()
    assert mount_point.ask(path) == (mount_point.Answer.DEAD, None)
    mount_point.clean(path)
    with contextlib.suppress(OSError):
        os.close(descriptor)
    assert mount_table.find(path) is None
    assert os.listdir(path) == []


def test_names_in_the_mount_table_are_unescaped(tmp_path: Path) -> None:
    odd = tmp_path / "a b\\040\tc\rd"
    odd.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "a source", str(odd)], check=True)
    try:
        found = mount_table.find(str(odd))
    finally:
        subprocess.run(["umount", str(odd)], check=True)
    assert found is not None
    assert (found.type, found.source) == ("tmpfs", "a source")


def test_read_ahead_where_it_is_not_permitted() -> None:
    assert not mount_point.raise_read_ahead("0:999999", 1024)


def test_no_process_can_be_started() -> None:
    """… to ask a daemon, or to unmount."""
    questions = """
from kafkafs.fuse import mount_point
for question in (mount_point.ask, mount_point.unmount):
    try:
        question("/somewhere")
    except mount_point.MountError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED + questions], capture_output=True, text=True, cwd=ROOT
    )
    why = os.strerror(errno.EAGAIN)
    assert (done.stdout, done.stderr) == (
        f"/somewhere: cannot start a process: {why}\n/somewhere: cannot start fusermount3: {why}\n",
        "",
    )


def test_who_serves_a_mount(bare_mount: Callable[..., BareMount]) -> None:
    """… without touching its path: also where that does not answer."""
    mount = bare_mount("--subtype", "kafkafs")
    path = str(mount.path)
    mounted = mount_table.find(path)
    assert mounted is not None
    pid = mount.process.pid
    assert mount_point.find_daemon(mounted) == (pid, True)
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    assert mount_point.find_daemon(mounted) == (pid, True)
    assert mount_point.is_stopped(pid)
    with pytest.raises(mount_point.MountError, match=rf"its daemon \(process {pid}\) is stopped"):
        mount_point.clean(path)
    assert mount_table.find(path) == mounted, "its daemon lives"
    os.kill(pid, signal.SIGCONT)
    # `clean` has started a process that still waits in the mount for the daemon's answer.
    mount.unmounted()


def test_a_stopped_process_with_an_old_connection_is_not_the_daemon(
    bare_mount: Callable[..., BareMount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of a connection is given again as soon as its mount has gone."""
    mount = bare_mount("--subtype", "kafkafs")
    path = str(mount.path)
    with subprocess.Popen(["sleep", "infinity"]) as other:
        other.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED)
        monkeypatch.setattr(mount_point, "find_daemon", lambda mounted: (other.pid, True))
        mount.process.kill()
        mount.process.wait()
        mount_point.clean(path)
        assert mount_table.find(path) is None
        other.kill()


def test_a_daemon_that_still_ends_does_not_serve_the_next_mount(tmp_path: Path) -> None:
    """The kernel gives the number of its connection to the next mount."""
    module, options = "tests.kafkafs.fuse.bare_file_system", ("--subtype", "kafkafs")
    with contextlib.ExitStack() as stack:

        def mounted(name: str, *more: str) -> tuple[mount_table.Mounted, RunningMount]:
            (tmp_path / name).mkdir()
            running = serving(tmp_path / name, module, options=(*options, *more))
            mount = stack.enter_context(running)
            found = mount_table.find(str(mount.path))
            assert found is not None
            return found, mount

        for attempt in itertools.count():
            before, ending = mounted(f"before {attempt}", "--linger")
            unmount(ending.path)
            after, serves = mounted(f"after {attempt}")
            if before.device == after.device:  # another test may get it
                break
        assert mount_point.find_daemon(after) == (serves.process.pid, True)
        serves.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, serves.process.pid, os.WSTOPPED)
        assert mount_point.find_daemon(after) == (serves.process.pid, True)
        assert ending.process.poll() is None


def test_a_mount_that_gets_the_device_number_is_not_another_place(
    bare_mount: Callable[..., BareMount], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel gives the number to the next mount, while the daemon may still write."""
    mount = bare_mount("--subtype", "kafkafs")
    pid, unmount = mount.process.pid, mount_point.unmount
    (tmp_path / "next").mkdir()
    module, options = "tests.kafkafs.fuse.bare_file_system", ("--subtype", "kafkafs")
    with contextlib.ExitStack() as stack:

        def unmount_and_mount_another(path: str, *, lazy: bool = False) -> None:
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED)
            unmount(path, lazy=True)
            stack.enter_context(serving(tmp_path / "next", module, options=options))

        monkeypatch.setattr(mount_point, "unmount", unmount_and_mount_another)
        monkeypatch.setattr(mount_point, "ANSWER_S", 0.2)
        with pytest.raises(mount_point.MountError, match=rf"\(process {pid}\) is stopped"):
            mount_point.unmount_and_wait(str(mount.path), print)
    os.kill(pid, signal.SIGCONT)
    mount.ended()


def test_a_connection_is_ended_without_a_look_at_the_path(
    bare_mount: Callable[..., BareMount], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its daemon does not answer and is not seen, as after a kill that did not free the mount."""
    mount = bare_mount("--subtype", "kafkafs")
    path = str(mount.path)
    pid = mount.process.pid
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    monkeypatch.setattr(mount_point, "ANSWER_S", 0.2)
    monkeypatch.setattr(mount_point, "find_daemon", lambda mounted: (None, False))
    with pytest.raises(mount_point.MountError, match="does not answer"):
        mount_point.clean(path)
    with pytest.raises(mount_point.MountError, match="does not answer"):
        mount_point.unmount_and_wait(path, print)
    monkeypatch.setattr(mount_point, "find_daemon", lambda mounted: (None, True))
    mount_point.clean(path)
    assert mount_table.find(path) is None
    os.kill(pid, signal.SIGCONT)
    mount.ended()


def test_a_path_is_resolved_as_by_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "up").symlink_to("a/b/../b")
    (tmp_path / "whole").symlink_to(tmp_path / "up")
    monkeypatch.chdir(tmp_path)
    for path in ("up", "whole/..", "whole/../x/../y", "./a//b/", "missing/../up", "/", "/../proc"):
        assert mount_table.resolve(path) == os.path.realpath(path)


def test_a_path_is_resolved_without_a_look_at_the_mount(
    bare_mount: Callable[..., BareMount], tmp_path: Path
) -> None:
    mount = bare_mount("--subtype", "kafkafs")
    pid = mount.process.pid
    link = tmp_path / "link"
    link.symlink_to("mount")
    (tmp_path / "again").symlink_to(link)
    (tmp_path / "loop").symlink_to("loop")
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    for path in (mount.path, link, tmp_path / "again", f"{tmp_path}/../{tmp_path.name}/mount/"):
        assert mount_point.resolve(str(path)) == str(mount.path)
        below = f"{path}/orders/../payments/./0"
        assert mount_point.resolve(below) == f"{mount.path}/payments/0"
    with pytest.raises(mount_point.MountError, match="Too many levels of symbolic links"):
        mount_point.resolve(str(tmp_path / "loop"))
    os.kill(pid, signal.SIGCONT)
    mount.unmounted()
