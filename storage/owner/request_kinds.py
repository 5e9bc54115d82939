"""What the owner of a data directory is asked to do, and what it answers, as lines of JSON.

One line is one request, ``{"id": …, "KIND": {…}}``; the id (letters, digits, ``.``, ``_`` and
``-``) is for whoever asks to find the answer by, and may be left out.  ``KINDS`` has what there is
to be asked for.

An outcome is one line too: ``{"id": …, "kind": …, "state": …}`` with figures of the kind, or with a
``reason``.  States: ``queued``, ``running``, and as ends what the kind says (``adopted``,
``duplicate``, ``swapped``), ``refused`` (the request cannot be carried out, and nothing has
changed), ``failed`` (the disk), ``cancelled`` (the owner has stopped before: ask the next one).

Whoever asks by the mount and whoever has the directory open himself go through the same table, so
that they get the same answers and errors.

Not here: the file that lines are written to (the mount), how an owner is found (its clients).
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

from storage import errors
from storage.adopt.adopt import Adopted, adopt
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.compaction.cleaner import Cleaned
from storage.compaction.log_cleaner import LogCleaner
from storage.compaction.shared.swap_request import SwapRequest
from storage.directory.manager import LogManager
from storage.errors import InvalidRecord, StorageError, TaskCancelled
from storage.task import Task

R = TypeVar("R")
A = TypeVar("A")

RequestOutcome = dict[str, Any]
"""Names with values of JSON."""
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class RequestState(StrEnum):
    """Of a request, besides the ends that a kind has."""

    QUEUED = "queued"
    RUNNING = "running"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RequestKind(Generic[R, A]):
    """One thing that can be asked for: ``R`` is its request, ``A`` what comes of it."""

    name: str
    encode: Callable[[R], str]
    """The request as JSON, in one line."""
    decode: Callable[[Any], R]
    """The request of a parsed JSON value.  InvalidRecord."""
    carry_out: Callable[[LogManager, R, Task, Callable[[], int]], A]
    """In a worker thread, with the wall clock in ns.  StorageError, OSError: nothing has changed;
    TaskCancelled."""
    encode_answer: Callable[[A], RequestOutcome]
    """What came of it, with its ``state``."""
    decode_answer: Callable[[RequestOutcome], A]
    """The other way round."""
    staged: Callable[[R], Iterable[StagedFile]]
    """The staged files that it needs."""
    title: Callable[[R], str]
    """What it is, in a few words."""


class OwnerRequest(NamedTuple):
    """A request as it came; ``id`` is None where it had none."""

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
    AdoptRequest.of_fields,
    adopt,
    _encode_adopted,
    _decode_adopted,
    lambda request: request.files,
    lambda request: f"adoption of batch {request.batch} of {request.query}",
)


def _swap(
    manager: LogManager, request: SwapRequest, task: Task, now_ns: Callable[[], int]
) -> Cleaned:
    return LogCleaner(manager).swap_in(request, task)


SWAP: RequestKind[SwapRequest, Cleaned] = RequestKind(
    "swap",
    SwapRequest.encode,
    SwapRequest.parse,
    _swap,
    lambda cleaned: {"state": "swapped", **dataclasses.asdict(cleaned)},
    lambda facts: Cleaned(**{each.name: facts[each.name] for each in dataclasses.fields(Cleaned)}),
    SwapRequest.staged_files,
    lambda request: f"swap of what was cleaned of {request.topic}-{request.partition}",
)

KINDS: Mapping[str, RequestKind[Any, Any]] = {kind.name: kind for kind in (ADOPT, SWAP)}
"""By name."""


# -- lines -----------------------------------------------------------------------------------------


def encode(kind: RequestKind[R, A], request: R, request_id: str) -> str:
    """The line of a request, without its end."""
    return f'{{"id":{json.dumps(request_id)},{json.dumps(kind.name)}:{kind.encode(request)}}}'


def decode(line: bytes | bytearray) -> OwnerRequest:
    """What a line asks for.  InvalidRecord where it makes no sense."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecord(f"no request: {error}") from None
    kinds = [name for name in KINDS if isinstance(fields, dict) and name in fields]
    if len(kinds) != 1 or fields.keys() - {"id", *kinds}:
        raise InvalidRecord(f"no request: an object with one of {', '.join(KINDS)}, and an id")
    request_id = fields.get("id")
    if request_id is not None and (type(request_id) is not str or not _ID.fullmatch(request_id)):
        raise InvalidRecord("no request: the id has letters, digits, '.', '_' and '-', up to 128")
    kind = KINDS[kinds[0]]
    return OwnerRequest(request_id, kind, kind.decode(fields[kind.name]))


# -- what has become of it -------------------------------------------------------------------------


def _is_plain(kind: object) -> bool:
    """Whether it is a class of errors that are made of a message, and of a place at most."""
    if not (isinstance(kind, type) and issubclass(kind, StorageError)):
        return False
    more = kind.__mro__[: kind.__mro__.index(StorageError)]
    return not any("__init__" in vars(each) for each in more)


_PLAIN: dict[str, type[StorageError]] = {
    name: kind for name, kind in vars(errors).items() if _is_plain(kind)
}


def error_outcome(error: Exception) -> RequestOutcome:
    """Why a request came to nothing, with its ``state``."""
    if isinstance(error, TaskCancelled):
        return {"state": RequestState.CANCELLED, "reason": str(error)}
    if isinstance(error, OSError):
        name = errno.errorcode.get(error.errno or errno.EIO, "EIO")
        where = f" ({error.filename})" if error.filename else ""
        return {
            "state": RequestState.FAILED,
            "errno": name,
            "reason": f"{error.strerror or error}{where}",
        }
    if isinstance(error, StorageError):
        return {"state": RequestState.REFUSED, "error": _plain_kind(error), "reason": str(error)}
    return {"state": RequestState.FAILED, "errno": "EIO", "reason": f"unforeseen: {error!r}"}


def _plain_kind(error: StorageError) -> str:
    """The name of the closest class that is made of a message alone."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _PLAIN)


def error_of(facts: RequestOutcome) -> Exception:
    """The error that ``error_outcome`` was told of; with its place in its words."""
    reason = str(facts.get("reason", facts))
    if facts["state"] == RequestState.FAILED:
        number = getattr(errno, str(facts.get("errno")), errno.EIO)
        return OSError(number, reason or os.strerror(number))
    return _PLAIN.get(str(facts.get("error")), StorageError)(reason)
