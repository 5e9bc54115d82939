"""A TCP proxy before a broker that cuts, truncates or stalls what the broker sends."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable

from tests.waits import HANG_S


class BadProxy:
    """Passes `limit` bytes of the broker, then does what `fault` says.

    `cut` resets the connection, `truncate` ends it in order, `stall` keeps it open and silent.
    """

    def __init__(self, broker: str, fault: str, limit: int) -> None:
        host, _, port = broker.rpartition(":")
        self._broker = (host, int(port))
        self._fault = fault
        self._limit = limit
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> BadProxy:
        self._run(self._serve)
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

    def _serve(self) -> None:
        """Serve one client."""
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            with client, socket.create_connection(self._broker) as broker:
                self._run(self._pass_requests, client, broker)
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

    def _pass_requests(self, client: socket.socket, broker: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                broker.sendall(data)
