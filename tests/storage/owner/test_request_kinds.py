"""Requests and outcomes survive the way to the owner and back; rubbish is refused with a reason."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from storage import errors
from storage.adopt.adopt import Adopted
from storage.adopt.staged import AdoptRequest, StagedFile
from storage.errors import InvalidRecord, StorageError
from storage.owner.request_kinds import (
    ADOPT,
    KINDS,
    OwnerRequest,
    RequestState,
    decode,
    encode,
    error_of,
    error_outcome,
)

REQUEST = AdoptRequest("q", 0, "r", (StagedFile("t", 0, "q-0-0-0.staged", 5),))


def test_a_request_and_its_outcome() -> None:
    line = encode(ADOPT, REQUEST, "some-id")
    assert json.loads(line)["adopt"]["query"] == "q"
    assert decode(line.encode()) == OwnerRequest("some-id", ADOPT, REQUEST)
    assert decode(b'{"adopt":%s}' % REQUEST.encode().encode()) == OwnerRequest(None, ADOPT, REQUEST)
    assert list(ADOPT.staged(REQUEST)) == list(REQUEST.files)
    for adopted in (Adopted(True), Adopted(False, 7, 99, {("t", 0): (0, 3), ("t-1", 1): (5, 7)})):
        facts = json.loads(json.dumps(ADOPT.encode_answer(adopted)))
        assert facts["state"] == ("duplicate" if adopted.duplicate else "adopted")
        assert ADOPT.decode_answer(facts) == adopted


INNER = REQUEST.encode()


@pytest.mark.parametrize(
    "line",
    [
        *("", "x", "{}", "[]", "5", "null", '"adopt"', "{" * 50, "[" * 100_000, '{"id":"a"}'),
        *('{"adopt":{}}', '{"adopt":null}', '{"adopt":[]}', '{"adopt":5}', f'{{"adopd":{INNER}}}'),
        *(f'{{"adopt":{INNER},"id":{value}}}' for value in ("5", '""', '"a b"', '"/"', "[]")),
        *(f'{{"adopt":{INNER},"more":1}}', f'{{"adopt":{INNER}}}}}', INNER),
        f'{{"adopt":{INNER},"id":"{"x" * 129}"}}',
        *(f'{{"adopt":{INNER}'[:-size] for size in (1, 5, 30)),
    ],
)
def test_what_is_no_request(line: str) -> None:
    with pytest.raises(InvalidRecord):
        decode(line.encode())


def test_bytes_that_are_no_text() -> None:
    with pytest.raises(InvalidRecord):
        decode(b'{"adopt":\xff}')


ERRORS: list[tuple[Exception, type[Exception]]] = [
    (errors.Fenced("over", path="/x"), errors.Fenced),
    (errors.BatchGap("gap"), errors.BatchGap),
    (errors.UnknownTopicOrPartition("none"), errors.UnknownTopicOrPartition),
    (errors.CorruptRecord("bad", path="/x", position=5, offset=6), errors.CorruptRecord),
    (errors.InvalidTimestamp("late"), errors.InvalidTimestamp),
    (errors.OutOfOrderSequence("gap", 7), errors.InvalidRecord),
    (errors.RecordTooLarge(5, 4), StorageError),
    (errors.LogClosed("gone"), errors.LogClosed),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS)
def test_errors(error: Exception, kind: type[Exception]) -> None:
    facts: dict[str, Any] = json.loads(json.dumps(error_outcome(error)))
    assert facts["state"] == RequestState.REFUSED
    found = error_of(facts)
    assert type(found) is kind
    assert str(found) == str(error)


def test_errors_of_the_disk() -> None:
    facts = error_outcome(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    assert (facts["state"], facts["errno"]) == (RequestState.FAILED, "ENOSPC")
    found = error_of(facts)
    assert isinstance(found, OSError)
    assert found.errno == errno.ENOSPC
    assert "No space left on device (/data/x)" in str(found)
    missing = error_of(error_outcome(FileNotFoundError(errno.ENOENT, "None", "/data/x")))
    assert isinstance(missing, FileNotFoundError)


def test_other_ends() -> None:
    assert error_outcome(errors.TaskCancelled("cancelled"))["state"] == RequestState.CANCELLED
    unforeseen = error_outcome(ZeroDivisionError("our bug"))
    assert unforeseen["state"] == RequestState.FAILED
    assert "our bug" in str(error_of(unforeseen))
    # Of a later version.
    assert type(error_of({"state": "refused", "error": "Exotic", "reason": "x"})) is StorageError
    assert type(error_of({"state": "refused", "error": "LogLocked", "reason": "x"})) is StorageError


def test_each_kind_by_its_name() -> None:
    assert all(kind.name == name for name, kind in KINDS.items())
