"""A reader continues during retention and compaction, and gets each record once."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.contract.writing import append, write_all
from tests.mount.control import do, facts, segments
from tests.mount.mounting import Mount
from tests.mount.programs import Running, less, program
from tests.waits import HANG_S, until

ROUNDS = 6
FAST = ["--sleep-interval=0.02"]
BY_NAME = ["-F", "--max-unchanged-stats=1", *FAST]
KEYS = 50


def line(number: int) -> bytes:
    return b"%08d %s\n" % (number, b"." * (number % 60))


def lines(count: int) -> bytes:
    return b"".join(map(line, range(count)))


class Writer(threading.Thread):
    """Appends one record after the other, of a few keys. A context manager, which ends it."""

    def __init__(self, partition: Path) -> None:
        super().__init__()
        self.count = 0
        self._ending = threading.Event()
        self._file = os.open(partition.parent / ".kv" / partition.name, os.O_WRONLY | os.O_APPEND)

    def run(self) -> None:
        # At a pace at which whoever reads keeps up.
        while not self._ending.wait(0.0005):
            write_all(self._file, b"%d\t%s" % (self.count % KEYS, line(self.count)))
            self.count += 1

    def end(self) -> int:
        """Stop, and return the number of lines written."""
        self._ending.set()
        self.join()
        return self.count

    def more(self, count: int) -> int:
        """Wait until `count` more lines are written. Return the number of lines."""
        wanted = self.count + count
        until(lambda: self.count >= wanted)
        return self.count

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        os.close(self._file)


@pytest.fixture
def orders(mount: Mount) -> Path:
    """Files that are deleted go as soon as nobody reads them; no cleaner starts by itself."""
    orders = mount.topic()
    append(
        orders.parent / ".config",
        b"cleanup.policy=compact,delete\nmin.cleanable.dirty.ratio=1\nfile.delete.delay.ms=1000\n",
    )
    return orders


def seal(orders: Path, writer: Writer) -> int:
    """Seal a segment. Return the number of lines now, at least as many as are sealed."""
    writer.more(100)
    do(orders, "roll", "run")
    return writer.count


def clean(orders: Path) -> None:
    do(orders, "compaction", "run")
    until(lambda: facts(orders, "compaction")["state"] == "idle")
    assert facts(orders, "compaction")["last_outcome"] == "done"


def retain(orders: Path) -> None:
    """All but the active segment go."""
    append(orders.parent / ".config", b"retention.bytes=1\n")
    do(orders, "retention", "run")
    assert segments(orders) == 1
    append(orders.parent / ".config", b"retention.bytes=\n")


# -- the partition itself ------------------------------------------------------------------------


def test_tail_follows_a_partition_through_retention_and_compaction(orders: Path) -> None:
    with Writer(orders) as writer, Running(["tail", "-f", "-n", "+1", *FAST, orders]) as tail:
        inodes = set()
        for number in range(ROUNDS):
            seal(orders, writer)
            clean(orders)
            inodes.add(orders.stat().st_ino)
            seal(orders, writer)
            if number % 2:
                retain(orders)
                inodes.add(orders.stat().st_ino)
        count = writer.end()
        shown = tail.read_until(line(count - 1))
        assert tail.errors() == ""
    assert shown == lines(count)
    assert len(inodes) == ROUNDS + ROUNDS // 2


@pytest.mark.parametrize("name", ["0", "0@0", "0@150", "0@150..450", ".jsonl/0"])
def test_who_has_opened_a_file_reads_one_history(orders: Path, name: str) -> None:
    """`cat` waits for who reads its output, while all that it is reading is cleaned and deleted."""
    file = orders.parent / name
    for _ in range(3):
        text = b"".join(b"%d\t%s" % (number, b"x" * 999 + b"\n") for number in range(200))
        append(orders.parent / ".kv/0", text)
        do(orders, "roll", "run")
    append(orders.parent / ".kv/0", b"0\tlast\n")
    expected = file.read_bytes()
    with subprocess.Popen(["cat", str(file)], stdout=subprocess.PIPE) as cat:
        assert cat.stdout is not None
        begun = os.read(cat.stdout.fileno(), 1)
        clean(orders)
        retain(orders)
        assert file.read_bytes() != expected
        assert begun + cat.stdout.read() == expected
        assert cat.wait() == 0


def test_less_goes_back_in_the_history_that_it_has_opened(orders: Path) -> None:
    append(orders.parent / ".config", b"file.delete.delay.ms=60000\n")
    kv = orders.parent / ".kv/0"
    append(kv, b"".join(b"%d\tline %d\n" % (n % KEYS, n) for n in range(20_000)))
    do(orders, "roll", "run")
    append(kv, b"0\tthe last line\n")
    with less(orders) as shown:
        shown.wait_for(b"line 22\r")
        clean(orders)
        retain(orders)
        assert orders.read_bytes() == b"the last line\n"
        shown.press(b"G")
        assert b"line 19990\r" in shown.wait_for(b"the last line\r")
        shown.press(b"10000g")
        shown.wait_for(b"line 9999\r")
        append(kv, b"0\tanother line\n")
        shown.press(b"F")
        shown.wait_for(b"another line\r")
        shown.press(b"\x03")
        # Keys that come before it has been interrupted are dropped with the interrupt.
        shown.wait_for(b"(END)")
        shown.press(b"g")
        shown.wait_for(b"line 2\r")
        shown.press(b"q")
        assert shown.wait() == 0


# -- .follow -------------------------------------------------------------------------------------


class Tail:
    """`tail -F`, which opens the file by its name again whenever no data has arrived."""

    rounds = ROUNDS

    def __init__(self, file: Path, scratch: Path) -> None:
        self._running = Running(["tail", "-n", "+1", *BY_NAME, file])

    def caught_up(self, last: bytes) -> None:
        self._running.wait(lambda data: last in data)

    def restart(self) -> None:
        """It remembers nothing, and is not ended."""

    def text(self) -> bytes:
        assert self._running.errors() == ""
        return self._running.wait(lambda data: True)

    def close(self) -> None:
        self._running.__exit__()


_RSYSLOG = """
global(workDirectory="{scratch}" maxMessageSize="64k" inputs.timeout.shutdown="{hang_ms}")
main_queue(queue.timeoutShutdown="{hang_ms}" queue.timeoutEnqueue="{hang_ms}")
module(load="imfile" mode="polling" pollingInterval="1")
template(name="line" type="string" string="%msg%\\n")
ruleset(name="copy") {{ action(type="omfile" file="{scratch}/out" template="line") }}
input(type="imfile" file="{file}" tag="orders" ruleset="copy" persistStateInterval="1")
"""


class Rsyslog:
    """rsyslogd with its own settings and state; it looks once a second.

    It ends when it is done: by default it gives up a read that takes a second, and what is queued.
    """

    rounds = 3
    """In each the writer goes on for as long as it sleeps."""

    def __init__(self, file: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._out = scratch / "out"
        self._out.touch()
        settings = scratch / "rsyslog.conf"
        settings.write_text(_RSYSLOG.format(scratch=scratch, file=file, hang_ms=int(HANG_S * 1000)))
        self._command = [program("rsyslogd"), "-n", *("-f", str(settings))]
        self._command += ["-i", str(scratch / "pid")]
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def caught_up(self, last: bytes) -> None:
        until(lambda: last in self.text())

    def restart(self) -> None:
        self.close()
        self._start()

    def text(self) -> bytes:
        return self._out.read_bytes()

    def close(self) -> None:
        """SIGTERM: it writes down how far it is."""
        self._process.terminate()
        self._process.wait()


Shipper = Tail | Rsyslog


@pytest.fixture(params=[Tail, Rsyslog])
def shipper(request: pytest.FixtureRequest, orders: Path, tmp_path: Path) -> Iterator[Shipper]:
    scratch = tmp_path / "shipper"
    scratch.mkdir()
    shipper: Shipper = request.param(orders.parent / ".follow/0", scratch)
    yield shipper
    shipper.close()


@pytest.mark.soak
@pytest.mark.parametrize("change", [retain, clean], ids=["retention", "compaction"])
def test_a_shipper_gets_each_record_once(
    mount: Mount, orders: Path, shipper: Shipper, change: object
) -> None:
    """The inode number is the same in all rounds. The shipper restarts in every other round."""
    assert callable(change)
    inode = (orders.parent / ".follow/0").stat().st_ino
    with Writer(orders) as writer:
        for number in range(shipper.rounds):
            count = seal(orders, writer)
            shipper.caught_up(line(count - 1))
            if number % 2:
                shipper.restart()
            change(orders)
        count = writer.end()
    shipper.caught_up(line(count - 1))
    assert shipper.text() == lines(count)
    assert (orders.parent / ".follow/0").stat().st_ino == inode
    assert "missed" not in mount.events()


def begin(orders: Path, count: int) -> None:
    """Append `count` records while `.follow` is in use, and one more. Delete all but the last."""
    assert (orders.parent / ".follow/0").stat().st_size >= 0
    value(orders, lines(count))
    do(orders, "roll", "run")
    value(orders, b"later\n")
    retain(orders)


def value(orders: Path, text: bytes) -> None:
    """Records of one key."""
    rows = [b"0\t" + each for each in text.splitlines(keepends=True)]
    append(orders.parent / ".kv/0", b"".join(rows))


# Each reads `.follow/0` of a topic, and remembers in `state` how far it is, or nothing.
PROGRAMS = {
    "logtail": "logtail -f orders/.follow/0 -o $STATE",
    "logtail2": "logtail2 -f orders/.follow/0 -o $STATE",
    "lnav": "mkdir -p $STATE.home && HOME=$STATE.home lnav -n orders/.follow/0",
    "cat": "cat orders/.follow/0",
}


@pytest.mark.soak
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_begins_after_retention_gets_what_is_left(
    mount: Mount, orders: Path, tmp_path: Path, name: str
) -> None:
    program(name)
    begin(orders, 100)
    last = b"later\n"
    for _ in range(2):
        said = mount.run(PROGRAMS[name], STATE=tmp_path / "state")
        assert said.lstrip(b"\n") == last
        value(orders, b"last\n")
        last = b"last\n" if name.startswith("logtail") else last + b"last\n"
    assert "missed" not in mount.events()


def test_a_program_that_comes_back_after_retention_gets_on(
    mount: Mount, orders: Path, tmp_path: Path
) -> None:
    """One line in the log names the offsets that it missed."""
    program("logtail")
    value(orders, lines(10))
    state = tmp_path / "state"
    assert mount.run(PROGRAMS["logtail"], STATE=state) == lines(10)
    begin(orders, 100)
    for last in (b"later\n", b"last\n"):
        assert mount.run(PROGRAMS["logtail"], STATE=state).lstrip(b"\n") == last
        value(orders, b"last\n")
    missed = f"the reader at position {len(lines(10))} missed offsets "
    assert mount.events().count(missed) == 1


def test_tail_that_begins_after_retention_gets_on(mount: Mount, orders: Path) -> None:
    begin(orders, 100)
    with Running(["tail", "-n", "+1", *BY_NAME, orders.parent / ".follow/0"]) as tail:
        tail.wait(lambda data: b"later\n" in data)
        value(orders, b"last\n")
        assert tail.read_until(b"last\n").lstrip(b"\n") == b"later\nlast\n"
        assert tail.errors() == ""
