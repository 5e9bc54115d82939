"""`kafkafs groups`, without a mount, beside one, through it, and for a broker's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kafkafs.cli import main
from kafkafs.tree.files.group_names import NOT_SHOWN
from storage import LogManager
from storage.groups.offset_records import Committed
from tests.kafkafs.cli.conftest import Place, kafkafs
from tests.kafkafs.cli.mounting.test_mount_mistakes import tree
from tests.storage.directory.test_mirror import make_mirror
from tests.storage.logs import append, write_settings

GROUPS = ["odd name", "report"]


@pytest.fixture
def filled(place: Place) -> Place:
    """Topic `orders`, with ten records in each partition, and committed offsets of two groups."""
    write_settings(place.data, offsets_topic_num_partitions=1)
    with LogManager.open(str(place.data)) as manager:
        topic = manager.create_topic("orders", 2)
        for log in topic.partitions.values():
            append(log, *[b"value"] * 10)
        manager.groups.commit("report", "orders", {0: Committed(0), 1: Committed(7)})
        manager.groups.commit("odd name", "orders", {0: Committed(10)})
    return place


def reset(directory: Path, group: str, start: str, *words: str) -> Any:
    return kafkafs("groups", "reset", "-g", group, "--to", start, directory, *words)


def listed(directory: Path, *groups: str) -> list[dict[str, Any]]:
    done = kafkafs("groups", "--json", directory, *groups)
    assert (done.returncode, done.stderr) == (0, "")
    found: list[dict[str, Any]] = json.loads(done.stdout)["result"][
        "offsets" if groups else "groups"
    ]
    return found


@pytest.mark.programs
@pytest.mark.parametrize("way", ["data", "brokers", "beside a mount", "mount"])
def test_groups_are_listed_with_their_lag(filled: Place, way: str) -> None:
    if way == "brokers":
        (filled.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    if "mount" in way:
        filled.mount()
    before = tree(filled.data)
    directory = filled.path if way == "mount" else filled.data
    assert [(each["group"], each["partitions"], each["lag"]) for each in listed(directory)] == [
        ("odd name", 1, 0),
        ("report", 2, 13),
    ]
    first, second = listed(directory, "report")
    assert (first["topic"], first["partition"], first["offset"]) == ("orders", 0, 0)
    assert (second["offset"], second["high_watermark"], second["lag"]) == (7, 10, 3)
    assert [each["offset"] for each in listed(directory, "odd name")] == [10]
    if "mount" not in way:
        assert tree(filled.data) == before
    done = kafkafs("groups", "ls", directory, "repot")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "kafkafs: there is no group 'repot': did you mean 'report'?\n"
    lines = kafkafs("groups", directory).stdout.splitlines()
    assert [line.split()[:-1] for line in lines[1:]] == [
        ["odd", "name", "1", "0"],
        ["report", "2", "13"],
    ]


@pytest.mark.programs
@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_reset(filled: Place, is_mounted: bool) -> None:
    if is_mounted:
        filled.mount()
    done = reset(filled.data, "report", "-3", "orders:1")
    assert (done.returncode, done.stdout) == (0, "orders:1: offset 4\n")
    for start, words in (("11", ()), ("-5", ("orders",)), ("earliest", ("orders:7",))):
        done = reset(filled.data, "report", start, *words)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr.count("\n") == 1
    assert [each["offset"] for each in listed(filled.data, "report")] == [0, 4]
    for start in ("11", "+1"):
        assert reset(filled.data, "new", start, "orders").returncode == 3
    assert {each["group"] for each in listed(filled.data)} == set(GROUPS), "it makes no group"
    done = reset(filled.data, "new", "1970-01-02", "orders")
    assert done.stdout == "orders:0: offset 0\norders:1: offset 0\n"
    assert (
        reset(filled.data, "new", "latest").stdout == "orders:0: offset 10\norders:1: offset 10\n"
    )
    assert reset(filled.data, "new", "soon").returncode == 2


@pytest.mark.programs
@pytest.mark.parametrize("is_mounted", [False, True])
def test_a_group_whose_name_is_too_long_for_a_file(filled: Place, is_mounted: bool) -> None:
    group = "x" * 201
    with LogManager.open(str(filled.data)) as manager:
        manager.groups.commit(group, "orders", {0: Committed(3)})
    if is_mounted:
        filled.mount()
    assert {each["group"] for each in listed(filled.data)} == set(GROUPS)
    done = kafkafs("groups", "ls", filled.data, group)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"kafkafs: {NOT_SHOWN}\n"
    done = reset(filled.data, group, "latest")
    assert (done.returncode, done.stdout) == (2, "")
    assert NOT_SHOWN in done.stderr


@pytest.mark.programs
def test_a_reset_of_what_is_a_brokers(filled: Place) -> None:
    (filled.data / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=x\n")
    before = tree(filled.data)
    done = reset(filled.data, "report", "earliest")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"kafkafs: {filled.data}: this is a broker's directory. ")
    assert tree(filled.data) == before


def test_a_mirror_may_have_offsets_whose_records_it_has_not_copied(tmp_path: Path) -> None:
    write_settings(tmp_path, offsets_topic_num_partitions=1)
    with LogManager.open(str(tmp_path)) as manager:
        append(manager.create_topic("orders", 1).partitions[0], b"1")
    make_mirror(tmp_path)
    with LogManager.open(str(tmp_path), mirrors=True) as manager:
        manager.groups.commit("report", "orders", {0: Committed(7)})
    done = CliRunner().invoke(main, ["groups", "--json", str(tmp_path), "report"])
    (found,) = json.loads(done.stdout)["result"]["offsets"]
    assert (found["offset"], found["high_watermark"], found["lag"]) == (7, 1, 0)
    done = CliRunner().invoke(main, ["cat", str(tmp_path), "orders:0@group=report"])
    assert (done.exit_code, done.output) == (0, "")
