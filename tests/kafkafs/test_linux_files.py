"""The unit and what belongs to it, judged by systemd's own programs, without a running systemd."""

from __future__ import annotations

import configparser
import os
import re
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.mount_options import OPTIONS
from tests.mount.programs import program

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "kafkafs/linux"
UNIT = FILES / "kafkafs@.service"
MOUNTING = ROOT / "docs/admin.md"

#: With one of these nobody else would see the mount.
MAKE_A_MOUNT_NAMESPACE = {
    *("BindPaths", "BindReadOnlyPaths", "ExecPaths", "InaccessiblePaths", "MountFlags"),
    *("MountAPIVFS", "NoExecPaths", "PrivateDevices", "PrivateIPC", "PrivateMounts", "PrivateTmp"),
    *("PrivateNetwork", "PrivateUsers", "ProcSubset", "ProtectControlGroups", "ProtectHome"),
    *("ProtectKernelLogs", "ProtectKernelModules", "ProtectKernelTunables", "ProtectProc"),
    *("ProtectSystem", "ReadOnlyPaths", "ReadWritePaths", "RootDirectory", "RootImage"),
    *("TemporaryFileSystem",),
}


def instance(directory: Path) -> Path:
    """An instance of the unit, whose program is there."""
    path = directory / "kafkafs@log.service"
    path.write_text(UNIT.read_text().replace("/usr/bin/kafkafs", sys.executable))
    return path


def unit() -> dict[str, set[str]]:
    """The unit's settings of all sections."""
    found: dict[str, set[str]] = {}
    for line in UNIT.read_text().replace("\\\n", "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, set()).add(value)
    return found


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(str(command[0])), *map(str, command[1:])],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", **environment},
    )


def test_the_unit_is_valid(tmp_path: Path) -> None:
    done = run("systemd-analyze", "verify", "--man=no", "--generators=no", instance(tmp_path))
    ours = [line for line in done.stderr.splitlines() if "kafkafs" in line]
    assert (done.returncode, ours) == (0, [])


def test_the_unit_with_the_drop_in_is_valid(tmp_path: Path) -> None:
    path = instance(tmp_path)
    directory = tmp_path / f"{path.name}.d"
    directory.mkdir()
    shutil.copy(FILES / "reopen-logs.conf", directory)
    done = run("systemd-analyze", "verify", "--man=no", "--generators=no", path)
    ours = [line for line in done.stderr.splitlines() if "kafkafs" in line or "reopen" in line]
    assert (done.returncode, ours) == (0, [])


def test_append_lines_tries_until_a_line_is_written(tmp_path: Path) -> None:
    log = tmp_path / "away" / "log"
    command = [str(FILES / "append-lines"), str(log)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "OK\n"
        process.stdin.write("  a \\n line\n")
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 0.2)[0] == [], "it is not written yet"
        log.parent.mkdir()
        assert process.stdout.readline() == "OK\n"
        assert log.read_text() == "  a \\n line\n"
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


def test_the_unit_is_hardened(tmp_path: Path) -> None:
    path = instance(tmp_path)
    done = run("systemd-analyze", "security", "--offline=true", "--threshold=45", path)
    assert done.returncode == 0, done.stdout


def test_the_mount_is_seen_by_others_and_made_by_any_user() -> None:
    settings = unit()
    assert settings.keys() & MAKE_A_MOUNT_NAMESPACE == set()
    # fusermount3 is set-user-ID.
    assert settings.keys() & {"User", "DynamicUser", "NoNewPrivileges", "RestrictSUIDSGID"} == set()


def test_only_stopping_unmounts() -> None:
    settings = unit()
    assert settings.keys() & {"ExecStop", "ExecStopPost"} == set()
    assert settings["Restart"] == {"on-failure"}
    assert settings["TimeoutStartSec"] == {"infinity"}
    assert settings["Type"] == {"notify"}
    assert "WatchdogSec" in settings


def test_the_example_has_what_the_unit_reads() -> None:
    parser = configparser.ConfigParser()
    lines = (FILES / "example.conf").read_text().replace("\n#OPTIONS", "\nOPTIONS")
    parser.read_string("[conf]\n" + lines.replace("\n#USER", "\nUSER"))
    named = {name.upper() for name in parser["conf"]}
    (start,) = unit()["ExecStart"]
    assert named == {"DATA", "MOUNT", "OPTIONS", "USER"}
    assert all(f"${{{name}}}" in start for name in named)
    known = {option.name for option in OPTIONS}
    assert set(parser["conf"]["OPTIONS"].split(",")) <= known


def test_systemd_makes_a_mount_unit_of_the_documents_line_in_fstab(tmp_path: Path) -> None:
    (line,) = re.findall(r"^echo '(.+)' >> /etc/fstab$", MOUNTING.read_text(), re.M)
    fstab = tmp_path / "fstab"
    fstab.write_text(f"{line}\n")
    units = tmp_path / "units"
    units.mkdir()
    generator = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")
    if not generator.exists():
        generator = Path("/lib") / generator.relative_to("/usr/lib")
    done = subprocess.run(
        [generator, units, units, units],
        env={**os.environ, "SYSTEMD_FSTAB": str(fstab)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    made = (units / "mnt-tab.mount").read_text().splitlines()
    assert {"What=/srv/tab", "Where=/mnt/tab", "Type=kafkafs", "TimeoutSec=infinity"} <= set(made)
