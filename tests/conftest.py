"""Settings, options and hooks of pytest for all tests."""

from __future__ import annotations

import functools
import gc
import signal
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

from tests import fork_server

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling
    from xdist.workermanage import WorkerController

pytest_plugins = ["tests.times"]

# How fast a machine is, and what else it does, is nothing that a test is about.
# Other examples in each run of scripts/test --soak.
settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60
)
# Many other examples: of scripts/soak.
settings.register_profile("many", settings.get_profile("random"), max_examples=300)
# The same examples in each run of the gate, so that a failure points at the change.
settings.register_profile(
    "same",
    settings.get_profile("random"),
    derandomize=True,
    max_examples=25,
    stateful_step_count=20,
)
# Where each example takes long.
settings.register_profile("few", settings.get_profile("random"), max_examples=10)
settings.load_profile("same")

SPARK_TESTS = "tests/spark"
SPARK_SESSION = "spark: SparkSession"
"""A file with a test that has such an argument asks for the Spark session."""


#: In the gate, a crash test checks every Nth stop.
GATE_STOPS = 9


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-hours", type=float, help="how long all judges of tests/soak run together"
    )
    parser.addoption(
        "--growths", type=int, default=0, help="how often files grow under the page cache's judge"
    )
    parser.addoption(
        "--stops",
        type=int,
        default=GATE_STOPS,
        metavar="N",
        help="crash tests judge every Nth stop",
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the judges of tests/soak have counted."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name.startswith("figure ") and report.when == "call":
                    test = report.nodeid.rpartition("::")[2]
                    terminalreporter.write_line(f"{test}: {name.removeprefix('figure ')}: {value}")


def pytest_configure() -> None:
    """Restore the default actions of SIGINT and SIGHUP, which `&` and `nohup` set to ignore.

    Otherwise the daemons that tests start would inherit this and ignore the signals, too.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    fork_server.install()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """In a process of xdist, send one message for a test that passes, instead of five.

    It takes more processor time to send and receive them than to run a small test.
    """
    if not hasattr(item.config, "workerinput"):
        return None
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    sent = [report for report in reports if report.when == "call" or not report.passed]
    sent[-1].user_properties = reports[-1].user_properties  # they have the times
    for report in sent:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without the garbage collector, which never visits them later either.

    Their objects live as long as the process.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what only one process may run: the others have all the rest meanwhile."""
    items.sort(key=lambda item: not asks_for_session(item.path))


@functools.cache
def asks_for_session(file: Path) -> bool:
    return file.parent.match(SPARK_TESTS) and SPARK_SESSION in file.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Whole files go to a process, and one process has all files that ask for the session."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):  # type: ignore[misc]
        def _assign_work_unit(self, node: WorkerController) -> None:
            others_have_session = any(
                asks_for_session(config.rootpath / file)
                for other, files in self.assigned_work.items()
                for file in files
                if other is not node
            )
            for file in self.workqueue:
                if not others_have_session or not asks_for_session(config.rootpath / file):
                    self.workqueue.move_to_end(file, last=False)
                    super()._assign_work_unit(node)
                    return
            node.shutdown()

    return OneSession(config, log)
