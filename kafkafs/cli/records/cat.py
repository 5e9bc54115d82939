"""`kafkafs cat`: prints records, as the files of a mount show them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import CLUSTER
from kafkafs.cli.common.clusters import (
    Client,
    cluster_address,
    cluster_options,
    is_cluster,
    partitions_of,
)
from kafkafs.cli.common.decoding import Decoding, decode_options, topic_decoders, view_to_decode
from kafkafs.cli.common.ending import end
from kafkafs.cli.common.matching import scan, text_of, where_option
from kafkafs.cli.common.mount_files import (
    READ_COMMITTED,
    MountFiles,
    Opened,
    opened_files,
    opened_tree,
    patiently,
)
from kafkafs.cli.common.output import Output, binary_stdout
from kafkafs.cli.common.ranges import resolve_ranges
from kafkafs.cli.common.views import path_in_topic, view_option
from kafkafs.cli.common.words import words_argument

if TYPE_CHECKING:
    from kafkafs.cli.clusters.pieces import Piece
    from storage.condition.condition import Condition
    from storage.record.header import Buffer

_READ_BYTES = 1 << 20

_Write = Callable[[str, "Buffer"], object]
"""Writes a piece of a topic's text."""


@click.command(
    "cat",
    epilog=examples(
        "kafkafs cat data orders",
        "kafkafs cat mnt/orders/0@-10",
        "kafkafs cat data orders:0@08:00..09:00 --view kv",
        "kafkafs cat data orders@-15m --view jsonl",
        "kafkafs cat data orders@-10 --decode",
        "kafkafs cat data orders --decode --value-schema order.avsc --value-only",
        "kafkafs cat kafka://broker:9092/orders:0@-10",
        "kafkafs cat -f kafka://broker:9092/orders@end --view jsonl",
        "kafkafs cat data orders --where \"key = 'alice' and value like '%apples%'\"",
    ),
)
@words_argument(f"DATA|{CLUSTER} TOPIC[:PARTITION][@START[..END]]...")
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Only for kafka://: after the existing records, print new records as they are appended.",
)
@view_option
@where_option
@click.option(
    "--isolation",
    type=click.Choice([READ_COMMITTED, "read_uncommitted"]),
    default=READ_COMMITTED,
    help="With read_uncommitted, also print records of aborted and open transactions.",
)
@decode_options
@cluster_options
def command(
    words: Sequence[str],
    follow: bool,
    view: str,
    where: Condition | None,
    isolation: str,
    decoding: Decoding | None,
    client: Client,
) -> None:
    """Print the records of partitions, one partition after the other. The directory may be in use.

    @START..END selects records, as in the file names of a mount. START and END can be an offset
    (-10: the tenth record before the end), a time (-15m: 15 minutes ago), or the words start and
    end. cat does not print the record at END. Without @START, cat prints all records that exist
    when it begins to read the partition. You can also give paths below a mount: mnt/orders/0@-10,
    mnt/orders/.jsonl/0.

    With --where, cat prints only the records for which CONDITION is true. CONDITION is an SQL
    condition. It can contain =, <>, <, <=, >, >=, AND, OR, NOT, BETWEEN, IN, LIKE and IS [NOT]
    NULL. Its columns are topic, partition, offset, timestamp, timestampType, key, value and
    header('NAME'). Write a time as '2026-11-22T08:00' or '-15m', and bytes in hexadecimal as X'61'.
    Times without a time zone are local.

    --decode prints JSON lines with keys and values decoded by their Avro schemas. By default, cat
    takes the id of the schema from each record: from a header, or from the first bytes of the key
    or the value (a zero byte and the id). cat looks up this id in the topic _schemas of the same
    directory, where a Confluent Schema Registry stores its schemas. If cat cannot decode a value,
    it prints the value as `--view jsonl` does, and adds the field `valueError`.

    kafka://HOST:PORT/TOPIC[:PARTITION][@START[..END]] names records of a cluster. --decode then
    reads the topic _schemas of the cluster. With -f, cat prints the records of all partitions that
    exist when it starts, as they arrive. If records were deleted before cat could read them, or if
    the cluster does not let cat read a topic, cat prints all other records, and ends with exit
    status 3.

    If cat finds damaged records, it ends with exit status 3.
    """
    if is_cluster(words[0]):
        if decoding is not None:
            view = view_to_decode(view)
        _check_view(view, where)
        _print_cluster(words, client, isolation, view, where, decoding, follow=follow)
        return
    client.check_unused()
    if follow:
        raise click.UsageError(
            "-f requires an address: kafka://HOST:PORT/TOPIC. To follow a mount: kafkafs tail -f"
        )
    address, view, found = resolve_ranges(words)
    if decoding is not None:
        view = view_to_decode(view)
    if not address.places:
        raise click.UsageError("give a topic: DATA TOPIC[:PARTITION], or MOUNT/TOPIC[/PARTITION]")
    _check_view(view, where)
    if where is not None:
        from kafkafs.views import TEXT_VIEWS

        with (
            opened_tree(address.data_dir, isolation) as tree,
            _writer(decoding, MountFiles(tree).opened) as write,
        ):
            for topic, number, point in found:
                for _, batch in scan(tree, topic, number, view, point, where).batches:
                    if batch is not None:
                        write(topic, text_of(TEXT_VIEWS[view](), batch))
        return
    with (
        opened_files(address, isolation=isolation) as files,
        _writer(decoding, files.opened) as write,
    ):
        for topic, number, point in found:
            _print_file(files.opened, topic, number, view, point, write)


