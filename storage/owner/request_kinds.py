"""Requests to the owner of a data directory, and their outcomes, as lines of JSON.

A line is a request, `{"id": …, "KIND": {…}}`, of one of `KINDS`. The client finds the outcome by
the id (letters, digits, `.`, `_` and `-`), which is optional.

An outcome is a line, too: `{"id": …, "kind": …, "state": …}` with figures of the kind, or with a
`reason`. States: `queued`, `running`; as ends those of the kind (`adopted`, `duplicate`, `swapped`,
`committed`), `refused` (the request cannot be carried out, and nothing has changed), `failed` (the
disk) and `cancelled` (the owner has stopped before: ask the next one).

A client of a mount and one that has opened the directory itself use the same table, so both get the
same answers and errors.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from storage import errors, paths
from storage.adopt.adopt import Adopted
from storage.adopt.adoptions import Adoptions
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.swap_request import SwapRequest
from storage.errors import InvalidRecord, StorageError, TaskCancelled, reason_of
from storage.manager import LogManager
from storage.owner.group_positions import GroupPositions, commit
from storage.task import Task

R = TypeVar("R")
A = TypeVar("A")

RequestOutcome = dict[str, Any]
"""Names with values of JSON."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestState(StrEnum):
    """The state of a request, besides the ends of its kind."""

    QUEUED = "queued"
    RUNNING = "running"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[R, A]):
    """One kind of request `R` with the answer `A`."""

    name: str
    encode: Callable[[R], str]
    """The request as JSON, in one line."""
    decode: Callable[[Any], R]
    """The request of a parsed JSON value. Errors: InvalidRecord."""
    carry_out: Callable[[LogManager, R, Task, Callable[[], int]], A]
    """Runs on a worker thread, with the wall clock in ns. Errors: StorageError, OSError; nothing
    has changed; TaskCancelled.
    """
    encode_answer: Callable[[A], RequestOutcome]
    """The answer as an outcome, with its `state`."""
    decode_answer: Callable[[RequestOutcome], A]
    """The answer of an outcome."""
    staged: Callable[[R], Iterable[StagedFile]]
    """The staged files that it needs."""
    topics: Callable[[Adoptions, R], frozenset[str] | None]
    """The topics whose logs have to be open, from the adopted batches; None: all."""
    title: Callable[[R], str]
    """The request in a few words."""


class OwnerRequest(NamedTuple):
    """A request; `id` is None where its line has none."""

    id: str | None
    kind: RequestKind[Any, Any]
    request: Any


# -- kinds -----------------------------------------------------------------------------------------


def _encode_adopted(adopted: Adopted) -> RequestOutcome:
    return {
        "state": "duplicate" if adopted.duplicate else "adopted",
        "records": adopted.records,
        "bytes": adopted.size,
        "offsets": [[*partition, *span] for partition, span in adopted.offsets.items()],
    }


def _decode_adopted(facts: RequestOutcome) -> Adopted:
    offsets = {
        (topic, partition): (first, last) for topic, partition, first, last in facts["offsets"]
    }
    return Adopted(facts["state"] == "duplicate", facts["records"], facts["bytes"], offsets)


ADOPT: RequestKind[AdoptRequest, Adopted] = RequestKind(
    "adopt",
    AdoptRequest.encode,
    AdoptRequest.decode,
    lambda manager, request, task, now_ns: manager.adopter.adopt(request, task, now_ns),
    _encode_adopted,
    _decode_adopted,
    lambda request: request.files,
    Adoptions.topics_of,
    lambda request: f"adoption of batch {request.batch} of {request.query}",
)


SWAP: RequestKind[SwapRequest, Cleaned] = RequestKind(
    "swap",
    SwapRequest.encode,
    SwapRequest.decode,
    lambda manager, request, task, now_ns: LogCleaner(manager).swap_in(request, task),
    lambda cleaned: {"state": "swapped", **dataclasses.asdict(cleaned)},
    lambda facts: Cleaned(**{each.name: facts[each.name] for each in dataclasses.fields(Cleaned)}),
    SwapRequest.staged_files,
    lambda _, request: None,
    lambda request: f"swap of compacted segments of {request.topic}-{request.partition}",
)

POSITIONS: RequestKind[GroupPositions, int] = RequestKind(
    "positions",
    GroupPositions.encode,
    GroupPositions.decode,
    commit,
    lambda count: {"state": "committed", "positions": count},
    lambda facts: int(facts["positions"]),
    lambda request: (),
    lambda _, request: frozenset([paths.CONSUMER_OFFSETS, *request.positions]),
    lambda request: f"committed offsets of group {request.group!r}",
)

KINDS: Mapping[str, RequestKind[Any, Any]] = {kind.name: kind for kind in (ADOPT, SWAP, POSITIONS)}
"""By name."""


# -- lines -----------------------------------------------------------------------------------------


def encode(kind: RequestKind[R, A], request: R, request_id: str) -> str:
    """Return the line of a request, without its end."""
    return f'{{"id":{json.dumps(request_id)},{json.dumps(kind.name)}:{kind.encode(request)}}}'


def decode(line: bytes | bytearray) -> OwnerRequest:
    """Return the request of a line. Errors: InvalidRecord."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"invalid request: {error}") from None
    kinds = [name for name in KINDS if isinstance(fields, dict) and name in fields]
    if len(kinds) != 1 or fields.keys() - {"id", *kinds}:
        raise InvalidRecord(
            f"invalid request: expected an object with one of {', '.join(KINDS)}, and an id"
        )
    request_id = fields.get("id")
    if request_id is not None and (type(request_id) is not str or not _ID.fullmatch(request_id)):
        raise InvalidRecord(
            "invalid request: an id has up to 128 letters, digits, '.', '_' and '-'"
        )
    kind = KINDS[kinds[0]]
    return OwnerRequest(request_id, kind, kind.decode(fields[kind.name]))


# -- errors ----------------------------------------------------------------------------------------


# Classes of errors that are made of a message, and of a place at most.
_PLAIN: dict[str, type[StorageError]] = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type)
    and issubclass(kind, StorageError)
    and kind.__init__ is StorageError.__init__
}


def error_outcome(error: Exception) -> RequestOutcome:
    """Return the outcome of a request that has failed."""
    if isinstance(error, TaskCancelled):
        return {"state": RequestState.CANCELLED, "reason": str(error)}
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or errno.EIO, "EIO")
        return {"state": RequestState.FAILED, "errno": name, "reason": reason_of(error)}
    if isinstance(error, StorageError):
        plain = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _PLAIN)
        return {"state": RequestState.REFUSED, "error": plain, "reason": str(error)}
    return {"state": RequestState.FAILED, "errno": "EIO", "reason": f"unexpected error: {error!r}"}


def error_of(facts: RequestOutcome) -> Exception:
    """Return the error of an outcome of `error_outcome`; its message names the place."""
    reason = str(facts.get("reason", facts))
    if facts["state"] == RequestState.FAILED:
        number = getattr(errno, str(facts.get("errno")), errno.EIO)
        return OSError(number, reason or os.strerror(number))
    return _PLAIN.get(str(facts.get("error")), StorageError)(reason)
