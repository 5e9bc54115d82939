"""Connections to a broker: the answers that they accept, and how they end.

The time limit is 10 seconds. The tests set a shorter one.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kafka_client import connection as module
from kafka_client.addresses import HostPort
from kafka_client.connection import Connection
from kafka_client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientError,
    ProtocolViolation,
)
from kafka_client.properties import ClientSettings, Sasl, Secret
from storage.settings.messages import Struct
from tests.kafka_client.fake_broker import FakeBroker, all_versions, answer_frame
from tests.waits import until

GROUPS = {"groups": [{"groupId": b"g", "protocolType": b"consumer"}]}


def connect(broker: FakeBroker) -> Connection:
    return Connection(broker.address, ClientSettings())


@pytest.fixture
def be_quick(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that sets the time limit to a tenth of a second."""
    return lambda: monkeypatch.setattr(module, "TIMEOUT_S", 0.1)


def test_a_request_goes_out_in_the_last_common_version() -> None:
    versions = all_versions({"ListGroups": (0, 3)})
    with FakeBroker(ApiVersions=versions, ListGroups=lambda *_: GROUPS) as broker:
        connection = connect(broker)
        assert connection.request("ListGroups", {})["groups"][0]["groupId"] == b"g"
        assert connection.request("ListGroups", {}, 2)["errorCode"] == 0
        connection.close()
        assert [(name, version) for name, version, _ in broker.requests] == [
            ("ApiVersions", 5),
            ("ListGroups", 3),
            ("ListGroups", 2),
        ]


def test_a_broker_without_the_version_of_api_versions_is_asked_in_version_0() -> None:
    def old(version: int, data: Struct) -> Mapping[str, Any] | bytes:
        if version:
            return answer_frame("ApiVersions", 0, 1, {"errorCode": 35})
        return all_versions()(version, data)

    with FakeBroker(ApiVersions=old, ListGroups=lambda *_: GROUPS) as broker:
        connection = connect(broker)
        connection.request("ListGroups", {})
        connection.close()


def test_an_api_that_the_broker_lacks_is_named() -> None:
    with FakeBroker(ApiVersions=all_versions({"ListGroups": (9, 12)})) as broker:
        connection = connect(broker)
        with pytest.raises(ClientError, match="has no ListGroups request that kafkafs can send"):
            connection.request("ListGroups", {})
        assert connection.is_open
        connection.close()


def test_several_requests_are_answered_in_order() -> None:
    count = iter(range(9))
    numbered = lambda *_: {"groups": [{"groupId": b"%d" % next(count)}]}  # noqa: E731
    with FakeBroker(ListGroups=numbered) as broker:
        connection = connect(broker)
        for _ in range(3):
            connection.send("ListGroups", {})
        found = [connection.receive()["groups"][0]["groupId"] for _ in range(3)]
        connection.close()
    assert found == [b"0", b"1", b"2"]


# -- what is not valid -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (answer_frame("ListGroups", 5, 77, GROUPS), "it answers a request that was not sent"),
        (b"HTTP/1.1 400 Bad Request\r\n", "its answer has 1213486156 bytes; 16777216 are allowed"),
        (b"\xff\xff\xff\xff\0\0\0\2", "its answer has -5 bytes"),
        (b"\0\0\0\3\0\0\0\2", "its answer has -1 bytes"),
        (b"\x15\x03\x03\x00\x02\x02\x28\x00", "its listener wants TLS"),
        (b"\0\0\0\5\0\0\0\2\0", "its answer to ListGroups is not valid"),
        (answer_frame("ListGroups", 5, 2, GROUPS)[:-1] + b"\1", "is not valid"),
    ],
)
def test_an_answer_that_is_not_valid_closes_the_connection(answer: bytes, reason: str) -> None:
    with FakeBroker(ListGroups=lambda *_: answer + bytes(9)) as broker:
        connection = connect(broker)
        with pytest.raises(ProtocolViolation, match=reason):
            connection.request("ListGroups", {})
        assert not connection.is_open


def test_bytes_without_a_request_close_the_connection() -> None:
    twice = answer_frame("ListGroups", 5, 2, GROUPS) * 2
    with FakeBroker(ListGroups=lambda *_: twice) as broker:
        connection = connect(broker)
        connection.request("ListGroups", {})
        with pytest.raises(ProtocolViolation, match="it sends bytes without a request"):
            connection.send("ListGroups", {})
        assert not connection.is_open


