"""poll(2), select(2) and epoll(7) on partitions' files: who waits is woken, and by what."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.fork_server import KAFKAFS
from tests.mount.beside import Beside
from tests.mount.contract.conftest import new_topic
from tests.mount.contract.test_caching import Metrics
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, fails
from tests.mount.programs import LET_GO, Running, inotify_left, program
from tests.storage.producers import Producer
from tests.waits import HANG_S, until

ALWAYS = select.POLLIN | select.POLLOUT
WAIT_MS = HANG_S * 1000
FILES = ["0", ".follow/0", "0@start", ".kv/0", ".jsonl/0", ".batches/0", ".jsonl/0@start"]


@contextmanager
def opened(path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
    fd = os.open(path, flags)
    try:
        yield fd
    finally:
        # close(2) of a dead mount's file says so, and closes it.
        with suppress(OSError):
            os.close(fd)


def polled(fd: int, events: int = ALWAYS | select.POLLPRI, timeout_ms: float = 0) -> int:
    """The events of poll(2) on one file; 0: none until the timeout."""
    poller = select.poll()
    poller.register(fd, events)
    found = poller.poll(timeout_ms)
    return found[0][1] if found else 0


def read_all(fd: int) -> bytes:
    data = b""
    while piece := os.read(fd, 1 << 20):
        data += piece
    return data


class Waiting:
    """A thread that waits in a system call; `result` waits for its end."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self._found: list[object] = []
        self._ready = threading.Event()
        self._id = 0
        self._thread = threading.Thread(target=self._run, args=[wait])
        self._thread.start()
        self._ready.wait()

    def _run(self, wait: Callable[[], object]) -> None:
        self._id = threading.get_native_id()
        self._ready.set()
        self._found.append(wait())

    def sleeping(self) -> Waiting:
        """As soon as it sleeps in poll(2), select(2) or epoll_wait(2)."""
        names = ("poll", "select", "ep_")
        until(lambda: any(name in self._place() for name in names))
        return self

    def _place(self) -> str:
        return Path(f"/proc/self/task/{self._id}/wchan").read_text()

    def result(self) -> object:
        self._thread.join(HANG_S)
        assert not self._thread.is_alive()
        return self._found[0]


def waiting_for_more(fd: int) -> Waiting:
    return Waiting(lambda: polled(fd, select.POLLPRI, WAIT_MS)).sleeping()


# -- what there is ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
def test_there_is_more_until_all_is_read(orders: Path, name: str) -> None:
    append(orders, b"one\n")
    with opened(orders.parent / name) as fd:
        assert polled(fd) == ALWAYS | select.POLLPRI
        assert read_all(fd)
        assert polled(fd) == ALWAYS
        append(orders, b"two\n")
        assert polled(fd) == ALWAYS | select.POLLPRI
        assert os.read(fd, 1)
        assert polled(fd) == ALWAYS | select.POLLPRI
        assert read_all(fd)
        assert polled(fd) == ALWAYS
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.read(fd, 1)
        assert polled(fd) == ALWAYS | select.POLLPRI


@pytest.mark.parametrize("name", ["0", ".follow/0", ".batches/0"])
def test_an_append_wakes(orders: Path, name: str) -> None:
    append(orders, b"one\n")
    with opened(orders.parent / name) as fd:
        read_all(fd)
        waiting = waiting_for_more(fd)
        append(orders, b"two\n")
        assert waiting.result() == select.POLLPRI
        assert b"two" in read_all(fd)


def test_an_empty_file_and_one_read_at_its_end_wait(orders: Path) -> None:
    with opened(orders) as fd:
        assert polled(fd) == ALWAYS
        waiting = waiting_for_more(fd)
        append(orders, b"one\n")
        assert waiting.result() == select.POLLPRI
    with opened(orders) as fd:
        assert os.lseek(fd, 0, os.SEEK_END) == 4
        assert os.read(fd, 1) == b""
        assert polled(fd) == ALWAYS


def test_select_and_epoll_wait_for_what_is_urgent(orders: Path) -> None:
    with opened(orders) as fd, select.epoll() as level, select.epoll() as edge:
        level.register(fd, select.EPOLLPRI)
        edge.register(fd, select.EPOLLPRI | select.EPOLLET)
        waiting = [
            Waiting(lambda: select.select([], [], [fd], HANG_S)).sleeping(),
            Waiting(lambda: level.poll(HANG_S)).sleeping(),
            Waiting(lambda: edge.poll(HANG_S)).sleeping(),
        ]
        append(orders, b"one\n")
        found = [each.result() for each in waiting]
        assert found == [([], [], [fd]), [(fd, select.EPOLLPRI)], [(fd, select.EPOLLPRI)]]
        # Unread bytes trigger a level again, and an edge only at the next append.
        assert level.poll(0) == [(fd, select.EPOLLPRI)]
        assert edge.poll(0) == []
        append(orders, b"two\n")
        assert edge.poll(HANG_S) == [(fd, select.EPOLLPRI)]
        assert read_all(fd) == b"one\ntwo\n"
        assert level.poll(0) == []


