"""Prints a job's report: faults, tables and figures for people, or all of it as a JSON object.

A terminal shows drawn tables, with separators in large numbers. Elsewhere a figure is `name value`
and a table has plain columns, as other commands print them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kafkafs.cli.common.output import Output, objects
from kafkafs.quantities import Size, TimeMs, Value

if TYPE_CHECKING:
    from kafkafs.spark.jobs.report import JobReport


def print_report(report: JobReport, out: Output) -> None:
    """Print it to standard output."""
    for fault in report.faults:
        out.problem(fault, "FAULT")
    if out.as_json:
        out.json(
            {
                "job": report.job,
                "dry_run": report.is_dry_run,
                "figures": report.figures,
                "tables": {
                    table.name: objects(table.columns, table.rows) for table in report.tables
                },
                "notes": report.notes,
            }
        )
        return
    # Without wraps or markup, so that people can copy them.
    for fault in report.faults:
        out.say(fault)
    if sys.stdout.isatty():
        _draw(report, out)
    else:
        _write(report, out)
    for note in report.notes:
        out.say(note)


def _write(report: JobReport, out: Output) -> None:
    for table in report.tables:
        out.say("")
        out.say(table.name)
        out.table(table.columns, table.rows)
    if report.tables:
        out.say("")
    out.facts(report.figures)


def _draw(report: JobReport, out: Output) -> None:
    from rich.console import Console
    from rich.table import Table as Drawn

    console = Console(file=sys.stdout, highlight=False, markup=False, emoji=False)
    for table in report.tables:
        drawn = Drawn(title=table.name, title_justify="left", title_style="bold")
        for number, name in enumerate(table.columns):
            is_text = any(isinstance(row[number], str) for row in table.rows)
            drawn.add_column(name.replace("_", " "), justify="left" if is_text else "right")
        for row in table.rows:
            drawn.add_row(*(_separated(value, out) for value in row))
        console.print(drawn)
    if report.figures:
        title = f"{report.job}, dry run: nothing was changed" if report.is_dry_run else report.job
        drawn = Drawn(title=title, title_justify="left", title_style="bold", show_header=False)
        drawn.add_column()
        drawn.add_column(justify="right")
        for name, value in report.figures.items():
            drawn.add_row(name.replace("_", " "), _separated(value, out))
        console.print(drawn)


def _separated(value: Value, out: Output) -> str:
    if isinstance(value, int) and not isinstance(value, bool | Size | TimeMs):
        return f"{value:,}"
    if isinstance(value, float) and abs(value) >= 1000:
        return f"{value:,.0f}"
    return out.text(value)