def test_a_mechanism_that_the_broker_lacks_is_named() -> None:
    refused = {"errorCode": 33, "mechanisms": [b"GSSAPI", b"PL\x1bAIN"]}
    settings = ClientSettings(sasl=Sasl("SCRAM-SHA-256", "u", Secret("p")))
    with FakeBroker(SaslHandshake=lambda *_: refused) as broker:
        with pytest.raises(AuthenticationFailed) as error:
            Connection(broker.address, settings)
        assert str(error.value) == (
            f"broker {broker.address}: it does not allow SCRAM-SHA-256, but"
            " GSSAPI, PL\N{REPLACEMENT CHARACTER}AIN"
        )


# -- a broker that goes away -----------------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 3, 8, 20])
def test_a_connection_that_is_cut_is_an_error(sent: int) -> None:
    frame = answer_frame("ListGroups", 5, 2, GROUPS)

    def cut(_version: int, _data: Struct) -> bytes:
        broker.answers["ListGroups"] = lambda *_: None
        return frame[:sent]

    with FakeBroker(ListGroups=cut) as broker:
        connection = connect(broker)
        connection.send("ListGroups", {})
        connection.send("ListGroups", {})
        with pytest.raises(BrokerUnreachable, match=f"broker {broker.address}: it has closed"):
            connection.receive()
        assert not connection.is_open


@pytest.mark.parametrize("sent", [0, 3, 8, 20])
def test_a_broker_that_falls_silent_is_an_error(be_quick: Callable[[], None], sent: int) -> None:
    frame = answer_frame("ListGroups", 5, 2, GROUPS)
    with FakeBroker(ListGroups=lambda *_: frame[:sent]) as broker:
        connection = connect(broker)
        be_quick()
        with pytest.raises(BrokerUnreachable, match="no progress for"):
            connection.request("ListGroups", {})
        assert not connection.is_open


def test_a_byte_from_time_to_time_is_no_progress(be_quick: Callable[[], None]) -> None:
    """The limit is for 64 KiB, not for a byte."""
    frame = answer_frame("ListGroups", 5, 2, {"groups": [{"groupId": b"x" * 1000}] * 30})
    ended = threading.Event()

    def drip(*_: object) -> Iterator[bytes]:
        for byte in frame:
            if ended.wait(0.02):
                return
            yield bytes([byte])

    with FakeBroker(ListGroups=drip) as broker:
        connection = connect(broker)
        be_quick()
        started = time.monotonic()
        with pytest.raises(BrokerUnreachable, match="no progress for"):
            connection.request("ListGroups", {})
        assert time.monotonic() - started < 9
        ended.set()


def test_a_connection_that_the_broker_has_closed_is_found_before_it_is_used() -> None:
    with FakeBroker(ListGroups=lambda *_: GROUPS) as broker:
        connection = connect(broker)
        assert connection.is_usable()
        broker.hang_up()
        until(lambda: not connection.is_usable(), 10)
        assert not connection.is_open


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = HostPort("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(BrokerUnreachable, match=f"broker {address}: Connection refused"):
        Connection(address, ClientSettings())


def test_a_host_without_an_address_is_named() -> None:
    with pytest.raises(BrokerUnreachable, match=r"broker no-such-host\.invalid:9092: "):
        Connection(HostPort("no-such-host.invalid", 9092), ClientSettings())


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("https://127.0.0.1:9/", "Connection refused"),
        ("https://127.0.0.1:9/a b", "URL can't contain control characters"),
        ("file:///none/token", "No such file or directory .*/none/token"),
    ],
)
def test_no_token_is_there_yet(place: str, reason: str) -> None:
    """Its endpoint may be away when a connection is lost. So the client may try again."""
    settings = ClientSettings(sasl=Sasl("OAUTHBEARER", "u", Secret("p"), place))
    with FakeBroker(SaslHandshake=lambda *_: {}) as broker:
        expected = f"broker {broker.address}: no token from .*: ({reason})"
        with pytest.raises(BrokerUnreachable, match=expected):
            Connection(broker.address, settings)


def test_a_throttled_client_waits_before_the_next_request() -> None:
    slow = {**GROUPS, "throttleTimeMs": 200}
    with FakeBroker(ListGroups=lambda *_: slow) as broker:
        connection = connect(broker)
        connection.request("ListGroups", {})
        before = time.monotonic()
        connection.request("ListGroups", {})
        assert time.monotonic() - before > 0.19
        connection.close()
