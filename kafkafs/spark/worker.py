"""What a process of Python, which Spark uses for many tasks, does so that each begins sooner.

Spark sends a task in two parts. With its default settings that is through TCP, and the kernel holds
the second part back until the first one is acknowledged (Nagle's algorithm), which the kernel of
the receiver does 40 ms later where nobody says otherwise. The first part has the reader, or the
writer, of the query.

After each task `pyspark/daemon.py` collects garbage, and the collector goes through all objects of
all modules: 25 ms of processor time, as much as reading 60 MB of log takes.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

_INET = (socket.AF_INET, socket.AF_INET6)
_LOOPBACK = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
# Python then leaves the connection as it is. Else it would have it wait for nothing any more, in a
# process in which a user's function has set a timeout for all sockets.
_AS_IT_IS = socket.SOCK_STREAM | socket.SOCK_NONBLOCK

_is_spared = False


class SentWithTask:
    """What Spark pickles into the first part of each task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _acknowledge()


def _acknowledge() -> None:
    """Acknowledge what has come from this machine, and from now on send without waiting, too."""
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return  # the task begins later, and no worse
    for name in names:
        try:
            connection = socket.socket(type=_AS_IT_IS, fileno=int(name))
        except OSError:
            continue  # no socket, or not there any more
        try:
            # Spark's JVM is on the same machine.
            if connection.family in _INET and connection.getpeername()[0] in _LOOPBACK:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        except OSError:
            continue  # not of TCP, or not connected
        finally:
            connection.detach()


def spare_collector() -> None:
    """Leave what is loaded by now out of every later collection, once a process.

    For the end of a task, when all modules that it needs have been imported. What is no longer
    referred to is freed as before; only a cycle of what is there at that moment stays, also where
    it is garbage later.
    """
    global _is_spared
    if not _is_spared:
        gc.freeze()
        _is_spared = True
