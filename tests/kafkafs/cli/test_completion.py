"""Completion with Tab, in real shells."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.settings.config import TOPIC_SETTINGS
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import ROOT, Place
from tests.storage.logs import write_settings
from tests.waits import HANG_S

#: The command of an interactive shell that reads no startup files, and its first line of input.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source bash.completion"),
    "zsh": (
        ["zsh", "-f", "-i"],
        "autoload -U compinit; compinit -u -D; source zsh.completion",
    ),
}
TAB = "\t"
ALL = "\x1b*"
"""The key that makes bash insert all possible completions."""


class Shells:
    """The shells, in a directory that has `data`, mounted at `mnt`, and a program `kafkafs`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.base = place.data.parent
        program = self.base / "bin" / "kafkafs"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shlex.join(KAFKAFS)} "$@"\n')
        program.chmod(0o755)
        self.environment = {
            "PATH": f"{program.parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HOME": str(self.base),
            "TERM": "xterm",
            "LC_ALL": "C.UTF-8",
        }
        for shell in ("bash", "zsh", "fish"):
            script = self.run("kafkafs", _KAFKAFS_COMPLETE=f"{shell}_source")
            (self.base / f"{shell}.completion").write_text(script)

    def run(self, *arguments: str, **environment: str) -> str:
        done = subprocess.run(
            arguments,
            cwd=self.base,
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=HANG_S,
        )
        return done.stdout

    def typed(self, shell: str, keys: str) -> list[str]:
        """The words of a line after these keys, which a terminal gets."""
        arguments, first = SHELLS[shell]
        words = self.base / "words"
        words.unlink(missing_ok=True)
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.base)
            os.execvpe(arguments[0], arguments, self.environment)
        signal.alarm(int(HANG_S))
        try:
            # The line's words are written to a file, by what is typed at its beginning.
            self._type(terminal, f"{first}; printf 're%s\\n' ady\n", until=b"ready\r")
            begin, end = "\x01", "\x05"
            line = f"{keys}{begin}printf '%s\\n' {end} >words; printf 'en%s\\n' ded\n"
            self._type(terminal, line, until=b"ended\r")
        finally:
            signal.alarm(0)
            os.close(terminal)
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        return words.read_text().split()

    @staticmethod
    def _type(terminal: int, keys: str, *, until: bytes) -> None:
        os.write(terminal, keys.encode())
        shown = b""
        while until not in shown:
            shown += os.read(terminal, 4096)

    def offered(self, line: str) -> list[str]:
        """The words that fish offers."""
        script = 'source fish.completion; complete -C "$LINE"'
        told = self.run("fish", "--no-config", "-c", script, LINE=line)
        return [each.partition("\t")[0] for each in told.splitlines()]


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shells]:
    """`orders` with three partitions, `payments` with one, and `gone`, which was deleted."""
    place = Place(tmp_path_factory.mktemp("completion"))
    write_settings(place.data, offsets_topic_num_partitions=1)
    with LogManager.open(str(place.data)) as manager:
        manager.create_topic("orders", 3)
        manager.create_topic("payments", 1)
        # As long as it may take until somebody asks for it.
        manager.create_topic("gone", 1, settings={"file.delete.delay.ms": "86400000"})
    place.mount()
    (place.path / "gone").rmdir()
    (place.path / ".groups/billing").mkdir()
    (place.path / ".groups/billing/orders/0").write_text("0\n")
    yield Shells(place)
    place.end()


