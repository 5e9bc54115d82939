"""`kafkafs tail`: what tail prints, and with -f what is appended; how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.mount.contract.writing import append
from tests.mount.mounting import Mount, mounted
from tests.mount.programs import Running
from tests.waits import HANG_S, until

TAIL = [*KAFKAFS, "tail"]
ROUNDS = 4
LINES = 2000


class Following(Running):
    """`kafkafs tail -f` while it runs."""

    def __init__(self, *arguments: str | Path) -> None:
        super().__init__([*TAIL, "-f", *arguments])

    def said(self, text: str) -> None:
        """As soon as it has said something on standard error."""
        until(lambda: text in self.errors() or not self.is_running())
        assert text in self.errors()


# -- as tail ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory of files that do not grow: many lines, none, one that is long."""
    with mounted(tmp_path_factory.mktemp("mount")) as mount:
        orders = mount.topic(partitions=3)
        append(orders, b"".join(b"line %d\n" % number for number in range(30_000)))
        append(orders.parent / "2", b"x" * 20_000 + b"\nlast\n")
        yield orders.parent / ".snapshot"


OPTIONS = [
    *(["-n", count] for count in ("0", "1", "3", "-3", "1K", "40000", "+1", "+3", "+0", "+40000")),
    *(["-c", count] for count in ("0", "7", "1b", "1kB", "1M", "+1", "+9", "+0", "+9000000")),
    ["--lines=2"],
    ["--bytes=2"],
    ["-q", "-n2"],
]
BOTH = [[], ["-v", "-n2"]]


@pytest.mark.parametrize(
    ("names", "options"),
    [
        *(("0 1 2", options) for options in [*OPTIONS, *BOTH]),
        *(("0", options) for options in [["-n", "0"], ["-c", "0"], *BOTH]),
    ],
)
def test_it_prints_what_tail_prints(snapshots: Path, options: list[str], names: str) -> None:
    files = [str(snapshots / name) for name in names.split()]
    expected = subprocess.run(["tail", *options, *files], capture_output=True)
    done = subprocess.run([*TAIL, *options, *files], capture_output=True, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, b"")
    if "0" in options and len(files) > 1:
        # Then `tail` names the files only with -f.
        assert done.stdout == "\n".join(f"==> {file} <==\n" for file in files).encode()
    else:
        assert done.stdout == expected.stdout


def test_it_ends_though_the_files_grow(orders: Path) -> None:
    append(orders, b"1\n2\n")
    done = subprocess.run([*TAIL, "-n1", orders], capture_output=True, timeout=HANG_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"2\n", b"")
    done = subprocess.run([*TAIL, "--pid=1", orders], capture_output=True, timeout=HANG_S)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--pid requires -f" in done.stderr


# -- following -------------------------------------------------------------------------------------


@pytest.fixture
def mount(shared_mount: Mount) -> Mount:
    return shared_mount


@pytest.fixture
def orders(mount: Mount) -> Path:
    """A partition whose segments are small."""
    orders = mount.topic()
    mount.run("echo internal.segment.bytes=20000 >> orders/.config")
    return orders


@pytest.mark.parametrize(
    ("name", "by_name"),
    [("0", []), (".follow/0", ["-F"]), ("0@start", ["--retry", "-s", "0.1"]), ("0", ["-F"])],
)
def test_it_prints_every_line_once_while_segments_roll_and_go(
    mount: Mount, orders: Path, name: str, by_name: list[str]
) -> None:
    append(orders, b"before\n" * 5)
    with Following(*by_name, "-n2", orders.parent / name) as tail:
        tail.read_until(b"before\n" * 2)
        for number in range(ROUNDS):
            append(orders, b"".join(b"%d %d\n" % (number, each) for each in range(LINES)))
            tail.read_until(b"\n%d %d\n" % (number, LINES - 1))
            mount.run(
                "echo 0 $(getfattr --only-values -n user.kafkafs.log_end orders/0) > "
                "orders/.control/delete-records"
            )
        shown = tail.read_until(b"\n")
        assert tail.errors() == ""
    lines = [b"%d %d\n" % (number, each) for number in range(ROUNDS) for each in range(LINES)]
    assert shown == b"before\n" * 2 + b"".join(lines)


