"""`kafkafs top MOUNT`: shows the activity of a mount, live in the terminal or once for a script."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click

from kafkafs.cli import examples
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.progress import handling
from kafkafs.cli.common.words import DIRECTORY, Duration

if TYPE_CHECKING:
    from kafkafs.cli.mounting.top.rates import Rates
    from kafkafs.cli.mounting.top.table import Table
    from kafkafs.cli.mounting.top.watcher import Watcher

#: Seconds that a daemon may take for its first answer.
PATIENCE_S = 10.0


@click.command(
    "top",
    epilog=examples(
        "kafkafs top mnt",
        "kafkafs top --partitions mnt  # each partition",
        "kafkafs top --once --json mnt | jq '.result.rows[] | select(.bytes_in > 0)'",
    ),
)
@click.argument("mount", metavar="MOUNT", type=DIRECTORY)
@click.option(
    "--once", is_flag=True, help="Print the figures once. The rates are means over DURATION."
)
@click.option("--partitions", is_flag=True, help="Show each partition instead of each topic.")
@click.option(
    "--internal", is_flag=True, help="Also show Kafka's own topics, such as __consumer_offsets."
)
@click.option(
    "-d",
    "--delay",
    "delay_ms",
    default="2s",
    type=Duration("s", least="100ms"),
    help="Time between two readings. A number without a unit is in seconds.",
)
@output_options(
    "facts of the mount, and `flush`, `fsync`, `faults`, `jobs`, `events`, `groups` and `rows`",
    sizes=True,
)
def command(
    mount: str, once: bool, partitions: bool, internal: bool, delay_ms: int, out: Output
) -> None:
    """Show the activity of each topic of MOUNT, live.

    Each topic has a line with the records and bytes per second, the size, and the number of
    records, segments and open files. The line also shows the lag: how many records the slowest
    consumer group has not committed yet. In the mirror of a cluster, the line shows how many
    records the mirror has not copied yet. The lines above the topics are about the whole mount:
    rates, times of flushes and fsyncs, faults, and jobs that wait or run. The lines below the
    topics show the newest events.

    The key q ends the command, and h lists the keys. Instead of MOUNT, you can name a data
    directory that is mounted read-write.

    top reads the figures of the mount every DURATION (see --delay). A rate is the mean since the
    last reading. With many thousand partitions, top reads less often, so that it takes at most a
    twentieth of the daemon's time.

    Exit status 3: MOUNT is not mounted, or the mount does not answer when top starts.
    """
    from kafkafs.cli.mounting.top.table import Table
    from kafkafs.cli.mounting.top.watcher import Watcher, resolved
    from kafkafs.fuse.mount_point import MountError

    table = Table(by_partition=partitions, shows_internal=internal)
    once = once or out.as_json
    delay_s = delay_ms / 1000
    if out.in_bytes and not once:
        raise click.UsageError(
            "--bytes requires --once: the live table has no room for exact sizes"
        )
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "standard input or output is not a terminal. To print the figures once: --once"
        )
    try:
        path = resolved(mount)
    except MountError as error:
        raise fail(str(error)) from None
    with closing(Watcher(path, delay_s)) as watcher, _ended_by_signals():
        if not watcher.wait(PATIENCE_S):
            raise fail(watcher.trouble or f"{path}: no answer for {PATIENCE_S:.0f} s")
        if once:
            # Rates need a second reading.
            if not watcher.wait(delay_s + PATIENCE_S):
                raise fail(watcher.trouble or f"{path}: no answer for {PATIENCE_S:.0f} s")
            assert watcher.rates is not None
            _print(path, watcher.rates, out, table)
        else:
            _show(watcher, table)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Exit in order at a signal, so that the terminal is restored."""

    def end(number: int, frame: object) -> None:
        sys.exit(128 + number)

    with handling((signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT), end):
        try:
            yield
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)


def _show(watcher: Watcher, table: Table) -> None:
    import locale

    try:
        import curses
    except ImportError as error:
        raise fail(
            f"this Python has no curses ({error}). To print the figures once: --once"
        ) from None
    from kafkafs.cli.mounting.top.screen import show

    locale.setlocale(locale.LC_CTYPE, "")
    # curses would use an exported size, even if the terminal has another size now.
    for name in ("LINES", "COLUMNS"):
        os.environ.pop(name, None)
    # Milliseconds to wait after Esc for the rest of a key's sequence. The default is a second.
    os.environ.setdefault("ESCDELAY", "25")
    try:
        show(watcher, table)
    except curses.error as error:
        raise fail(
            f"this terminal is not supported ({error}). To print the figures once: --once"
        ) from None


def _print(path: str, rates: Rates, out: Output, table: Table) -> None:
    """Print one reading, as text or as JSON."""
    from kafkafs.cli.common.output import objects
    from kafkafs.cli.mounting.top import head
    from kafkafs.cli.mounting.top.table import COLUMNS, NAME_KEY
    from kafkafs.quantities import Size

    table.take(rates)
    out.say(path)
    for line in head.lines(rates, out.size):
        out.say(line)
    for words, count in rates.faults():
        out.say(f"{words}: {count}")
    for job in rates.jobs():
        out.say(head.job_line(job, out.size))
    sizes = {"bytes_in", "bytes_out", "bytes"}
    columns = [column.key for column in (COLUMNS if out.as_json else table.columns)]

    def cell(row: Any, key: str) -> Any:
        value = getattr(row, key)
        if value is None:
            return None
        return Size(value) if key in sizes else round(value, 3)

    rows = [[*(cell(row, key) for key in columns), row.name] for row in table.rows]
    if out.as_json:
        out.json(_facts(path, rates, objects([*columns, NAME_KEY], rows)))
    else:
        out.table([*columns, NAME_KEY], rows)


def _facts(path: str, rates: Rates, rows: Sequence[object]) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    now = rates.now
    latencies = {name: rates.latency(name) for name in ("flush", "fsync")}
    # JSON has no infinity.
    latencies = {
        name: each._replace(most_s=None) if each.most_s == math.inf else each
        for name, each in latencies.items()
    }
    return {
        "mount": path,
        "read_only": rates.is_read_only,
        "seconds": rates.seconds,
        "topics": int(now.value("topics")),
        "partitions": int(now.value("partitions")),
        "open_files": int(now.value("open_handles")),
        "records_in": rates.whole.records_in,
        "bytes_in": rates.whole.bytes_in,
        "bytes_out": rates.whole.bytes_out,
        "requests": rates.rate("requests_total"),
        "errors": rates.rate("request_errors_total"),
        "refused_appends": rates.rate("refused_appends_total"),
        "cpu": rates.rate("process_cpu_seconds_total"),
        "memory_bytes": int(now.value("process_resident_memory_bytes")),
        **{name: latency._asdict() for name, latency in latencies.items()},
        "faults": dict(rates.faults()),
        "jobs": [job._asdict() for job in rates.jobs()],
        "groups": [group._asdict() for group in rates.groups()],
        "rows": rows,
        "events": now.events,
    }