CASES = [
    (f"kafkafs veri{TAB}", "kafkafs verify"),
    (f"kafkafs spark exp{TAB}", "kafkafs spark export"),
    (f"kafkafs verify --allow{TAB}dat{TAB}", "kafkafs verify --allow-empty data/"),
    (f"kafkafs verify data pay{TAB}", "kafkafs verify data payments"),
    (f"kafkafs verify data payments:{TAB}", "kafkafs verify data payments:0"),
    (f"kafkafs verify mnt ord{TAB}pay{TAB}", "kafkafs verify mnt orders payments"),
    (f"kafkafs verify mnt/ord{TAB}", "kafkafs verify mnt/orders/"),
    (f"kafkafs verify mnt/payments/{TAB}", "kafkafs verify mnt/payments/0"),
    (f"kafkafs verify mnt/orders mnt/pay{TAB}", "kafkafs verify mnt/orders mnt/payments/"),
    (f"kafkafs config data orders min.cl{TAB}0.1", "kafkafs config data orders "
     "min.cleanable.dirty.ratio=0.1"),
    (f"kafkafs config mnt/orders min.cl{TAB}", "kafkafs config mnt/orders "
     "min.cleanable.dirty.ratio="),
    (f"kafkafs mount -o ro,isolation=read_c{TAB}", "kafkafs mount -o "
     "ro,isolation=read_committed"),
    (f"kafkafs mount -o mem{TAB}1G", "kafkafs mount -o memory=1G"),
    (f"kafkafs fetch data pay{TAB}{TAB}0:9", "kafkafs fetch data payments:0:0:9"),
    (f"kafkafs cat mnt pay{TAB}ord{TAB}", "kafkafs cat mnt payments orders"),
    (f"kafkafs grep pay data pay{TAB}", "kafkafs grep pay data payments"),
    (f"kafkafs grep -e pay mnt/pay{TAB}", "kafkafs grep -e pay mnt/payments/"),
    (f"kafkafs append --vi{TAB}kv{TAB}mnt pay{TAB}", "kafkafs append --view kv mnt payments"),
    (f"kafkafs create mnt new --part{TAB}2 min.cl{TAB}0.1", "kafkafs create mnt new "
     "--partitions 2 min.cleanable.dirty.ratio=0.1"),
    (f"kafkafs undel{TAB}mnt go{TAB}", "kafkafs undelete mnt gone"),
    (f"kafkafs unm{TAB}mn{TAB}", "kafkafs unmount mnt/"),
    (f"kafkafs config mnt pay{TAB}cleanup.pol{TAB}del{TAB}", "kafkafs config mnt payments "
     "cleanup.policy=delete"),
    (f"kafkafs consume mn{TAB}", "kafkafs consume mnt/"),
    (f"kafkafs consume mnt pay{TAB}-g bil{TAB}", "kafkafs consume mnt payments -g billing"),
    (f"kafkafs consume mnt/orders --dead-letter pay{TAB}", "kafkafs consume mnt/orders "
     "--dead-letter payments"),
    (f"kafkafs repair data --log-start pay{TAB}{TAB}5", "kafkafs repair data --log-start "
     "payments:0=5"),
    (f"kafkafs tail mnt pay{TAB}", "kafkafs tail mnt payments"),
    (f"kafkafs groups ls mnt bil{TAB}", "kafkafs groups ls mnt billing"),
]  # fmt: skip
#: The cases of the gate: each start of a shell takes long. The soak part tries the others.
IN_GATE = [("bash", case) for case in CASES[::2]] + [("zsh", CASES[13])]


@pytest.mark.parametrize(
    ("shell", "keys", "words"),
    [
        pytest.param(*(shell, *case), marks=() if (shell, case) in IN_GATE else pytest.mark.soak)
        for shell, cases in (("bash", CASES), ("zsh", CASES[1::3]))
        for case in cases
    ],
)
@pytest.mark.programs
def test_a_tab_completes_a_word(shells: Shells, shell: str, keys: str, words: str) -> None:
    found = shells.typed(shell, keys)
    # The shells themselves do not agree on the slash behind a directory that is the only one.
    assert [word.rstrip("/") for word in found] == [word.rstrip("/") for word in words.split()]


@pytest.mark.programs
def test_bash_has_all_words_that_may_stand_here(shells: Shells) -> None:
    assert shells.typed("bash", f"kafkafs verify data {ALL}")[3:] == ["orders", "payments"]
    assert shells.typed("bash", f"kafkafs verify data payments {ALL}")[4:] == ["orders"]
    commands = [name for each in main.sections if not each.is_hidden for name in each.helps]
    assert shells.typed("bash", f"kafkafs {ALL}")[1:] == commands


