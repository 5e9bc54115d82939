"""`kafkafs top`: its figures, and what a terminal shows and does (tmux is the terminal)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kafkafs.cli.mounting.top import figures
from kafkafs.cli.mounting.top.figures import look
from kafkafs.cli.mounting.top.rates import Rates, Row
from kafkafs.cli.mounting.top.table import COLUMNS, SORTS, Table, count_text
from kafkafs.cli.mounting.top.watcher import Watcher
from kafkafs.tree.directories.metrics_text import exposition, of_partitions
from storage.files import Files
from storage.state import mirror_file
from storage.state.mirror_file import MirroredPartition, MirrorFile
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place, ending, kafkafs
from tests.mount.mounting import let_others_in, needs_root
from tests.waits import HANG_S

TOP = shlex.join([*KAFKAFS, "top"])


class Terminal:
    """A shell in a terminal of its own."""

    def __init__(self, socket: Path, *, width: int = 120, height: int = 30) -> None:
        self._socket = socket
        # An exported size is not that of the terminal.
        odd = {"LINES": "17", "COLUMNS": "70"}
        environment = {**os.environ, **odd, "TERM": "screen-256color", "PS1": "$ ", "ENV": ""}
        environment.pop("NO_COLOR", None)
        self._tmux(
            *("-f", os.devnull, "new-session", "-d", "-s", "top", "-c", str(ROOT)),
            *("-x", str(width), "-y", str(height), "sh"),
            env=environment,
        )

    def _tmux(self, *arguments: str, env: dict[str, str] | None = None) -> str:
        command = ["tmux", "-S", str(self._socket), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-t", "top", "-l", text)

    def key(self, *names: str) -> None:
        self._tmux("send-keys", "-t", "top", *names)

    def run(self, command: str) -> None:
        self.type(command)
        self.key("Enter")

    def lines(self, *, attributes: bool = False) -> list[str]:
        how = ["-e"] if attributes else []
        return self._tmux("capture-pane", "-p", *how, "-t", "top").splitlines()

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-t", "top", "-x", str(width), "-y", str(height))

    def wait(self, is_shown: Callable[[list[str]], bool]) -> list[str]:
        """Wait until what is shown is like that; the lines."""
        until = time.monotonic() + HANG_S
        while not is_shown(lines := self.lines()):
            assert time.monotonic() < until, "\n".join(lines)
            time.sleep(0.02)
        return lines

    def wait_for(self, text: str) -> list[str]:
        return self.wait(lambda lines: any(text in line for line in lines))

    def end(self) -> None:
        with contextlib.suppress(AssertionError):
            self._tmux("kill-server")


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal whose shell is in the test's own directory."""
    made = Terminal(tmp_path / "tmux")
    made.run(f"cd {tmp_path}; stty -a > before; export PYTHONPATH={ROOT}; clear")
    try:
        yield made
    finally:
        made.end()


def ends_with(terminal: Terminal, place: Place, status: int) -> None:
    """It has ended with this status, and the shell has its terminal back as it was."""
    base = place.data.parent
    # Keys typed before it has exited are lost.
    terminal.wait(lambda lines: (base / "status").exists() and bool((base / "status").read_text()))
    terminal.run("clear; stty -a > after; echo all done")
    terminal.wait(lambda lines: "all done" in lines)
    assert (base / "after").read_text() == (base / "before").read_text()
    assert int((base / "status").read_text()) == status


def begin(terminal: Terminal, place: Place, *options: object, env: str = "") -> None:
    """Run it; its exit status goes into a file."""
    arguments = shlex.join(map(str, options))
    terminal.run(f"{env} {TOP} {arguments} {place.path}; echo $? > status")


@pytest.fixture
def mounted(place: Place) -> Place:
    """With topics `a` of three partitions and `b` of one, of 10 and 1000 records."""
    place.mount()
    for name, numbers in (("a", 3), ("b", 1)):
        (place.path / name).mkdir()
        for number in range(1, numbers):
            (place.path / name / str(number)).touch()
    (place.path / "a/1").write_text("line\n" * 10)
    (place.path / "b/0").write_text("a longer line\n" * 1000)
    return place


def names(lines: list[str]) -> list[str]:
    """The last column of the table that is shown."""
    heads = [number for number, line in enumerate(lines) if "TOPIC" in line or "PARTIT" in line]
    if not heads:
        return []
    rows = [line.split() for line in lines[heads[0] + 1 : -1]]
    return [row[-1] for row in rows if row and row[0][0].isdigit()]