def test_it_names_the_file_that_a_line_is_of(mount: Mount) -> None:
    one, two = mount.topic("one"), mount.topic("two")
    append(one, b"1\n")
    with Following(one, two) as tail:
        first, second = b"==> %s <==\n" % bytes(one), b"==> %s <==\n" % bytes(two)
        shown = first + b"1\n\n" + second
        assert tail.read_until(shown) == shown
        for path, text in (
            (two, b"2\n"),
            (one, b"\n" + first + b"3\n"),
            (one, b"4\n"),
            (two, b"\n" + second + b"5\n"),
        ):
            append(path, text.split(b"\n")[-2] + b"\n")
            shown += text
            assert tail.read_until(shown) == shown


# -- ends ------------------------------------------------------------------------------------------


def test_one_grammar_names_the_files(mount: Mount) -> None:
    """A mount, its data directory, topics and partitions of these, and paths."""
    one, two = mount.topic("first", 2).parent, mount.topic("second").parent
    for path in (one / "0", one / "1", two / "0"):
        append(path, b"k\tv %s\n" % path.name.encode())
    every = [*mount.path.glob("*/[0-9]*")]
    for words, files in (
        ((mount.path, "first", "second:0"), [one / "0", one / "1", two / "0"]),
        ((mount.data, "second", "first:1"), [two / "0", one / "1"]),
        ((one, two / "0"), [one / "0", one / "1", two / "0"]),
        ((one / ".jsonl", two), [one / ".jsonl/0", one / ".jsonl/1", two / "0"]),
        ((mount.path,), sorted(every)),
    ):
        shown = "".join(f"==> {file} <==\n{file.read_text()}\n" for file in files)[:-1]
        with Following(*words) as tail:
            assert tail.read_until(shown.encode()) == shown.encode()
            assert tail.errors() == ""


def test_it_ends_with_its_topics(mount: Mount) -> None:
    one, two = mount.topic("one"), mount.topic("two")
    with Following("-q", one, two) as tail:
        append(one, b"1\n")
        append(two, b"2\n")
        tail.wait(lambda data: len(data) == 4)
        one.parent.rmdir()
        tail.said(f"kafkafs: {one}: deleted\n")
        append(two, b"3\n")
        tail.read_until(b"3\n")
        two.parent.rmdir()
        assert tail.status() == 3
        assert tail.errors().endswith(f"kafkafs: {two}: deleted\n")