def test_a_program_that_selects_before_it_reads_or_writes_goes_on_at_once(
    mount: Mount, orders: Path
) -> None:
    topic = orders.parent
    for path in (orders, topic / ".meta/0/offsets", topic / ".config", mount / ".kafkafs/log"):
        with opened(path) as fd:
            read_all(fd)
            assert select.select([fd], [fd], [], None) == ([fd], [fd], [])
            assert os.read(fd, 1) == b""
            assert polled(fd) == ALWAYS
    for flags in (os.O_WRONLY | os.O_APPEND, os.O_RDWR | os.O_APPEND):
        with opened(orders, flags) as fd:
            assert select.select([], [fd], [], None) == ([], [fd], [])
            os.write(fd, b"line\n")
            more = select.POLLPRI if flags & os.O_RDWR else 0
            assert polled(fd) == ALWAYS | more


# -- the documented programs -----------------------------------------------------------------------


#: The documented program in C.
IN_C = r"""
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
int main(int argc, char **argv) {
    struct pollfd more = {open(argv[1], O_RDONLY), POLLPRI};
    char data[1 << 16];
    ssize_t size;
    while ((size = read(more.fd, data, sizeof data)) > 0 ||
           (size == 0 && poll(&more, 1, -1) > 0 && more.revents & POLLPRI))
        write(1, data, size);
}
"""


def documented() -> str:
    """The Python program in the reference."""
    text = (Path(__file__).parents[3] / "docs/reference/following.md").read_text()
    chapter = text.partition("\n## Waiting for more: poll\n")[2].partition("\n## ")[0]
    return chapter.partition("```python\n")[2].partition("```")[0]


@pytest.mark.parametrize("language", ["python", "c"])
def test_the_documented_program_prints_what_comes_and_ends_with_the_topic(
    orders: Path, tmp_path: Path, language: str
) -> None:
    append(orders, b"one\n")
    source = tmp_path / f"follow.{language}"
    source.write_text(IN_C if language == "c" else documented())
    command = [sys.executable, str(source)]
    if language == "c":
        command = [str(tmp_path / "follow")]
        subprocess.run([program("gcc"), "-Wall", "-o", *command, str(source)], check=True)
    with Running([*command, orders]) as follow:
        follow.read_until(b"one\n")
        for number in range(100):
            append(orders, b"%d\n" % number)
            follow.read_until(b"\n%d\n" % number)
        orders.parent.rmdir()
        assert follow.status() == 0
        assert follow.errors() == ""
    # A file that does not grow is printed, and no more.
    other = orders.parent.parent / f"{orders.parent.name}-other"
    other.mkdir()
    text = b"".join(b"line %d\n" % number for number in range(50_000))
    append(other / "0", text)
    done = subprocess.run([*command, other / ".snapshot/0"], capture_output=True, timeout=HANG_S)
    assert done.stdout == text


# -- who is woken ----------------------------------------------------------------------------------


def test_an_append_wakes_all_who_wait_for_its_partition_and_nobody_else(mount: Mount) -> None:
    orders = new_topic(mount, partitions=2)
    metrics = Metrics(mount)
    with opened(orders) as first, opened(orders) as second, opened(orders.parent / "1") as other:
        waiting = [waiting_for_more(first), waiting_for_more(second)]
        stays = waiting_for_more(other)
        metrics()
        append(orders, b"one\n")
        assert [each.result() for each in waiting] == [select.POLLPRI] * 2
        # Each of the two has polled once more; the third slept on.
        assert metrics()["poll"] == 2
        append(orders.parent / "1", b"one\n")
        assert stays.result() == select.POLLPRI


def test_processes_that_share_an_open_file_are_all_woken(orders: Path) -> None:
    with opened(orders) as fd:
        children = []
        for _ in range(3):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.write(writer, b"x")
                os._exit(0 if polled(fd, select.POLLPRI, WAIT_MS) == select.POLLPRI else 1)
            assert os.read(reader, 1) == b"x"
            os.close(reader)
            os.close(writer)
            children.append(child)
        append(orders, b"one\n")
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_file_may_be_closed_while_it_is_waited_for(orders: Path) -> None:
    with opened(orders, os.O_WRONLY | os.O_APPEND) as writer, opened(orders) as other:
        fd = os.open(orders, os.O_RDONLY)
        waiting = waiting_for_more(fd)
        os.close(fd)
        os.write(writer, b"one\n")
        assert waiting.result() == select.POLLNVAL
        assert polled(other) == ALWAYS | select.POLLPRI


