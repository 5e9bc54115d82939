"""Names and contents from outside make no line of their own, and move no cursor of a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.fork_server import KAFKAFS
from tests.mount.mounting import Mount, kafkafs, mounted

FORGED = "2026-01-01T00:00:00.000Z all is well"
NAMES = [
    *(f"a\n{FORGED}", f"\x1b[2J\x1b[1;1H{FORGED}", f"b\r{FORGED}"),
    *("\u202egnirts", "c\x85\u2028d"),
]
BYTES = os.fsdecode(b"invalid \xff\xfe")
CUT = "2026-01-01"


def printable(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def append(path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, os.fsencode(line) + b"\n")
    finally:
        os.close(fd)


def refusals(mount: Mount, name: str) -> None:
    """Whatever takes a name that somebody makes up."""
    topic = str(mount / "t")
    for call in (
        lambda: os.mkdir(f"{mount.path}/{name}"),
        lambda: os.rmdir(f"{mount.path}/{name}"),
        lambda: os.mkdir(f"{topic}/{name}"),
        lambda: os.open(f"{topic}/{name}", os.O_CREAT | os.O_WRONLY),
        lambda: os.open(f"{mount.path}/{name}", os.O_CREAT | os.O_WRONLY),
        lambda: os.open(f"{topic}/0@{name}", os.O_CREAT | os.O_WRONLY),
        lambda: os.unlink(f"{topic}/{name}"),
        lambda: os.rename(f"{topic}/0", f"{topic}/{name}"),
        lambda: os.link(f"{topic}/0", f"{topic}/{name}"),
        lambda: os.symlink(name, f"{topic}/{name}"),
        lambda: os.mkfifo(f"{topic}/{name}"),
        lambda: os.setxattr(f"{topic}/0", f"user.{name}", os.fsencode(name)),
        lambda: os.getxattr(f"{topic}/0", f"user.{name}"),
        lambda: append(f"{topic}/.config", f"{name}={name}"),
        lambda: append(f"{topic}/.config", f"cleanup.policy={name}"),
        lambda: append(f"{topic}/.control/roll", f"run {name}"),
        lambda: append(f"{topic}/.jsonl/0", f'{{"{name}": 1}}'),
        lambda: append(f"{topic}/.jsonl/0", f'{{"key": {name}'),
        lambda: append(f"{mount.path}/.kafkafs/adopt", name),
    ):
        with contextlib.suppress(OSError):
            call()


@pytest.mark.parametrize("show", ["show_dot"])
def test_names_in_the_mount(tmp_path: Path, show: str) -> None:
    with mounted(tmp_path, show) as mount:
        mount.run("mkdir t; echo x >> t/0")
        for name in [*NAMES, BYTES]:
            refusals(mount, name)
        log = mount.events()
        assert printable(log)
        assert log.count(FORGED) > 20, "the names are there"
        stamp = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ")
        lines = log.splitlines()
        assert all(stamp.match(line) for line in lines)
        assert not [line for line in lines if line.startswith(CUT)]
        metrics = (mount / ".kafkafs/metrics").read_text()
        assert printable(metrics)
        assert len(list(text_string_to_metric_families(metrics))) > 20
        for path in (mount / ".kafkafs").iterdir():
            assert printable(path.read_text()), path
        for path in (mount / "t/.control").iterdir():
            assert printable(path.read_text()), path


def test_names_of_the_data_directory(tmp_path: Path) -> None:
    """The mount answers, and everything that names a path can be read."""
    name = f"{NAMES[0]}{NAMES[1]}{BYTES}"
    base = tmp_path / name
    base.mkdir()
    mount = Mount(base)
    try:
        mount.start()
        use_damaged(mount, name)
    finally:
        mount.end()


def use_damaged(mount: Mount, name: str) -> None:
    mount.run("mkdir t; seq 1000 >> t/0; echo run > t/.control/roll; seq 10 >> t/0")
    (mount.data / "not a partition\n-1").mkdir()
    (mount.data / f"t-{BYTES}").mkdir()
    mount.stop()
    log = min((mount.data / "t-0").glob("*.log"))
    with log.open("r+b") as file:
        file.seek(100)
        file.write(b"damage")
    mount.start()
    for path in ("log", "topics", "metrics", "config"):
        assert printable((mount / ".kafkafs" / path).read_text()), path
    mount.sh("cat t/0; echo run > t/.control/verify")
    kafkafs("wait", mount / "t/.control/verify")
    verified = (mount / "t/.control/verify").read_text()
    assert "faults" in verified
    assert printable(verified)
    assert "damaged" in mount.events()
    assert printable(mount.events())
    mount.stop()
    for command in (
        ["verify", mount.data],
        ["prune", "--dry-run", mount.data],
        ["repair", "--indexes", "--apply", mount.data],
        ["config", mount.data, name],
        ["wait", mount.data / "t-0" / log.name],
        ["mount", mount.data / "none", mount.path],
    ):
        done = subprocess.run([*KAFKAFS, *map(str, command)], capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode()
        assert said, command
        assert printable(said), (command, said)
        assert not [line for line in said.splitlines() if line.startswith(CUT)], command
