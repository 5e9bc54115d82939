"""`kafkafs points` lists, names and removes the restore points of a mirror."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kafkafs.cli import main
from storage import LogManager
from storage.files import Files
from storage.state import gaps_file, mirror_file, point_file
from storage.state.gaps_file import Gap
from storage.state.mirror_file import MirroredPartition, MirrorFile
from storage.state.point_file import Point, Position, Range, name_at
from tests.storage.logs import append

SECOND = 1000
HEAD = "point             time  state  partitions  groups  records  lag  size"


def points(*words: object) -> Result:
    return CliRunner().invoke(main, ["points", *map(str, words)], prog_name="kafkafs")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A mirror with three segments, and points at their ends."""
    files, path = Files(), str(tmp_path)
    with LogManager.open(path) as manager:
        log = manager.create_topic("orders", 1).partitions[0]
        for number in range(3):
            append(log, b"%d" % number, b"more")
            log.roll(0)
    copies = {("orders", 0): MirroredPartition(end=6)}
    mirror_file.write(
        files, path, MirrorFile("C", "kafka://one:9092", ("*",), {"orders": "-"}, copies)
    )
    for number, state in enumerate(("valid", "valid", "split"), 1):
        point = Point(number * SECOND, "C", state, ids={"orders": "-"})
        point.partitions["orders", 0] = Range(0, 2 * number)
        point.groups = {"g": {("orders", 0): Position(1)}}
        point_file.write(files, path, point)
    return tmp_path


def rows(done: Result) -> dict[str, list[str]]:
    """The columns after the time, by name."""
    assert done.exit_code == 0, done.output
    head, *lines = done.stdout.splitlines()
    assert head.split() == HEAD.split()
    found = [line.split(maxsplit=2) for line in lines]
    return {name: rest.split() for name, _, rest in found}


def test_points_are_listed_named_and_removed(data: Path) -> None:
    size = min((data / "orders-0").glob("*.log")).stat().st_size
    names = [name_at(number * SECOND) for number in (1, 2, 3)]
    listed = {
        name: [state, "1", "1", str(2 * n), str(6 - 2 * n), str(n * size)]
        for n, (name, state) in enumerate(zip(names, ("valid", "valid", "split"), strict=True), 1)
    }
    # Also while the mirror runs.
    with LogManager.open(str(data), mirrors=True):
        assert rows(points(data, "--bytes")) == listed
        listed["newest"] = listed.pop(names[1])
        assert rows(points(data, "--bytes", "--keep", "newest")) == listed
        listed["other"] = listed.pop("newest")
        assert rows(points(data, "--bytes", "--keep", "other", "newest")) == listed
        del listed[names[0]]
        assert rows(points(data, "--bytes", "--remove", names[0])) == listed
    found = json.loads(points(data, "--json").stdout)["result"]["points"]
    assert [(each["point"], each["bytes"]) for each in found] == [
        (names[2], 3 * size),
        ("other", 2 * size),
    ]
    # The cluster has created the topic again.
    (data / "orders-0").rename(data / "orders.--0")
    (data / "orders-0").mkdir()
    again = json.loads(points(data, "--json").stdout)["result"]["points"]
    assert [each["bytes"] for each in again] == [3 * size, 2 * size]
    min((data / "orders.--0").glob("*.log")).unlink()
    done = points(data)
    assert done.stdout.count("incomplete: records of orders:0 were deleted") == 2


def test_deleted_records(data: Path) -> None:
    """A point is complete without records that it does not have."""
    with LogManager.open(str(data), mirrors=True) as manager:
        manager.log("orders", 0).raise_log_start(1)
    point = point_file.read(Files(), str(data), name_at(SECOND))
    point.partitions["orders", 0] = Range(0, 0)
    point_file.write(Files(), str(data), point)
    found = rows(points(data))
    assert [each[0] for each in found.values()] == ["valid", "incomplete:", "incomplete:"]


def test_records_that_the_cluster_has_lost(data: Path) -> None:
    """… since some of the points. `--keep` names none of these."""
    lost = Gap("diverged", 3, 5, 2 * SECOND)
    gaps_file.add(Files(), str(data / "orders-0"), [lost])
    names = [name_at(number * SECOND) for number in (1, 2, 3)]
    found = rows(points(data))
    assert [found[name][0] for name in names] == ["valid", "incomplete:", "split"]
    assert points(data).stdout.count("incomplete: the cluster has lost records of orders:0") == 1
    assert "kept" in rows(points(data, "--keep", "kept"))
    assert names[1] in rows(points(data))
    (data / "orders-0" / gaps_file.FILE_NAME).write_text("?\n")
    assert points(data).stdout.count("incomplete: kafkafs.gaps of orders:0 cannot be read") == 3


def test_mistakes(data: Path) -> None:
    name = name_at(SECOND)
    points(data, "--keep", "kept", name)
    for words, error in (
        ([name], "POINT requires --keep NAME"),
        (["--keep", "x", "nothing"], f"{data}: there is no restore point 'nothing'"),
        (["--remove", "nothing"], f"{data}: there is no restore point 'nothing'"),
        (["--keep", "kept"], "File exists"),
        (["--keep", "a b"], "the name of a restore point has letters"),
        (["--keep", name], "is no time"),
    ):
        done = points(data, *words)
        assert done.exit_code in (2, 3)
        assert error in done.stderr
    points(data, "--remove", name_at(2 * SECOND))
    assert "there is no valid restore point without a name" in points(data, "--keep", "x").stderr
    (data / "kafkafs.point.damaged").write_text("?")
    done = points(data)
    assert done.exit_code == 3
    assert "kafkafs.point.damaged" in done.stderr
    assert name_at(3 * SECOND) in done.stdout
    done = points(data, "--keep", "fine", "damaged")
    assert (done.exit_code, done.exception.__class__) == (3, SystemExit)
    assert "kafkafs.point.damaged" in done.stderr
    assert not (data / "kafkafs.point.fine").exists()
    assert points(data, "--remove", "damaged").exit_code == 3
    assert not (data / "kafkafs.point.damaged").exists()
