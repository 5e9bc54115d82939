"""Dumps `.log` files, and the `.checkpoint` files of KRaft, which are logs too."""

from __future__ import annotations

from kafkafs.dump._dump import Walk
from kafkafs.dump.control import control_text
from kafkafs.dump.faults import GAP, Fault, Pairs
from kafkafs.dump.java import base_name, parse_long
from kafkafs.dump.json_rows import show_rows
from kafkafs.dump.log_reader import LogReader
from kafkafs.dump.options import LARGEST_FILE, Options
from kafkafs.dump.output import DumpError, Output
from storage.record.compression import decompress


def dump_log(path: str, options: Options, output: Output) -> dict[Fault, Pairs]:
    """Print a log; return the gaps: the last offset before each, and the next one.

    DumpError, OSError; the batches before the damage are printed.
    """
    _head(path, output)
    walk = Walk(
        decompress,
        control_text,
        options.decode,
        deep=options.deep,
        contents=options.contents,
        metadata=options.metadata,
        rows=output.is_json,
    )
    with LogReader(path) as log:
        end = min(log.size, options.max_bytes)
        if output.is_json:
            log.walk(walk, end, lambda: show_rows(walk.take_rows(), options, output))
        else:
            log.walk(walk, end, lambda: walk.take(output.text))
        if walk.position < end and options.max_bytes == LARGEST_FILE:
            count = log.size - walk.position
            output.event("invalidBytes", count=count, name=base_name(path))
    return {GAP: list(walk.gaps.items())}


def _head(path: str, output: Output) -> None:
    name = base_name(path)
    try:
        if name.endswith(".log"):
            output.event("log", startOffset=parse_long(name.split(".")[0]))
        elif name == "bootstrap.checkpoint":
            output.event("bootstrapSnapshot")
        else:
            offset, epoch = parse_long(name[:20]), parse_long(name[21:31], 32)
            output.event("metadataSnapshot", endOffset=offset, epoch=epoch)
    except ValueError as error:
        raise DumpError(f"{path}: the file name is not an offset: {error}") from None
