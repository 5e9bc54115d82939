"""Code that the commands share that create, delete and fill topics."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kafkafs.cli.common.addresses import Address, Needs, resolve
from kafkafs.cli.common.daemon_jobs import write_line
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.progress import opened
from kafkafs.cli.common.refusals import Request

if TYPE_CHECKING:
    from storage.manager import LogManager


@contextlib.contextmanager
def opened_to_change(data_dir: str) -> Iterator[LogManager]:
    """Open a directory that no process has open, and remove deleted files that are due.

    A partition that cannot be opened makes only its own topic faulty.
    """
    with opened(data_dir, keeps_faulty=True) as manager:
        remove = manager.sweep(manager.monotonic_ms())
        if remove is not None:
            remove()
        yield manager


def topic_and_rest(
    words: Sequence[str], *, needs: Needs = "nothing"
) -> tuple[Address, Sequence[str]]:
    """Return the logs of at most one topic, which need not exist, and the words after it.

    A word with an equals sign is no topic. Errors: ClickException.
    """
    address, others = resolve(words[:1], needs=needs), words[1:]
    if not address.places and others and "=" not in others[0]:
        address, others = resolve(words[:2], needs=needs), words[2:]
    if address.places:
        address.topic()
    return address, others


def ask_daemon(mount: str, line: str) -> None:
    """Write a line to `.kafkafs/topics` of a mount. Errors: ClickException if it is refused."""
    name = os.path.join(".kafkafs", "topics")
    path = os.path.join(mount, name)
    request = Request(mount, name)
    try:
        write_line(path, line)
    except OSError as error:
        where = path if error.errno == errno.EACCES else mount
        raise fail(f"{where}: {request.refusal(error)}") from None
