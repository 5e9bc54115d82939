"""Addresses of clusters."""

from __future__ import annotations

import pytest

from kafka_client.addresses import Address, HostPort, is_topic, parse_address, parse_brokers
from storage.errors import InvalidConfig

HERE = (HostPort("h", 9092),)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kafka://h", Address(HERE)),
        ("kafka://h/", Address(HERE)),
        ("kafka://h/t/", Address(HERE, "t")),
        ("kafka://h:9093/t", Address((HostPort("h", 9093),), "t")),
        ("kafka://a.b-c:1,d:65535/t", Address((HostPort("a.b-c", 1), HostPort("d", 65535)), "t")),
        ("kafka://a.b.:1/t", Address((HostPort("a.b.", 1),), "t")),
        ("kafka://[::1]:9/t:3", Address((HostPort("::1", 9),), "t", 3)),
        ("kafka://[fe80::1]/t", Address((HostPort("fe80::1", 9092),), "t")),
        ("kafka://h/t.x_y-z:0@-10", Address(HERE, "t.x_y-z", 0, "-10")),
        ("kafka://h/t@2024-01-01T00:00..", Address(HERE, "t", None, "2024-01-01T00:00..")),
    ],
)
def test_an_address(text: str, expected: Address) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kafka://", "'' is not the address of a broker: HOST:PORT"),
        ("kafka://h:0", "'h:0' is not the address"),
        ("kafka://h:65536", "'h:65536' is not the address"),
        ("kafka://h:9092,", "'' is not the address"),
        ("kafka://h h", "'h h' is not the address"),
        ("kafka://a..b", "'a..b' is not the address"),
        ("kafka://a..", "'a..' is not the address"),
        ("kafka://.", "'.' is not the address"),
        (f"kafka://{'a' * 64}.b", "is not the address"),
        ("kafka://me:secret@h/t", "credentials do not belong into an address: .* -F FILE"),
        ("kafka://h/..", "'..' is not a valid topic name"),
        ("kafka://h/a/b", "'a/b' is not a valid topic name"),
        ("kafka://h/t:", "'' is not the number of a partition"),
        ("kafka://h/t:-1", "'-1' is not the number of a partition"),
        ("kafka://h/t:2147483648", "'2147483648' is not the number of a partition"),
        ("kafka://h/t@", "must follow the @"),
    ],
)
def test_what_is_no_address(text: str, reason: str) -> None:
    with pytest.raises(InvalidConfig, match=reason):
        parse_address(text)


def test_a_protocol_before_a_broker_is_dropped() -> None:
    assert parse_brokers("PLAINTEXT://h:1, SSL://i") == (HostPort("h", 1), HostPort("i", 9092))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\0b",
        "a\nb",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "x" * 250,
    ],
)
def test_a_name_that_a_broker_must_not_give(name: str) -> None:
    assert not is_topic(name)
