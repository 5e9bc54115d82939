"""The daemon is killed while it adopts a batch of a streaming query that waits for the outcome.

One batch for each step of the adoption: the daemon is held at an operation of its disk and killed.
Then it is mounted again before the query looks, or it is not, and the query's driver ends what was
begun and adopts the batch itself.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.mounting import check_data
from tests.mount.steering import SteeredMount, steered
from tests.spark.drivers import TOPIC, Driver, add_lines, adoptions, check_once, streaming

pytestmark = pytest.mark.soak

# A hold comes when the one before is reached, as there are more such operations before.
STEPS = {
    "it has checked nothing": [("open", ".staged")],
    "it is about to write down what it means to do": [("open", "kafkafs.adopted.tmp")],
    "it has written that down": [("open", "kafkafs.adopted.tmp"), ("pwrite", ".log")],
    "it has appended": [("pwrite", ".log"), ("fdatasync", ".log")],
    "it is about to commit": [("pwrite", ".log"), ("open", "kafkafs.adopted.tmp")],
    "it has committed": [
        *(("pwrite", ".log"), ("open", "kafkafs.adopted.tmp"), ("pwrite", ".log")),
    ],
}


@contextmanager
def held(mount: SteeredMount, operations: list[tuple[str, str]]) -> Iterator[None]:
    """The daemon stands still at the last of these operations until it is killed."""
    first, *others = operations
    daemon = mount.daemon
    number = daemon.hold(*first)
    yield
    for operation in others:
        assert daemon.reached(number), first
        following = daemon.hold(*operation)
        assert daemon.release(number)
        number = following
    assert daemon.reached(number), operations


def next_batch(base: Path, driver: Driver, mount: SteeredMount, step: str, batch: int) -> None:
    with held(mount, STEPS[step]):
        add_lines(base / "lines", str(batch))
    driver.signal(signal.SIGSTOP)
    mount.kill()


def test_at_each_step(tmp_path: Path) -> None:
    commits = tmp_path / "checkpoint-0" / "commits"
    names: dict[str, int] = {}
    add_lines(tmp_path / "lines", "0")
    names["0"] = 50
    with steered(tmp_path) as mount:
        mount.topic(TOPIC, 2)
        with streaming(tmp_path, mount.data, [{}], end="input") as driver:
            driver.until((commits / "0").exists)
            for step in STEPS:
                for is_mounted_again in (True, False):
                    batch = len(names)
                    names[str(batch)] = 50
                    next_batch(tmp_path, driver, mount, step, batch)
                    if is_mounted_again:
                        mount.start()
                    driver.signal(signal.SIGCONT)
                    driver.until((commits / str(batch)).exists)
                    if not is_mounted_again:
                        mount.start()
            last = len(names) - 1
    check_data(mount.data)
    check_once(mount.data, names)
    assert list(adoptions(mount.data).values()) == [last]
