"""`kafkafs dump FILE…`: prints a log's files as DumpLogSegments does."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import LikeAnotherProgram, examples
from kafkafs.cli.common.addresses import check_paths
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.mounts import mount_around
from kafkafs.cli.common.output import binary_stdout
from kafkafs.cli.common.words import FILE, ByteCount

if TYPE_CHECKING:
    from kafkafs.dump.options import Options

# Java's class name, so that this module does not import kafkafs.dump.
_STRING_DECODER = "org.apache.kafka.tools.api.StringDecoder"
_LARGEST = 2**31 - 1
_SIZE = ByteCount(most=str(_LARGEST))
# In the order in which DumpLogSegments looks at them; it takes the first that is given.
_TOPIC_DECODERS = (
    "offsets-decoder",
    "transaction-log-decoder",
    "cluster-metadata-decoder",
    "remote-log-metadata-decoder",
    "share-group-state-decoder",
)


@click.command(
    "dump",
    cls=LikeAnotherProgram,
    failed=1,
    epilog=examples(
        "kafkafs dump --print-data-log data/orders-0/00000000000000000000.log",
        "kafkafs dump --json data/orders-0/00000000000000000000.index",
    ),
)
@click.argument("paths", metavar="FILE…", type=FILE, nargs=-1)
@click.option(
    "--files",
    metavar="FILE,FILE…",
    type=FILE,
    help="The files, separated by commas, as for DumpLogSegments.",
)
@click.option(
    "--print-data-log", is_flag=True, help="Print records with their keys and values, as UTF-8."
)
@click.option("--deep-iteration", is_flag=True, help="Print records, not only batches.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only keys and values of records.")
@click.option(
    "--max-bytes",
    type=_SIZE,
    default=_LARGEST,
    show_default=False,
    help="Read only the first SIZE bytes of a log.",
)
@click.option(
    "--verify-index-only",
    is_flag=True,
    help="Check an index against its log, and do not print the index.",
)
@click.option(
    "--index-sanity-check",
    is_flag=True,
    help="Check an index only for those faults that make a broker rebuild the index.",
)
@click.option(
    "--max-message-size",
    type=_SIZE,
    default="5MiB",
    metavar="SIZE",
    help="Size limit of the batches that an index points to.",
)
@click.option(
    "--key-decoder-class",
    is_flag=False,
    flag_value=_STRING_DECODER,
    metavar="CLASS",
    help=(
        "Print keys and values. Decode keys by StringDecoder, IntegerDecoder or LongDecoder of "
        "org.apache.kafka.tools.api."
    ),
)
@click.option(
    "--value-decoder-class",
    is_flag=False,
    flag_value=_STRING_DECODER,
    metavar="CLASS",
    help="Print keys and values. Decode values by one of the same classes.",
)
@click.option(
    "--offsets-decoder", is_flag=True, help="Print keys and values of __consumer_offsets as JSON."
)
@click.option(
    "--transaction-log-decoder",
    is_flag=True,
    help="Print keys and values of __transaction_state as JSON.",
)
@click.option(
    "--share-group-state-decoder",
    is_flag=True,
    help="Print keys and values of __share_group_state as JSON.",
)
@click.option(
    "--cluster-metadata-decoder",
    is_flag=True,
    help="Print keys and values of __cluster_metadata as JSON.",
)
@click.option("--remote-log-metadata-decoder", is_flag=True, hidden=True)
@click.option(
    "--json", "is_json", is_flag=True, help="Print the whole output as JSON, one object per line."
)
def command(paths: tuple[str, ...], files: str | None, is_json: bool, **given: Any) -> None:
    """Print .log, .index, .timeindex, .txnindex, .snapshot and .checkpoint files.

    dump prints the same lines as Apache Kafka's tool DumpLogSegments, and has the same options.
    dump needs no mount, takes no lock and changes nothing, so the directory may be in use. To print
    an index, dump needs its .log file in the same directory.
    """
    from kafkafs.dump.by_suffix import SUFFIXES, dump, suffix_of
    from kafkafs.dump.java import file_name
    from kafkafs.dump.output import DumpError, Output

    names = [*_split(files), *paths]
    if not names:
        raise click.UsageError("give at least one file")
    check_paths(filter(None, names))  # `dump` reports an empty name
    options = _options(given)
    try:
        with binary_stdout() as out:
            dump(names, options, Output(out.write, sys.stderr.buffer.write, is_json=is_json))
    except DumpError as error:
        raise fail(str(error)) from None
    if not any(suffix_of(file_name(name)) for name in names):
        suffixes = ", .".join(SUFFIXES)
        raise fail(f"no log files given (.{suffixes}){_segments_of(names)}")


def _segments_of(names: Sequence[str]) -> str:
    """Return the line to type if the first name is a partition, in a mount or on disk; or ""."""
    from storage.paths import parse_partition_directory

    mounted, path = mount_around(names[0])
    directory, name = os.path.split(path)
    if mounted is not None and name.isdecimal() and os.path.dirname(directory) == mounted.path:
        meant = os.path.join(directory, ".raw", name)
    elif mounted is None and parse_partition_directory(name) is not None:
        meant = path
    else:
        return ""
    return f". Try: kafkafs dump {shlex.quote(meant)}/*.log"


def _options(given: dict[str, Any]) -> Options:
    from kafkafs.dump.decoders import DecoderError, class_decoder, topic_decoder
    from kafkafs.dump.options import Options

    topics = [name for name in _TOPIC_DECODERS if given[name.replace("-", "_")]]
    classes = [given["key_decoder_class"], given["value_decoder_class"]]
    key_class, value_class = (name or _STRING_DECODER for name in classes)
    try:
        decode = topic_decoder(topics[0]) if topics else class_decoder(key_class, value_class)
    except DecoderError as error:
        raise click.UsageError(str(error)) from None
    contents = given["print_data_log"] or bool(topics) or any(classes)
    return Options(
        deep=given["deep_iteration"] or contents,
        contents=contents,
        metadata=not given["skip_record_metadata"],
        verify_index_only=given["verify_index_only"],
        index_sanity_check=given["index_sanity_check"],
        max_message_size=given["max_message_size"],
        max_bytes=given["max_bytes"],
        decode=decode,
    )


def _split(files: str | None) -> list[str]:
    """Split by commas as Java's String.split does: without empty names at the end."""
    names = [] if files is None else files.split(",")
    while len(names) > 1 and not names[-1]:
        names.pop()
    return names
