"""Code that the commands of jobs share: options, the session, the report, the exit status.

The status is 0 if all is well, 1 if a job has found faults, 2 for wrong arguments, 3 if a job has
failed, and 130 if a signal has ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kafkafs.cli.common.addresses import Needs, allow_empty_option, parsed_places, resolve
from kafkafs.cli.common.ending import end, fail
from kafkafs.cli.common.output import Output, objects, output_options
from kafkafs.cli.common.words import LOG_WORDS, Topic

if TYPE_CHECKING:
    from kafkafs.spark.jobs.report import JobReport
    from kafkafs.spark.jobs.session import Session

_F = TypeVar("_F", bound=Callable[..., Any])


def name_and_value(context: click.Context, parameter: click.Parameter, texts: Any) -> Any:
    """Return several NAME=VALUE as a dictionary, as a click callback."""
    settings = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE")
        settings[name] = value
    return settings


#: A key of the context: the data directory that was given, while the arguments are parsed.
_GIVEN = "kafkafs.spark.given"


def _selection(context: click.Context, parameter: click.Parameter, texts: Any) -> Any:
    from kafkafs.spark.jobs.selection import Selection

    given = context.meta[_GIVEN]
    if given is None:
        return Selection(parsed_places(context, parameter, texts))
    return Selection(resolve((given, *texts), needs="nothing").places)


def _checked_location(
    context: click.Context, parameter: click.Parameter, text: str, *, needs: Needs, topics: bool
) -> str:
    """Return the path of a data directory, or a URI. Errors: ClickException."""
    from kafkafs.spark.location.location import is_uri, location_of

    try:
        where = location_of(text)
    except ValueError as error:
        raise fail(str(error)) from None
    context.meta[_GIVEN] = None
    if not where.is_local:
        return text
    context.meta[_GIVEN] = where.path if is_uri(text) else text
    address = resolve([context.meta[_GIVEN]], needs=needs)
    if address.places and not topics:
        raise click.UsageError(f"{text} is a path in a mount: give DATA|MOUNT TOPIC")
    return address.data_dir


def check_owner(data_dir: str) -> None:
    """Check that the owner of a data directory answers, before it is asked to change it.

    Errors: ClickException if the owner is the daemon of a mount and does not answer;
    MirroredDirectory.
    """
    from kafkafs.cli.common.mounts import mount_that_writes
    from kafkafs.cli.common.serving import check_served
    from storage.directory.mirror import refuse_mirror

    refuse_mirror(data_dir)
    mount = mount_that_writes(data_dir)
    if mount is not None:
        check_served(mount)


def location_argument(needs: Needs = "partitions", *, topics: bool = True) -> Callable[[_F], _F]:
    """Add the argument DATA|MOUNT, a data directory or a URI, and the option `--allow-empty`.

    The command's parameter is `data_dir`. `topics`: accept a path below a mount, for
    `selection_argument`.
    """
    check = partial(_checked_location, needs=needs, topics=topics)

    def decorate(function: _F) -> _F:
        argument = click.argument("data_dir", metavar="DATA|MOUNT", type=LOG_WORDS, callback=check)
        return argument(allow_empty_option(function))

    return decorate


#: The argument `[TOPIC[:PARTITION]]...`, after DATA|MOUNT. The parameter is `selection`.
selection_argument = click.argument(
    "selection",
    metavar="[TOPIC[:PARTITION]]...",
    type=Topic(partition=True),
    nargs=-1,
    callback=_selection,
)

_OPTIONS = (
    click.option("--dry-run", is_flag=True, help="Only print what the job would do."),
    click.option(
        "--master",
        metavar="URL",
        help="The Spark cluster: spark://HOST:PORT. The default, local[*], is this machine.",
    ),
    click.option(
        "--conf",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=name_and_value,
        help="A setting of Spark, such as spark.driver.memory=4g. May be repeated.",
    ),
    click.option("--verbose", is_flag=True, help="Print the log of Spark."),
)


def job_options(*, times: bool = False, sizes: bool = False) -> Callable[[_F], _F]:
    """Add the options of every job. All but `dry_run` go into `**spark`.

    `times`, `sizes`: whether the report of the job has any.
    """

    def decorate(function: _F) -> _F:
        function = output_options("figures, tables and notes", times=times, sizes=sizes)(function)
        for option in reversed(_OPTIONS):
            function = option(function)
        return function

    return decorate


def run_job(
    name: str,
    spark: dict[str, Any],
    *,
    check: Callable[[], object],
    work: Callable[[Session], JobReport],
    plan: Callable[[], JobReport] | None = None,
) -> None:
    """Start Spark, do the work, print its report or its error, and exit unless all is well.

    `check` finds wrong arguments before Spark starts, as the start takes seconds. `plan`: call this
    function instead, without Spark.
    """
    from kafkafs.spark.jobs import session

    try:
        if plan is not None:
            report = plan()
        else:
            session.check_installed()
            check()
            title, master, settings = f"kafkafs {name}", spark["master"], spark["settings"]
            with session.job_session(title, master, settings, spark["verbose"]) as running:
                report = work(running)
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package not in ("matplotlib", "pyarrow", "pyspark"):
            raise
        install = session.how_to_install(package)
        raise fail(f"{package} is not installed. To install: {install}") from None
    except BrokenPipeError as error:
        # It is that of a socket of Spark: the report is printed later.
        raise fail(f"the connection to Spark broke: {error.strerror}") from None
    except Exception as error:
        if not session.is_sparks(error) or spark["verbose"]:
            raise
        raise fail(session.reason(error)) from None
    print_report(report, spark["out"])
    end(
        found=name == "verify" and bool(report.faults),
        failed=name != "verify" and bool(report.faults),
    )


def print_report(report: JobReport, out: Output) -> None:
    """Print faults, tables, figures and notes for people, or all of a report as a JSON object."""
    for fault in report.faults:
        out.problem(fault, "FAULT")
        out.say(fault)
    for table in report.tables:
        out.say("")
        out.say(table.name)
        out.table(table.columns, table.rows)
    if report.tables:
        out.say("")
    out.facts(report.figures)
    for note in report.notes:
        out.say(note)
    out.json(
        {
            "job": report.job,
            "dry_run": report.is_dry_run,
            "figures": report.figures,
            "tables": {table.name: objects(table.columns, table.rows) for table in report.tables},
            "notes": report.notes,
        }
    )