def test_an_idle_daemon_asks_and_is_asked_nothing(mount: Mount, orders: Path) -> None:
    metrics = Metrics(mount)
    files = [os.open(orders, os.O_RDONLY) for _ in range(500)]
    try:
        with select.epoll() as epoll:
            for fd in files:
                epoll.register(fd, select.EPOLLPRI)
            metrics()
            assert epoll.poll(1) == []
            assert metrics()["poll"] == 0
            append(orders, b"one\n")
            woken: set[int] = set()
            while len(woken) < len(files):
                woken.update(fd for fd, _ in epoll.poll(HANG_S, maxevents=len(files)))
    finally:
        for fd in files:
            os.close(fd)


# -- transactions, retention, compaction -----------------------------------------------------------


def test_the_end_of_a_transaction_wakes_and_its_records_do_not(orders: Path) -> None:
    batches = orders.parent / ".batches/0"
    one = Producer(1, transactional=True)
    with opened(orders) as fd, opened(batches) as stored:
        waiting, waiting_stored = waiting_for_more(fd), waiting_for_more(stored)
        append(batches, one.batch(b"a"))
        assert waiting_stored.result() == select.POLLPRI
        assert polled(fd) == ALWAYS
        append(batches, one.marker(1))
        assert waiting.result() == select.POLLPRI
        assert read_all(fd) == b"a\n"
        waiting = waiting_for_more(fd)
        append(batches, one.batch(b"aborted"))
        append(batches, one.marker(0))
        assert polled(fd) == ALWAYS
        append(orders, b"b\n")
        assert waiting.result() == select.POLLPRI
        assert read_all(fd) == b"b\n"


def test_an_older_file_goes_on_waiting_when_the_head_is_deleted(orders: Path) -> None:
    append(orders, b"one\n")
    (orders.parent / ".control/roll").write_text("run\n")
    append(orders, b"two\n")
    with opened(orders) as fd:
        read_all(fd)
        waiting = waiting_for_more(fd)
        (orders.parent / ".control/delete-records").write_text("0 1\n")
        assert os.fstat(fd).st_ino != orders.stat().st_ino
        append(orders, b"three\n")
        assert waiting.result() == select.POLLPRI
        assert read_all(fd) == b"three\n"


# -- ends ------------------------------------------------------------------------------------------


def test_what_will_not_grow_hangs_up(orders: Path) -> None:
    append(orders, b"one\ntwo\n")
    ends = ALWAYS | select.POLLHUP
    for name in (".snapshot/0", "0@start..end", "0@0..1"):
        with opened(orders.parent / name) as fd:
            assert polled(fd) == ends | select.POLLPRI
            # The kernel caches the file: POLLPRI is set once for each size, whatever was read.
            assert polled(fd) == ends
            assert read_all(fd)
            assert polled(fd) == ends
    with opened(orders.parent / "0@1..3") as fd:
        assert read_all(fd) == b"two\n"
        waiting = waiting_for_more(fd)
        append(orders, b"three\nfour\n")
        assert waiting.result() == select.POLLPRI
        assert read_all(fd) == b"three\n"
        assert polled(fd) == ends


def test_a_deleted_topic_wakes_who_waits(orders: Path) -> None:
    append(orders, b"one\n")
    with opened(orders) as fd:
        assert os.read(fd, 4) == b"one\n"
        waiting = waiting_for_more(fd)
        orders.parent.rmdir()
        assert waiting.result() == select.POLLHUP | select.POLLERR
        assert os.read(fd, 1) == b""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_daemons_end_wakes_who_waits(own: Mount, end: signal.Signals) -> None:
    orders = own.topic()
    with opened(orders) as fd, select.epoll() as epoll:
        epoll.register(fd, select.EPOLLPRI)
        waiting = [waiting_for_more(fd), Waiting(lambda: epoll.poll(HANG_S)).sleeping()]
        os.kill(own.pid, end)
        assert [each.result() for each in waiting] == [select.POLLERR, [(fd, select.EPOLLERR)]]
        fails(errno.ENOTCONN, os.read, fd, 1)


def test_a_lazily_unmounted_file_is_woken_on(own: Mount) -> None:
    orders = own.topic()
    with opened(orders) as fd, opened(orders, os.O_WRONLY | os.O_APPEND) as writer:
        waiting = waiting_for_more(fd)
        subprocess.run(["fusermount3", "-u", "-z", own.path], check=True)
        os.write(writer, b"one\n")
        assert waiting.result() == select.POLLPRI
    own.wait()


# -- another process's directory -------------------------------------------------------------------


