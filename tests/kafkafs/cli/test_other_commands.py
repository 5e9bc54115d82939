"""`kafkafs version`, `repair`, and the command line itself."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from tests.fork_server import KAFKAFS
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.kafkafs.cli.test_mistakes import all_commands
from tests.storage.logs import append


@pytest.mark.programs
def test_version() -> None:
    for words in ("version", "--version"):
        assert kafkafs(words).stdout == f"kafkafs {version('kafkafs')}\n"
    assert json.loads(kafkafs("version", "--json").stdout)["result"] == {
        "version": version("kafkafs")
    }


@pytest.mark.programs
def test_help_has_the_commands_in_groups() -> None:
    done = kafkafs("--help")
    assert done.returncode == 0
    found: dict[str, list[str]] = {}
    for line in done.stdout.partition("this message and exit.\n")[2].splitlines():
        if line == "  Examples:":
            break
        if line.endswith(":"):
            names = found[line] = []
        elif line:
            names.append(line.split()[0])
    shown = {f"{each.title}:": list(each.helps) for each in main.sections if not each.is_hidden}
    assert found == shown
    for name in main.helps:
        assert kafkafs(name, "--help").returncode == 0


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["verfy", "data"], "there is no command 'verfy': did you mean 'verify'?"),
        (["unmont", "mnt"], "there is no command 'unmont': did you mean 'unmount'?"),
        (["rm", "mnt/t"], "there is no command 'rm': did you mean 'delete'?"),
        (["search", "x", "mnt"], "there is no command 'search': did you mean 'grep'?"),
        (["retain", "mnt"], "there is no command 'retain': did you mean 'prune'?"),
        (["expire", "a b"], "there is no command 'expire'. Try: kafkafs prune 'a b'"),
        (["reindex"], "there is no command 'reindex'. Try: kafkafs repair --indexes"),
        (["repare"], "there is no command 'repare': did you mean 'repair'?"),
        (["spark", "stat"], "there is no command 'stat': did you mean 'stats'?"),
        (["no-such-command"], "there is no command 'no-such-command'. Try: kafkafs --help"),
        (["verify", "data", "--jsn"], "'--jsn'. Did you mean '--json'?"),
        (["verify"], "argument 'DATA|MOUNT [TOPIC[:PARTITION]]...'. Try: kafkafs verify --help"),
        (["--versoin"], "'--versoin'. Did you mean '--version'?"),
    ],
    ids=" ".join,
)
def test_a_slip_of_the_hand(words: list[str], meant: str) -> None:
    done = CliRunner().invoke(main, words, prog_name="kafkafs")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("kafkafs: ")
    assert done.stderr.endswith(f"{meant}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [[], ["groups"], ["spark"]], ids=" ".join)
def test_a_group_alone_prints_its_help(words: list[str]) -> None:
    done = CliRunner().invoke(main, words, prog_name="kafkafs")
    assert done.output == CliRunner().invoke(main, [*words, "-h"], prog_name="kafkafs").output


READING_WORDS = (
    "browse check compare count detect diff export fetch find get grep head history info inspect "
    "less log offsets peek pending print query read report scan search select show stat topic view"
)


@pytest.mark.parametrize("word", READING_WORDS.split())
def test_a_word_that_reads_is_not_answered_with_a_command_that_changes(word: str) -> None:
    done = CliRunner().invoke(main, [word, "data"])
    suggested = re.findall(r"did you mean '(\w+)'", done.stderr)
    assert set(suggested) <= {
        "cat",
        "dump",
        "fetch",
        "grep",
        "ls",
        "mount",
        "mounts",
        "spark",
        "top",
    }


#: Commands whose examples are written with their manual pages.
WITHOUT_EXAMPLES = {"mount", "umount", "version"}


@pytest.mark.parametrize("name", sorted(all_commands() - WITHOUT_EXAMPLES))
def test_examples(name: str) -> None:
    """Each help has some, of commands and options that there are."""
    words = name.split()
    shown = CliRunner().invoke(main, [*words, "--help"], prog_name="kafkafs").stdout
    lines = shown.partition("Examples:\n")[2].splitlines()
    assert lines
    for line in lines:
        begin, *given = shlex.split(re.split(r"  # | [<>|] ", line[line.index("kafkafs") :])[0])
        assert begin == "kafkafs"
        context = click.Context(main, info_name="kafkafs", resilient_parsing=True)
        command: click.Command | None = main
        while isinstance(command, click.Group):
            command = command.get_command(context, given.pop(0))
        assert command is not None
        # An option that there is not, or that lacks its value, is a UsageError.
        around = click.Context(command, info_name=name, **main.context_settings)
        command.make_parser(around).parse_args(given)


@pytest.mark.programs
def test_other_names_of_commands(place: Place) -> None:
    """They work, and the help does not list them."""
    place.mount()
    done = kafkafs("unmount", place.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not place.path.is_mount()
    assert "unmount" not in kafkafs("-h").stdout.split()
    assert kafkafs("unmount", "-h").stdout.startswith("Usage: kafkafs umount ")


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("cat {0} orders", ""), ("dump --print-data-log {0}/orders-0/*.log", "1")],
)
@pytest.mark.programs
def test_a_reader_that_has_gone(tmp_path: Path, command: str, unbuffered: str) -> None:
    """… ends a command silently, as it ends coreutils' cat."""
    with LogManager.open(str(tmp_path)) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        append(log, *[b"%d" % n * 20 for n in range(10_000)])
    line = f"{shlex.join(KAFKAFS)} {command.format(tmp_path)} | head -n 1; exit ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (141, "")
    assert done.stdout.count("\n") == 1


def test_help_as_a_command() -> None:
    for words, same in ((["help"], ["--help"]), (["help", "mount"], ["mount", "-h"])):
        shown, expected = (
            CliRunner().invoke(main, each, prog_name="kafkafs") for each in (words, same)
        )
        assert (shown.exit_code, shown.output) == (0, expected.output)


@pytest.mark.parametrize("helper", ["mount", "umount"])
@pytest.mark.programs
def test_the_helpers_of_mount_have_a_short_help(helper: str) -> None:
    # In a process of its own: click remembers what a command's help is called at first.
    program = f"from kafkafs.cli.mounting.mount_helpers import {helper}; {helper}()"
    shown = subprocess.run([sys.executable, "-c", program, "-h"], capture_output=True, text=True)
    assert shown.returncode == 0
    assert shown.stdout.startswith("Usage: ")
