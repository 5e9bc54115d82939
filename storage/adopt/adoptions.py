"""The record of adopted batches: the plain file `kafkafs.adopted` of a data directory.

This file makes an adoption happen exactly once. For each query (a writer of staged files) it has
the last adopted batch, the run that adopted it, the earlier runs, which are fenced off, and the
producer of its transactions. A run takes over from another one by adopting the next batch.
`pending` is the last adoption that was begun: a restart has to end it, by COMMIT markers if it is
*committed*, else by ABORT markers.

JSON, replaced atomically. An unreadable file is CorruptCheckpoint: without it, batches would be
appended a second time. A broker ignores it.

Not here: adopting (`adopt`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Set
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeAlias

from storage.adopt.staged import AdoptRequest, QueryKind
from storage.errors import BatchGap, CorruptCheckpoint, Fenced, InvalidRecord, UnusableFile
from storage.files import Files

FILE = "kafkafs.adopted"
FIRST_PRODUCER_ID = 1 << 48
"""Far above a broker's ids, which begin at 0: a broker may get the directory later."""
# A directory's ids begin at random. A log that is copied into another directory keeps its
# producers, and two producers with one id would be confused.
_START_BYTES, _IDS_EACH = 5, 1 << 20
MAX_EPOCH = 32766
"""A coordinator's limit: the next run gets another producer id (`TransactionMetadata.java`)."""

_VERSION = 0
_CURE = (
    "restore a copy of this file; if you delete it instead, a batch that is requested again is "
    "appended again, and a transaction that was open stays open until it is aborted"
)
_FENCED_KEPT = 64
# A query of the kind ONCE is remembered as long as its request may be repeated.
_ONCE_MS = 24 * 3600 * 1000
_ONCE_KEPT = 1000


@dataclass(frozen=True, slots=True)
class Query:
    """A writer. `batch`: the last adopted one, -1: none; `run`: that requested it, "": none;
    `adopted_ms`: the time of its adoption, 0: never.
    """

    producer_id: int
    producer_epoch: int
    run: str
    batch: int = -1
    fenced: tuple[str, ...] = ()
    kind: QueryKind = QueryKind.STREAM
    adopted_ms: int = 0

    def is_done(self, request: AdoptRequest) -> bool:
        """Return whether a request was adopted already. Errors: InvalidRecord for another kind;
        BatchGap for an old batch of a new run.

        A restarted query repeats at most the last batch. With an old checkpoint it would make other
        batches, with new rows, under the numbers of adopted ones.
        """
        if request.kind is not self.kind:
            raise InvalidRecord(
                f"query {request.query} has written as kind {self.kind} before, not "
                f"{request.kind}: choose another query name"
            )
        is_known = request.run in (self.run, *self.fenced)
        if self.kind is QueryKind.STREAM and request.batch < self.batch and not is_known:
            raise BatchGap(
                f"batch {request.batch} of query {request.query} is older than batch {self.batch}, "
                "the last one that was adopted: the query was restarted with an old checkpoint, "
                "and its batch may have new rows. Begin a new checkpoint"
            )
        return request.batch <= self.batch

    def check(self, request: AdoptRequest) -> None:
        """Check that a request may come next. Errors: Fenced, BatchGap.

        The run with the query's own name has all batches without a run, and never ends.
        """
        if request.run in self.fenced and request.run != request.query:
            raise Fenced(
                f"run {request.run} of query {request.query} is fenced: run {self.run} has "
                "replaced it"
            )
        follows = self.batch < 0 or request.batch == self.batch + 1
        if not follows and self.kind is not QueryKind.RISING:
            raise BatchGap(
                f"batch {request.batch} of query {request.query} does not follow batch "
                f"{self.batch}, the last one that was adopted"
            )


