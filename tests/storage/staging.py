"""Staged files as tasks leave them, for tests of adopting."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from storage import LogManager, Record, encode, paths
from storage.adopt.adopt import Adopted
from storage.adopt.staged import AdoptRequest, QueryKind, StagedFile, StagedName
from storage.files import Files
from storage.task import Task
from tests.storage.logs import NOW_MS, NOW_NS

Partition = tuple[str, int]


def batches(
    values: Sequence[bytes | None], timestamp_ms: int = NOW_MS, per_batch: int = 2
) -> bytes:
    """Batches as a task makes them, of keyed records."""
    return b"".join(
        encode(
            [
                Record(n, timestamp_ms, 0, b"key", value)
                for n, value in enumerate(values[at : at + per_batch])
            ]
        )
        for at in range(0, len(values), per_batch)
    )


def stage(
    files: Files, data: str, partition: Partition, name: StagedName, content: bytes
) -> StagedFile:
    """Write a staged file as a task does: nothing of it is flushed."""
    directory = os.path.join(data, paths.partition_directory(*partition))
    path = os.path.join(directory, str(name))
    fd = files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    files.pwrite(fd, content, 0)
    files.close(fd)
    return StagedFile(*partition, str(name), len(content))


def staged(
    files: Files,
    data: str,
    query: str,
    batch: int,
    rows: Mapping[Partition, Sequence[Sequence[bytes | None]]],
    *,
    run: str = "run",
    kind: QueryKind = QueryKind.STREAM,
) -> AdoptRequest:
    """A request; ``rows`` are of each partition the values of each of its tasks."""
    found = [
        stage(files, data, partition, StagedName(query, batch, task, 0), batches(values))
        for partition, tasks in rows.items()
        for task, values in enumerate(tasks)
    ]
    return AdoptRequest(query, batch, run, tuple(found), kind)


def adopted(manager: LogManager, request: AdoptRequest) -> Adopted:
    return manager.adopter.adopt(request, Task(), lambda: NOW_NS)


def left(data: str) -> list[str]:
    """The staged files that are there."""
    return sorted(
        name
        for directory, _, names in os.walk(data)
        for name in names
        if name.endswith(paths.STAGED)
    )
