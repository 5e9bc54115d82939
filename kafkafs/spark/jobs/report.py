"""A job's report: figures, tables, faults. The command prints it.

A figure's name ends in its unit, unless the value has the unit.
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

    `faults`: one line for each fault that the job found, and for each failed part of its work.
    `notes`: other lines.
    """

    job: str
    is_dry_run: bool = False
    figures: dict[str, Value] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
