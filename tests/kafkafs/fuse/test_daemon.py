"""The daemon on a slow disk; how it begins and ends else is shown by the commands' tests."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import pytest
import trio

from kafkafs.fuse.daemon import Daemon, Mount
from kafkafs.fuse.mount_point import MountError
from kafkafs.fuse.notify import KernelNotices
from kafkafs.mount_options import MountOptions
from kafkafs.tree.context import MountContext
from kafkafs.tree.events import Events
from kafkafs.tree.filesystem import FileSystem
from storage import LogManager
from tests.kafkafs.fuse.conftest import RunningMount, serving
from tests.storage.logs import values
from tests.waits import HANG_S


@dataclass
class SlowMount:
    """`slow/0`, whose fsync waits for `release`, and `quick/0`."""

    running: RunningMount
    data: Path
    gate: Path

    @property
    def slow(self) -> Path:
        return self.running.path / "slow/0"

    @property
    def quick(self) -> Path:
        return self.running.path / "quick/0"

    def hold(self) -> None:
        os.mkfifo(self.gate)

    def release(self) -> None:
        """Wait until an fsync is held, let it go, and hold no more."""
        with self.gate.open("wb"):
            self.gate.unlink()


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[SlowMount]:
    data, gate = tmp_path / "data", tmp_path / "gate"
    data.mkdir()
    # The daemon does not flush by itself during a test: each fsync is one that a test asks for.
    (data / "kafkafs.properties").write_text("log.flush.interval.ms=3600000\n")
    with LogManager.open(str(data)) as manager:
        manager.create_topic("slow")
        manager.create_topic("quick")
    with serving(tmp_path, "tests.kafkafs.fuse.slow_disk", str(data), str(gate)) as running:
        mount = SlowMount(running, data, gate)
        try:
            yield mount
        finally:
            gate.unlink(missing_ok=True)


def append(path: Path, data: bytes, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | flags)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def append_for_ever(path: Path) -> None:
    while True:
        append(path, b"line\n")


def fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def test_a_held_fsync_delays_neither_reads_nor_another_partitions_appends(
    mount: SlowMount,
) -> None:
    append(mount.slow, b"one\n")
    mount.hold()
    waiting = threading.Thread(target=fsync, args=(mount.slow,))
    waiting.start()
    try:
        for number in range(100):
            append(mount.quick, b"%d\n" % number)
            fsync(mount.quick)
            assert mount.slow.read_bytes() == b"one\n"
            assert mount.slow.stat().st_size == 4
        (mount.running.path / "another").mkdir()
        assert waiting.is_alive()
    finally:
        mount.release()
    waiting.join(HANG_S)
    assert not waiting.is_alive()
    offsets = mount.running.path / "slow/.meta/0/offsets"
    assert "recovery_point 1\n" in offsets.read_text()
    mount.running.unmounted()


def test_a_synchronous_write_is_answered_when_it_is_on_the_disk(mount: SlowMount) -> None:
    for flags in (os.O_SYNC, os.O_DSYNC):
        mount.hold()
        waiting = threading.Thread(target=append, args=(mount.slow, b"line\n", flags))
        waiting.start()
        append(mount.quick, b"line\n", flags)
        assert waiting.is_alive()
        mount.release()
        waiting.join(HANG_S)
        assert not waiting.is_alive()
    mount.running.unmounted()


def test_while_the_end_is_flushing_reads_go_on_and_writes_are_refused(mount: SlowMount) -> None:
    append(mount.slow, b"one\n")
    mount.hold()
    unfinished = os.open(mount.slow, os.O_WRONLY | os.O_APPEND)
    os.write(unfinished, b"two")
    mount.running.process.send_signal(signal.SIGTERM)
    with pytest.raises(OSError, match=os.strerror(errno.ESHUTDOWN)):
        append_for_ever(mount.quick)
    assert mount.slow.read_bytes() == b"one\ntwo\n"
    assert mount.running.process.poll() is None
    with pytest.raises(OSError, match=os.strerror(errno.ESHUTDOWN)):
        os.write(unfinished, b"three\n")
    mount.release()
    mount.running.ended()
    with pytest.raises(OSError, match=r"not connected|abort"):
        os.close(unfinished)
    assert (mount.data / ".kafka_cleanshutdown").exists()
    with LogManager.open(str(mount.data)) as manager:
        assert values(manager.log("slow", 0)) == [b"one", b"two"]


def test_what_libfuse_says_against_a_mount_is_the_reason(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    events = Events(lambda: 0)
    notices = KernelNotices(events)
    with LogManager.open(str(tmp_path)) as manager:
        tree = FileSystem(MountContext(manager, notices=notices, events=events))
        daemon = Daemon(Mount(str(tmp_path), missing, MountOptions()), tree, notices, lambda: None)
        try:
            with pytest.raises(MountError) as raised:
                daemon.mount()
        finally:
            vars(pyfuse3)["trio"] = trio
    assert str(raised.value).startswith(f"{missing}: cannot mount: fuse: ")
    assert str(raised.value).endswith(
        "No such file or directory. To find the cause: kafkafs doctor"
    )
    assert events.text() == ""
