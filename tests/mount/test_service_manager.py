"""The daemon's messages to a service manager, received by a socket such as systemd's."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kafkafs import service_manager
from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, check_data, fails, kafkafs
from tests.mount.steering import SteeredMount
from tests.waits import HANG_S

#: How often `WATCHDOG=1` is due in these tests, twice, in microseconds.
WATCHDOG_USEC = 100_000

# A daemon that waits when it begins to read the data directory, while there is a named pipe GATE,
# until somebody has opened that for writing and closed it again.
HELD = """
import contextlib, os
from kafkafs.cli import main
from storage import manager
from storage.files import Files

class Held(Files):
    def listing(self, path):
        with contextlib.suppress(FileNotFoundError), open(os.environ["GATE"], "rb") as gate:
            gate.read()
        return super().listing(path)

manager.Files = Held
main()
"""


class Manager:
    """Receives what daemons send."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.bind("")  # an abstract address of the kernel's choice
        self._socket.settimeout(HANG_S)
        self.address = "@" + os.fsdecode(self._socket.getsockname()[1:])

    def next(self) -> dict[str, str]:
        """The next message."""
        message = os.fsdecode(self._socket.recv(4096))
        return dict(fact.split("=", 1) for fact in message.split("\n"))

    def until(self, name: str) -> list[dict[str, str]]:
        """All messages up to one that has this fact."""
        messages = [self.next()]
        while name not in messages[-1]:
            messages.append(self.next())
        return messages

    def says_nothing(self, seconds: float) -> bool:
        return not select.select([self._socket], [], [], seconds)[0]

    def forget(self) -> None:
        """Discard the messages sent so far."""
        while not self.says_nothing(0):
            self.next()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager() -> Iterator[Manager]:
    made = Manager()
    yield made
    made.close()


