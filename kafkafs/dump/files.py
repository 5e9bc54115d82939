"""Dumps one file after the other, and at the end what is wrong with them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from kafkafs.dump.errors import DumpError
from kafkafs.dump.events import Output
from kafkafs.dump.indexes import TimeFaults, dump_index, dump_time_index
from kafkafs.dump.java import absolute, base_name, file_name, map_order
from kafkafs.dump.log_file import dump_log
from kafkafs.dump.options import Options
from kafkafs.dump.tables import dump_snapshot, dump_txn_index


def dump(files: Iterable[str], options: Options, output: Output) -> None:
    """Print the files, each by its suffix, and then the complaints about them.

    DumpError where DumpLogSegments fails; like that it then drops the complaints.
    """
    complaints = _Complaints()
    try:
        for given in files:
            _dump_file(file_name(given), options, output, complaints)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise DumpError(f"{error.filename or given}: {error.strerror}") from None
    finally:
        output.flush()
    complaints.show(output)
    output.flush()


def _dump_file(path: str, options: Options, output: Output, complaints: _Complaints) -> None:
    output.event("file", file=path)
    suffix = base_name(path).rpartition(".")[2] if "." in base_name(path) else ""
    if suffix in ("log", "checkpoint"):
        complaints.add_gaps(path, dump_log(path, options, output))
    elif suffix == "index":
        complaints.add_mismatches(path, dump_index(path, options, output))
    elif suffix == "timeindex":
        complaints.add_time(path, dump_time_index(path, options, output))
    elif suffix == "txnindex":
        dump_txn_index(path, output)
    elif suffix == "snapshot":
        dump_snapshot(path, output)
    else:
        output.complain(f"Ignoring unknown file {path}", "unknownFile", file=path)


class _Complaints:
    """The complaints that DumpLogSegments prints at its end, in its order."""

    def __init__(self) -> None:
        self._gaps: dict[str, dict[int, int]] = {}
        self._mismatches: dict[str, dict[int, int]] = {}
        self._time: dict[str, TimeFaults] = {}

    def add_gaps(self, path: str, gaps: dict[int, int]) -> None:
        if gaps:
            self._gaps.setdefault(absolute(path), {}).update(gaps)

    def add_mismatches(self, path: str, mismatches: dict[int, int]) -> None:
        if mismatches:
            self._mismatches.setdefault(absolute(path), {}).update(mismatches)

    def add_time(self, path: str, faults: TimeFaults) -> None:
        kept = self._time.setdefault(absolute(path), TimeFaults())
        kept.mismatches += faults.mismatches
        kept.out_of_order += faults.out_of_order
        kept.not_found += faults.not_found

    def show(self, output: Output) -> None:
        mismatches = {
            name: sorted(pairs.items(), reverse=True) for name, pairs in self._mismatches.items()
        }
        gaps = {name: sorted(pairs.items()) for name, pairs in self._gaps.items()}
        for kind, found in (
            (_MISMATCH, mismatches),
            (_WRONG_TIMESTAMP, {name: faults.mismatches for name, faults in self._time.items()}),
            (_OUT_OF_ORDER, {name: faults.out_of_order for name, faults in self._time.items()}),
            (_NOT_FOUND, {name: faults.not_found for name, faults in self._time.items()}),
            (_GAP, gaps),
        ):
            for name in map_order(name for name, pairs in found.items() if pairs):
                kind.show(output, name, found[name])


class _Kind(NamedTuple):
    """A kind of complaint: a line for a file, one for each pair of numbers, their names in JSON."""

    type: str
    head: str
    line: str
    fields: tuple[str, str]

    def show(self, output: Output, file: str, pairs: list[tuple[int, int]]) -> None:
        lines = [self.head.format(file)]
        for pair in pairs:
            lines.append(self.line.format(*pair))
            if output.is_json:
                output.event(self.type, file=file, **dict(zip(self.fields, pair, strict=True)))
        if not output.is_json:
            output.complain("\n".join(lines), self.type)


_MISMATCH: Final = _Kind(
    "mismatch",
    "Mismatches in :{}",
    "  Index offset: {}, log offset: {}",
    ("indexOffset", "logOffset"),
)
_WRONG_TIMESTAMP: Final = _Kind(
    "timestampMismatch",
    "Found timestamp mismatch in :{}",
    "  Index timestamp: {}, log timestamp: {}",
    ("indexTimestamp", "logTimestamp"),
)
_OUT_OF_ORDER: Final = _Kind(
    "outOfOrderTimestamp",
    "Found out of order timestamp in :{}",
    "  Index timestamp: {}, Previously indexed timestamp: {}",
    ("indexTimestamp", "previousTimestamp"),
)
_NOT_FOUND: Final = _Kind(
    "offsetNotFound",
    "The following indexed offsets are not found in :{}",
    "Indexed offset: {}, found log offset: {}",
    ("indexOffset", "logOffset"),
)
_GAP: Final = _Kind(
    "nonConsecutiveOffsets",
    "Non-consecutive offsets in {}",
    "  {} is followed by {}",
    ("offset", "nextOffset"),
)
