"""The Spark session of a job that was started from the command line, and its errors in one line.

A job uses an active session (a notebook's, a test's) and leaves it open. Otherwise it starts one:
on all cores of this machine, on the cluster `master`, or under `spark-submit` with the options
given there. `SPARK_HOME` chooses another Spark than pyspark's. The user's settings take precedence.

Spark logs to a temporary file, unless the user wants to see the log. If the session does not start,
the error has the log's last lines.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeAlias

from kafkafs.spark.pyspark_version import check_pyspark

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    #: For modules that do not import pyspark, not even for its types.
    Session: TypeAlias = SparkSession

_ALWAYS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Halves the time that a task takes before its first row.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Few other programs read INT96.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
_SHOWN_LINES = 3
_ENDED_BY = (signal.SIGINT, signal.SIGTERM)
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?([A-Z]\w*): (.+)$")
_TRACEBACK = "Traceback (most recent call last):"
_CAUSE = "Caused by: "
_PACKAGES = ("pyspark", "pyarrow", "pandas")
_OPTIONAL = re.compile(r"([\w-]+)(\S*) *; *extra *==.*")


class CannotStartError(OSError):
    """Spark cannot start; the message says what to install."""


def check_installed() -> None:
    """Raise CannotStartError if a package, or Java, is missing."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise CannotStartError(
            f"not installed: {', '.join(missing)}. To install: {how_to_install(*missing)}"
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if _SUBMITTED not in os.environ and java is None:
        raise CannotStartError(
            "Spark needs Java 17 or later, and there is none in JAVA_HOME or PATH: install one "
            "(Debian and Ubuntu: apt-get install default-jre-headless)"
        )


def how_to_install(*missing: str) -> str:
    """Return the command that installs these packages for this Python."""
    if importlib.util.find_spec("pip") is None:
        return (
            "pip install '.[spark-local,charts]' in a virtual environment and a clone of kafkafs, "
            "because this installation cannot add packages"
        )
    optional = (_OPTIONAL.fullmatch(line) for line in importlib.metadata.requires("kafkafs") or ())
    packages = [match[1] + match[2] for match in optional if match and match[1] in missing]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


@contextmanager
def job_session(
    name: str, master: str | None, settings: Mapping[str, str], is_verbose: bool
) -> Iterator[SparkSession]:
    """Enter a session for one job, in the main thread; stop it at the end if this started it.

    Meanwhile SIGTERM raises KeyboardInterrupt as Ctrl-C does, and `progress.working` then cancels
    the job's tasks. CannotStartError.
    """
    try:
        check_pyspark()
    except ImportError as error:
        raise CannotStartError(str(error)) from None
    from pyspark.sql import SparkSession

    there = SparkSession.getActiveSession()
    if there is not None:
        yield there
        return
    with tempfile.TemporaryFile("w+b") as log:
        before = {number: signal.getsignal(number) for number in _ENDED_BY}
        session = _start(name, master, settings, None if is_verbose else log)
        for number in _ENDED_BY:
            # Spark's own handler calls Spark. A signal often interrupts such a call, and a second
            # one then breaks the connection.
            signal.signal(number, _interrupt)
        py4j = logging.getLogger("py4j")
        level = py4j.level
        if not is_verbose:
            logging.getLogger().addFilter(_is_worth_logging)
            # Py4J logs connections that break at a normal end. For others it raises an error, too.
            py4j.setLevel(logging.CRITICAL)
        try:
            yield session
        finally:
            session.stop()
            logging.getLogger().removeFilter(_is_worth_logging)
            py4j.setLevel(level)
            for number, handler in before.items():
                signal.signal(number, handler)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def held_signals() -> Iterator[list[int]]:
    """Add the first SIGINT or SIGTERM to the list; the next one raises KeyboardInterrupt.

    An exception inside a call of Spark breaks Py4J's connection, and the calls after it may fail.
    Only the main thread gets signals: in any other thread the list stays empty.
    """
    held: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield held
        return

    def hold(number: int, frame: object) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    before = {number: signal.signal(number, hold) for number in _ENDED_BY}
    try:
        yield held
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_worth_logging(record: logging.LogRecord) -> bool:
    """Return whether this is not Py4J's traceback of an interrupted call."""
    return not str(record.msg).startswith("KeyboardInterrupt while sending command")


def _start(
    name: str, master: str | None, settings: Mapping[str, str], log: IO[bytes] | None
) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    conf = SparkConf(loadDefaults=_SUBMITTED in os.environ)
    _configure(conf, name, master, settings)
    try:
        gateway: Any = None
        if _SUBMITTED not in os.environ:
            launch: Callable[..., Any] = launch_gateway
            gateway = launch(conf, {} if log is None else {"stderr": log})
        context = SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        # Py4J and the JVM raise many kinds of errors here.
        why = _last_lines(log) or str(error).strip().partition("\n")[0]
        if "UnsupportedClassVersionError" in why:
            why = "Java is too old for Spark, which needs 17 or later"
        if not isinstance(error, PySparkException) and _package(error) != "py4j":
            raise
        raise CannotStartError(f"cannot start Spark: {why}") from None
    return SparkSession(context)


def _configure(conf: SparkConf, name: str, master: str | None, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        conf.set(key, value)
    if master is not None:
        conf.setMaster(master)
    elif _SUBMITTED not in os.environ:
        conf.setIfMissing("spark.master", "local[*]")
    conf.setIfMissing("spark.app.name", name)
    is_local = str(conf.get("spark.master")).startswith("local")
    for key, value in {**_ALWAYS, **(_LOCAL if is_local else {})}.items():
        conf.setIfMissing(key, value)
    if is_local:
        # The workers run the driver's Python, whatever python3 in PATH is.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Otherwise they look for kafkafs's own modules in the working directory first.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


def _last_lines(log: IO[bytes] | None) -> str:
    """Return the first line of the JVM's output with an error, else its last lines."""
    if log is None:
        return ""
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").strip().splitlines()]
    errors = (line for line in lines if "Exception" in line or "Error" in line)
    return next(errors, " ".join(lines[-_SHOWN_LINES:]))


# -- errors of Spark -----------------------------------------------------------------------------


def is_sparks(error: BaseException) -> bool:
    """Return whether Spark or Py4J raised this."""
    return _package(error) in ("pyspark", "py4j")


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def reason(error: BaseException) -> str:
    """Return the reason of an error of Spark, in one line.

    Spark wraps the exception of a task in a Python traceback, this in a Java one, and this in an
    exception here. The reason is the first line of the innermost message.
    """
    text = str(error)
    traceback = text.partition(_TRACEBACK)[2].splitlines()
    raised = next((line for line in traceback if line and not line[0].isspace()), "")
    match = _RAISED.match(raised)
    if match is not None:
        return raised if match[1] in ("KeyError", "AssertionError") else match[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = (line for line in lines if line.startswith(_CAUSE))
    return next(causes, [*lines, type(error).__name__][0]).removeprefix(_CAUSE)