class Served(Mount):
    """A mount whose daemon a `Manager` waits for."""

    manager: Manager

    def _launch(self, options: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        return super()._launch(options, {**env, "NOTIFY_SOCKET": self.manager.address})

    def _wait_ready(self, ready: socket.socket) -> None:
        self.messages = self.manager.until("READY")


class SteeredServed(Served, SteeredMount):
    """The same, with a daemon that takes commands."""


@pytest.fixture
def served(tmp_path: Path, manager: Manager) -> Iterator[Served]:
    mount = Served(tmp_path)
    mount.manager = manager
    yield mount
    mount.end()
    check_data(mount.data)


def test_beginning_and_end(served: Served) -> None:
    served.start()
    (ready,) = served.messages[-1:]
    said = f"mounted {served.data} on {served.path}, 0 topics, read-write"
    assert ready == {"READY": "1", "STATUS": said}
    assert os.path.ismount(served.path)
    assert served.process is not None
    served.process.send_signal(signal.SIGTERM)
    assert "STATUS" in served.manager.until("STOPPING")[-1]
    served.wait()


def test_why_it_does_not_begin(tmp_path: Path, manager: Manager) -> None:
    """The status tells apart what trying again may mend."""
    mount = Mount(tmp_path)

    def refused(data: Path) -> tuple[int, str]:
        done = kafkafs("mount", "-f", data, other, NOTIFY_SOCKET=manager.address)
        (told,) = manager.until("STATUS")
        assert done.stderr == f"kafkafs: {told['STATUS']}\n"
        return done.returncode, told["STATUS"]

    other = tmp_path / "other"
    other.mkdir()
    try:
        mount.start()
        status, said = refused(mount.data)
        assert (status, "in use by process" in said) == (3, True)
        missing = tmp_path / "missing"
        assert refused(missing) == (
            os.EX_CONFIG,
            f"{missing}: no such data directory. To create it: mkdir {missing}, or mount with "
            "-o create",
        )
    finally:
        mount.end()
    check_data(mount.data)


def test_recovery_says_how_far_it_is(served: Served) -> None:
    served.start()
    served.topic(partitions=3)
    served.kill()
    served.start()
    (first, *_), ready = served.messages, served.messages[-1]
    assert first["STATUS"].startswith("reading partitions: ")
    assert " of 3, " in first["STATUS"]
    assert "READY" in ready


def test_without_a_watchdog_none_is_fed(served: Served) -> None:
    for watched in ({}, {"WATCHDOG_USEC": str(WATCHDOG_USEC), "WATCHDOG_PID": "1"}):
        served.start(env=watched)
        assert served.process is not None
        served.process.send_signal(signal.SIGTERM)
        assert "WATCHDOG" not in [
            name for each in served.manager.until("STOPPING") for name in each
        ]
        served.wait()
        served.manager.forget()


def test_the_watchdog_starves_when_the_loop_that_serves_hangs(
    tmp_path: Path, manager: Manager
) -> None:
    mount = SteeredServed(tmp_path)
    mount.manager = manager
    try:
        mount.start(env={"WATCHDOG_USEC": str(WATCHDOG_USEC)})
        for _ in range(5):
            manager.until("WATCHDOG")
        number = mount.daemon.stick()
        manager.forget()
        assert manager.says_nothing(20 * WATCHDOG_USEC / 1e6)
        assert mount.daemon.release(number)
        manager.until("WATCHDOG")
        mount.stop()
    finally:
        mount.end()
    check_data(mount.data)


def test_a_service_manager_that_is_gone_does_no_harm(served: Served) -> None:
    served.start(env={"WATCHDOG_USEC": str(WATCHDOG_USEC)})
    served.manager.until("WATCHDOG")
    served.manager.close()
    served.topic()
    served.run("echo kept >> orders/0; sleep 0.2; cat orders/0")
    served.stop()


def test_ready_is_sent_when_the_full_queue_of_the_socket_has_room(
    manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as others,
        contextlib.suppress(BlockingIOError),
    ):
        while True:
            others.sendto(b"STATUS=of another service", "\0" + manager.address[1:])
    service_manager.tell("READY=1", "STATUS=mounted")
    assert manager.until("READY")[-1] == {"READY": "1", "STATUS": "mounted"}


@pytest.mark.parametrize("reader", ["ended", "stopped", "full disk"])
def test_standard_error_that_takes_nothing_does_no_harm(tmp_path: Path, reader: str) -> None:
    """The daemon keeps its events in `.kafkafs/log`, and goes on."""
    reads, writes = os.pipe()
    if reader == "ended":
        os.close(reads)
    elif reader == "stopped":
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, b"x" * select.PIPE_BUF)
        os.set_blocking(writes, True)
    else:
        os.close(reads)
        os.close(writes)
        writes = os.open("/dev/full", os.O_WRONLY)

    class Unread(Mount):
        def _launch(
            self, options: Sequence[str], env: Mapping[str, str]
        ) -> subprocess.Popen[bytes]:
            command = [*KAFKAFS, "mount", str(self.data), str(self.path), "-f", *options]
            return subprocess.Popen(command, env=env, stderr=writes)

    mount = Unread(tmp_path)
    try:
        mount.start()
        mount.topic()
        for name in ("a", "b" * 100):
            fails(errno.EPERM, os.rename, mount / "orders", mount / name)
        mount.run("echo kept >> orders/0; cat orders/0")
        assert "rename of orders to bbb" in mount.events()
        mount.stop()
    finally:
        mount.end()
        os.close(writes)
        if reader == "stopped":
            os.close(reads)
    check_data(mount.data)


class HeldMount(Mount):
    def _launch(self, options: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HELD, "mount", str(self.data), str(self.path), "-f"]
        return subprocess.Popen([*command, *options], env=env)


def test_a_dead_mount_stays_until_recovery_is_done(tmp_path: Path) -> None:
    """So nobody writes into the directory underneath."""
    mount, gate = HeldMount(tmp_path), tmp_path / "gate"
    try:
        mount.start(env={"GATE": str(gate)})
        mount.topic()
        mount.run("echo kept >> orders/0")
        mount.kill()
        os.mkfifo(gate)
        starting = threading.Thread(target=mount.start, kwargs={"env": {"GATE": str(gate)}})
        starting.start()
        with gate.open("wb"):
            gate.unlink()
            fails(errno.ENOTCONN, os.statvfs, mount.path)
            fails(errno.ENOTCONN, (mount.path / "new").touch)
        starting.join()
        assert mount.run("cat orders/0") == b"kept\n"
        mount.stop()
        assert os.listdir(mount.path) == [], "one mount, not one above another"
    finally:
        mount.end()
    check_data(mount.data)


def test_what_cannot_be_mounted_over_is_found_below_a_dead_mount(tmp_path: Path) -> None:
    mount = Mount(tmp_path)
    try:
        (mount.path / "theirs").touch()
        mount.start("nonempty")
        mount.kill()
        done = kafkafs("mount", mount.data, mount.path)
        assert done.returncode == os.EX_CONFIG
        assert "not empty; the mount would hide its files" in done.stderr
    finally:
        mount.end()
    check_data(mount.data)
