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
from tests.spark.drivers import TOPIC, add_lines, adoptions, check_once, make_data, streaming

pytestmark = pytest.mark.soak


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
        with streaming(base, data, [{"steer": f"{point}:{batch}"}], settings=settings) as driver:
            if point:
                driver.wait_dead()
            else:
                driver.wait()
        assert (base / "checkpoint-0" / "commits" / name).exists() == (not point), point
    return names


def test_nothing_is_mounted(tmp_path: Path) -> None:
    data = make_data(tmp_path)
    points = ["before", "adopted"]
    names = kill_at(tmp_path, data, points)
    check_once(data, names)
    assert list(adoptions(data).values()) == [len(points)]


def test_a_daemon_has_the_data_directory(tmp_path: Path) -> None:
    """Tasks run on a cluster, where they may go on when the driver is dead."""
    with Cluster(tmp_path / "cluster") as cluster, mounted(tmp_path) as mount:
        mount.topic(TOPIC, 2)
        points = ["asked", "adopted"]
        names = kill_at(tmp_path, mount.data, points, cluster.settings())
    check_once(mount.data, names)
    assert list(adoptions(mount.data).values()) == [len(points)]
