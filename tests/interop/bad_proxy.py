"""A TCP proxy before a broker that cuts, truncates or stalls what the broker sends."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

from tests.waits import HANG_S


class BadProxy:
    """Passes all connections to a broker until the end of its block: of each connection `limit`
    bytes of the broker. Then it does what `fault` says.

    `cut` resets the connection, `truncate` ends it in order, `stall` keeps it open and silent.
    """

    def __init__(self, broker: str, fault: str, limit: int) -> None:
        self._fault = fault
        self._limit = limit
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._run(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(HANG_S)
        self._listener.close()

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=function, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._run(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(self._broker) as broker:
            self._run(self._pass_requests, client, broker)
            self._pass_answers(client, broker)

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            # A client that closes before it has read all resets the connection.
            with contextlib.suppress(ConnectionResetError):
                while data := client.recv(65536):
                    broker.sendall(data)
            broker.shutdown(socket.SHUT_RDWR)

    def _pass_answers(self, client: socket.socket, broker: socket.socket) -> None:
        left = self._limit
        while left and (data := broker.recv(min(left, 65536))):
            client.sendall(data)
            left -= len(data)
        if self._fault == "stall":
            self._ended.wait(HANG_S)
        if self._fault == "cut":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_RDWR)
