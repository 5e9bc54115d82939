"""The option `tuneWorkers`: a task changes its Python worker, and only with this option."""

from __future__ import annotations

import os
import pickle
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.reading import batch_reader
from tests.storage.logs import append, opened

TASKS = """
import gc, sys
from kafkafs.spark.source import rows
from kafkafs.spark.source.reader import BatchReader

options = {"path": sys.argv[1], "subscribe": "a", "tuneWorkers": sys.argv[2]}
reader = BatchReader(options, rows.full_schema(True))
first, second = reader.partitions()
before = len(gc.get_objects())
assert sum(batch.num_rows for batch in reader.read(first)) == 4
print(before > 10_000, len(gc.get_objects()) < 1_000, gc.get_freeze_count() > 10_000)
frozen = gc.get_freeze_count()
assert sum(batch.num_rows for batch in reader.read(second)) == 2
print(gc.get_freeze_count() <= frozen, "pandas" in sys.modules)
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A topic with partitions of four records and of two."""
    with opened(tmp_path) as manager:
        for log, count in zip(
            manager.create_topic("a", 2).partitions.values(), (4, 2), strict=True
        ):
            append(log, *[b"v"] * count)
    return tmp_path


@pytest.mark.parametrize(
    ("tunes", "lines"),
    [("true", ["True True True", "True False"]), ("false", ["True False False", "True False"])],
)
def test_a_task_excludes_modules_from_garbage_collection(
    data: Path, tunes: str, lines: list[str]
) -> None:
    """Spark collects garbage after each task. Also, importing pandas takes longer than reading."""
    found = subprocess.run(
        [sys.executable, "-c", TASKS, data, tunes], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == lines


@pytest.mark.parametrize("tunes", [True, False])
def test_a_task_acknowledges_its_first_part(data: Path, tunes: bool) -> None:
    """Spark sends a task in two parts, and the first one has the reader."""
    pickled = pickle.dumps(batch_reader(data, tuneWorkers=tunes))
    unix, other_end = socket.socketpair()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server = socket.create_server(("127.0.0.1", 0))
    sparks = socket.create_connection(server.getsockname())
    task, _ = server.accept()
    with unix, other_end, udp, server, sparks, task:
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
        pickle.loads(pickled)
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == int(tunes)
        # Nothing is closed.
        task.sendall(b"rows")
        assert sparks.recv(4) == b"rows"
        unix.sendall(b"more")
        assert other_end.recv(4) == b"more"


def test_a_task_begins_if_descriptors_cannot_be_listed(data: Path) -> None:
    """A sandbox may have no /proc, and a process no descriptor left."""
    pickled = pickle.dumps(batch_reader(data, tuneWorkers=True))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        reader = pickle.loads(pickled)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(reader.partitions()) == 2


def test_a_timeout_of_the_user_does_not_reach_sparks_connection(data: Path) -> None:
    """A function of the user may have set a default timeout in a process that runs later tasks."""
    pickled = pickle.dumps(batch_reader(data, tuneWorkers=True))
    server = socket.create_server(("127.0.0.1", 0))
    sparks = socket.create_connection(server.getsockname())
    task, _ = server.accept()
    before = socket.getdefaulttimeout()
    with server, sparks, task:
        socket.setdefaulttimeout(30)
        try:
            pickle.loads(pickled)
        finally:
            socket.setdefaulttimeout(before)
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert os.get_blocking(task.fileno())