def shows(rows: list[str], height: int | None = None) -> Callable[[list[str]], bool]:
    """For `Terminal.wait`: whether these rows are shown, in a terminal of this height."""
    return lambda lines: names(lines) == rows and height in (None, len(lines))


# -- figures ---------------------------------------------------------------------------------------


@pytest.mark.programs
def test_what_goes_in_and_out(mounted: Place) -> None:
    """Exactly, where the terminal shows it rounded: of partitions, topics and the whole mount."""
    before = look(str(mounted.path))
    with (mounted.path / "b/0").open("ab", buffering=0) as writer:
        writer.write(b"a longer line\n" * 500)
        os.fsync(writer.fileno())
        assert len((mounted.path / "a/1").read_bytes()) == 50
        now = look(str(mounted.path))
    rates = Rates(before, now)
    per_second = rates.seconds
    assert per_second > 0
    rows = {row.name: row for row in rates.partitions()}
    assert list(rows) == ["a/0", "a/1", "a/2", "b/0"]
    b, a = rows["b/0"], rows["a/1"]
    assert (b.records, b.open_handles, b.segments) == (1500, 1, 1)
    assert b.records_in == pytest.approx(500 / per_second)
    size = (mounted.data / "b-0").glob("*.log")
    assert b.bytes == sum(path.stat().st_size for path in size)
    appended = b.bytes - figures.total(before.partitions["b", 0], "size_bytes")
    assert b.bytes_in == pytest.approx(appended / per_second)
    assert (b.records_out, b.bytes_out) == (0, 0)
    assert a.records_out == pytest.approx(10 / per_second)
    assert a.bytes_out == pytest.approx(50 / per_second)
    topics = {row.name: row for row in rates.topics()}
    assert topics["b"]._replace(partition=0) == b
    assert (topics["a"].records, topics["a"].segments) == (10, 3)
    assert topics["a"].bytes_out == a.bytes_out
    assert rates.whole.records_in == pytest.approx(500 / per_second)
    fsync = rates.latency("fsync")
    assert fsync.per_second == pytest.approx(1 / per_second)
    assert fsync.mean_s is not None
    assert fsync.most_s is not None
    assert 0 < fsync.mean_s <= fsync.most_s
    assert Rates(None, now).partitions()[0].bytes_in is None
    assert Rates(now, now).latency("flush") == (0, None, None)


def commit(mounted: Place, group: str, positions: dict[str, int]) -> None:
    """Have a group committed these positions."""
    (mounted.path / ".groups" / group).mkdir(exist_ok=True)
    for name, position in positions.items():
        (mounted.path / ".groups" / group / name).write_text(f"{position}\n")


@pytest.mark.programs
def test_how_far_groups_are_behind(mounted: Place) -> None:
    """Of a partition the one that is most; of a topic, too, all of its partitions together."""
    commit(mounted, "fast", {"a/1": 9, "b/0": 1000})
    commit(mounted, "slow", {"a/1": 4, "b/0": 300})
    commit(mounted, "other", {"a/0": 0, "a/1": 8})
    rates = Rates(None, look(str(mounted.path)))
    assert rates.groups() == [
        *(("fast", "a", 1), ("fast", "b", 0), ("other", "a", 2), ("slow", "a", 6)),
        ("slow", "b", 700),
    ]
    lags = [0, 6, None, 700]
    own = [row for row in rates.partitions() if row.topic in ("a", "b")]
    assert [row.lag for row in sorted(own)] == lags
    assert {row.name: row.lag for row in rates.topics()} == {
        "a": 6,
        "b": 700,
        "__consumer_offsets": None,
    }
    said = json.loads(kafkafs("top", "--json", "-d", "0.1", mounted.path).stdout)["result"]
    assert {"group": "slow", "topic": "b", "lag": 700} in said["groups"]
    assert [row["lag"] for row in said["rows"]] == [6, 700]
    said = json.loads(kafkafs("top", "--json", "--internal", "-d", "0.1", mounted.path).stdout)[
        "result"
    ]
    assert [row["name"] for row in said["rows"]] == ["__consumer_offsets", "a", "b"]


