"""Decoders turn a record's key and value into text: by a class's name, or for Kafka's own topics.

None stands for UTF-8 text, which the hot loop decodes itself.
"""

from __future__ import annotations

import base64
import re
import struct
from contextlib import suppress
from typing import Any, Final

from kafkafs.dump._dump import java_text
from kafkafs.dump.message_json import as_json, message_json
from kafkafs.dump.options import Decode
from storage.errors import CorruptRecord
from storage.settings.message_schemas import OFFSETS, PROTOCOL, SHARES, TRANSACTIONS
from storage.settings.messages import (
    CoordinatorReader,
    MessageError,
    MetadataReader,
    Reader,
    leading_version,
    parse_schemas,
)

_PACKAGE: Final = "org.apache.kafka.tools.api."
_NUMBERS: Final = {"IntegerDecoder": struct.Struct(">i"), "LongDecoder": struct.Struct(">q")}
_GROUP_METADATA: Final = 2
# The states of a transaction (TransactionState.java), by the stored number.
_STATES: Final = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort"),
    *("CompleteCommit", "CompleteAbort", "Dead", "PrepareEpochFence"),
)


class DecoderError(Exception):
    """Only DumpLogSegments has this decoder."""


def class_decoder(key_class: str, value_class: str) -> Decode | None:
    """Return the decoder of these classes. DecoderError."""
    classes = [name.removeprefix(_PACKAGE) for name in (key_class, value_class)]
    for name in classes:
        if name != "StringDecoder" and name not in _NUMBERS:
            raise DecoderError(
                f"decoder {name} is not supported, only String-, Integer- and LongDecoder of "
                f"{_PACKAGE[:-1]}"
            )
    if classes == ["StringDecoder", "StringDecoder"]:
        return None
    key_decoder, value_decoder = (_NUMBERS.get(name) for name in classes)

    def decode(_: int, key: bytes | None, value: bytes | None) -> tuple[bytes | None, bytes | None]:
        return _decoded(key_decoder, key), _decoded(value_decoder, value)

    return decode


def _decoded(number: struct.Struct | None, data: bytes | None) -> bytes | None:
    if data is None or number is None:
        return None if data is None else java_text(data)
    if len(data) < number.size:
        raise CorruptRecord(f"{len(data)} bytes are not a number of {number.size} bytes")
    return str(number.unpack_from(data)[0]).encode()


class CoordinatorDecoder:
    """The records of a coordinator's topic (CoordinatorRecordSerde.java)."""

    def __init__(self, schemas: str) -> None:
        self._reader = CoordinatorReader(schemas)

    def __call__(
        self, offset: int, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        if key is None:
            raise CorruptRecord("a coordinator's record has no key", offset=offset)
        try:
            kind = leading_version(key, "key")
            if not self._reader.knows(kind):
                return b"Unknown record type %d at offset %d, skipping." % (kind, offset), None
            message, _, data = self._reader.read_key(key)
            shown = _shown("type", kind, message_json(message, data, 0))
            if value is None:
                return shown, b"<DELETE>"
            message, version, data = self._reader.read_value(kind, value)
            found = message_json(message, data, version)
        except MessageError as error:
            return f"Error at offset {offset}, skipping. {error}".encode(), None
        return shown, _shown("version", version, self.refined(kind, found))

    def refined(self, kind: int, value: dict[str, Any]) -> dict[str, Any]:
        return value


class OffsetsDecoder(CoordinatorDecoder):
    """`__consumer_offsets`, with the messages between the members of classic groups."""

    def __init__(self) -> None:
        super().__init__(OFFSETS)
        protocol = parse_schemas(PROTOCOL)
        self._within = {
            "subscription": protocol["ConsumerProtocolSubscription"],
            "assignment": protocol["ConsumerProtocolAssignment"],
        }

    def refined(self, kind: int, value: dict[str, Any]) -> dict[str, Any]:
        if kind == _GROUP_METADATA and value["protocolType"] == "consumer":
            for member in value["members"]:
                for name, message in self._within.items():
                    data = base64.b64decode(member[name])
                    with suppress(MessageError):  # show the bytes
                        version = leading_version(data, name)
                        read = message.read(Reader(data[2:]), version)
                        member[name] = message_json(message, read, version)
        return value


class TransactionsDecoder(CoordinatorDecoder):
    """`__transaction_state`, with the names of states."""

    def __init__(self) -> None:
        super().__init__(TRANSACTIONS)

    def refined(self, kind: int, value: dict[str, Any]) -> dict[str, Any]:
        state = value["transactionStatus"]
        value["transactionStatus"] = _STATES[state] if 0 <= state < len(_STATES) else str(state)
        return value


class MetadataDecoder:
    """`__cluster_metadata`, whose records have no keys."""

    def __init__(self) -> None:
        self._reader = MetadataReader()

    def __call__(self, offset: int, _: bytes | None, value: bytes | None) -> tuple[None, bytes]:
        try:
            return None, self._read(value or b"")
        except MessageError as error:
            return None, f"Error at {offset}, skipping. {error}".encode()

    def _read(self, value: bytes) -> bytes:
        record = self._reader.read(value)
        assert record is not None, "nothing is filtered out"
        message, version, data = record
        name = re.sub("(?<!^)(?=[A-Z])", "_", message.name).upper()
        found = message_json(message, data, version)
        return as_json({"type": name, "version": version, "data": found}).encode()


def topic_decoder(name: str) -> Decode:
    """Return the decoder of an option's name. DecoderError."""
    if name == "offsets-decoder":
        return OffsetsDecoder()
    if name == "transaction-log-decoder":
        return TransactionsDecoder()
    if name == "cluster-metadata-decoder":
        return MetadataDecoder()
    if name == "share-group-state-decoder":
        return CoordinatorDecoder(SHARES)
    raise DecoderError(f"{name} is not supported; use DumpLogSegments of Kafka")


def _shown(word: str, number: int, data: dict[str, Any]) -> bytes:
    return as_json({word: str(number), "data": data}).encode()