@pytest.mark.programs
def test_fish_offers_words_with_their_help(shells: Shells) -> None:
    assert shells.offered("kafkafs veri") == ["verify"]
    assert shells.offered("kafkafs verify mnt orders:") == ["orders:0", "orders:1", "orders:2"]
    assert shells.offered("kafkafs verify dat") == ["data/"]
    assert shells.offered("kafkafs verify mnt/orders/") == [f"mnt/orders/{n}" for n in range(3)]
    assert shells.offered("kafkafs fetch data orders:2") == ["orders:2:"]
    assert shells.offered("kafkafs convert --sal") == []


@pytest.mark.programs
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("kafkafs verify data ", ["orders", "payments"]),
        ("kafkafs undelete data ", ["gone"]),
        ("kafkafs config data orders ", [f"{name}=" for name in sorted(TOPIC_SETTINGS)]),
        ("kafkafs mount -o ro,until=", ["ro,until=log-end", "ro,until=high-watermark"]),
        (
            "kafkafs config mnt orders cleanup.policy=",
            [
                f"cleanup.policy={words}"
                for words in ("compact", "compact,delete", "delete", "none")
            ],
        ),
        ("kafkafs consume mnt -g ", ["billing"]),
        ("kafkafs ls mnt ", ["orders", "payments"]),
    ],
)
def test_words_are_offered(shells: Shells, line: str, words: list[str]) -> None:
    assert answers(shells, line) == words


def answers(shells: Shells, line: str) -> list[str]:
    """Return the words that kafkafs offers to the completion script of zsh."""
    told = subprocess.run(
        KAFKAFS,
        cwd=shells.base,
        env={**os.environ, "COMP_LINE": line, "_KAFKAFS_COMPLETE": "zsh_complete"},
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    ).stdout
    return [each.split("\t")[1] for each in told.splitlines() if each]


@pytest.mark.programs
def test_words_with_blanks_and_quotes(shells: Shells) -> None:
    odd = shells.base / "my data"
    (odd / "it-0").mkdir(parents=True)
    for written in ("my\\ data", "'my data'", '"my data"'):
        assert answers(shells, f"kafkafs verify {written} i") == ["it"]
    assert answers(shells, "kafkafs verify 'my data' 'i") == ["it"]


@pytest.mark.programs
def test_what_is_no_data_directory_has_no_topics(shells: Shells, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing", Path("/etc/hostname")):
        assert answers(shells, f"kafkafs verify {place} ") == []
    assert answers(shells, "kafkafs spark verify s3://bucket/data ") == []


@pytest.mark.programs
def test_a_mount_that_does_not_answer_keeps_no_tab_waiting(shells: Shells) -> None:
    daemon = shells.place.pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        assert answers(shells, "kafkafs verify mnt ") == ["orders", "payments"]
        assert answers(shells, "kafkafs verify mnt orders:") == ["orders:0", "orders:1", "orders:2"]
        assert answers(shells, "kafkafs consume mnt -g ") == []
    finally:
        os.kill(daemon, signal.SIGCONT)


@pytest.mark.programs
def test_a_tab_loads_no_log(shells: Shells) -> None:
    script = (
        "import json, sys, atexit\n"
        "atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))\n"
        "from kafkafs.cli import main; main()"
    )
    for line in (
        "kafkafs ",
        "kafkafs verify data ",
        "kafkafs mount -o r",
        "kafkafs config data t ",
    ):
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=shells.base,
            env={**shells.environment, "_KAFKAFS_COMPLETE": "fish_complete", "COMP_LINE": line},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip()
        loaded = {name.split(".")[0] for name in json.loads(done.stderr)}
        assert loaded.isdisjoint({"cramjam", "msgspec", "rich", "trio", "pyfuse3"})


def test_what_was_completed_can_be_run(tmp_path: Path) -> None:
    """In one process, as a program does that calls `main`."""
    assert main.get_command(click.Context(main, resilient_parsing=True), "verify") is not None
    done = CliRunner().invoke(main, ["verify", "--allow-empty", str(tmp_path)])
    assert (done.exit_code, done.exception) == (0, None)