@pytest.mark.programs
def test_what_it_reads_itself_does_not_go_out(mounted: Place) -> None:
    said = json.loads(kafkafs("top", "--json", "-d", "0.1", mounted.path).stdout)["result"]
    assert (said["bytes_out"], said["bytes_in"]) == (0, 0)


@pytest.mark.programs
def test_a_mount_that_only_looks_on(mounted: Place, tmp_path: Path) -> None:
    """Records that another process appends are counted, too."""
    (tmp_path / "other").mkdir()
    done = kafkafs("mount", "-o", "ro", mounted.data, tmp_path / "other")
    assert done.returncode == 0, done.stderr
    try:
        before = look(str(tmp_path / "other"))
        with (mounted.path / "b/0").open("ab") as writer:
            writer.write(b"line\n" * 70)
        rates = Rates(before, look(str(tmp_path / "other")))
        assert rates.is_read_only
        assert rates.whole.records_in == pytest.approx(70 / rates.seconds)
        row = {row.name: row for row in rates.topics()}["b"]
        assert row.records_in == rates.whole.records_in
        assert row.bytes_in is not None
        assert row.bytes_in > 350 / rates.seconds
        assert row.mirror_lag is None
        copies = {("a", n): MirroredPartition(0, n, 0, 10) for n in range(3)}
        mirror = MirrorFile("c", "kafka://broker:9092", ("*",), {"a": "-"}, copies)
        mirror_file.write(Files(), str(mounted.data), mirror)
        rates = Rates(None, look(str(tmp_path / "other")))
        assert {row.name: row.mirror_lag for row in rates.topics()} == {"a": 27, "b": None}
        table = Table(by_partition=False, shows_internal=False)
        table.take(rates)
        assert "BEHIND" in table.lines(200, 5)[0][0]
    finally:
        assert kafkafs("umount", tmp_path / "other").returncode == 0


@pytest.mark.programs
def test_another_daemon_counts_anew(mounted: Place) -> None:
    before = look(str(mounted.path))
    assert kafkafs("umount", mounted.path).returncode == 0
    time.sleep(0.02)  # the system counts starts in hundredths of a second
    assert kafkafs("mount", mounted.data, mounted.path).returncode == 0
    rates = Rates(before, look(str(mounted.path)))
    assert [row.bytes_in for row in rates.topics()] == [None, None]
    assert rates.rate("requests_total") is None


