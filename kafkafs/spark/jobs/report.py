"""A job's report: figures, tables, faults, and three ways to print them.

A terminal shows drawn tables, with separators in large numbers. Elsewhere a figure is `name value`
and a table has plain columns. As JSON the report is one object, with plain numbers. A figure's name
ends in its unit, if it has one.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TextIO, TypeAlias

from kafkafs.printable import one_line

Value: TypeAlias = str | int | float | bool | None


@dataclass(slots=True)
class Table:
    """Rows of values under the names of their columns."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[Value, ...]] = field(default_factory=list)


@dataclass(slots=True)
class JobReport:
    """The report of one run of a job.

    `faults`: what the job found wrong or could not do, a line each; the command then exits with 1.
    `notes`: lines for people.
    """

    job: str
    is_dry_run: bool = False
    figures: dict[str, Value] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        """One JSON object; `figures` is an object, and each of `tables` a list of objects."""
        tables = {
            table.name: [dict(zip(table.columns, row, strict=True)) for row in table.rows]
            for table in self.tables
        }
        fields = {
            "job": self.job,
            "dry_run": self.is_dry_run,
            "figures": self.figures,
            "tables": tables,
            "faults": self.faults,
            "notes": self.notes,
        }
        # A name may have bytes that are no UTF-8; JSON writes them as \udcXX.
        text = json.dumps(fields, indent=2, ensure_ascii=False)
        return text.encode(errors="backslashreplace").decode()


def print_report(report: JobReport, *, as_json: bool = False, out: TextIO | None = None) -> None:
    """Print it to standard output."""
    out = sys.stdout if out is None else out
    if as_json:
        print(report.as_json(), file=out)
        return
    # Without wraps or markup, so that people can copy them.
    for fault in report.faults:
        print(one_line(fault), file=out)
    if out.isatty():
        _draw(report, out)
    else:
        _write(report, out)
    for note in report.notes:
        print(one_line(note), file=out)


def _write(report: JobReport, out: TextIO) -> None:
    for table in report.tables:
        cells = [table.columns, *([_plain(value) for value in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        print(f"\n{table.name}", file=out)
        for row in cells:
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            print(line.rstrip(), file=out)
    if report.tables:
        print(file=out)
    for name, value in report.figures.items():
        print(name, _plain(value), file=out)


def _plain(value: Value) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return str(value).lower() if isinstance(value, bool) else one_line(str(value))


def _draw(report: JobReport, out: TextIO) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    for table in report.tables:
        drawn = Drawn(title=table.name, title_justify="left", title_style="bold")
        for number, name in enumerate(table.columns):
            is_text = any(isinstance(row[number], str) for row in table.rows)
            drawn.add_column(name.replace("_", " "), justify="left" if is_text else "right")
        for row in table.rows:
            drawn.add_row(*(_separated(value) for value in row))
        console.print(drawn)
    if report.figures:
        title = f"{report.job}, dry run: nothing was changed" if report.is_dry_run else report.job
        drawn = Drawn(title=title, title_justify="left", title_style="bold", show_header=False)
        drawn.add_column()
        drawn.add_column(justify="right")
        for name, value in report.figures.items():
            drawn.add_row(name.replace("_", " "), _separated(value))
        console.print(drawn)


def _separated(value: Value) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return _plain(value)