@dataclass(frozen=True, slots=True)
class Pending:
    """The last adoption that was begun. `files`: (topic, partition, name) of its files."""

    query: str
    batch: int
    producer_id: int
    committed: bool
    files: tuple[tuple[str, int, str], ...]

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The partitions that it has written to, or was about to."""
        return list(dict.fromkeys((topic, partition) for topic, partition, _ in self.files))


@dataclass(frozen=True, slots=True)
class Adoptions:
    """The file's content; a change makes another one."""

    next_producer_id: int = FIRST_PRODUCER_ID
    queries: dict[str, Query] = field(default_factory=dict)
    pending: Pending | None = None

    @classmethod
    def load(cls, files: Files, data_dir: str) -> Adoptions:
        """Read the file; without one, return an empty record, with ids that no other directory has.
        Errors: CorruptCheckpoint, OSError.
        """
        path = os.path.join(data_dir, FILE)
        try:
            data = files.read_whole(path)
        except FileNotFoundError:
            start = int.from_bytes(os.urandom(_START_BYTES), "big")
            return cls(FIRST_PRODUCER_ID + start * _IDS_EACH)
        except UnusableFile as error:
            raise CorruptCheckpoint(f"{error.strerror}; {_CURE}", path=path) from None
        try:
            fields = json.loads(data)
            version = fields.pop("version")
            if version != _VERSION:
                raise CorruptCheckpoint(f"unknown version {version!r}", path=path)
            queries = {name: _query(each) for name, each in fields.pop("queries").items()}
            pending = fields.pop("pending")
            return cls(
                queries=queries, pending=None if pending is None else _pending(pending), **fields
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptCheckpoint(
                f"cannot read the adopted batches: {error!r}; {_CURE}", path=path
            ) from None

    def save(self, files: Files, data_dir: str) -> None:
        """Replace the file, durably. Errors: OSError; the file may be the old or the new one."""
        text = json.dumps({"version": _VERSION, **asdict(self)}, separators=(",", ":"))
        files.replace_atomically(os.path.join(data_dir, FILE), text.encode() + b"\n")

    def topics_of(self, request: AdoptRequest) -> frozenset[str] | None:
        """Return the topics that an adoption appends to; None: any. If the query's last batch was
        of another run, the producer gets an id that is in no log.
        """
        query = self.queries.get(request.query)
        if query is None or query.run != request.run:
            return None
        return frozenset(file.topic for file in request.files)

    def begun(self, request: AdoptRequest, seen_producer_id: int) -> Adoptions:
        """Return a copy that records the intent to adopt. Errors: Fenced, BatchGap.

        `seen_producer_id`: the largest producer id in the logs.
        """
        query = self.queries.get(request.query)
        if query is not None:
            query.check(request)
        next_id = max(self.next_producer_id, seen_producer_id + 1)
        if query is None:
            query = Query(next_id, 0, "", kind=request.kind)
        elif request.run != query.run:
            # As a coordinator does.
            query = replace(query, producer_epoch=query.producer_epoch + 1)
        if query.producer_epoch > MAX_EPOCH:
            query = replace(query, producer_id=next_id, producer_epoch=0)
        next_id = max(next_id, query.producer_id + 1)
        files = tuple((file.topic, file.partition, file.name) for file in request.files)
        pending = Pending(request.query, request.batch, query.producer_id, False, files)
        return Adoptions(next_id, {**self.queries, request.query: query}, pending)

    def committed(self, request: AdoptRequest, now_ms: int, names_ms: int) -> Adoptions:
        """Return a copy in which the intended batch, all of it durable, is committed.

        `names_ms`: how long queries of the kind NAMED are remembered; -1: without a limit.
        """
        assert self.pending is not None
        query = self.queries[request.query]
        fenced = query.fenced
        if query.run not in ("", request.run):
            fenced = (*fenced, query.run)[-_FENCED_KEPT:]
        query = replace(
            query,
            run=request.run,
            fenced=fenced,
            batch=request.batch,
            adopted_ms=now_ms,
        )
        queries = {**self.queries, request.query: query}
        return replace(
            self,
            queries=_without_old(queries, now_ms, names_ms),
            pending=replace(self.pending, committed=True),
        )


NeededTopics: TypeAlias = Callable[[Adoptions], frozenset[str] | None]
"""Returns the topics that a single write needs open, from the adopted batches; None: all."""


def needed(files: Files, path: str, needs: NeededTopics, there: Set[str]) -> Set[str]:
    """Return the needed topics of those that are `there`; all if a needed one does not exist: it
    may have to be created.
    """
    try:
        adoptions = Adoptions.load(files, path)
    except CorruptCheckpoint:
        return there  # `Adopter.recover` reports it
    topics = needs(adoptions)
    if topics is None or not topics <= there:
        return there
    pending = adoptions.pending
    # The markers of an unfinished adoption may be missing in its topics.
    return topics | {topic for topic, _ in (pending.partitions if pending is not None else ())}


def _without_old(queries: dict[str, Query], now_ms: int, names_ms: int) -> dict[str, Query]:
    """Return the queries without those whose only batch is old or was never committed."""
    once = sorted(
        (query.adopted_ms, name) for name, query in queries.items() if query.kind is QueryKind.ONCE
    )
    recent = {name for at, name in once[-_ONCE_KEPT:] if now_ms - at < _ONCE_MS}

    def is_kept(name: str, query: Query) -> bool:
        if query.kind is QueryKind.ONCE:
            return name in recent
        if query.kind is QueryKind.NAMED:
            return names_ms < 0 or now_ms - query.adopted_ms < names_ms
        return True

    return {name: query for name, query in queries.items() if is_kept(name, query)}


def _query(fields: dict[str, Any]) -> Query:
    kind = QueryKind(fields["kind"])
    return Query(**{**fields, "fenced": tuple(fields["fenced"]), "kind": kind})


def _pending(fields: dict[str, Any]) -> Pending:
    files = tuple((str(topic), int(number), str(name)) for topic, number, name in fields["files"])
    return Pending(**{**fields, "files": files})
