"""Drivers of Spark in processes of their own (``driver``), and what they must have written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Self

from storage import LogManager
from storage.owner.staged_orphans import remove_orphans
from storage.task import Task
from tests.interop.kafka_tools import complaints, dump_log_segments
from tests.log_check import check
from tests.mount.mounting import SETTINGS
from tests.spark.cluster import ROOT, environment
from tests.spark.driver import PARTITIONS
from tests.spark.processes import kill, session_of
from tests.waits import HANG_S, until

TOPIC = "orders"


class Driver:
    """A running driver. As a context manager it is killed at the end, with all its processes."""

    def __init__(self, base: Path, settings: Mapping[str, str], do: str, **what: object) -> None:
        base.mkdir(parents=True, exist_ok=True)
        self._log = base / "driver.log"
        given = {"settings": {**_settings(base), **settings}, "do": do, **what}
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.driver", json.dumps(given)],
                env={**environment(base / "scratch"), "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text()

    def until(self, true: Callable[[], object]) -> None:
        """Wait for what it does and tells nobody; it must not end before."""

        def is_so() -> object:
            ended = self.process.poll() is not None
            found = true()
            assert found or not ended, self.said[-8000:]
            return found

        until(is_so)

    def wait(self, status: int = 0) -> None:
        """It must end with this status by itself."""
        assert self.process.wait(HANG_S) == status, self.said[-8000:]

    def wait_dead(self) -> None:
        """It must have been killed."""
        self.wait(-signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill(session_of(self.process.pid))
        self.process.wait()


def streaming(
    base: Path,
    data: Path,
    queries: Sequence[Mapping[str, str]],
    *,
    settings: Mapping[str, str] | None = None,
) -> Driver:
    """A driver with streaming queries. By default their files are in `base`."""
    given = [
        {"lines": str(base / "lines"), "checkpoint": str(base / f"checkpoint-{number}"), **query}
        for number, query in enumerate(queries)
    ]
    where = {"path": str(data), "topic": TOPIC}
    return Driver(base / "driver", settings or {}, "stream", queries=given, **where)


def _settings(base: Path) -> dict[str, str]:
    return {
        "spark.master": "local[2]",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={base / 'derby'}",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(base / "warehouse"),
    }


# -- what is read, and what was written ----------------------------------------------------------


def make_data(base: Path) -> Path:
    """A data directory with one topic."""
    data = base / "data"
    data.mkdir(parents=True)
    (data / "kafkafs.properties").write_text(SETTINGS)
    with LogManager.open(str(data)) as manager:
        manager.create_topic(TOPIC, PARTITIONS)
    return data


def add_lines(directory: Path, name: str, count: int = 50) -> None:
    """A file of lines `NAME:NUMBER`; it is there as a whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    scratch = directory.parent / f"{directory.name}-{name}.tmp"
    scratch.write_text("".join(f"{name}:{number}\n" for number in range(count)))
    os.rename(scratch, directory / name)


def written(data: Path) -> list[list[str]]:
    """Return the values that a consumer reads, for each partition."""
    with LogManager.open(str(data), read_only=True) as manager:
        return [
            [(record.value or b"").decode() for record in manager.log(TOPIC, each).records()]
            for each in range(PARTITIONS)
        ]


def staged(data: Path) -> list[Path]:
    return list(data.glob("*/*.staged"))


def check_once(data: Path, sources: dict[str, int]) -> None:
    """Each source's lines are there once, in order; nothing else is, and all is whole.

    ``sources``: how many lines `SOURCE:NUMBER` each has. Of staged files none is left, once those
    are removed that nobody will ask for. Nobody has the directory open.
    """
    _check_lines(written(data), sources)
    with LogManager.open(str(data)) as manager:
        late = manager.clock_ms() + 10 * manager.settings.broker.kafkafs_staged_retention_ms
        manager.clock_ms = lambda: late
        remove_orphans(manager, Task(), lambda *_: False)
        faults = check(manager)
        assert faults == [], faults
        for log in manager.logs():
            assert log.last_stable_offset == log.log_end_offset, log.directory
    assert staged(data) == []
    _check_dumped(data.glob("*/*.log"))


def _check_lines(partitions: list[list[str]], sources: dict[str, int]) -> None:
    found: dict[tuple[str, int], list[int]] = {}
    for partition, lines in enumerate(partitions):
        for line in lines:
            source, _, number = line.rpartition(":")
            found.setdefault((source, partition), []).append(int(number))
    wanted = {
        (source, partition): list(range(partition, count, PARTITIONS))
        for source, count in sources.items()
        for partition in range(PARTITIONS)
    }
    assert found.keys() == wanted.keys()
    for key, numbers in wanted.items():
        assert found[key] == numbers, key


def _check_dumped(logs: Iterable[Path]) -> None:
    """Kafka's own tool finds nothing wrong."""
    printed, errors = dump_log_segments(sorted(logs), "--deep-iteration")
    assert complaints(errors) == []
    assert "isvalid: false" not in printed


def adoptions(data: Path) -> dict[str, int]:
    """The queries that have written, and the last batch of each."""
    found = json.loads((data / "kafkafs.adopted").read_text())["queries"]
    return {name: query["batch"] for name, query in found.items()}
