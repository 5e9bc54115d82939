"""Dumps files, each by its suffix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafkafs.dump.faults import Fault, Faults, Pairs
from kafkafs.dump.java import absolute, base_name, file_name
from kafkafs.dump.log_file import dump_log
from kafkafs.dump.offset_index import dump_offset_index
from kafkafs.dump.options import Options
from kafkafs.dump.output import Output
from kafkafs.dump.producer_state import dump_snapshot, dump_txn_index
from kafkafs.dump.time_index import dump_time_index

SUFFIXES = ("log", "index", "timeindex", "txnindex", "snapshot", "checkpoint")


def suffix_of(path: str) -> str | None:
    """Return the suffix of a file of a log, else None."""
    suffix = base_name(path).rpartition(".")[2] if "." in base_name(path) else ""
    return suffix if suffix in SUFFIXES else None


def dump(files: Iterable[str], options: Options, output: Output) -> None:
    """Print the files in turn, and then their faults.

    DumpError where DumpLogSegments fails; like that it then drops the faults. OSError with the path
    of the file, or of the output.
    """
    faults = Faults()
    try:
        for given in files:
            path = file_name(given)
            faults.add(absolute(path), _dump_file(path, options, output))
    except OSError as error:
        error.filename = error.filename or given
        raise
    finally:
        output.flush()
    faults.show(output)
    output.flush()


def _dump_file(path: str, options: Options, output: Output) -> Mapping[Fault, Pairs]:
    output.event("file", file=path)
    suffix = suffix_of(path)
    if suffix in ("log", "checkpoint"):
        return dump_log(path, options, output)
    if suffix == "index":
        return dump_offset_index(path, options, output)
    if suffix == "timeindex":
        return dump_time_index(path, options, output)
    if suffix == "txnindex":
        dump_txn_index(path, output)
    elif suffix == "snapshot":
        dump_snapshot(path, output)
    else:
        output.complain(f"Ignoring unknown file {path}", "unknownFile", file=path)
    return {}
