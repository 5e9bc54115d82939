"""A plugin of pytest that measures the processor time of each test and writes it to a table.

`build/test-times.csv` has a row for each file with the sum of its tests, the most expensive file
first. Below it each test has a row: the processor time of pytest's own process, the processor time
of the programs that the test started, and the wall time, in seconds. The time in which a fixture
starts belongs to the first test that asks for it. The time in which it ends belongs to the last.

The kernel adds a child's time to RUSAGE_CHILDREN when the child is reaped. For a child that still
runs, such as a JVM, `/proc` has its time up to now: a test gets what the child used meanwhile. A
daemon in the background is no child of pytest, and its time is not counted.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import resource
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

RUN = "KAFKAFS_TEST_RUN"
"""An environment variable: the process id of the pytest whose tests started a program."""
PROPERTY = "times"
"""The name of a test's seconds in its report."""
MOST_EXPENSIVE = 10
Seconds = tuple[float, float, float]
"""Processor time of pytest's own process, of other programs, and wall time."""
Row = tuple[str, Seconds]
"""The id of a test, and its seconds."""
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--times", default="build/test-times.csv", metavar="FILE", help="where to write the times"
    )


def pytest_configure(config: pytest.Config) -> None:
    plugins = config.pluginmanager
    if hasattr(config, "workerinput"):
        plugins.register(Meter(config.workeroutput.__setitem__))  # type: ignore[attr-defined]
    elif RUN not in os.environ:  # else a test has started this pytest, and its time is that test's
        os.environ[RUN] = str(os.getpid())
        table = Table(config.rootpath / config.getoption("--times"))
        plugins.register(table)
        if config.getoption("numprocesses", None):
            plugins.register(Workers(table))
        else:
            plugins.register(Meter(lambda _, rows: table.add(rows)))


def total(times: Iterable[Seconds]) -> Seconds:
    own, children, wall = map(math.fsum, zip((0.0, 0.0, 0.0), *times, strict=True))
    return own, children, wall


def processor_s(seconds: Seconds) -> float:
    own, children, _ = seconds
    return own + children


def process_s(pid: str) -> float:
    """Return the processor time of a process, and of the children that it has reaped."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND  # utime, stime, cutime, cstime


def children_s() -> float:
    """Return the processor time of all children of this process, ended or not."""
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = reaped.ru_utime + reaped.ru_stime
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            for pid in Path(f"/proc/self/task/{thread}/children").read_text().split():
                total += process_s(pid)
    return total


class Meter:
    """Measures the tests of one process.

    A test's seconds go into its last report. At the end `deliver(PROPERTY, rows)` gets the others.
    """

    def __init__(self, deliver: Callable[[str, list[Row]], None]) -> None:
        self._deliver = deliver
        self._last: Seconds = (0.0, 0.0, time.monotonic())
        self._collection: Seconds = (0.0, 0.0, 0.0)

    def _since_last(self) -> Seconds:
        now = (time.process_time(), children_s(), time.monotonic())
        own, children, wall = (end - start for end, start in zip(now, self._last, strict=True))
        self._last = now
        return own, children, wall

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        result = yield
        self._collection = self._since_last()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        # Until now a process of xdist may have waited for its next test.
        self._last = (*self._last[:2], time.monotonic())
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            report.user_properties.append((PROPERTY, self._since_last()))
        return report

    def pytest_sessionfinish(self) -> None:
        self._deliver(PROPERTY, [("(collection)", self._collection)])


class Table:
    """The times of all processes: writes the table, and prints the most expensive files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, list[tuple[str, Seconds]]] = defaultdict(list)

    def add(self, rows: Iterable[Row]) -> None:
        for test, seconds in rows:
            self._tests[test.partition("::")[0]].append((test, seconds))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == PROPERTY:
                self.add([(report.nodeid, cast(Seconds, value))])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        sums = {file: total(seconds for _, seconds in rows) for file, rows in self._tests.items()}
        files = sorted(sums, key=lambda file: processor_s(sums[file]), reverse=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("w", newline="") as out:
            table = csv.writer(out)
            table.writerow(["file", "test", "own_s", "children_s", "wall_s"])
            for file in files:
                tests = sorted(self._tests[file], key=lambda row: processor_s(row[1]), reverse=True)
                for test, seconds in [("", sums[file]), *tests]:
                    table.writerow([file, test, *(f"{value:.3f}" for value in seconds)])
        everything = total(sums.values())
        terminalreporter.section(f"processor time, of each test in {self._path}")
        terminalreporter.write_line(
            f"{processor_s(everything):8.1f} s in all: pytest {everything[0]:.1f} s, "
            f"other programs {everything[1]:.1f} s"
        )
        for file in files[:MOST_EXPENSIVE]:
            seconds = sums[file]
            terminalreporter.write_line(
                f"{processor_s(seconds):8.1f} s, {seconds[2]:.1f} s of wall time: {file}"
            )


class Workers:
    """Collects what the processes of xdist have measured."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController) -> None:
        # A process that crashed has nothing to deliver.
        self._table.add(getattr(node, "workeroutput", {}).get(PROPERTY, []))

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self) -> None:
        self._table.add([("(xdist)", (time.process_time(), 0.0, 0.0))])
