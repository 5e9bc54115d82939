"""The daemon cannot start threads: requests that need one fail at once, all others succeed.

When threads are available again, all requests succeed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.mounting import fails
from tests.mount.steering import SteeredMount, steered
from tests.waits import until

NO_THREAD = "cannot start a thread"


def write(path: Path, text: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(text.encode())


def synced(path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def until_said(mount: SteeredMount, text: str) -> str:
    until(lambda: text in mount.events())
    return mount.events()


REQUESTS: dict[str, Callable[[SteeredMount], object]] = {
    "statfs": lambda mount: os.statvfs(mount.path),
    "mkdir": lambda mount: (mount / "more").mkdir(),
    "create": lambda mount: (mount / "orders/1").touch(),
    "rmdir": lambda mount: (mount / "other").rmdir(),
    "setattr": lambda mount: (mount / "orders").chmod(0o700),
    "fsync": lambda mount: synced(mount / "orders/0"),
    "settings": lambda mount: write(mount / "orders/.config", "retention.ms=1\n"),
    "retention": lambda mount: write(mount / "orders/.control/retention", "run\n"),
    "roll": lambda mount: write(mount / "orders/.control/roll", "run\n"),
}


def test_requests_that_need_a_thread_are_refused(tmp_path: Path) -> None:
    with steered(tmp_path) as mount:
        orders = mount.topic()
        mount.topic("other")
        write(orders, "before\n")
        mount.daemon.take_threads()
        write(orders, "meanwhile\n")
        for request in REQUESTS.values():
            fails(errno.ENOMEM, request, mount)
        assert orders.read_text() == "before\nmeanwhile\n"
        assert sorted(os.listdir(mount.path)) == ["orders", "other"]
        said = mount.events()
        assert "Traceback" not in said
        named = [line.split(" ", 1)[1] for line in said.splitlines() if line.endswith(NO_THREAD)]
        for name in ("mkdir", "rmdir", "create", "fsync", "setattr", "write", "statfs"):
            assert any(line.startswith(name) for line in named), said
        mount.daemon.give_threads()
        for request in REQUESTS.values():
            request(mount)
        assert sorted(os.listdir(mount.path)) == ["more", "orders"]
        assert sorted(os.listdir(mount / "orders")) == ["0", "1"]
        write(orders, "after\n")


def test_a_cold_read(tmp_path: Path) -> None:
    with steered(tmp_path) as mount:
        orders = mount.topic()
        write(orders, "a line\n")
        mount.daemon.take_threads()
        mount.daemon.fail("preadv_nowait", ".log", "EAGAIN", 1)
        fails(errno.ENOMEM, orders.read_bytes)
        assert orders.read_bytes() == b"a line\n"
        mount.daemon.give_threads()
        mount.daemon.fail("preadv_nowait", ".log", "EAGAIN", 1)
        assert orders.read_bytes() == b"a line\n"


def test_what_the_clock_begins(tmp_path: Path) -> None:
    """It fails, with a line, is tried again, and goes on, with another."""
    with steered(tmp_path) as mount:
        orders = mount.topic()
        write(orders, "flushed\n")
        mount.daemon.take_threads()
        write(orders, "to be flushed\n")
        duties = ("housekeeping", "orders/0: flush")
        for duty in duties:
            until_said(mount, f"{duty} failed, will retry: {NO_THREAD}")
        mount.daemon.give_threads()
        for duty in duties:
            said = until_said(mount, f"{duty} works again")
            assert said.count(f"{duty} failed") == said.count(f"{duty} works again") == 1
        assert "Traceback" not in said


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_the_end_without_threads(tmp_path: Path, ending: str) -> None:
    with steered(tmp_path) as mount:
        for partition in range(40):
            if not partition:
                mount.topic()
            else:
                (mount / f"orders/{partition}").touch()
            write(mount / f"orders/{partition}", f"{partition}\n")
        mount.daemon.take_threads()
        write(mount / "orders/0", "the last one\n")
        getattr(mount, ending)()
        assert (mount.data / ".kafka_cleanshutdown").exists() == (ending == "stop")
        mount.start()
        assert (mount / "orders/0").read_text() == "0\nthe last one\n"


def test_a_setting_whose_line_ends_with_the_file(tmp_path: Path) -> None:
    """close(2) has nobody to tell of it: it is set when there is a thread."""
    with steered(tmp_path) as mount:
        mount.topic()
        config = mount / "orders/.config"
        with open(config, "ab", buffering=0) as file:
            file.write(b"retention.ms=123456")
            mount.daemon.take_threads()
        mount.daemon.give_threads()
        while "\nretention.ms=123456\n" not in f"\n{config.read_text()}":
            pass
