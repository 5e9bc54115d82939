"""The table of topics or partitions: its columns, order and visible rows. It uses no terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kafkafs.cli.mounting.top.rates import Rates, Row
from kafkafs.quantities import human_size
from storage.paths import INTERNAL_TOPICS

#: The least width of the names while there is a column of figures.
NAME = 16


def count_text(value: float | None) -> str:
    """Return a number like 17, 12.3k or 4.5M."""
    if value is None:
        return "-"
    if value < 10 and value != int(value):
        return f"{value:.1f}"
    for unit, size in (("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9)):
        if value < 9999.5 * size or unit == "G":
            number = value / size
            return f"{number:.0f}{unit}" if not unit or number >= 99.95 else f"{number:.1f}{unit}"
    raise AssertionError("the last unit takes all")


def size_text(value: float | None) -> str:
    """Return a number of bytes like 1.5MiB."""
    return "-" if value is None else human_size(int(value))


class Column(NamedTuple):
    """A column of figures.

    `key` is its name in scripts, and the field of a `Row`. The key `sort_key` sorts by the column.
    If there is no room for all columns, those with the highest `rank` are left out first.
    """

    key: str
    title: str
    width: int
    sort_key: str
    rank: int
    text: Callable[[float | None], str]


COLUMNS = (
    Column("records_in", "IN rec/s", 9, "r", 2, count_text),
    Column("bytes_in", "IN B/s", 9, "i", 0, size_text),
    Column("records_out", "OUT rec/s", 9, "u", 4, count_text),
    Column("bytes_out", "OUT B/s", 9, "o", 1, size_text),
    Column("bytes", "SIZE", 8, "s", 3, size_text),
    Column("records", "RECORDS", 8, "c", 6, count_text),
    Column("lag", "LAG", 8, "l", 5, count_text),
    Column("mirror_lag", "BEHIND", 8, "b", 5, count_text),
    Column("segments", "SEGS", 6, "S", 8, count_text),
    Column("open_handles", "OPEN", 5, "f", 7, count_text),
)
#: The name is the last column, and sorts from a to z.
NAME_KEY, NAME_SORT = "name", "n"
SORTS = {**{column.sort_key: column.key for column in COLUMNS}, NAME_SORT: NAME_KEY}


class Table:
    """The rows, their order, and the first row that is visible."""

    def __init__(self, *, by_partition: bool, shows_internal: bool) -> None:
        self.by_partition = by_partition
        self._hidden = frozenset() if shows_internal else INTERNAL_TOPICS
        self.sort = "bytes_in"
        self.is_reversed = False
        self.filter = ""
        self.rows: list[Row] = []
        self.columns: Sequence[Column] = COLUMNS
        """Without `mirror_lag` if this is no mirror."""
        self.first = 0
        """The number of the first visible row."""

    def take(self, rates: Rates) -> None:
        """Replace the rows by those of new figures."""
        rows = rates.partitions() if self.by_partition else rates.topics()
        is_mirror = any(row.mirror_lag is not None for row in rows)
        self.columns = [each for each in COLUMNS if is_mirror or each.key != "mirror_lag"]
        wanted = self.filter.lower()
        self.rows = [
            row for row in rows if row.topic not in self._hidden and wanted in row.name.lower()
        ]
        self._order()

    def sort_by(self, key: str) -> None:
        """Sort by a column: the largest value, or the first name, on top.

        A second call for the same column reverses the order.
        """
        self.is_reversed = key == self.sort and not self.is_reversed
        self.sort = key
        self._order()

    def sort_beside(self, step: int) -> None:
        """Sort by the column that is `step` columns to the right; negative: to the left."""
        keys = [*(column.key for column in COLUMNS), NAME_KEY]
        self.sort_by(keys[(keys.index(self.sort) + step) % len(keys)])

    def _order(self) -> None:
        self.rows.sort(key=lambda row: (row.topic, row.partition or 0))
        if self.sort != NAME_KEY:
            # Rows that are equal stay in the order of their names, in both directions.
            self.rows.sort(
                key=lambda row: getattr(row, self.sort) or 0, reverse=not self.is_reversed
            )
        elif self.is_reversed:
            self.rows.reverse()

    def scroll(self, rows: int, height: int) -> None:
        """Scroll down by `rows`; negative: up. `height` is the number of visible rows."""
        self.first = max(min(self.first + rows, len(self.rows) - height), 0)

    def lines(self, width: int, height: int) -> list[tuple[str, bool]]:
        """Return the titles and `height` rows, cut to `width`, and whether each row is active."""
        columns = _that_fit(self.columns, width)
        titles = [f"{self._mark(column.key)}{column.title}" for column in columns]
        name = f"{self._mark(NAME_KEY)}{'PARTITION' if self.by_partition else 'TOPIC'}"
        title = _line([*zip(titles, columns, strict=True)], name)
        found = [(title[:width], False)]
        self.scroll(0, height)
        for row in self.rows[self.first : self.first + height]:
            cells = [(column.text(getattr(row, column.key)), column) for column in columns]
            found.append((_line(cells, row.name)[:width], row.is_active))
        return found

    def _mark(self, key: str) -> str:
        if key != self.sort:
            return ""
        return "^" if self.is_reversed != (key == NAME_KEY) else "v"


def _that_fit(columns: Sequence[Column], width: int) -> list[Column]:
    left = list(columns)
    while left and sum(column.width + 1 for column in left) + NAME > width:
        left.remove(max(left, key=lambda column: column.rank))
    return left


def _line(cells: Sequence[tuple[str, Column]], name: str) -> str:
    return "".join(f"{text:>{column.width}} " for text, column in cells) + name