def test_what_a_broker_does_wakes(beside: Beside) -> None:
    beside.start()
    partition, written = beside.partition, b"zero\n"
    with opened(beside.file) as fd:
        assert read_all(fd) == written
        for number in range(20):
            waiting = waiting_for_more(fd)
            if number % 3 == 2:
                partition.roll()
            partition.append(b"%d" % number)
            assert waiting.result() == select.POLLPRI
            assert read_all(fd) == b"%d\n" % number
        waiting = waiting_for_more(fd)
        beside.broker.delete(partition)
        assert waiting.result() == select.POLLHUP | select.POLLERR


def watches(pid: int) -> int:
    """How many directories a daemon has inotify(7) watch."""
    found = 0
    for entry in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(OSError):
            found += entry.read_text().count("inotify wd:")
    return found


def test_only_what_is_polled_is_watched(beside: Beside) -> None:
    for number in range(1, 5):
        beside.broker.partition("t", number).append(b"one")
    inotify_left()
    beside.start()
    assert watches(beside.pid) == 0
    with opened(beside.file) as fd, opened(beside.path / "t/.jsonl/0") as again:
        read_all(fd)
        assert watches(beside.pid) == 0
        with select.epoll() as epoll:
            epoll.register(fd, select.EPOLLPRI)
            epoll.register(again, select.EPOLLPRI)
            assert watches(beside.pid) == 1
    # RELEASE comes after close(2) has returned.
    until(lambda: not watches(beside.pid))


# In a user namespace of its own, where the limit is the test's.
WITHOUT_INOTIFY = """
import os, select, subprocess, sys
from pathlib import Path
from tests.waits import until
from tests.mount.contract.test_polling import WAIT_MS, polled, read_all, watches

data, mnt, *kafkafs = sys.argv[1:]
left = Path("/proc/sys/user/max_inotify_instances")
left.write_text("0")
daemon = subprocess.Popen([*kafkafs, "mount", data, mnt, "-f", "-o", "ro"])
try:
    until(lambda: os.path.ismount(mnt))
    events = Path(mnt) / ".kafkafs/log"
    fd = os.open(Path(mnt) / "t/0", os.O_RDONLY)
    read_all(fd)
    # The kernel answers reads from its pages: it may say once that there was something.
    polled(fd)
    print(events.read_text().count("cannot watch the directory"), flush=True)
    assert polled(fd, select.POLLPRI, WAIT_MS) == select.POLLPRI
    print(read_all(fd), watches(daemon.pid), flush=True)
    print(events.read_text().count("cannot watch the directory"), flush=True)
    left.write_text("100")
    until(lambda: watches(daemon.pid) == 1)
    print("watched", flush=True)
    os.close(fd)
finally:
    daemon.terminate()
    daemon.wait()
"""


def test_without_inotify_who_waits_is_woken_too_and_later_with_it(beside: Beside) -> None:
    inotify_left()
    unshare = program("unshare")
    command = [unshare, "--user", "--map-root-user", "--mount", sys.executable, "-c"]
    if os.geteuid() == 0:
        # In a user namespace nothing of what is mounted outside can be unmounted.
        command = [unshare, "--mount", "sh", "-c", f'{LET_GO} exec "$@"', "sh", *command]
    arguments = [str(beside.data), str(beside.path), *KAFKAFS]
    with Running([*command, WITHOUT_INOTIFY, *arguments]) as running:
        running.read_until(b"0\n")
        beside.partition.append(b"one")
        assert running.read_until(b"watched\n") == b"0\nb'one\\n' 0\n1\nwatched\n"
        assert running.status() == 0, running.errors()


def test_a_broker_that_starts_on_the_mounted_directory_wakes(tmp_path: Path) -> None:
    mount = Beside(tmp_path)
    mount.start()
    try:
        with opened(mount.file) as fd:
            assert read_all(fd) == b"zero\n"
            # The kernel answers reads from its pages: it may say once that there was something.
            polled(fd)
            assert polled(fd) == ALWAYS
            waiting = waiting_for_more(fd)
            mount.broker.hold_lock()
            mount.partition.append(b"one")
            assert waiting.result() == select.POLLPRI
            assert os.read(fd, 100) == b"one\n"
    finally:
        mount.end()
        mount.broker.release_lock()


def test_the_high_watermark_wakes(tmp_path: Path) -> None:
    mount = Beside(tmp_path, "until=high-watermark")
    mount.broker.hold_lock()
    mount.broker.write_high_watermark(mount.partition, 1)
    mount.start()
    try:
        with opened(mount.file) as fd:
            assert read_all(fd) == b"zero\n"
            waiting = waiting_for_more(fd)
            mount.partition.append(b"one")
            mount.partition.append(b"two")
            mount.broker.write_high_watermark(mount.partition, 2)
            assert waiting.result() == select.POLLPRI
            assert read_all(fd) == b"one\n"
    finally:
        mount.end()
        mount.broker.release_lock()
