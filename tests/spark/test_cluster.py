"""A real cluster, real kills: every record once, in order, whoever is killed and when."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import LogManager
from tests.spark.cluster import Cluster
from tests.spark.drivers import (
    TOPIC,
    Driver,
    add_lines,
    adoptions,
    check_once,
    make_data,
    staged,
    streaming,
)
from tests.spark.processes import kill, tree_of
from tests.spark.test_readme import blocks
from tests.spark.test_readme_scripts import environment as scripts_environment
from tests.storage.logs import append

pytestmark = pytest.mark.soak

ROWS = 20_000
TASKS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


def writing(base: Path, data: Path, settings: dict[str, str]) -> Driver:
    return Driver(
        base / "driver",
        settings,
        "write",
        path=str(data),
        topic=TOPIC,
        tasks=TASKS,
        rows=ROWS,
        flags=str(base),
    )


def wait_blocked(base: Path, driver: Driver) -> int:
    """The process that stops in the middle of its rows."""
    flag = base / "blocked"
    driver.until(lambda: flag.exists() and flag.read_text())
    return int(flag.read_text())


def test_an_executor_is_killed_while_it_writes(tmp_path: Path, cluster: Cluster) -> None:
    data = make_data(tmp_path)
    with writing(tmp_path, data, cluster.settings()) as driver:
        process = wait_blocked(tmp_path, driver)
        driver.until(lambda: any(file.stat().st_size for file in staged(data)))
        executor = cluster.executor_of(process)
        kill(reversed(tree_of(executor)))
        driver.wait()
    check_once(data, {str(task): ROWS for task in range(TASKS)})


def test_the_program_of_the_document_runs(tmp_path: Path, cluster: Cluster) -> None:
    [block] = blocks("A program of your own", "sh")
    data = make_data(tmp_path)
    with LogManager.open(str(data)) as manager:
        append(manager.log(TOPIC, 1), b"a", b"b")
    places = {
        "spark://host:7077": cluster.master,
        "~/kafkafs-venv/bin/python": sys.executable,
        "/srv/data": str(data),
        "/srv/counts": str(tmp_path / "counts"),
    }
    for place, here in places.items():
        assert place in block
        block = block.replace(place, here)
    variables = scripts_environment(tmp_path)
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-8000:]
    [counts] = (tmp_path / "counts").glob("part-*.csv")
    assert counts.read_text() == "1,2\n"


def test_two_queries_write_to_a_topic_at_once(tmp_path: Path) -> None:
    """Each of them opens the data directory for each of its batches; the other one waits.

    The tasks of one of them fail when they have staged, and run again.
    """
    data = make_data(tmp_path)
    names = {f"{query}-{number}": 50 for number in range(3) for query in "ab"}
    for name in names:
        add_lines(tmp_path / name[0], name)
    queries = [{"lines": str(tmp_path / "a")}, {"lines": str(tmp_path / "b"), "steer": "fail"}]
    again = {"spark.master": "local[2,3]"}
    with streaming(tmp_path, data, queries, settings=again) as driver:
        driver.wait()
    assert "the first attempt of a task fails here" in driver.said
    check_once(data, names)
    assert len(adoptions(data)) == 2
