"""`kafkafs cat`: prints records, as the files of a mount show them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import mount_around, mount_to_read, partitions_at, resolve
from kafkafs.cli.common.ending import one_line_errors
from kafkafs.cli.common.matching import matching_lines, where_option
from kafkafs.cli.common.output import binary_stdout
from kafkafs.cli.common.patience import patiently
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.views import (
    VIEWS,
    find,
    path_in_topic,
    taken_from_paths,
    tree_of,
    view_option,
)

if TYPE_CHECKING:
    from kafkafs.tree.filesystem import FileSystem
    from storage.condition.condition import Condition

_READ_BYTES = 1 << 20

_Read = Callable[[int, int], bytes]
"""At most so many bytes from a position on; none at the end."""
_Open = Callable[[Sequence[str]], _Read]
"""Opens a file by its path in the mount, in place of the one before."""


@click.command(
    "cat",
    epilog=examples(
        "kafkafs cat data orders",
        "kafkafs cat mnt/orders/0@-10",
        "kafkafs cat data orders:0@08:00..09:00 --view kv",
        "kafkafs cat data orders@-15m --view jsonl",
        "kafkafs cat data orders --where \"key = 'alice' and value like '%apples%'\"",
    ),
)
@click.argument(
    "words", metavar="DATA|MOUNT TOPIC[:PARTITION][@START[..END]]...", nargs=-1, required=True
)
@view_option(VIEWS)
@where_option
@click.pass_context
def command(
    context: click.Context, words: Sequence[str], view: str, where: Condition | None
) -> None:
    """Print the records of partitions. Of a topic, print one partition after the other.

    @START..END selects records, as in the names of files of a mount. START and END may be an
    offset, -10 (the tenth record before the end), a time, -15m (15 minutes ago), start or end. The
    record at END is not printed. Without @START, cat prints all records that the partition has when
    cat begins to read it. Paths below a mount are accepted, too: mnt/orders/0@-10,
    mnt/orders/.jsonl/0.

    CONDITION is a condition of SQL with and, or, not, =, <>, <, <=, >, >=, between, in, like, is
    [not] null. It may use topic, partition, offset, timestamp ('2026-11-22T08:00', '-15m'),
    timestampType, key, value and header('NAME'). X'61' is a value in bytes. Times without a time
    zone are local.

    The directory may be in use. If cat reaches damaged records, it ends with exit status 1.
    """
    plain, points = _divided(words)
    plain, view = taken_from_paths(context, plain, VIEWS)
    address = resolve(context, plain)
    if not address.places:
        raise click.UsageError("give a topic: DATA TOPIC[:PARTITION], or MOUNT/TOPIC[/PARTITION]")
    if where is not None and view == "batches":
        raise click.UsageError("--where cannot be used with --view batches")
    starts = points[-len(address.places) :]
    with one_line_errors():
        found = [
            (topic, number, point)
            for place, point in zip(address.places, starts, strict=True)
            for topic, number in partitions_at(address._replace(places=(place,)))
        ]
        if where is not None:
            with _opened_tree(address.data_dir) as tree, binary_stdout() as out:
                for topic, number, point in found:
                    for text in matching_lines(tree, topic, number, view, point, where):
                        out.write(text)
            return
        with _opener(address.data_dir, mount_to_read(address)) as open_file, binary_stdout() as out:
            for topic, number, point in found:
                name = f"{number}@{point}"
                _copy(open_file((topic, *path_in_topic(view, name))), out)


def _divided(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without @START..END, and these; click's error where they have no meaning."""
    from kafkafs.tree.files.start_names import parse_start_name

    plain, points = [], []
    for number, word in enumerate(words):
        directory, slash, last = word.rpartition("/")
        name, at, point = last.partition("@")
        if not at or (number == 0 and _is_directory(word)):
            plain.append(word)
            points.append("start..end")
            continue
        if parse_start_name(f"0@{point}", time.time_ns() // 1_000_000) is None:
            raise click.BadParameter(
                f"{point!r} is not a valid start or range (START or START..END)"
            )
        plain.append(f"{directory}{slash}{name}")
        points.append(point if ".." in point else f"{point}..end")
    return plain, points


def _is_directory(word: str) -> bool:
    """Whether a name with @ is a directory's: there is none below a mount."""
    mounted, path = mount_around(word)
    return os.path.isdir(word) if mounted is None else path == mounted.path


def _copy(read: _Read, out: BinaryIO) -> None:
    """Write a file, to its end."""
    position = 0
    while data := patiently(partial(read, position, _READ_BYTES)):
        out.write(data)
        position += len(data)


@contextmanager
def _opener(data_dir: str, mount: str | None) -> Iterator[_Open]:
    """Opens files of the mount or, where there is none, of the tree that one would show."""
    if mount is None:
        with _tree_opener(data_dir) as open_file:
            yield open_file
        return
    opened = [-1]

    def close() -> None:
        file, opened[0] = opened[0], -1
        if file >= 0:
            os.close(file)

    def open_path(names: Sequence[str]) -> _Read:
        close()
        opened[0] = patiently(lambda: os.open(os.path.join(mount, *names), os.O_RDONLY))
        return lambda position, size: os.pread(opened[0], size, position)

    try:
        yield open_path
    finally:
        close()


@contextmanager
def _tree_opener(data_dir: str) -> Iterator[_Open]:
    with _opened_tree(data_dir) as tree:

        def open_node(names: Sequence[str]) -> _Read:
            handle = patiently(lambda: find(tree, *names).open(os.O_RDONLY))
            return lambda position, size: bytes(handle.read(position, size))

        yield open_node


@contextmanager
def _opened_tree(data_dir: str) -> Iterator[FileSystem]:
    from storage.directory.manager import LogManager

    with (
        opening_shown() as progress,
        LogManager.open(data_dir, read_only=True, keeps_faulty=True, progress=progress) as manager,
    ):
        yield tree_of(manager)