def _check_view(view: str, where: Condition | None) -> None:
    if where is not None and view == "batches":
        raise click.UsageError("--where cannot be used with --view batches")


def _print_cluster(
    words: Sequence[str],
    client: Client,
    isolation: str,
    view: str,
    where: Condition | None,
    decoding: Decoding | None,
    *,
    follow: bool,
) -> None:
    from kafkafs.cli.clusters.pieces import ClusterReader
    from kafkafs.cli.clusters.ranges import parsed_range, spans
    from kafkafs.cli.clusters.registry import opened_registry

    address, out = cluster_address(words, ranges=True), Output()
    if not address.places:
        raise click.UsageError("give a topic: kafka://HOST:PORT/TOPIC[:PARTITION]")
    for each in address.places:
        parsed_range(each.range, follow=follow)
    with client.connected(address.brokers) as cluster:
        reader = ClusterReader(cluster, out.report, committed=isolation == READ_COMMITTED)
        found = spans(reader, partitions_of(cluster, address, out.report), follow=follow)
        # Followed partitions are read together, others one after the other.
        together = [dict(found)] if follow else [{partition: span} for partition, span in found]
        with _writer(decoding, partial(opened_registry, reader)) as write:
            for part in together:
                for piece in reader.pieces(part):
                    for text in _text_of(piece, view, where):
                        write(piece.fetched.partition.topic, text)
                    sys.stdout.flush()
    end(failed=out.has_failed)


def _text_of(piece: Piece, view: str, where: Condition | None) -> Iterable[Buffer]:
    from kafkafs.cli.clusters.text import ALWAYS, stored_in, text_of
    from kafkafs.views import TEXT_VIEWS

    if view == "batches":
        return [stored_in(piece)]
    predicate = ALWAYS
    if where is not None:
        left = where.of_partition(*piece.fetched.partition)
        if left.is_impossible:
            return []
        predicate = left.predicate()
    return text_of(piece, TEXT_VIEWS[view](), predicate)


def _print_file(
    opened: Opened, topic: str, number: int, view: str, points: str, write: _Write
) -> None:
    """Print the file of a partition between two points, `START..END`, to its end."""
    with opened(topic, *path_in_topic(view, f"{number}@{points}")) as read:
        position = 0
        while data := patiently(partial(read, position, _READ_BYTES)):
            write(topic, data)
            position += len(data)


@contextmanager
def _writer(decoding: Decoding | None, opened: Opened) -> Iterator[_Write]:
    """Yield a function that writes text to standard output, decoded as `decoding` says.

    `opened` opens the topic with the schemas.
    """
    if decoding is None:
        with binary_stdout() as out:
            yield lambda topic, text: out.write(text)
        return
    with topic_decoders(decoding, opened) as decoders, binary_stdout() as out:
        yield lambda topic, text: out.write(decoders.decoder_of(topic).feed(bytes(text)))
