"""The units and their files, judged by systemd's own programs, without a running systemd."""

from __future__ import annotations

import configparser
import os
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.mount_options import OPTIONS
from tests.mount.mounting import needs_root
from tests.mount.programs import program

pytestmark = pytest.mark.programs

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "kafkafs/linux"
UNIT = FILES / "kafkafs@.service"
MIRROR_UNIT = FILES / "kafkafs-mirror@.service"
UNITS = [UNIT, MIRROR_UNIT]
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


def instance(directory: Path, template: Path = UNIT) -> Path:
    """An instance of a unit, whose program is there."""
    path = directory / template.name.replace("@", "@log")
    path.write_text(template.read_text().replace("/usr/bin/kafkafs", sys.executable))
    return path


def unit(template: Path = UNIT) -> dict[str, set[str]]:
    """The settings of all sections of a unit."""
    found: dict[str, set[str]] = {}
    for line in template.read_text().replace("\\\n", "").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, set()).add(value)
    return found


def example_settings(name: str) -> dict[str, str]:
    """The settings of an example, also those that are commented out."""
    parser = configparser.ConfigParser()
    text = re.sub(r"^#(?=[A-Z]+=)", "", (FILES / name).read_text(), flags=re.M)
    parser.read_string(f"[conf]\n{text}")
    return {name.upper(): value for name, value in parser["conf"].items()}


def run(*command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program(str(command[0])), *map(str, command[1:])],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", **environment},
    )


def of(value: object) -> str:
    return value.name if isinstance(value, Path) else str(value)


@pytest.mark.parametrize("template", UNITS, ids=of)
def test_a_unit_is_valid(tmp_path: Path, template: Path) -> None:
    path = instance(tmp_path, template)
    done = run("systemd-analyze", "verify", "--man=no", "--generators=no", path)
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


@pytest.mark.parametrize(("template", "threshold"), [(UNIT, 45), (MIRROR_UNIT, 40)], ids=of)
def test_a_unit_is_hardened(tmp_path: Path, template: Path, threshold: int) -> None:
    path = instance(tmp_path, template)
    done = run("systemd-analyze", "security", "--offline=true", f"--threshold={threshold}", path)
    assert done.returncode == 0, done.stdout


def test_the_mount_is_seen_by_others_and_made_by_any_user() -> None:
    settings = unit()
    assert settings.keys() & MAKE_A_MOUNT_NAMESPACE == set()
    # fusermount3 is set-user-ID.
    assert settings.keys() & {"User", "DynamicUser", "NoNewPrivileges", "RestrictSUIDSGID"} == set()


@pytest.mark.parametrize("template", UNITS, ids=of)
def test_only_stopping_ends_it(template: Path) -> None:
    settings = unit(template)
    assert settings.keys() & {"ExecStop", "ExecStopPost"} == set()
    assert settings["Restart"] == {"on-failure"}
    assert settings["TimeoutStartSec"] == {"infinity"}
    assert settings["Type"] == {"notify"}
    assert "WatchdogSec" in settings


@pytest.mark.parametrize(
    ("template", "example", "names"),
    [
        (UNIT, "example.conf", "DATA MOUNT OPTIONS USER"),
        (MIRROR_UNIT, "mirror-example.conf", "CLUSTER DATA TOPICS OPTIONS USER"),
    ],
    ids=["mount", "mirror"],
)
def test_an_example_has_what_its_unit_reads(template: Path, example: str, names: str) -> None:
    settings = example_settings(example)
    assert list(settings) == names.split()
    (start,) = unit(template)["ExecStart"]
    assert all(re.search(rf"\$({{{name}}}|{name}\b)", start) for name in settings)


def test_the_example_has_options_that_the_mount_knows() -> None:
    known = {option.name for option in OPTIONS}
    assert set(example_settings("example.conf")["OPTIONS"].split(",")) <= known


@needs_root
def test_the_mirror_runs_as_its_user(tmp_path: Path) -> None:
    (start,) = unit(MIRROR_UNIT)["ExecStart"]
    shell, dash_c, script, settings, program_, *words = shlex.split(start)
    assert (settings, program_) == ("/etc/kafkafs/mirror-%i.conf", "/usr/bin/kafkafs")
    assert words == ["mirror", "$OPTIONS", "${CLUSTER}", "${DATA}", "$TOPICS"]
    begin = [shell, dash_c, script.replace("$$", "$")]
    assert run(*begin, "/dev/null", "id", "-un", USER="nobody").stdout == "nobody\n"
    done = run(*begin, tmp_path / "none.conf", "id", USER="nobody")
    assert (done.returncode, done.stdout) == (78, "")
    assert f"there is no {tmp_path}/none.conf; an example is in " in done.stderr


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
