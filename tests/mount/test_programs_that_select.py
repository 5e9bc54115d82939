"""Programs that wait for their input before they read it see the end of a partition's file."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import mounted
from tests.mount.programs import program
from tests.waits import HANG_S

LINES = b"".join(b"line %d\n" % number for number in range(5_000))

PERL = """
use IO::Select;
my $input = IO::Select->new(\\*STDIN);
while ($input->can_read()) {
    my $count = sysread(STDIN, my $data, 65536);
    last unless $count;
    print $data;
}
"""
PYTHON = """
import os, selectors
selector = selectors.SelectSelector()
selector.register(0, selectors.EVENT_READ)
while selector.select() and (data := os.read(0, 65536)):
    os.write(1, data)
"""
COMMANDS = {
    "perl": ["perl", "-e", PERL],
    "socat": ["socat", "-u", "STDIN", "STDOUT"],
    "socat both ways": ["socat", "-t", "300", "STDIO", "EXEC:cat"],
    "pv": ["pv", "-q"],
    "python": [sys.executable, "-c", PYTHON],
}


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with mounted(tmp_path_factory.mktemp("mount")) as mount:
        path = mount.topic()
        with path.open("ab", buffering=0) as file:
            assert file.write(LINES) == len(LINES)
        yield path


def output(command: list[str], path: Path) -> bytes:
    """Return the output of a program that reads the file as standard input."""
    with path.open("rb") as file:
        done = subprocess.run(
            [program(command[0]), *command[1:]], stdin=file, capture_output=True, timeout=HANG_S
        )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("name", ["0", ".follow/0", "0@start", ".snapshot/0", "0@start..end"])
@pytest.mark.parametrize("command", COMMANDS)
def test_it_prints_all_and_ends(orders: Path, command: str, name: str) -> None:
    assert output(COMMANDS[command], orders.parent / name) == LINES


def test_ssh_sends_all_and_ends(orders: Path, tmp_path: Path) -> None:
    """The client starts the server as its ProxyCommand, without a port."""
    for name in ("host", "user"):
        make_key = [program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f"]
        subprocess.run([*make_key, str(tmp_path / name)], check=True)
    keys = tmp_path / "user.pub"
    config = tmp_path / "sshd_config"
    config.write_text(
        f"HostKey {tmp_path}/host\nAuthorizedKeysFile {keys}\nStrictModes no\n"
        "PermitRootLogin yes\nUsePAM no\nPidFile none\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where its unprivileged part lives
    server = shlex.join([program("sshd"), "-i", "-q", "-f", str(config)])
    command = [
        *("ssh", "-F", "none", "-i", str(tmp_path / "user"), "-o", f"ProxyCommand={server}"),
        *("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"),
        *("-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "nobodys-host", "cat"),
    ]
    assert output(command, orders) == LINES
