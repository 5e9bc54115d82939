"""`kafkafs append`: appends lines of standard input as records, as the files of a mount do."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    allow_empty_option,
    check_address,
    mount_to_change,
    resolve,
)
from kafkafs.cli.common.changes import opened_to_change
from kafkafs.cli.common.ending import fail, one_line_errors
from kafkafs.cli.common.refusals import Request
from kafkafs.cli.common.views import find, path_in_topic, taken_from_paths, tree_of, view_option

if TYPE_CHECKING:
    from storage.directory.manager import LogManager

# The kernel hands a write of this size on in one piece, which is appended whole or not at all.
_WRITE_BYTES = 1 << 19
# Errors of a line itself: without it, the others can be appended.
_OF_A_LINE = frozenset({errno.EINVAL, errno.EMSGSIZE})
_NEWLINE = b"\n"
# In front of why one is refused: its place in a write.
_LINE = re.compile(r"line \d+: ")
_VIEWS = ("values", "kv", "jsonl")

_Write = Callable[[bytes], None]
"""Appends whole lines, all of them or none. StorageError, OSError."""


@click.command(
    "append",
    epilog=examples(
        "kafkafs append data orders < lines",
        "kafkafs append mnt/users --view kv < pairs  # KEY TAB VALUE",
        "kafkafs append mnt/orders/0 --view jsonl < saved.jsonl",
    ),
)
@click.argument("words", metavar="DATA|MOUNT TOPIC[:PARTITION]", nargs=-1, required=True)
@allow_empty_option
@view_option(_VIEWS)
@click.pass_context
def command(context: click.Context, words: Sequence[str], view: str) -> None:
    """Append each line of standard input as a record, to a partition or by key to a topic's
    partitions.

    With --view kv, a line is KEY TAB VALUE, as in .kv of a mount. With --view jsonl, it is a JSON
    object, as in .jsonl of a mount. The path MOUNT/TOPIC/.kv/PARTITION includes --view kv.

    DATA must be mounted, or not in use. Lines are appended as they arrive, through the mount if
    there is one. Without a mount, they are on the disk when the command ends.

    If a line is refused, all lines before it are in the log, and no line after it. Standard error
    has the number of the refused line and the reason, and the exit status is 1.
    """
    plain, view = taken_from_paths(context, words, _VIEWS)
    logs = resolve(context, plain)
    if len(logs.places) != 1:
        raise click.UsageError("give one topic or partition: DATA TOPIC[:PARTITION], or a path")
    if sys.stdin is None:
        raise fail("standard input is closed")
    topic, partition = logs.places[0]
    if partition is not None:
        names = path_in_topic(view, str(partition))
    else:
        names = (".append",) if view == "values" else (f".{view}", "append")
    with one_line_errors():
        check_address(logs, or_create=True)
        mount = mount_to_change(logs)
        if mount is None:
            with (
                opened_to_change(logs.data_dir) as manager,
                _opened_in_tree(manager, (topic, *names)) as write,
            ):
                _append(write, _whole_lines(), None)
            return
        path = os.path.join(topic, *names)
        request = Request(mount, path, os.path.join(topic, names[-1]))
        with _opened_in_mount(os.path.join(mount, path), request) as write:
            _append(write, _whole_lines(), request)


def _whole_lines() -> Iterator[list[bytes]]:
    """The lines of standard input as they come, so many as one write takes; the last one gets its
    newline.
    """
    rest = bytearray()
    while data := os.read(sys.stdin.fileno(), _WRITE_BYTES):
        rest += data
        end = rest.rfind(_NEWLINE) + 1
        if end:
            yield from _in_writes(
                [line + _NEWLINE for line in bytes(rest[: end - 1]).split(_NEWLINE)]
            )
            del rest[:end]
    if rest:
        yield [bytes(rest) + _NEWLINE]


def _in_writes(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Lines, not more at once than one write takes."""
    taken: list[bytes] = []
    size = 0
    for line in lines:
        if taken and size + len(line) > _WRITE_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(line)
        size += len(line)
    yield taken


def _append(write: _Write, pieces: Iterator[list[bytes]], request: Request | None) -> None:
    """Append lines, up to the first one that is refused; click's error says which it is.

    `request`: of a mount.
    """
    from storage.errors import refusal_of

    done = 0
    for lines in pieces:
        if request is not None:
            request.begin()
        count, error = _written(write, lines)
        done += count
        if error is not None:
            before = "all lines before it were appended" if done else "nothing was appended"
            if request is not None and isinstance(error, OSError):
                reason = request.refusal(error)
            else:
                reason = refusal_of(error)
            reason = _LINE.sub("", reason, count=1)
            raise fail(f"line {done + 1} of standard input: {reason}; {before}")


def _written(write: _Write, lines: list[bytes]) -> tuple[int, Exception | None]:
    """Append lines up to one that is refused; returns how many, and why not all.

    A write is refused as a whole: its halves tell which line it was for.
    """
    from storage.errors import InvalidRecord, RecordTooLarge, StorageError

    try:
        write(b"".join(lines))
    except (StorageError, OSError) as error:
        is_lines = isinstance(error, InvalidRecord | RecordTooLarge) or (
            isinstance(error, OSError) and error.errno in _OF_A_LINE
        )
        if len(lines) == 1 or not is_lines:
            return 0, error
    else:
        return len(lines), None
    half = len(lines) // 2
    count, refusal = _written(write, lines[:half])
    if refusal is None:
        more, refusal = _written(write, lines[half:])
        count += more
    return count, refusal


@contextmanager
def _opened_in_mount(path: str, request: Request) -> Iterator[_Write]:
    """The file of a mount. click's error."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError as error:
        raise fail(f"{path}: {request.refusal(error)}") from None

    def write_all(data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]

    try:
        yield write_all
    finally:
        os.close(file)


@contextmanager
def _opened_in_tree(manager: LogManager, names: tuple[str, ...]) -> Iterator[_Write]:
    """The file of the tree that a mount would show."""
    from kafkafs.tree.handles import NotExamined

    tree = tree_of(manager)
    handle = find(tree, *names).open(os.O_WRONLY | os.O_APPEND)

    def write(data: bytes) -> None:
        try:
            handle.write(0, data)
        except NotExamined:
            handle.examine(data)
            handle.write(0, data)

    try:
        yield write
    finally:
        handle.release()
        tree.stop()
