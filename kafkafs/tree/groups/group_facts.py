"""Makes the text of `.groups`: the facts of one position, and the table of lags.

`none` stands for what a group has not committed, `unknown` for what a log says that is not here.
Lags count as `kafka-consumer-groups --describe` counts them: high watermark less position. A mirror
may have a position whose records it has not copied yet: then the lag is 0. Times are milliseconds
since 1970.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kafkafs.printable import one_line
from kafkafs.tree.files.group_names import LONGEST, file_name, is_shown
from storage.groups.group import Group
from storage.groups.groups import Groups
from storage.groups.offset_records import Committed
from storage.log.log import Log
from storage.manager import LogManager
from storage.plural import counted

NONE: Final = "none"
UNKNOWN: Final = "unknown"
_LAG_COLUMNS: Final = ("topic", "partition", "position", "high_watermark", "lag", "committed")


def position_text(log: Log | None, committed: Committed | None) -> str:
    """The facts of a position, `name value` lines; `log`: None where it is not here."""
    facts: list[tuple[str, object]] = [
        ("position", NONE if committed is None else committed.position),
        ("log_start", UNKNOWN if log is None else log.log_start_offset),
        ("high_watermark", UNKNOWN if log is None else log.high_watermark),
        ("log_end", UNKNOWN if log is None else log.log_end_offset),
        ("last_stable", UNKNOWN if log is None else log.last_stable_offset),
        ("lag", _lag(log, committed)),
        ("committed", NONE if committed is None else committed.time_ms),
        ("leader_epoch", -1 if committed is None else committed.leader_epoch),
        ("metadata", "" if committed is None else one_line(committed.metadata)),
    ]
    return "".join(f"{name} {value}".rstrip(" ") + "\n" for name, value in facts)


def _lag(log: Log | None, committed: Committed | None) -> int | str:
    if committed is None:
        return NONE
    return UNKNOWN if log is None else max(0, log.high_watermark - committed.position)


def lag_text(manager: LogManager, group: Group) -> str:
    """Return a line for each partition in which a group has a position, then `#` lines: the kind of
    a group that a broker has described, the sum, and what may be missing.
    """
    rows = list(_lag_rows(manager, group))
    members = "yes" if group.has_members else "no"
    kind = f"# kind {group.kind}, members {members}\n" if group.kind else ""
    return _table(_LAG_COLUMNS, 1, rows) + kind + _sum(rows, "") + _missing(manager.groups)


def all_lags_text(manager: LogManager) -> str:
    """The lag of all groups, a line for each partition."""
    rows: list[tuple[object, ...]] = []
    all_groups = list(groups(manager.groups))
    shown = [group for group in all_groups if is_shown(group.name)]
    for group in shown:
        # A blank would be the end of the column.
        name = file_name(group.name).replace(" ", "%20")
        rows += [(name, *row) for row in _lag_rows(manager, group)]
    text = _table(("group", *_LAG_COLUMNS), 2, rows) + _sum(rows, f", groups {len(shown)}")
    hidden = len(all_groups) - len(shown)
    if hidden:
        text += (
            f"# not shown: {counted(hidden, 'group')} with a name of more than {LONGEST} bytes\n"
        )
    return text + _missing(manager.groups)


def groups(table: Groups) -> Iterator[Group]:
    """All groups that there are."""
    for name in table.names():
        group = table.find(name)
        if group is not None:
            yield group


def lags_of(manager: LogManager, group: Group) -> Iterator[tuple[str, int, int]]:
    """(topic, partition, lag) of each position whose log is here."""
    for (topic, number), committed in group.committed.items():
        log = log_of(manager, topic, number)
        if log is not None:
            yield topic, number, max(0, log.high_watermark - committed.position)


def log_of(manager: LogManager, topic: str, number: int) -> Log | None:
    """The log of a partition, if it is here."""
    known = manager.topics.get(topic)
    return None if known is None else known.partitions.get(number)


def _lag_rows(manager: LogManager, group: Group) -> Iterator[tuple[object, ...]]:
    for (topic, number), committed in group.committed.items():
        log = log_of(manager, topic, number)
        high = UNKNOWN if log is None else log.high_watermark
        lag = _lag(log, committed)
        yield topic, number, committed.position, high, lag, committed.time_ms


def _sum(rows: Sequence[Sequence[object]], of: str) -> str:
    # The lag stands before the last column.
    total = sum(lag for *_, lag, _ in rows if isinstance(lag, int))
    return f"# lag {total}, partitions {len(rows)}{of}\n"


def _missing(table: Groups) -> str:
    if not table.is_partial:
        return ""
    return "# a part: this directory has not all partitions of __consumer_offsets\n"


def _table(names: Sequence[str], left: int, rows: Iterable[Sequence[object]]) -> str:
    """A header line and rows, aligned; the first columns, `left` of them, to the left."""
    lines = [list(map(str, row)) for row in [names, *rows]]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(
        " ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        + "\n"
        for line in lines
    )
