"""A connection to one broker: requests go out and answers come back in order.

Not thread-safe. After an error it is closed. Several requests can be under way: `send` the next
one before the last answer is processed.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple, TypeVar

from kafka_client.addresses import HostPort
from kafka_client.errors import (
    AuthenticationFailed,
    BrokerError,
    BrokerUnreachable,
    ClientError,
    ProtocolViolation,
    printable,
)
from kafka_client.messages import read_answer, request_frame, schemas
from kafka_client.properties import ClientSettings, Sasl
from kafka_client.sasl import authenticate, fetch_token
from kafka_client.tls import tls_context
from storage.errors import InvalidConfig, reason_of
from storage.settings.messages import Message, MessageError, Struct

#: Any version of a request.
ANY: Final = 0x7FFF
#: No call waits longer than this without progress.
TIMEOUT_S: Final = 10.0
#: Progress is this many bytes, so that one byte from time to time is none.
PROGRESS_BYTES: Final = 1 << 16

#: The largest answers in bytes, by API. A broker sends one batch of any size that it stores.
_LIMITS: Final = {
    **dict.fromkeys(("ApiVersions", "SaslHandshake", "SaslAuthenticate"), 1 << 19),
    "Fetch": 128 << 20,
}
_LIMIT: Final = 16 << 20
_UNSUPPORTED_VERSION: Final = 35
_UNSUPPORTED: Final = _UNSUPPORTED_VERSION.to_bytes(2, "big")
_UNSUPPORTED_MECHANISM: Final = 33
# A session of SASL is renewed when this part of its life has passed.
_RENEWED_AT: Final = 0.8
_ALERT_OF_TLS: Final = 0x1503

T = TypeVar("T")


class _Sent(NamedTuple):
    name: str
    message: Message
    version: int
    correlation_id: int


class Connection:
    """A connection on which the client has authenticated itself."""

    def __init__(
        self, address: HostPort, settings: ClientSettings, connect_s: float | None = None
    ) -> None:
        """Connect; the default of `connect_s`, the time limit of each step, is 10 seconds.

        Errors: BrokerUnreachable, also without a token; ProtocolViolation, AuthenticationFailed;
        OSError and InvalidConfig of files that `settings` name.
        """
        self.address = address
        self._settings = settings
        self._sent: deque[_Sent] = deque()
        self._correlation_id = 0
        self._ranges = {18: (0, schemas()["ApiVersionsRequest"].last)}
        self._not_before = 0.0
        self._renew_at = float("inf")
        self._records = bytearray()
        self._limit_s = connect_s
        # The oldest answer as far as it has arrived: its head, its body, and what lacks of them.
        self._head = bytearray(8)
        self._begin_answer()
        self._is_new = True
        context = tls_context(settings.tls) if settings.tls else None
        self._socket = self._connect(context, self._timeout_s)
        try:
            self._ask_versions()
            self._authenticate()
        except BaseException:
            self.close()
            raise
        self._limit_s = None

    @property
    def _timeout_s(self) -> float:
        return TIMEOUT_S if self._limit_s is None else self._limit_s

    def close(self) -> None:
        self._sent.clear()
        self._socket.close()

    @property
    def is_open(self) -> bool:
        return self._socket.fileno() >= 0

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_throttled(self) -> bool:
        """Whether the broker has asked for a pause: `send` would wait."""
        return time.monotonic() < self._not_before

    def is_usable(self) -> bool:
        """Return whether the connection is open, and the broker has not closed it meanwhile."""
        if self.is_open and not self._sent:
            with contextlib.suppress(BrokerUnreachable):
                self.check_quiet()
        return self.is_open

    def last_version(self, name: str) -> int:
        """Return the last version of an API that both sides have, -1 if there is none."""
        message = schemas()[f"{name}Request"]
        first, last = self._ranges.get(message.id, (0, -1))
        last = min(last, message.last)
        return last if last >= max(first, message.first) else -1

    def request(self, name: str, data: Mapping[str, Any], last: int = ANY) -> Struct:
        """Send a request and return its answer. Errors: those of `send` and `receive`."""
        self.send(name, data, last)
        return self.receive()

    def send(self, name: str, data: Mapping[str, Any], last: int = ANY) -> None:
        """Send a request in the last version that both sides have, at most `last`.

        Errors: BrokerUnreachable, ProtocolViolation, AuthenticationFailed; ClientError if no
        version is common.
        """
        version = min(self.last_version(name), last)
        message = schemas()[f"{name}Request"]
        if version < max(message.first, self._ranges.get(message.id, (0, -1))[0]):
            raise ClientError(f"broker {self.address} has no {name} request that kafkafs can send")
        if not self._sent:
            self.check_quiet()
            if time.monotonic() > self._renew_at:
                with self._closed_on_error():
                    self._authenticate()
        self._send(name, version, data)

    def _send(self, name: str, version: int, data: Mapping[str, Any]) -> None:
        wait_s = self._not_before - time.monotonic()
        if wait_s > 0:
            time.sleep(min(wait_s, TIMEOUT_S))
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        request, answer = schemas()[f"{name}Request"], schemas()[f"{name}Response"]
        frame = request_frame(
            request, version, self._correlation_id, self._settings.client_id, data
        )
        with self._closed_on_error():
            view = memoryview(frame)
            while view:
                self._socket.settimeout(TIMEOUT_S)
                view = view[self._socket.send(view[:PROGRESS_BYTES]) :]
        if not self._sent:
            self._note_progress()
        self._sent.append(_Sent(name, answer, version, self._correlation_id))

    def is_answered(self) -> bool:
        """Read what the broker has sent, and return whether the oldest answer is whole.

        Does not wait. Errors: those of `receive`.
        """
        assert self._sent, "no request is under way"
        with self._closed_on_error():
            return self._read(wait=False)

    def receive(self) -> Struct:
        """Return the answer to the oldest request without one.

        The records in an answer to Fetch are views, valid until the next answer to Fetch.
        Errors: BrokerUnreachable, ProtocolViolation.
        """
        assert self._sent, "no request is under way"
        self._note_progress()
        with self._closed_on_error():
            self._read(wait=True)
            sent = self._sent.popleft()
            body: bytes | memoryview = self._body
            if sent.name != "Fetch":
                body = bytes(body)
            self._begin_answer()
            version = sent.version
            if sent.name == "ApiVersions" and body[:2] == _UNSUPPORTED:
                version = 0  # the one version that every client can read
            try:
                answer = read_answer(sent.message, version, body)
            except MessageError as error:
                raise self.violation(f"its answer to {sent.name} is not valid: {error}") from None
        throttle_ms = answer.get("throttleTimeMs", 0)
        if throttle_ms > 0:
            self._not_before = time.monotonic() + throttle_ms / 1000
        self._is_new = False
        return answer

    def check_quiet(self) -> None:
        """Check that the broker has sent nothing unasked, and has not closed the connection.

        Errors: BrokerUnreachable, ProtocolViolation.
        """
        assert not self._sent
        with self._closed_on_error():
            self._socket.settimeout(0)
            try:
                data = self._socket.recv(1)
            except (BlockingIOError, ssl.SSLWantReadError):
                return
            if data:
                raise self.violation("it sends bytes without a request")
            raise self._unreachable("it has closed the connection")

    def _begin_answer(self) -> None:
        self._unread = memoryview(self._head)
        self._body = memoryview(b"")
        self._has_body = False
        self._note_progress()

    def _note_progress(self) -> None:
        self._deadline = time.monotonic() + self._timeout_s
        self._counted = 0

    def _read(self, *, wait: bool) -> bool:
        """Read on in the oldest answer, and return whether it is whole."""
        while self._unread or not self._has_body:
            if not self._unread:
                self._begin_body()
                continue
            left_s = self._deadline - time.monotonic()
            self._socket.settimeout(max(left_s, 0.001) if wait else 0)
            try:
                count = self._socket.recv_into(self._unread)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if left_s <= 0:
                    raise TimeoutError from None
                return False
            if not count:
                reason = "it has closed the connection"
                if self._is_new:
                    reason += "; does its listener want TLS or SASL (security.protocol)?"
                raise self._unreachable(reason)
            self._unread = self._unread[count:]
            self._counted += count
            if self._counted >= PROGRESS_BYTES:
                self._note_progress()
        return True

    def _begin_body(self) -> None:
        """Take an answer's size and its correlation id, and make room for the rest."""
        sent, head = self._sent[0], self._head
        size = int.from_bytes(head[:4], "big", signed=True) - 4
        limit = _LIMITS.get(sent.name, _LIMIT)
        if not 0 <= size <= limit:
            reason = f"its answer has {size} bytes; {limit} are allowed. Is it a Kafka broker?"
            if int.from_bytes(head[:2], "big") == _ALERT_OF_TLS:
                reason = "its listener wants TLS: set security.protocol=SSL or SASL_SSL"
            raise self.violation(reason)
        if int.from_bytes(head[4:], "big", signed=True) != sent.correlation_id:
            raise self.violation("it answers a request that was not sent")
        if sent.name != "Fetch":
            self._body = memoryview(bytearray(size))
        else:
            if len(self._records) < size:
                self._records = bytearray(size)
            self._body = memoryview(self._records)[:size]
        self._unread, self._has_body = self._body, True
        self._note_progress()

    # -- connecting --------------------------------------------------------------------------------

    def _connect(self, context: ssl.SSLContext | None, limit_s: float) -> socket.socket:
        deadline = time.monotonic() + limit_s
        host, port = self.address
        found: list[tuple[Any, ...]]
        reason = "its name has no address"
        try:
            found = within(limit_s, lambda: socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except OSError as error:
            raise self._unreachable(reason_of(error)) from None
        for left, (family, kind, protocol, _, place) in zip(
            range(len(found), 0, -1), found, strict=True
        ):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(max((deadline - time.monotonic()) / left, 0.001))
                made.connect(place)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                name = host.removesuffix(".")
                return context.wrap_socket(made, server_hostname=name) if context else made
            except OSError as error:
                made.close()
                reason = _text_of(error)
        raise self._unreachable(reason)

    def _ask_versions(self) -> None:
        software = {"clientSoftwareName": "kafkafs", "clientSoftwareVersion": "1"}
        self._send("ApiVersions", schemas()["ApiVersionsRequest"].last, software)
        answer = self.receive()
        if answer["errorCode"] == _UNSUPPORTED_VERSION:
            self._send("ApiVersions", 0, {})
            answer = self.receive()
        if answer["errorCode"]:
            raise BrokerError(answer["errorCode"], self._of_broker("ApiVersions"))
        self._ranges = {
            each["apiKey"]: (each["minVersion"], each["maxVersion"]) for each in answer["apiKeys"]
        }
        # From here on a broker that closes the connection wants something else.
        self._is_new = True

    def _authenticate(self) -> None:
        sasl = self._settings.sasl
        if sasl is None:
            return
        self._renew_at = float("inf")
        self._send("SaslHandshake", 1, {"mechanism": sasl.mechanism})
        answer = self.receive()
        if answer["errorCode"] == _UNSUPPORTED_MECHANISM:
            offered = printable(b", ".join(answer["mechanisms"]))
            raise AuthenticationFailed(
                self._of_broker(f"it does not allow {sasl.mechanism}, but {offered}")
            )
        if answer["errorCode"]:
            raise AuthenticationFailed(str(BrokerError(answer["errorCode"], str(self.address))))
        started = time.monotonic()
        version = self.last_version("SaslAuthenticate")

        def exchange(data: bytes) -> bytes:
            self._send("SaslAuthenticate", version, {"authBytes": data})
            answer = self.receive()
            if answer["errorCode"]:
                reason = printable(answer["errorMessage"] or b"the credentials are refused")
                raise AuthenticationFailed(self._of_broker(reason))
            if answer["sessionLifetimeMs"] > 0:
                lifetime_s = answer["sessionLifetimeMs"] / 1000
                self._renew_at = started + lifetime_s * _RENEWED_AT
            return bytes(answer["authBytes"])

        authenticate(sasl, self._token(sasl), exchange)
        self._is_new = True

    def _token(self, sasl: Sasl) -> str:
        """Return the token for OAUTHBEARER, or "". Its endpoint may be away for a moment."""
        if not sasl.token_url:
            return ""
        try:
            return within(TIMEOUT_S, lambda: fetch_token(sasl, TIMEOUT_S))
        except OSError as error:
            reason = f"no token from sasl.oauthbearer.token.endpoint.url: {_text_of(error)}"
            raise self._unreachable(reason) from None

    # -- errors ------------------------------------------------------------------------------------

    def violation(self, reason: str) -> ProtocolViolation:
        """Close the connection, and return the error for an answer that is not valid."""
        self.close()
        return ProtocolViolation(self._of_broker(reason))

    @contextlib.contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise self._unreachable(_text_of(error)) from None
            raise

    def _of_broker(self, reason: str) -> str:
        return f"broker {self.address}: {reason}"

    def _unreachable(self, reason: str) -> BrokerUnreachable:
        return BrokerUnreachable(self._of_broker(reason))


def _text_of(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return f"no progress for {TIMEOUT_S:g} seconds"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or 'the connection ended').lower().replace('_', ' ')}"
    return reason_of(error)


def in_background(function: Callable[[], T]) -> Future[T]:
    """Run a function on a thread of its own. The end of the process does not wait for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def result_of(future: Future[T]) -> T:
    """Return the result of a thread that connects again. Errors: ClientError, also for a file of
    the settings, such as a certificate that is just replaced by the next one.
    """
    try:
        return future.result()
    except (OSError, InvalidConfig) as error:
        raise BrokerUnreachable(reason_of(error)) from None


def within(timeout_s: float, function: Callable[[], T]) -> T:
    """Run a function that has no time limit of its own, and return its result.

    It runs on a thread, which goes on alone after that time. Errors: TimeoutError, and its own.
    """
    return in_background(function).result(timeout_s)
