"""A job's report: figures, tables, faults. The command prints it.

A figure's name ends in its unit, if it has one that its value does not tell.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kafkafs.quantities import Value


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
