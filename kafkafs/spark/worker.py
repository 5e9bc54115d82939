"""Lets tasks begin sooner, with the option `tuneWorkers`: it changes the Python worker.

Spark sends a task to a worker in two parts. By default it sends them through TCP. The kernel delays
the second part until the first one is acknowledged (Nagle's algorithm), and acknowledges the first
one 40 ms later. The first part contains the reader or the writer of the query.

After each task `pyspark/daemon.py` collects garbage. The collector then visits all objects of all
modules, which takes about 25 ms of processor time.

Both changes stay in the worker, which runs other tasks later. So they need an option.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

_INET = (socket.AF_INET, socket.AF_INET6)
_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
# With this type Python does not change the connection. Otherwise it would set the default timeout
# of the process, which a user's function may have changed.
_UNCHANGED = socket.SOCK_STREAM | socket.SOCK_NONBLOCK

_has_frozen = False


class SentWithTask:
    """A reader or a writer, which Spark pickles into the first part of each task."""

    tunes_worker = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.tunes_worker:
            _acknowledge()

    def end_task(self) -> None:
        """Exclude the loaded modules from later garbage collections, once a process.

        At the end of a task all modules that it needs are imported. Objects are still freed when
        their last reference is removed. Only garbage that forms a cycle at this moment stays.
        """
        global _has_frozen
        if self.tunes_worker and not _has_frozen:
            gc.freeze()
            _has_frozen = True


def _acknowledge() -> None:
    """Acknowledge the data of Spark's connection now, and from now on send data at once, too."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return  # the task begins later
    for name in names:
        try:
            connection = socket.socket(type=_UNCHANGED, fileno=int(name))
        except OSError:
            continue  # not a socket, or closed
        try:
            # Spark's JVM is on the same machine.
            if connection.family in _INET and connection.getpeername()[0] in _LOOPBACK:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:
            continue  # not TCP, or not connected
        finally:
            connection.detach()
