"""The driver of a streaming query is killed, batch after batch, at each step of a commit.

Each run of it goes on from the checkpoint: it first makes up for the batch in which the one before
was killed. Every line is there once, in order, at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.mount.mounting import mounted
from tests.spark.cluster import Cluster
from tests.spark.drivers import (
    TOPIC,
    Driver,
    add_lines,
    adoptions,
    check_once,
    make_data,
    streaming,
)

pytestmark = pytest.mark.soak

# Of its commit log the driver sees no point: it dies when the batch is done.
DONE = "done"


def kill_at(
    base: Path, data: Path, points: Sequence[str], settings: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Batch N is the first one to be written by run N, which is killed at point N.

    Returns the lines that there have to be.
    """
    names: dict[str, int] = {}
    for batch, point in enumerate([*points, ""]):
        name = f"{batch}"
        add_lines(base / "lines", name)
        names[name] = 50
        end, steer = ("die", "") if point == DONE else ("all", f"{point}:{batch}")
        with streaming(base, data, [{"steer": steer}], end=end, settings=settings) as driver:
            if point:
                driver.wait_dead()
            else:
                driver.wait()
        done = (base / "checkpoint-0" / "commits" / name).exists()
        assert done == (point in ("", DONE)), point
    return names


def test_nothing_is_mounted(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    points = ["before", "appended", "committed", "adopted", DONE]
    names = kill_at(tmp_path, data, points)
    check_once(data, names)
    assert list(adoptions(data).values()) == [len(points)]


def test_it_writes_by_foreach_batch(tmp_path: Path) -> None:
    """It dies behind each write, before the batch is done, and writes it once more."""
    data = make_data(tmp_path)
    names: dict[str, int] = {}
    for batch in range(3):
        add_lines(tmp_path / "lines", str(batch))
        names[str(batch)] = 50
        last = batch == 2
        what = {
            "path": str(data),
            "topic": TOPIC,
            "lines": str(tmp_path / "lines"),
            "checkpoint": str(tmp_path / "checkpoint"),
            "die": -1 if last else batch,
        }
        with Driver(tmp_path / "driver", {}, "each", **what) as driver:
            if last:
                driver.wait()
            else:
                driver.wait_dead()
        assert (tmp_path / "checkpoint" / "commits" / str(batch)).exists() == last
    check_once(data, names)
    assert adoptions(data) == {"app": 2}


def test_a_power_cut_has_taken_what_was_staged(tmp_path: Path) -> None:
    """The batch fails, and with it the query; the next run writes it anew."""
    data = make_data(tmp_path)
    names = {"0": 50, "1": 50}
    for name in names:
        add_lines(tmp_path / "lines", name)
    with streaming(tmp_path, data, [{"steer": "lost:1"}]) as driver:
        driver.wait(1)
    assert "no valid batch starts here" in driver.said
    assert list(adoptions(data).values()) == [0]
    with streaming(tmp_path, data, [{}]) as driver:
        driver.wait()
    check_once(data, names)


def test_a_daemon_has_the_data_directory(tmp_path: Path) -> None:
    """Tasks run on a cluster, where they may go on when the driver is dead."""
    with Cluster(tmp_path / "cluster") as cluster, mounted(tmp_path) as mount:
        mount.topic(TOPIC, 2)
        points = ["asked", "adopted"]
        names = kill_at(tmp_path, mount.data, points, cluster.settings())
    check_once(mount.data, names)
    assert list(adoptions(mount.data).values()) == [len(points)]