def test_many_thousand_partitions(tmp_path: Path) -> None:
    """Each is there; the terminal gets what it has room for."""
    count = 4000
    about = tmp_path / ".kafkafs"
    about.mkdir()
    rows = [((f"topic-{n % 100}", str(n // 100)), (1, n + 1, n, n, 2)) for n in range(count)]
    text = exposition(of_partitions(rows))
    (about / "metrics").write_text(text)
    (about / "log").write_text("".join(f"{n}\n" for n in range(1000)))
    sample = look(str(tmp_path))
    assert len(sample.partitions) == count
    assert len(sample.events) == figures.EVENTS
    assert sample.events[-1] == "999"
    table = Table(by_partition=True, shows_internal=False)
    table.take(Rates(sample, sample))
    table.sort_by("bytes")
    lines = table.lines(80, 10)
    assert len(lines) == 11
    assert max(len(line) for line, _ in lines) <= 80
    assert lines[1][0].endswith("topic-99/39")
    table.scroll(count, 10)
    assert table.lines(80, 10)[-1][0].endswith("topic-0/0")
    table.filter = "TOPIC-7/"
    table.take(Rates(sample, sample))
    assert len(table.rows) == 40
    topics = Rates(sample, sample).topics()
    assert len(topics) == 100
    assert sum(row.records for row in topics) == sum(range(count))


def row(name: str, **figures_of: float) -> Row:
    zero = {column.key: 0 for column in COLUMNS}
    return Row(name, None, **{**zero, **figures_of})  # type: ignore[arg-type]


@pytest.mark.parametrize("key", SORTS.values())
def test_sorting(key: str) -> None:
    """The largest first, the same key again turns it round; equal ones by name."""
    table = Table(by_partition=False, shows_internal=False)
    if key == "name":
        table.rows = [row("b"), row("a"), row("c")]
        expected = ["a", "b", "c"]
    else:
        table.rows = [row("d", **{key: 5}), row("c", **{key: 5}), row("b", **{key: 7}), row("a")]
        expected = ["b", "c", "d", "a"]
    table.sort = ""
    table.sort_by(key)
    assert [each.name for each in table.rows] == expected
    table.sort_by(key)
    turned = ["c", "b", "a"] if key == "name" else ["a", "c", "d", "b"]
    assert [each.name for each in table.rows] == turned


@pytest.mark.parametrize("width", [1, 10, 16, 40, 60, 80, 200])
def test_a_narrow_terminal_gets_the_name_and_what_fits(width: int) -> None:
    table = Table(by_partition=False, shows_internal=False)
    table.rows = [row("a-topic-of-a-name", bytes_in=17)]
    lines = [line for line, _ in table.lines(width, 5)]
    assert all(len(line) <= width for line in lines)
    if width >= 16:
        assert "a-topic-of-a-nam" in lines[1]
    if width == 200:
        assert all(column.title in lines[0] for column in COLUMNS)


def test_numbers() -> None:
    values = (None, 0, 0.25, 9.96, 17, 9999, 10_000, 123_456, 5e6, 7e9, 7e13)
    shown = [count_text(value) for value in values]
    assert shown == [
        "-",
        "0",
        "0.2",
        "10.0",
        "17",
        "9999",
        "10.0k",
        "123k",
        "5000k",
        "7000M",
        "70000G",
    ]


# -- for scripts -----------------------------------------------------------------------------------


@pytest.mark.programs
def test_once(mounted: Place) -> None:
    done = kafkafs("top", "--once", "-d", "0.1", mounted.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == str(mounted.path)
    assert "2 topics, 4 partitions" in done.stdout
    assert [line.split()[-1] for line in done.stdout.splitlines()[-2:]] == ["a", "b"]
    done = kafkafs("top", "--once", "--bytes", "-d", "0.1", mounted.path)
    assert " bytes on the disk" in done.stdout
    assert re.search("[0-9]B|iB", done.stdout) is None
    done = kafkafs("top", "--json", "--partitions", "-d", "0.1", mounted.data)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)["result"]
    assert said["mount"] == str(mounted.path)
    assert [each["name"] for each in said["rows"]] == ["a/0", "a/1", "a/2", "b/0"]
    assert {column.key for column in COLUMNS} < said["rows"][0].keys()
    assert said["seconds"] > 0


@pytest.mark.programs
def test_where_there_is_nothing_to_see(place: Place) -> None:
    done = kafkafs("top", "--once", place.path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"kafkafs: {place.path}: not a kafkafs mount\n"
    place.mount()
    done = kafkafs("top", place.path)
    assert done.returncode == 2
    assert (
        "standard input or output is not a terminal. To print the figures once: --once"
        in done.stderr
    )
    done = kafkafs("top", "--bytes", place.path)
    assert done.returncode == 2
    assert "--bytes requires --once" in done.stderr
    with ending(pid := place.pid):
        os.kill(pid, signal.SIGKILL)
    done = kafkafs("top", "--once", place.path)
    clear = f"kafkafs umount {place.path}"
    assert (
        done.stderr
        == f"kafkafs: {place.path}: the daemon has exited. To remove the dead mount: {clear}\n"
    )
    assert done.returncode == 3


@needs_root
@pytest.mark.programs
def test_who_may_not_see_it(place: Place) -> None:
    let_others_in(place.path)
    place.data.chmod(0o755)
    place.mount("-o", "allow_other")
    command = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups"]
    done = subprocess.run(
        [*command, *KAFKAFS, "top", "--once", str(place.path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 3
    assert "only the user who mounted it" in done.stderr
    assert done.stderr.endswith(f": sudo kafkafs top --once {place.path}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.programs
def test_the_daemon_is_left_alone_while_it_answers(mounted: Place) -> None:
    """There is one look at a time, however slow the daemon is."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    others = set(children.read_text().split())
    watcher = Watcher(str(mounted.path), 0.1)
    assert watcher.wait(HANG_S)
    pid = mounted.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        until = time.monotonic() + HANG_S
        while not watcher.trouble:
            watcher.step(0.1)
            assert time.monotonic() < until
        assert len(set(children.read_text().split()) - others) == 1
    finally:
        os.kill(pid, signal.SIGCONT)
    assert watcher.wait(HANG_S) or not watcher.trouble
    watcher.close()


# -- the terminal ----------------------------------------------------------------------------------


@pytest.mark.programs
def test_keys(mounted: Place, here: Terminal) -> None:
    begin(here, mounted, "-d", "0.2")
    lines = here.wait(lambda lines: names(lines) == ["a", "b"])
    assert "2 topics, 4 partitions" in lines[1]
    here.key("s")
    here.wait(lambda lines: names(lines) == ["b", "a"])
    here.key("s")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    here.key("t")
    here.wait(lambda lines: names(lines)[-1:] == ["b/0"] and len(names(lines)) == 4)
    here.type("/A/")
    here.wait(lambda lines: len(names(lines)) == 3 and lines[-1] == "filter: A/")
    here.key("BSpace", "BSpace")
    here.type("b")
    here.wait(lambda lines: names(lines) == ["b/0"])
    here.key("Enter")
    here.wait_for("1-1 of 1, filter 'b'")
    here.key("Escape")
    here.wait(lambda lines: len(names(lines)) == 4)
    here.key("n")
    here.wait(lambda lines: names(lines) == ["a/0", "a/1", "a/2", "b/0"])
    here.key("<")
    here.wait(lambda lines: any("vOPEN" in line for line in lines))
    for key in ("h", "?"):
        here.type(key)
        here.wait_for("show topics or partitions")
        here.key("x")
        here.wait(lambda lines: len(names(lines)) == 4)
    here.key("p")
    here.wait(lambda lines: lines[0].endswith(", paused"))
    with (mounted.path / "b/0").open("ab") as writer:
        writer.write(b"a longer line\n" * 500)
    here.key("t")
    assert here.wait(lambda lines: sorted(names(lines)) == ["a", "b"])
    here.key("p")
    here.wait(lambda lines: any(line.split()[5:6] == ["1500"] for line in lines))
    here.key("q")
    ends_with(here, mounted, 0)


@pytest.mark.programs
def test_what_goes_on_is_shown(mounted: Place, here: Terminal) -> None:
    """Rates while somebody appends; a compaction with its progress; events."""
    begin(here, mounted, "-d", "0.2")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    with (mounted.path / "a/0").open("ab", buffering=0) as writer:

        def is_active(lines: list[str]) -> bool:
            writer.write(b"line\n" * 100)
            rows = [line.split() for line in lines if line.endswith(" a")]
            return bool(rows) and rows[0][0] not in ("0", "-") and rows[0][1] not in ("0B", "-")

        here.wait(is_active)
    with contextlib.suppress(OSError):
        (mounted.path / "a/7").touch()
    here.wait_for("a/7")
    here.key("e")
    here.wait(lambda lines: not any("a/7" in line for line in lines))
    here.key("q")
    ends_with(here, mounted, 0)


@pytest.mark.programs
def test_a_compaction_is_shown_with_its_progress(place: Place, here: Terminal) -> None:
    slow = "log.cleaner.io.max.bytes.per.second=1000\nlog.initial.task.delay.ms=86400000\n"
    (place.data / "kafkafs.properties").write_text(slow)
    place.mount()
    topic = place.path / "orders"
    topic.mkdir()
    (topic / ".config").write_text("cleanup.policy=compact\n")
    for _ in range(2):
        with (topic / ".kv/0").open("ab") as writer:
            writer.write(b"".join(b"%d\tvalue\n" % n for n in range(20_000)))
    (topic / ".control/roll").write_text("run\n")
    (topic / ".control/compaction").write_text("run\n")
    begin(here, place, "-d", "0.2")
    progress = re.compile("compaction orders running.*%.*KiB of .*KiB")
    here.wait(lambda lines: any(map(progress.search, lines)))
    (topic / ".control/compaction").write_text("cancel\n")
    here.wait(lambda lines: not any("compaction orders running" in line for line in lines))
    here.key("q")
    ends_with(here, place, 0)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
@pytest.mark.programs
def test_the_terminal_is_restored(
    mounted: Place, here: Terminal, number: signal.Signals, status: int
) -> None:
    begin(here, mounted, "-d", "0.2")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    if number is signal.SIGINT:
        here.key("C-c")
    else:
        (process,) = [
            int(pid)
            for pid in filter(str.isdecimal, os.listdir("/proc"))
            if _has_arguments(int(pid), ["top", "-d", "0.2", str(mounted.path)])
        ]
        os.kill(process, number)
    ends_with(here, mounted, status)


def _has_arguments(pid: int, wanted: list[str]) -> bool:
    with contextlib.suppress(OSError):
        said = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        # A look is a child with the same arguments.
        parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
        comm = Path(f"/proc/{parent}/comm").read_text().strip()
        return said[-len(wanted) :] == wanted and comm == "sh"
    return False


@pytest.mark.programs
def test_stopped_and_continued(mounted: Place, here: Terminal) -> None:
    begin(here, mounted, "-d", "0.2")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    here.key("C-z")
    here.wait_for("Stopped")
    here.run("clear; stty -a > after; echo all done")
    here.wait(lambda lines: "all done" in lines)
    base = mounted.data.parent
    assert (base / "after").read_text() == (base / "before").read_text()
    here.run("fg")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    here.key("q")
    here.wait(lambda lines: lines[0] == "all done")


@pytest.mark.programs
def test_every_size_of_a_terminal(mounted: Place, here: Terminal) -> None:
    """Top draws the screen again; a small one has fewer columns and rows."""
    begin(here, mounted, "-d", "0.2")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    for width, height in ((40, 20), (200, 50), (20, 5), (3, 2), (1, 1), (120, 30)):
        here.resize(width, height)
        if width >= 40:
            here.wait(shows(["a", "b"], height))
    here.key("q")
    ends_with(here, mounted, 0)


@pytest.mark.programs
def test_scrolling(place: Place, here: Terminal) -> None:
    place.mount()
    (place.path / "t").mkdir()
    for number in range(1, 60):
        (place.path / "t" / str(number)).touch()
    begin(here, place, "-d", "0.2", "--partitions")
    everything = [f"t/{number}" for number in range(60)]
    here.key("n")
    # The last line is drawn last.
    lines = here.wait(lambda lines: lines[-1].startswith(f"1-{len(names(lines))} of 60"))
    page = names(lines)
    assert page == everything[: len(page)]
    assert 10 < len(page) < 40
    for key, first in (
        *(("Down", 1), ("j", 2), ("k", 1), ("Up", 0), ("Up", 0)),
        *(("NPage", len(page)), ("PPage", 0), ("End", 60 - len(page)), ("Home", 0)),
        *(("G", 60 - len(page)), ("NPage", 60 - len(page)), ("g", 0)),
    ):
        here.key(key)
        shown = everything[first : first + len(page)]
        here.wait(shows(shown))
    here.key("q")
    ends_with(here, place, 0)


@pytest.mark.programs
def test_a_daemon_that_ends_and_comes_back(mounted: Place, here: Terminal) -> None:
    begin(here, mounted, "-d", "0.2")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    with ending(pid := mounted.pid):
        os.kill(pid, signal.SIGKILL)
    here.wait_for("the daemon has exited. To remove the dead mount: kafkafs umount")
    assert any("\x1b[31m" in line for line in here.lines(attributes=True))
    assert kafkafs("umount", mounted.path).returncode == 0
    here.wait_for("not a kafkafs mount")
    mounted.mount()
    here.wait(lambda lines: names(lines) == ["a", "b"] and "topics" in lines[1])
    os.kill(pid := mounted.pid, signal.SIGSTOP)
    try:
        # A long path has the line end in the midst of it.
        said = f"is stopped. To continue it: kill -CONT {pid}"
        here.wait(lambda lines: said in " ".join(line.strip() for line in lines))
        here.key("q")
        ends_with(here, mounted, 0)
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.programs
def test_without_color(mounted: Place, here: Terminal) -> None:
    begin(here, mounted, "-d", "0.2", env="NO_COLOR=1")
    here.wait(lambda lines: names(lines) == ["a", "b"])
    with ending(pid := mounted.pid):
        os.kill(pid, signal.SIGKILL)
    here.wait_for("the daemon has exited")
    assert not re.search(r"\x1b\[[34][0-7]m", "".join(here.lines(attributes=True)))
    here.key("q")
    ends_with(here, mounted, 0)


@pytest.mark.programs
def test_a_terminal_that_can_do_nothing(mounted: Place, here: Terminal) -> None:
    begin(here, mounted, env="TERM=nonsense")
    lines = here.wait_for("To print the figures once: --once")
    assert not any("Traceback" in line for line in lines)
    ends_with(here, mounted, 3)
