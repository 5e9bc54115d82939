"""The blocks of the documents do what they show, and the reference names all that a mount has."""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import pasted
from tests.mount.mounting import Mount, mounted
from tests.mount.programs import program
from tests.pasted import RUN_BY, commands, is_like
from tests.waits import HANG_S

ROOT = Path(__file__).parents[2]
PAGES = [page for page, test in RUN_BY.items() if test == "tests/mount/test_documents.py"]
COOKBOOK = ROOT / "docs/cookbook.md"
TREE = ROOT / "docs/reference/names.md"
CONTROL = ROOT / "docs/reference/control-files.md"


# -- what a new user pastes ------------------------------------------------------------------------


def chapter(path: Path, heading: str) -> str:
    """The text below a heading, up to the next one that is not below it."""
    text = path.read_text()
    start = re.search(rf"^(#+) {re.escape(heading)}\n", text, re.M)
    assert start is not None, heading
    end = re.compile(rf"^#{{1,{len(start[1])}}} ", re.M).search(text, start.end())
    return text[start.end() : end.start() if end else None]


def scripts() -> dict[str, str]:
    """The `sh` blocks below each heading of the executed pages, by page and heading."""
    return {
        f"{page}: {heading}": script
        for page in PAGES
        for heading, script in pasted.scripts(page).items()
    }


class Terminal:
    """Runs command lines in a directory where `kafkafs` is known."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._environment = pasted.environment(directory)

    def _start(self, line: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, line: str) -> tuple[int, list[str]]:
        """The exit status of a command, and the lines that it prints."""
        process = self._start(line)
        printed, _ = process.communicate()
        return process.returncode, printed.decode().splitlines()

    def watch(self, line: str, count: int) -> list[str]:
        """The first lines that a command prints, which then waits for more and is ended."""
        process = self._start(f"exec {line}")
        assert process.stdout is not None
        printed = b""
        try:
            while printed.count(b"\n") < count:
                readable, _, _ = select.select([process.stdout], [], [], HANG_S)
                assert readable, f"{line} has printed {printed!r}"
                printed += os.read(process.stdout.fileno(), 65536)
        finally:
            process.kill()
            process.communicate()
        return printed.decode().splitlines()


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A directory to work in; what is mounted there in the end is unmounted."""
    found = Terminal(tmp_path)
    yield found
    if (tmp_path / "mnt").is_mount():
        status, printed = found.run("kafkafs umount mnt")
        assert status == 0, printed


def run(terminal: Terminal, script: str) -> None:
    """Run a script line by line, and compare the output with the one that is shown."""
    for line, shown in commands(script):
        if line.startswith(("tail -f", "tail -F")):
            printed = terminal.watch(line, max(len(shown), 1))
        else:
            status, printed = terminal.run(line)
            assert (status == 0) != line.startswith("rm "), (line, printed)
        if shown:
            assert len(printed) == len(shown), (line, printed)
        assert all(map(is_like, printed, shown)), (line, printed)


@pytest.mark.parametrize("place", scripts())
def test_the_blocks_of_a_chapter(terminal: Terminal, place: str) -> None:
    """Each chapter starts in an empty directory."""
    run(terminal, scripts()[place])


def test_rsyslog_writes_into_a_partition(terminal: Terminal) -> None:
    """By the line that the cookbook has for it."""
    (action,) = re.findall(r'^\*\.\*  (action\(type="omfile".*\))$', COOKBOOK.read_text(), re.M)
    directory = terminal.directory
    for line in ("mkdir data mnt", "kafkafs mount data mnt", "mkdir mnt/syslog"):
        terminal.run(line)
    (directory / "input").write_text("a line of a program\n")
    (directory / "rsyslog.conf").write_text(
        f'global(workDirectory="{directory}")\n'
        'module(load="imfile" mode="polling" pollingInterval="1")\n'
        f'input(type="imfile" file="{directory}/input" tag="program:")\n'
        f"{action.replace('/mnt/log', str(directory / 'mnt'))}\n"
    )
    command = [program("rsyslogd"), "-n", "-f", "rsyslog.conf", "-i", str(directory / "pid")]
    with subprocess.Popen(command, cwd=directory, stderr=subprocess.DEVNULL) as rsyslogd:
        shown = terminal.watch("tail -n +1 -f mnt/syslog/0", 1)
        rsyslogd.terminate()
    assert shown[0].endswith("program: a line of a program"), shown


