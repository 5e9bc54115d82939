"""The other side of a socket: a server that answers requests with messages or with any bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka_client.addresses import HostPort
from kafka_client.messages import encode, schemas
from storage import Record
from storage import encode as encode_batch
from storage.settings.messages import Reader, Struct

#: From a request's version and content to what is sent: fields, bytes, pieces of bytes, or None to
#: hang up.
Answer = Callable[[int, Struct], Mapping[str, Any] | bytes | Iterator[bytes] | None]

HANG_S = 30.0


class Body(bytes):
    """An answer without its size and its correlation id."""


class Half(dict[str, Any]):
    """An answer that is cut: the broker sends the first half, and closes the connection."""


def answer_frame(name: str, version: int, correlation_id: int, data: Mapping[str, Any]) -> bytes:
    message = schemas()[f"{name}Response"]
    body = bytearray(correlation_id.to_bytes(4, "big"))
    if version >= message.flexible and name != "ApiVersions":
        body += b"\0"
    encode(body, message, version, data)
    return len(body).to_bytes(4, "big") + body


def all_versions(
    ranges: Mapping[str, tuple[int, int]] = {},
) -> Callable[[int, Struct], Mapping[str, Any]]:
    """An answer to ApiVersions with all versions that the client has, or others for some APIs."""
    keys = []
    for name, message in schemas().items():
        api = name.removesuffix("Request")
        if api != name:
            first, last = ranges.get(api, (message.first, message.last))
            keys.append({"apiKey": message.id, "minVersion": first, "maxVersion": last})
    return lambda _version, _data: {"apiKeys": keys}


class FakeBroker:
    """Accepts connections until the end of its block. `requests` are those that came."""

    def __init__(self, **answers: Answer) -> None:
        self.answers: dict[str, Answer] = {"ApiVersions": all_versions(), **answers}
        self.requests: list[tuple[str, int, Struct]] = []
        self.connections = 0
        self._names = {
            message.id: name.removesuffix("Request")
            for name, message in schemas().items()
            if name.endswith("Request")
        }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.address = HostPort("127.0.0.1", self._listener.getsockname()[1])

    def __enter__(self) -> FakeBroker:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        for thread in self._threads:
            thread.join(HANG_S)

    def hang_up(self) -> None:
        """Close all connections."""
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _run(self, function: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.connections += 1
                self._open.append(connection)
                self._run(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as stream:
            while size := int.from_bytes(stream.read(4), "big"):
                frame = stream.read(size)
                name, version = self._names[int.from_bytes(frame[:2], "big")], frame[3]
                message = schemas()[f"{name}Request"]
                at = 10 + int.from_bytes(frame[8:10], "big") + (version >= message.flexible)
                data = message.read(Reader(frame[at:]), version)
                self.requests.append((name, version, data))
                answer = self.answers[name](version, data)
                if answer is None:
                    return
                if isinstance(answer, Body):
                    answer = (len(answer) + 4).to_bytes(4, "big") + frame[4:8] + answer
                if isinstance(answer, Mapping):
                    found = answer
                    answer = answer_frame(name, version, int.from_bytes(frame[4:8], "big"), found)
                    if isinstance(found, Half):
                        connection.sendall(answer[: len(answer) // 2])
                        return
                for piece in [answer] if isinstance(answer, bytes) else answer:
                    connection.sendall(piece)


# -- answers to Fetch ------------------------------------------------------------------------------

#: The id of the topic `t`, and the high watermark.
ID = b"i" * 16
END = 1000


def batch(base: int, count: int = 5, epoch: int = 0) -> bytes:
    records = [Record(base + number, 1, 0, None, b"v") for number in range(count)]
    return encode_batch(records, leader_epoch=epoch)


def partition(records: bytes | None = None, **fields: Any) -> dict[str, Any]:
    return {"partitionIndex": 0, "highWatermark": END, "records": records, **fields}


def answer(*partitions: Mapping[str, Any], session: int = 0, **fields: Any) -> Struct:
    topic = {"topic": "t", "topicId": ID, "partitions": list(partitions)}
    return {"responses": [topic] if partitions else [], "sessionId": session, **fields}
