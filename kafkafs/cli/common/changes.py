"""What the commands that make, delete and fill topics share."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli.common.addresses import Address, resolve
from kafkafs.cli.common.daemon_jobs import write_line
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.refusals import Request

if TYPE_CHECKING:
    from storage.directory.manager import LogManager


@contextlib.contextmanager
def opened_to_change(data_dir: str) -> Iterator[LogManager]:
    """A directory that no process has open; what was deleted goes where its time is over.

    A partition that cannot be opened is a fault of its topic only.
    """
    from storage.directory.manager import LogManager

    with (
        opening_shown() as progress,
        LogManager.open(data_dir, keeps_faulty=True, progress=progress) as manager,
    ):
        remove = manager.sweep(manager.monotonic_ms())
        if remove is not None:
            remove()
        yield manager


def topic_and_rest(context: click.Context, words: Sequence[str]) -> tuple[Address, Sequence[str]]:
    """One topic, which need not be there, and the words behind it; click's errors."""
    address, others = resolve(context, words[:1], needs="nothing"), words[1:]
    if not address.places and others:
        address, others = resolve(context, words[:2], needs="nothing"), words[2:]
    address.topic()
    return address, others


def ask_daemon(mount: str, line: str) -> None:
    """Write a line to `.kafkafs/topics` of a mount; click's error where it is refused."""
    name = os.path.join(".kafkafs", "topics")
    path = os.path.join(mount, name)
    request = Request(mount, name)
    try:
        write_line(path, line)
    except OSError as error:
        where = path if error.errno == errno.EACCES else mount
        raise fail(f"{where}: {request.refusal(error)}") from None
