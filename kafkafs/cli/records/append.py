"""`kafkafs append`: appends lines or record batches of standard input, as a mount's files do."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    CLUSTER,
    Address,
    allow_empty_option,
    check_address,
    mount_to_change,
    partitions_at,
    resolve,
)
from kafkafs.cli.common.changes import opened_to_change
from kafkafs.cli.common.clusters import (
    Client,
    cluster_address,
    cluster_options,
    is_cluster,
    partitions_of,
)
from kafkafs.cli.common.ending import end, fail, warn
from kafkafs.cli.common.mount_files import find, tree_of
from kafkafs.cli.common.output import Output, write_all
from kafkafs.cli.common.refusals import Request
from kafkafs.cli.common.views import path_in_topic, taken_from_paths, view_option
from kafkafs.cli.common.words import words_argument
from storage.plural import counted

if TYPE_CHECKING:
    from storage.manager import LogManager

# The kernel passes a write of this size in one piece, which is appended whole or not at all.
_WRITE_BYTES = 1 << 19
# Errors about one line or batch. Without it, the others can be appended.
_OF_CONTENT = frozenset({errno.EINVAL, errno.EMSGSIZE})
_NEWLINE = b"\n"
# Parts of a reason: the place of a line or batch in one write, and in all writes.
_PLACE = re.compile(
    r"^line \d+: |^batch \d+, at byte \d+: "
    r"|( \(position \d+\))?( \(after the first \d+ bytes written\))?$"
)

_Write = Callable[[bytes], None]
"""Appends whole lines or batches, all of them or none. Errors: StorageError, OSError."""


@click.command(
    "append",
    epilog=examples(
        "kafkafs append data orders < lines",
        "kafkafs append mnt/users --view kv < pairs  # KEY TAB VALUE",
        "kafkafs append mnt/orders/0 --view jsonl < saved.jsonl",
        "kafkafs append kafka://broker:9092/orders --view kv < pairs",
        "kafkafs append data orders:0 --view batches < 00000000000000000000.log",
    ),
)
@words_argument(f"DATA|{CLUSTER} TOPIC[:PARTITION]")
@allow_empty_option
@view_option
@cluster_options
def command(words: Sequence[str], view: str, client: Client) -> None:
    """Append each line of standard input as a record. Without PARTITION, the key of a record
    chooses its partition.

    With `--view kv`, a line is KEY TAB VALUE, as in .kv of a mount. With `--view jsonl`, a line is
    a JSON object, as in .jsonl of a mount. A path such as MOUNT/TOPIC/.kv/PARTITION also selects
    the view.

    With `--view batches`, standard input is record batches for one partition, such as the bytes of
    a .log file. The batches get new offsets. Batches of the old formats v0 and v1 become batches of
    v2. The codec stays, unless the topic's compression.type sets another codec. If the log already
    has a batch of the same producer with the same sequence numbers, append skips the batch.

    If DATA is mounted, append writes through the mount. It fails while a process other than the
    mount's daemon writes DATA. append writes the records as they arrive. When the command ends, the
    records are on the disk.

    If a line or a batch is refused, append stops there: the log has all earlier lines or batches,
    and no later ones. Standard error has the number of the refused line or batch, and the reason.
    The exit status is 3. If the disk is full or fails, and PARTITION is not given, the topic may
    also have some of the next lines. Standard error has the numbers of these lines, too.

    kafka://HOST:PORT/TOPIC[:PARTITION] appends to a cluster, with acks=all. For a cluster, `--view
    batches` does not work. If the connection is lost while lines are not acknowledged yet, append
    cannot know whether these lines are in the topic. append does not send them again, and ends with
    exit status 3.
    """
    if is_cluster(words[0]):
        _append_to_cluster(words, client, view)
        return
    client.check_unused()
    plain, view = taken_from_paths(words)
    logs = resolve(plain)
    if len(logs.places) != 1:
        raise click.UsageError("give one topic or partition: DATA TOPIC[:PARTITION], or a path")
    if sys.stdin is None:
        raise fail("standard input is closed")
    topic, partition = logs.places[0]
    if view == "batches":
        logs.partition()
    if partition is not None:
        names = path_in_topic(view, str(partition))
    else:
        names = (".append",) if view == "values" else (f".{view}", "append")
    there = check_address(logs, or_create=True)
    is_spread = partition is None and len(there[topic]) > 1
    mount = mount_to_change(logs)
    _check_input(logs, mount, view)
    if mount is None:
        with (
            opened_to_change(logs.data_dir) as manager,
            _opened_in_tree(manager, (topic, *names)) as write,
        ):
            _append(write, view, None, is_spread=is_spread)
        return
    path = os.path.join(topic, *names)
    request = Request(mount, path, os.path.join(topic, names[-1]))
    with _opened_in_mount(os.path.join(mount, path), request) as write:
        _append(write, view, request, is_spread=is_spread)


def _append_to_cluster(words: Sequence[str], client: Client, view: str) -> None:
    from kafkafs.cli.clusters.produce import TopicWriter

    address, out = cluster_address(words), Output()
    if len(address.places) != 1:
        raise click.UsageError("give one topic or partition: kafka://HOST:PORT/TOPIC[:PARTITION]")
    if view == "batches":
        raise click.UsageError("--view batches cannot be used with the address of a cluster")
    if sys.stdin is None:
        raise fail("standard input is closed")
    with client.connected(address.brokers) as cluster:
        if partitions_of(cluster, address, out.report):
            topic, partition = str(address.places[0].topic), address.places[0].partition
            _append(TopicWriter(cluster, topic, partition, view).write, view, None)
    end(failed=out.has_failed)


def _check_input(logs: Address, mount: str | None, view: str) -> None:
    """Raise ClickException if standard input is a file of the logs: it would grow while read."""
    given = os.fstat(sys.stdin.fileno())
    if not stat.S_ISREG(given.st_mode):
        return
    for topic, partition in partitions_at(logs):
        own: list[str] = []
        with suppress(PermissionError):  # nor can this user read its files
            directory = os.path.join(logs.data_dir, f"{topic}-{partition}")
            own += (each.path for each in os.scandir(directory))
        if mount is not None:
            own.append(os.path.join(mount, topic, *path_in_topic(view, str(partition))))
        if any(os.path.samestat(given, os.stat(each)) for each in own):
            raise fail("standard input is a file of the same partition")


def _whole_lines() -> Iterator[list[bytes]]:
    """Return the lines of standard input as they arrive, as many as one write takes. The last line
    gets its newline.
    """
    rest = bytearray()
    while data := os.read(sys.stdin.fileno(), _WRITE_BYTES):
        rest += data
        end = rest.rfind(_NEWLINE, len(rest) - len(data)) + 1
        if end:
            yield from _in_writes(
                [line + _NEWLINE for line in bytes(rest[: end - 1]).split(_NEWLINE)]
            )
            del rest[:end]
    if rest:
        yield [bytes(rest) + _NEWLINE]


def _whole_batches() -> Iterator[list[bytes]]:
    """Return the batches of standard input, as many as one write takes. Bytes that do not begin a
    batch are returned as one, so that they are refused.

    Errors: CorruptRecord for an incomplete batch at the end.
    """
    from storage.errors import CorruptRecord
    from storage.record.compression import MAX_DECOMPRESSED_BYTES
    from storage.record.header import MAGIC_POSITION, size_at

    rest = bytearray()
    while data := os.read(sys.stdin.fileno(), _WRITE_BYTES):
        rest += data
        batches, at = [], 0
        while (left := len(rest) - at) > MAGIC_POSITION:
            size = size_at(rest, at)
            if not MAGIC_POSITION < size <= MAX_DECOMPRESSED_BYTES:
                size = left
            if size > left:
                break
            batches.append(bytes(rest[at : at + size]))
            at += size
        del rest[:at]
        yield from _in_writes(batches)
    if rest:
        raise CorruptRecord(f"incomplete, {counted(len(rest), 'byte')}")


def _in_writes(pieces: list[bytes]) -> Iterator[list[bytes]]:
    """Lines or batches, not more at once than one write takes."""
    taken: list[bytes] = []
    size = 0
    for piece in pieces:
        if taken and size + len(piece) > _WRITE_BYTES:
            yield taken
            taken, size = [], 0
        taken.append(piece)
        size += len(piece)
    if taken:
        yield taken


def _append(write: _Write, view: str, request: Request | None, *, is_spread: bool = False) -> None:
    """Append standard input, up to the first line or batch that is refused.

    `request`: the request to a mount, if there is one. `is_spread`: a write appends to several
    partitions, one after the other, so a disk error may end it in the middle.

    Errors: ClickException, which says which line or batch was refused.
    """
    from storage.errors import StorageError, refusal_of

    done = last = 0
    error: Exception | None = None
    if sys.stdin.isatty():
        warn("reading records from the terminal; to end: Ctrl-D on an empty line")
    try:
        for pieces in _whole_batches() if view == "batches" else _whole_lines():
            if request is not None:
                request.begin()
            count, error = _written(write, pieces)
            last, done = done + len(pieces), done + count
            if error is not None:
                break
    except StorageError as incomplete:
        error = incomplete
    if error is None:
        return
    if request is not None and isinstance(error, OSError):
        reason = request.refusal(error)
    else:
        reason = refusal_of(error)
    what, many = ("batch", "batches") if view == "batches" else ("line", "lines")
    known = [f"all {many} before it were appended"] if done else []
    if is_spread and not _is_of_content(error):
        known.append(f"some of the {many} {done + 1} to {last} may have been appended")
    known = known or ["nothing was appended"]
    raise fail(f"{what} {done + 1} of standard input: {_PLACE.sub('', reason)}; {'; '.join(known)}")


def _written(write: _Write, pieces: list[bytes]) -> tuple[int, Exception | None]:
    """Append lines or batches up to one that is refused. Return their number, and the error.

    A write is refused as a whole. So write its halves to find the piece that is refused.
    """
    from storage.errors import StorageError

    try:
        write(b"".join(pieces))
    except (StorageError, OSError) as error:
        if len(pieces) == 1 or not _is_of_content(error):
            return 0, error
    else:
        return len(pieces), None
    half = len(pieces) // 2
    count, refusal = _written(write, pieces[:half])
    if refusal is None:
        more, refusal = _written(write, pieces[half:])
        count += more
    return count, refusal


def _is_of_content(error: Exception) -> bool:
    """Return whether an error is about one line or batch: then nothing of the write is appended."""
    from storage.errors import CorruptRecord, InvalidRecord, RecordTooLarge

    if isinstance(error, OSError):
        return error.errno in _OF_CONTENT
    return isinstance(error, CorruptRecord | InvalidRecord | RecordTooLarge)


@contextmanager
def _opened_in_mount(path: str, request: Request) -> Iterator[_Write]:
    """Open a file of a mount, and yield its write function. Errors: ClickException."""
    with request.failing_as(path):
        file = os.open(path, os.O_WRONLY | os.O_APPEND)

    try:
        yield partial(write_all, file)
        os.fsync(file)
    except click.ClickException as refused:
        # The lines or batches before the refused one are in the log.
        try:
            os.fsync(file)
        except OSError as error:
            raise fail(f"{refused.message}; the flush failed: {request.refusal(error)}") from None
        raise
    finally:
        os.close(file)


@contextmanager
def _opened_in_tree(manager: LogManager, names: tuple[str, ...]) -> Iterator[_Write]:
    """Open a file of the tree that a mount would show, and yield its write function."""
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
