"""Reports the state of a daemon to a service manager, by systemd's protocol (sd_notify(3)).

It waits on a datagram socket, $NOTIFY_SOCKET, for `READY=1`; shows `STATUS=`; and where it has set
$WATCHDOG_USEC ends a daemon that sends no `WATCHDOG=1` for that long. Where nobody waits nothing is
sent. A message never waits and never fails: the daemon does without a service manager. If the
socket's queue is full, a message is lost; but `READY=1`, without which a start never ends, is sent
by a thread that waits for room.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from storage.errors import NoThread
from storage.threads import start

if TYPE_CHECKING:
    from storage.directory.open import Progress

#: Seconds between two reports of the progress of the opening, at least.
PROGRESS_S = 1.0


def tell(*facts: str) -> None:
    """Send facts (`READY=1`, `STATUS=words`), if a service manager waits for them."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    message = os.fsencode("\n".join(fact.replace("\n", " ") for fact in facts))
    try:
        _send(message, address, socket.MSG_DONTWAIT)
    except BlockingIOError:
        if "READY=1" in facts:
            with contextlib.suppress(NoThread):
                start(threading.Thread(target=_send, args=(message, address), daemon=True))


def _send(message: bytes, address: str, flags: int = 0) -> None:
    """Send a message. Errors: BlockingIOError if it would wait, and may not."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
            notices.sendto(message, flags, address)
    except BlockingIOError:
        raise
    except OSError:
        pass  # nobody waits for it


def opening_told() -> Callable[[Progress], None]:
    """The `progress` for `LogManager.open` that tells how far it is. Any thread."""
    next_at = 0.0

    def show(progress: Progress) -> None:
        nonlocal next_at
        now = time.monotonic()
        if now >= next_at:
            next_at = now + PROGRESS_S
            done, total = progress.partitions, progress.partitions_total
            read = f"{progress.bytes_read >> 20:,} MiB read"
            tell(f"STATUS=reading partitions: {done} of {total}, {read}")

    return show


def watchdog_s() -> float | None:
    """How often `WATCHDOG=1` is due, in seconds: twice in the time that is allowed."""
    allowed = os.environ.get("WATCHDOG_USEC", "")
    watched = os.environ.get("WATCHDOG_PID", "")
    if not allowed.isdecimal() or watched not in ("", str(os.getpid())):
        return None
    return int(allowed) / 2e6 or None
