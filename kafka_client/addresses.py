"""Reads `kafka://HOST:PORT[,HOST:PORT]/TOPIC[:PARTITION][@START[..END]]`. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from storage.errors import InvalidConfig

SCHEME: Final = "kafka://"
DEFAULT_PORT: Final = 9092

# A label of a host name has at most 63 characters: Python refuses others with an error of its own.
_LABEL = r"[A-Za-z0-9_-]{1,63}"
# A dot at the end keeps the resolver from trying search domains.
_HOST = re.compile(
    rf"(?=.{{1,254}}$){_LABEL}(\.{_LABEL})*\.?|\[[0-9A-Fa-f:]{{2,39}}(%[a-z0-9.]+)?\]"
)
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NUMBER = re.compile(r"[0-9]{1,10}")


class HostPort(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Address(NamedTuple):
    """A cluster, and what the address names there. `range` is the text after the `@`."""

    brokers: tuple[HostPort, ...]
    topic: str | None = None
    partition: int | None = None
    range: str | None = None


def parse_address(text: str) -> Address:
    """Parse an address. Errors: InvalidConfig."""
    assert text.startswith(SCHEME), text
    brokers, _, log = text.removeprefix(SCHEME).rstrip("/").partition("/")
    if "@" in brokers:
        raise InvalidConfig(
            "credentials do not belong into an address: write them to a file, -F FILE"
        )
    found = Address(parse_brokers(brokers))
    if not log:
        return found
    name, at, span = log.partition("@")
    topic, colon, number = name.partition(":")
    if not is_topic(topic):
        raise InvalidConfig(f"{topic!r} is not a valid topic name")
    if colon and not is_partition_number(number):
        raise InvalidConfig(f"{number!r} is not the number of a partition")
    if at and not span:
        raise InvalidConfig("a start or a range must follow the @: TOPIC:PARTITION@START..END")
    return Address(found.brokers, topic, int(number) if colon else None, span if at else None)


def parse_brokers(text: str) -> tuple[HostPort, ...]:
    """Parse `HOST:PORT,HOST:PORT`. Errors: InvalidConfig."""
    return tuple(_parse_broker(part.strip()) for part in text.split(","))


def _parse_broker(text: str) -> HostPort:
    # librdkafka and older tools allow a protocol before the host.
    text = text.rpartition("://")[2]
    host, colon, port = text.rpartition(":")
    if not colon or host.count("[") > host.count("]") or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if not _HOST.fullmatch(host) or not is_port(port):
        raise InvalidConfig(f"{text!r} is not the address of a broker: HOST:PORT")
    return HostPort(host.strip("[]"), int(port))


def is_port(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and 0 < int(text) < 65536


def is_partition_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and int(text) < 2**31


def is_host(text: str) -> bool:
    """Return whether a broker's text is a host name or an IP address."""
    return _HOST.fullmatch(f"[{text}]" if ":" in text else text) is not None


def is_topic(name: str) -> bool:
    """Return whether Kafka allows the name. A name that a broker gives may become a path here."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
