"""Decoders of keys and values, and their errors for keys and values that they cannot read."""

from __future__ import annotations

import struct

import pytest

from kafkafs.dump.decoders import DecoderError, class_decoder, topic_decoder
from storage.errors import CorruptRecord

PACKAGE = "org.apache.kafka.tools.api."


def text(data: bytes) -> bytes:
    return struct.pack(">h", len(data)) + data


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


COMMIT_KEY = struct.pack(">h", 1) + text(b"g") + text(b"t") + struct.pack(">i", 3)
COMMIT = struct.pack(">h", 3) + struct.pack(">qi", 5, -1) + text(b"m") + struct.pack(">q", 17)


def test_two_strings_need_no_decoder() -> None:
    assert class_decoder(PACKAGE + "StringDecoder", "StringDecoder") is None


@pytest.mark.parametrize(("name", "layout"), [("IntegerDecoder", ">i"), ("LongDecoder", ">q")])
def test_numbers(name: str, layout: str) -> None:
    decode = class_decoder("StringDecoder", PACKAGE + name)
    assert decode is not None
    number = struct.pack(layout, -7)
    assert decode(0, b"a\xff", number) == (b"a\xef\xbf\xbd", b"-7")
    assert decode(0, None, number + b"more") == (None, b"-7")
    assert decode(0, b"", None) == (b"", None)
    with pytest.raises(CorruptRecord, match="are not a number of"):
        decode(0, None, number[1:])


@pytest.mark.parametrize("name", ["com.example.Decoder", PACKAGE + "ByteDecoder", ""])
def test_a_class_that_is_not_here(name: str) -> None:
    for classes in ((name, "StringDecoder"), ("StringDecoder", name)):
        with pytest.raises(DecoderError, match="is not supported"):
            class_decoder(*classes)


def test_a_topic_that_is_not_here() -> None:
    with pytest.raises(DecoderError, match="remote-log-metadata-decoder is not supported"):
        topic_decoder("remote-log-metadata-decoder")


def test_an_offset_that_a_group_commits() -> None:
    decode = topic_decoder("offsets-decoder")
    key = b'{"type":"1","data":{"group":"g","topic":"t","partition":3}}'
    assert decode(0, COMMIT_KEY, COMMIT) == (
        key,
        b'{"version":"3","data":{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":17}}',
    )
    assert decode(0, COMMIT_KEY, None) == (key, b"<DELETE>")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (struct.pack(">h", 99), b"", "Unknown record type 99 at offset 8, skipping."),
        (b"\0", b"", "Error at offset 8, skipping. Could not read version from key's buffer."),
        (COMMIT_KEY, b"", "Error at offset 8, skipping. Could not read version from value's"),
        (
            COMMIT_KEY,
            struct.pack(">h", 9),
            "Error at offset 8, skipping. Found an unknown record version 9 for 1 type",
        ),
        (
            COMMIT_KEY[:-1],
            COMMIT,
            "Error at offset 8, skipping. Could not read record with version 1 from key's buffer",
        ),
        (
            COMMIT_KEY,
            COMMIT[:-1],
            "Error at offset 8, skipping. Could not read record with version 3 from value's buffer",
        ),
    ],
)
def test_records_of_a_coordinator_that_cannot_be_read(key: bytes, value: bytes, said: str) -> None:
    shown, nothing = topic_decoder("offsets-decoder")(8, key, value)
    assert shown is not None
    assert shown.decode().startswith(said)
    assert nothing is None


def test_a_record_of_a_coordinator_has_a_key() -> None:
    with pytest.raises(CorruptRecord, match="has no key") as caught:
        topic_decoder("share-group-state-decoder")(8, None, b"")
    assert caught.value.offset == 8


@pytest.mark.parametrize(
    ("protocol", "subscription", "shown"),
    [
        (
            b"consumer",
            struct.pack(">hi", 0, 1) + text(b"t") + sized(b"\1"),
            b'"subscription":{"topics":["t"],"userData":"AQ=="}',
        ),
        (b"consumer", b"\0", b'"subscription":"AA=="'),
        (b"connect", struct.pack(">hi", 0, 0) + sized(b""), b'"subscription":"AAAAAAAAAAAAAA=="'),
    ],
)
def test_what_a_member_tells_its_group(protocol: bytes, subscription: bytes, shown: bytes) -> None:
    """It is read where the group's protocol is Kafka's own, and where it can be."""
    member = text(b"m") + text(b"c") + text(b"h") + struct.pack(">i", 1000)
    value = struct.pack(">h", 1) + text(protocol) + struct.pack(">i", 2) + text(b"p") + text(b"l")
    value += struct.pack(">i", 1) + member + struct.pack(">i", 500)
    value += sized(subscription) + sized(b"")
    _, data = topic_decoder("offsets-decoder")(0, struct.pack(">h", 2) + text(b"g"), value)
    assert data is not None
    assert shown in data


def test_the_cluster_s_metadata() -> None:
    decode = topic_decoder("cluster-metadata-decoder")
    name = b"\2t\0"
    topic = bytes([1, 2, 0]) + name[:2] + bytes(16) + b"\0"
    assert decode(4, None, topic) == (
        None,
        b'{"type":"TOPIC_RECORD","version":0,"data":'
        b'{"name":"t","topicId":"AAAAAAAAAAAAAAAAAAAAAA"}}',
    )
    _, error = decode(4, None, None)
    assert error is not None
    assert error.startswith(b"Error at 4, skipping. ")