@pytest.mark.parametrize(("option", "status"), [("-f", 3), ("-F", None)])
def test_lines_are_deleted_before_it_reads_them(
    mount: Mount, orders: Path, option: str, status: int | None
) -> None:
    """Its output waits meanwhile."""
    mount.run("printf 'segment.bytes=1MiB\nfile.delete.delay.ms=0\n' >> orders/.config")
    append(orders, b"".join(b"%d %0200d\n" % (number, 0) for number in range(30_000)))
    command = [*TAIL, option, "-n+1", str(orders)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        shown = [tail.stdout.readline()]
        for control, words in (("delete-records", "0 27000"), ("retention", "run")):
            path = orders.parent / ".control" / control
            path.write_text(f"{words}\n")
            subprocess.run([*KAFKAFS, "wait", path], check=True)
        until(lambda: not list((mount.data / "orders-0").glob("*.deleted")))
        while not shown[-1].startswith(b"29999 ") and (line := tail.stdout.readline()):
            shown.append(line)
        if status is None:
            tail.terminate()
        assert b": the next lines are deleted" in tail.stderr.read()
    assert tail.returncode == (-signal.SIGTERM if status is None else status)
    numbers = [int(line.split()[0]) for line in shown]
    left = range(27_000, 30_000) if status is None else ()
    read = len(numbers) - len(left)
    assert numbers == [*range(read), *left]
    assert read < 27_000


def test_it_ends_where_a_range_does(orders: Path) -> None:
    append(orders, b"1\n")
    with Following(orders.parent / "0@0..3") as tail:
        tail.read_until(b"1\n")
        append(orders, b"2\n3\n4\n")
        assert tail.status() == 0
        assert tail.read_until(b"3\n") == b"1\n2\n3\n"
        assert tail.errors() == ""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_the_mount(tmp_path: Path, end: signal.Signals) -> None:
    mount = Mount(tmp_path)
    mount.start()
    try:
        orders = mount.topic()
        append(orders, b"1\n")
        with Following(orders) as tail:
            tail.read_until(b"1\n")
            os.kill(mount.pid, end)
            assert tail.status() == 3
            again = f"kafkafs mount {mount.data} {mount.path}"
            said = [f"its daemon has exited. To mount it again: {again}"]
            if end == signal.SIGTERM:  # it unmounts behind its end as a daemon
                said.append("the file system was unmounted")
            assert tail.errors() in [f"kafkafs: {orders}: {why}\n" for why in said]
    finally:
        mount.end()


def test_it_ends_with_its_reader_though_nothing_comes(orders: Path) -> None:
    append(orders, b"1\n")
    tail = subprocess.Popen([*TAIL, "-f", orders], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert tail.stdout is not None
    assert tail.stdout.readline() == b"1\n"
    tail.stdout.close()
    assert tail.wait(HANG_S) == 128 + signal.SIGPIPE
    assert tail.stderr is not None
    assert tail.stderr.read() == b""
    tail.stderr.close()


def test_ctrl_c_ends_it(orders: Path) -> None:
    append(orders, b"1\n")
    with Following(orders) as tail:
        tail.read_until(b"1\n")
        os.kill(tail.pid, signal.SIGINT)
        assert tail.status() == 130


def test_it_ends_with_the_process_that_it_is_told(orders: Path) -> None:
    append(orders, b"1\n")
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process,
        Following(f"--pid={process.pid}", orders) as tail,
    ):
        tail.read_until(b"1\n")
        append(orders, b"2\n")
        tail.read_until(b"2\n")
        assert process.stdin is not None
        process.stdin.close()
        process.wait(HANG_S)
        assert tail.status() == 0
    done = subprocess.run([*TAIL, "-f", f"--pid={process.pid}", orders], capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"1\n2\n")


# -- files that are not there, and others ----------------------------------------------------------


def test_it_waits_for_a_file_that_comes_and_goes(mount: Mount) -> None:
    orders = mount / "orders/0"
    with Following("-F", orders) as tail:
        tail.said("does not exist; waiting for it")
        mount.topic()
        append(orders, b"1\n")
        tail.read_until(b"1\n")
        orders.parent.rmdir()
        mount.topic()
        append(orders, b"2\n")
        assert tail.read_until(b"2\n") == b"1\n2\n"


def test_it_goes_on_where_it_was_when_the_mount_is_back(tmp_path: Path) -> None:
    with mounted(tmp_path) as mount:
        orders = mount.topic()
        append(orders, b"1\n")
        with Following("-F", orders) as tail:
            tail.read_until(b"1\n")
            mount.kill()
            tail.said("; waiting for it")
            mount.start()
            append(orders, b"2\n")
            assert tail.read_until(b"2\n") == b"1\n2\n"


def test_what_it_cannot_wait_for_is_refused_with_what_does(mount: Mount, tmp_path: Path) -> None:
    orders = mount.topic()
    plain = tmp_path / "plain file"
    plain.write_text("1\n")
    (tmp_path / "unmounted").mkdir()
    for path, reason in (
        (plain, f"for other files use: tail '{plain}'"),
        (mount / ".kafkafs/log", f"for other files use: tail {mount / '.kafkafs/log'}"),
        (tmp_path, "Is a directory"),
        (orders.parent / ".meta", "Is a directory"),
        (mount / "nowhere", "does not exist"),
    ):
        done = subprocess.run([*TAIL, path], capture_output=True, text=True, timeout=HANG_S)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.startswith(f"kafkafs: {path}: ")
        assert done.stderr.endswith(f"{reason}\n")
        assert done.stderr.count("\n") == 1
    with LogManager.open(str(tmp_path / "unmounted")) as manager:
        manager.create_topic("orders", 1)
    data = tmp_path / "unmounted"
    for options, instead in (
        ([], f"To print the last records: kafkafs cat {data} orders:0@-10"),
        (["-f"], f"To mount it: kafkafs mount {data} MOUNT"),
    ):
        words = [*TAIL, *options, str(data), "orders:0"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=HANG_S)
        expected = f"kafkafs: {data}: not mounted. {instead}\n"
        assert (done.returncode, done.stdout, done.stderr) == (3, "", expected)
    for option in ("-n", "-c"):
        done = subprocess.run([*TAIL, option, "some", orders], capture_output=True, text=True)
        assert done.returncode == 2
        assert "'some' is not a number of" in done.stderr


def test_it_needs_no_reader_of_standard_output_to_be_a_pipe(orders: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    append(orders, b"1\n2\n")
    with out.open("wb") as file:
        done = subprocess.run([*TAIL, orders.parent / "0@start..end"], stdout=file, timeout=HANG_S)
    assert done.returncode == 0
    assert out.read_bytes() == b"1\n2\n"