# -- what a mount has ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mount(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    """A mount that lists everything, with a topic in which something has happened."""
    with mounted(tmp_path_factory.mktemp("mount"), "show_dot") as started:
        started.topic("orders")
        started.run(
            """
            echo cleanup.policy=compact,delete >> orders/.config
            seq -f $'k\t%g' 1000 >> orders/.kv/0
            echo run > orders/.control/roll
            echo 0 1 > orders/.control/delete-records
            echo run > orders/.control/flush
            echo dry-run > orders/.control/retention
            echo run > orders/.control/compaction
            echo run > orders/.control/verify
            """
        )
        for job in ("compaction", "verify"):
            text = ""
            while "last_outcome done" not in text:
                text = (started / f"orders/.control/{job}").read_text()
        yield started


def marked(text: str) -> set[str]:
    """All that is between backticks, word by word."""
    return {word for span in re.findall(r"`([^`\n]+)`", text) for word in span.split()}


def test_the_names_of_the_tree(mount: Mount) -> None:
    text = chapter(TREE, "Names")
    named = set(re.findall(r"[.a-z-]+", text.partition("```")[2].partition("```")[0]))
    found = {
        name
        for directory, directories, files in os.walk(mount.path)
        for name in (*directories, *files)
        if "/.raw" not in directory and not name.isdigit()
    }
    assert found - {"orders"} <= named
    assert {".kv", ".follow", "append", "offsets", "adopt"} <= found


def test_the_files_of_the_daemon(mount: Mount) -> None:
    text = chapter(CONTROL, "The daemon: .kafkafs")
    assert re.findall(r"^\| `([a-z]+)` \|", text.partition("\n### ")[0], re.M) == sorted(
        os.listdir(mount / ".kafkafs")
    )
    columns = (mount / ".kafkafs/topics").read_text().split("\n")[0].split()
    assert set(columns) <= marked(chapter(CONTROL, ".kafkafs/topics"))


def test_the_control_files_and_their_facts(mount: Mount) -> None:
    text = chapter(CONTROL, "Control files: .control")
    takes = chapter(CONTROL, "Commands of control files")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", takes, re.M)) == set(
        os.listdir(mount / "orders/.control")
    )
    known = marked(text)
    for path in sorted((mount / "orders/.control").iterdir()):
        lines = path.read_text().splitlines()
        facts = [line.split()[0] for line in lines if not line.startswith(" ")]
        columns = next((line.split() for line in lines if line.startswith(" ")), [])
        short = {fact.removeprefix("last_") for fact in facts if fact not in known}
        missing = (short | set(columns)) - known
        assert not {name for name in missing if not name.startswith("deleted_")}, path


def test_what_the_log_knows(mount: Mount) -> None:
    text = chapter(TREE, "Log metadata: .meta")
    for path in sorted((mount / "orders/.meta/0").iterdir()):
        lines = path.read_text().splitlines()
        words = [line.split()[0] for line in lines] if path.name == "offsets" else lines[0].split()
        row = next(line for line in text.splitlines() if line.startswith(f"| `{path.name}` |"))
        assert re.findall(r"`([a-z_]+)`", row)[1 : len(words) + 1] == words


def test_extended_attributes(mount: Mount) -> None:
    text = chapter(TREE, "Extended attributes")
    described = re.findall(r"^\| `(user\.kafkafs\.[a-z_]+)` \|", text, re.M)
    found = os.listxattr(mount / "orders/.follow/0")
    assert set(os.listxattr(mount / "orders/0")) < set(found)
    assert os.getxattr(mount.path, "user.kafkafs.pid") == str(mount.pid).encode()
    assert described == [*found, "user.kafkafs.pid"]
