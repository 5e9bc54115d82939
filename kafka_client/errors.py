"""The errors between a client and a broker. A text of a broker is made printable first."""

# The names say what has happened.
# ruff: noqa: N818

from __future__ import annotations

import re
from typing import Final

from storage.errors import StorageError

_LONGEST_TEXT: Final = 300

# Names of error codes in answers (`Errors.java`).
_NAMES = """
    -1:UNKNOWN_SERVER_ERROR 1:OFFSET_OUT_OF_RANGE 2:CORRUPT_MESSAGE 3:UNKNOWN_TOPIC_OR_PARTITION
    5:LEADER_NOT_AVAILABLE 6:NOT_LEADER_OR_FOLLOWER 7:REQUEST_TIMED_OUT 9:REPLICA_NOT_AVAILABLE
    10:MESSAGE_TOO_LARGE 14:COORDINATOR_LOAD_IN_PROGRESS 15:COORDINATOR_NOT_AVAILABLE
    16:NOT_COORDINATOR 17:INVALID_TOPIC_EXCEPTION 18:RECORD_LIST_TOO_LARGE
    19:NOT_ENOUGH_REPLICAS 20:NOT_ENOUGH_REPLICAS_AFTER_APPEND 22:ILLEGAL_GENERATION
    25:UNKNOWN_MEMBER_ID 29:TOPIC_AUTHORIZATION_FAILED 30:GROUP_AUTHORIZATION_FAILED
    31:CLUSTER_AUTHORIZATION_FAILED 32:INVALID_TIMESTAMP 33:UNSUPPORTED_SASL_MECHANISM
    34:ILLEGAL_SASL_STATE 35:UNSUPPORTED_VERSION 36:TOPIC_ALREADY_EXISTS
    38:INVALID_REPLICATION_FACTOR 40:INVALID_CONFIG 41:NOT_CONTROLLER 42:INVALID_REQUEST
    44:POLICY_VIOLATION 45:OUT_OF_ORDER_SEQUENCE_NUMBER 47:INVALID_PRODUCER_EPOCH
    48:INVALID_TXN_STATE 51:CONCURRENT_TRANSACTIONS 53:TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    56:KAFKA_STORAGE_ERROR 58:SASL_AUTHENTICATION_FAILED 68:NON_EMPTY_GROUP
    69:GROUP_ID_NOT_FOUND 70:FETCH_SESSION_ID_NOT_FOUND 71:INVALID_FETCH_SESSION_EPOCH
    72:LISTENER_NOT_FOUND 74:FENCED_LEADER_EPOCH 75:UNKNOWN_LEADER_EPOCH
    76:UNSUPPORTED_COMPRESSION_TYPE 78:OFFSET_NOT_AVAILABLE 87:INVALID_RECORD
    88:UNSTABLE_OFFSET_COMMIT 89:THROTTLING_QUOTA_EXCEEDED 90:PRODUCER_FENCED
    100:UNKNOWN_TOPIC_ID 103:INCONSISTENT_TOPIC_ID 106:FETCH_SESSION_TOPIC_ID_ERROR
    109:OFFSET_MOVED_TO_TIERED_STORAGE
"""
NAMES: Final = {int(code): name for code, name in re.findall(r"(\S+):(\w+)", _NAMES)}

#: Codes after which the same request may succeed at another broker or a moment later.
COORDINATOR_ERRORS: Final = frozenset({14, 15, 16})
RETRIABLE: Final = COORDINATOR_ERRORS | {5, 6, 9, 41, 51, 56, 72, 74, 75, 78, 88}


class ClientError(StorageError):
    """Base of all. `str()` is one line of text."""


class BrokerUnreachable(ClientError):
    """A connection that cannot be made, is lost, or does not answer within 10 seconds."""


class ProtocolViolation(ClientError):
    """Bytes of a broker that are no valid answer. The connection is closed."""


class AuthenticationFailed(ClientError):
    """A broker that refuses the credentials, or that does not prove that it has them."""


class UnknownOutcome(ClientError):
    """A record that the broker may have stored or not. It must not be sent again."""


class BrokerError(ClientError):
    """An error code in an answer."""

    def __init__(self, code: int, place: str, text: bytes | None = None) -> None:
        self.code = code
        self.name = NAMES.get(code, f"error {code}")
        super().__init__(f"{place}: {self.name}" + (f": {printable(text)}" if text else ""))

    @property
    def is_retriable(self) -> bool:
        return self.code in RETRIABLE


def printable(text: bytes) -> str:
    """Return a text of a broker for a message: one line without control characters."""
    shown = text[:_LONGEST_TEXT].decode(errors="replace")
    return "".join(
        letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown
    )
