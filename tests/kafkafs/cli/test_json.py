"""`--json` prints one object that is valid by the published schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from storage import LogManager
from storage.files import Files
from storage.groups.offset_records import Committed
from storage.state import point_file
from storage.state.gaps_file import FILE_NAME as GAPS
from storage.state.gaps_file import Gap
from storage.state.point_file import Point, Range
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.storage.logs import append, write_settings

SCHEMA = json.loads(files("kafkafs.cli").joinpath("output.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)

OF_A_DIRECTORY = (
    *("doctor data", "doctor missing"),
    *("ls data", "ls data orders", "ls data --internal", "describe data", "describe damaged"),
    *("config data", "config data orders", "groups ls data", "groups ls data g"),
    *("verify data", "verify damaged", "verify missing"),
    *("repair data", "repair damaged", "repair --indexes data", "repair --indexes damaged"),
    *("repair --salvage damaged", "repair --salvage --apply damaged", "repair --purge damaged"),
    *("compact --dry-run data", "prune --dry-run data", "prune data", "compact data users"),
    *("words data", "words data users", "words damaged", "words missing", "words --remove data"),
    *("convert --dry-run data", "convert data", "detach data", "detach --dry-run data"),
    *("handover --dry-run data data", "handover data missing"),
    *("points data", "points data --keep kept", "points damaged", "points missing"),
    *("groups missing", "ls loop", "spark verify loop"),
    *("create data made", "create data orders", "delete --dry-run data orders"),
    *("delete data orders", "undelete data orders", "undelete data nothing"),
    *("groups reset data -g g --to earliest", "groups reset data -g g --to 99 orders"),
    *("spark verify --dry-run data", "spark stats --dry-run data", "spark verify missing"),
    *("spark export --dry-run data out", "spark import missing orders data"),
    *("grep one data", "grep nothing data", "grep -c one data orders", "grep -l one data"),
    *("grep one damaged", "grep one missing"),
    *("spark compact missing", "version", "mounts", "wait missing", "top missing"),
)
OF_A_MOUNT = (
    *("mounts", "top -d 100ms mnt", "ls mnt --rates", "doctor mnt", "describe mnt/orders/0"),
    *("compact mnt/users", "prune mnt/orders", "wait mnt/users/.control/compaction"),
    *("groups ls mnt", "groups ls mnt g", "delete mnt/orders", "undelete mnt orders"),
    *("repair --apply mnt", "create mnt made"),
)


def with_json(group: click.Group, prefix: str = "") -> Iterator[str]:
    """The commands that have the option."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from with_json(command, f"{prefix}{name} ")
        elif command is not None and any(each.name == "out" for each in command.params):
            yield f"{prefix}{name}"


def checked(line: str, output: str, status: int) -> dict[str, Any]:
    """The object of a command, which is as the schema has it."""
    found: dict[str, Any] = json.loads(output)
    VALIDATOR.validate(found)
    assert line.split()[0] == found["command"].split()[0]
    assert status in (0, 1, 2 if line.startswith("grep") else 3), line
    assert bool(found["problems"]) == (status != 0) or status == 1, (line, found)
    return found


def fill(data: Path) -> None:
    write_settings(data, offsets_topic_num_partitions=1)
    with LogManager.open(str(data)) as manager:
        log = manager.create_topic("orders", 2).partitions[0]
        append(log, b"one", b"two")
        append(log, b"three")
        log.note_gaps(Gap("missing", 3, 9, 0))
        manager.create_topic("users", 1, settings={"cleanup.policy": "compact"})
        manager.groups.commit("g", "orders", {0: Committed(1)})


@pytest.fixture
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("data", "damaged"):
        (tmp_path / name).mkdir()
        fill(tmp_path / name)
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "damaged/orders-0" / GAPS).write_text("rubbish")
    point = Point(0, "C", ids={"orders": "-"}, partitions={("orders", 0): Range(0, 3)})
    point_file.write(Files(), str(tmp_path / "data"), point)
    (tmp_path / "damaged/kafkafs.point.p").write_text("rubbish")
    path = next((tmp_path / "damaged/orders-0").glob("*.log"))
    path.write_bytes(path.read_bytes().replace(b"two", b"2wo"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_schema_has_each_command() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    commands = set(with_json(main))
    assert set(SCHEMA["properties"]["command"]["enum"]) == commands
    tried = [*OF_A_DIRECTORY, *OF_A_MOUNT]
    assert {name for name in commands if not any(each.startswith(name) for each in tried)} == set()


def test_commands_on_a_directory(directories: Path) -> None:
    statuses = set()
    for line in OF_A_DIRECTORY:
        done = CliRunner().invoke(main, [*line.split(), "--json"], prog_name="kafkafs")
        statuses.add(done.exit_code)
        found = checked(line, done.stdout, done.exit_code)
        if "missing" in line and not line.startswith("doctor"):
            failed = 2 if line.startswith("grep") else 3
            assert (done.exit_code, found["result"]) == (failed, None), line
    assert statuses == {0, 1, 2, 3}


@pytest.mark.programs
def test_commands_on_a_mount(place: Place) -> None:
    fill(place.data)
    place.mount()
    for line in OF_A_MOUNT:
        words = [word.replace("mnt", str(place.path)) for word in line.split()]
        done = kafkafs(*words, "--json")
        checked(line, done.stdout, done.returncode)


def test_a_problem_names_what_is_wrong(directories: Path) -> None:
    done = CliRunner().invoke(main, ["verify", "--json", "damaged"], prog_name="kafkafs")
    problem, _ = json.loads(done.stdout)["problems"]
    assert problem.pop("path").endswith("/damaged/orders-0/00000000000000000000.log")
    assert problem == {
        "offset": 0,
        "code": "FAULT",
        "message": "position 0: the CRC is wrong",
    }
    done = CliRunner().invoke(main, ["ls", "--json", "data", "nope"], prog_name="kafkafs")
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["path"], problem["code"]) == ("data", "UNKNOWN_TOPIC_OR_PARTITION")


def test_a_wrong_command_line_prints_none() -> None:
    done = CliRunner().invoke(main, ["verify", "--json"], prog_name="kafkafs")
    assert (done.exit_code, done.stdout) == (2, "")
