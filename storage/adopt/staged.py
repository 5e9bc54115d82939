"""Staged files: finished batches that wait for their adoption. Their names, and the request.

A task of a job that writes to several partitions leaves one file in each partition's directory,
`<query>-<batch>-<task>-<attempt>.staged`: consecutive v2 batches, without producers, with offsets
from 0 in each batch. Kafka ignores files of that suffix. When all tasks are done, one *request*
lists the files of the batch. The files of one partition are adopted in the request's order. A
staged file need not be flushed: the owner checks every byte before it adopts, and refuses a file
that a power cut has damaged.

`query` names the writer (a streaming query, a job), in letters, digits, `.`, `_` and `-`; `batch`
counts its batches, from 0; each restart makes a new `run`. A query's `kind` determines the order of
its batches.

A request is one line of JSON.

Not here: adopting (`adopt`).
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from typing import Any, NamedTuple

from storage import paths
from storage.errors import InvalidRecord

MAX_QUERY_LENGTH = 128
_QUERY = re.compile(r"[A-Za-z0-9._-]{1,128}")
_NAME = re.compile(r"([A-Za-z0-9._-]{1,128})-([0-9]{1,19})-([0-9]{1,10})-([0-9]{1,19})\.staged")


class StagedName(NamedTuple):
    """The parts of a staged file's name."""

    query: str
    batch: int
    task: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.query}-{self.batch}-{self.task}-{self.attempt}{paths.STAGED}"


def parse_name(name: str) -> StagedName | None:
    """Return the parts of a staged file's name, or None."""
    match = _NAME.fullmatch(name)
    return None if match is None else StagedName(match[1], *map(int, match.groups()[1:]))


def check_query(query: object) -> None:
    """Check the name of a query. Errors: InvalidRecord."""
    if type(query) is not str or _QUERY.fullmatch(query) is None:
        raise InvalidRecord(
            f"invalid query name {query!r}: use letters, digits, '.', '_' and '-', at most "
            f"{MAX_QUERY_LENGTH} characters"
        )


class StagedFile(NamedTuple):
    """A staged file of a partition; `size` in bytes, as its writer left it."""

    topic: str
    partition: int
    name: str
    size: int


class QueryKind(StrEnum):
    """The order of a query's batches, and how long it is remembered."""

    STREAM = "stream"
    """Each batch follows the previous one. Remembered without a limit."""
    RISING = "rising"
    """Each batch has a higher number than the previous one. Remembered without a limit."""
    NAMED = "named"
    """One batch, under a name that is used again to repeat it. For `kafkafs.txn.retention.ms`."""
    ONCE = "once"
    """One batch, requested again only until its answer arrives. For a while."""


class AdoptRequest(NamedTuple):
    """The batches that become one transaction."""

    query: str
    batch: int
    run: str
    files: tuple[StagedFile, ...]
    kind: QueryKind = QueryKind.STREAM

    def encode(self) -> str:
        """Return one line, without its end."""
        fields = {**self._asdict(), "files": [list(file) for file in self.files]}
        if self.kind is QueryKind.STREAM:
            del fields["kind"]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, fields: Any) -> AdoptRequest:
        """Return the request of a parsed JSON value. Errors: InvalidRecord where it is none."""
        try:
            files = tuple(StagedFile(*file) for file in fields["files"])
            kind = QueryKind(fields.get("kind", QueryKind.STREAM))
            request = cls(**{**fields, "files": files, "kind": kind})
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InvalidRecord(f"invalid adopt request: {error}") from None
        request.check()
        return request

    def check(self) -> None:
        """Check the values of all fields. Errors: InvalidRecord."""
        query, batch, run, *_ = tuple[Any, ...](self)
        check_query(query)
        if type(batch) is not int or not 0 <= batch < 1 << 63:
            raise InvalidRecord(f"batch {batch!r} is not a valid number")
        if not isinstance(run, str) or not 0 < len(run) <= MAX_QUERY_LENGTH:
            raise InvalidRecord(f"run {run!r} is not a valid name")
        for file in self.files:
            _check_file(file)
            name = parse_name(file.name)
            if name is None or (name.query, name.batch) != (self.query, self.batch):
                raise InvalidRecord(f"{file.name!r} is not a staged file of this batch")
        if len({file[:3] for file in self.files}) != len(self.files):
            raise InvalidRecord("a file is listed twice")


def _check_file(file: StagedFile) -> None:
    """Check a file's fields, which come from JSON. Errors: InvalidRecord."""
    fields: tuple[Any, ...] = file
    topic, partition, name, size = fields
    if not isinstance(topic, str) or not paths.is_topic_name(topic):
        raise InvalidRecord(f"{topic!r} is not a valid topic name")
    if type(partition) is not int or not 0 <= partition <= paths.MAX_PARTITION:
        raise InvalidRecord(f"{partition!r} is not a valid partition number")
    if not isinstance(name, str):
        raise InvalidRecord(f"{name!r} is not a valid file name")
    if type(size) is not int or size < 0:
        raise InvalidRecord(f"{size!r} is not a valid size")
