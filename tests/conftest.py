"""What all tests rely on, whoever started them."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests import fork_server

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

pytest_plugins = ["tests.times"]

# How fast a machine is, and what else it does, is nothing that a test is about.
# Other examples in each run: of scripts/test --soak and scripts/soak.
settings.register_profile(
    "random", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=300
)
# The same examples in each run of the gate, so that a failure points at the change.
settings.register_profile("same", settings.get_profile("random"), derandomize=True, max_examples=25)
# Where each example takes long.
settings.register_profile("few", settings.get_profile("random"), max_examples=10)
settings.load_profile("same")

ROOT = Path(__file__).parent.parent
SPARK_TESTS = "tests/spark/"
SPARK_SESSION = "spark: SparkSession"
"""A file with a test that has such an argument asks for the session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak-hours", type=float, help="how long all judges of tests/soak run together"
    )
    parser.addoption(
        "--growths", type=int, default=0, help="how often files grow under the page cache's judge"
    )
    parser.addoption(
        "--all-stops", action="store_true", help="crash tests judge all stops, not every third"
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
    """What `nohup` or `&` has us ignore, the daemons that tests start would ignore too."""
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    fork_server.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First what one process has to run alone: the others have all the rest meanwhile."""
    items.sort(key=lambda item: not asks_for_session(item.nodeid.partition("::")[0]))


@functools.cache
def asks_for_session(file: str) -> bool:
    return file.startswith(SPARK_TESTS) and SPARK_SESSION in (ROOT / file).read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Whole files go to a process, and to one of them all that ask for a Spark session."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class OneSession(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            scope: str = super()._split_scope(nodeid)
            return SPARK_TESTS if asks_for_session(scope) else scope

    return OneSession(config, log)
