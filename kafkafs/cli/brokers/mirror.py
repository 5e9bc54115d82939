"""`kafkafs mirror`: copies the topics of a cluster into a data directory, and follows them."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import checked_directory
from kafkafs.cli.common.clusters import Client, cluster_address, cluster_options, is_cluster
from kafkafs.cli.common.ending import cancelled, end, say, warn
from kafkafs.cli.common.progress import handling, opening_shown
from kafkafs.cli.common.words import DIRECTORY, FILE
from kafkafs.progress import on_stderr
from kafkafs.quantities import human_size
from kafkafs.service_manager import PROGRESS_S, opening_told, tell
from storage.paths import CONSUMER_OFFSETS
from storage.plural import counted

if TYPE_CHECKING:
    from kafka_client.addresses import HostPort
    from kafkafs.mirror.facts import Facts
    from kafkafs.mount_table import Mounted

_METRICS_S = 10.0
_PATTERN = re.compile(r"[A-Za-z0-9._*?\[\]!-]{1,249}")
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _brokers(context: click.Context, parameter: click.Parameter, text: str) -> Sequence[HostPort]:
    """Parse kafka://HOST:PORT[,HOST:PORT]. Errors: BadParameter, UsageError."""
    if not is_cluster(text):
        raise click.BadParameter(f"{text!r} is not the address of a cluster: kafka://HOST:PORT")
    address = cluster_address([text])
    if address.places:
        raise click.UsageError("give topics after DATA: kafka://HOST:PORT DATA TOPIC...")
    return address.brokers


def _patterns(
    context: click.Context, parameter: click.Parameter, texts: Sequence[str]
) -> tuple[str, ...]:
    for text in texts:
        if _PATTERN.fullmatch(text) is None:
            raise click.BadParameter(f"{text!r} is not the name of a topic or a pattern of names")
    return tuple(texts) or ("*",)


def _start(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Return the offset or time that ListOffsets takes. Errors: BadParameter."""
    from kafka_client.requests import EARLIEST, LATEST
    from kafkafs.tree.files.start_names import Time, parse_point

    if text in ("earliest", "latest"):
        return EARLIEST if text == "earliest" else LATEST
    point = parse_point(text, time.time_ns() // 1_000_000)
    if not isinstance(point, Time):
        raise click.BadParameter(f"{text!r} is not earliest, latest or a time, such as -7d")
    return point.timestamp_ms


@click.command(
    "mirror",
    epilog=examples(
        "kafkafs mirror kafka://broker:9092 backup",
        "kafkafs mirror --once kafka://broker:9092 backup 'orders-*' payments",
        "kafkafs mirror --from -7d --mount mnt -F client.properties kafka://broker:9092 backup",
    ),
)
@click.argument("brokers", metavar="kafka://HOST:PORT[,HOST:PORT]", callback=_brokers)
@click.argument("data", metavar="DATA", type=DIRECTORY)
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, callback=_patterns)
@click.option("--once", is_flag=True, help="Copy the records that the cluster has now, and exit.")
@click.option(
    "--from",
    "start",
    default="earliest",
    metavar="START",
    callback=_start,
    help=(
        "Where the copy of a partition begins: earliest, latest, or a time as in the file names of "
        "a mount (-7d, 2026-11-22). Only for the partitions that exist at the first run. mirror "
        "copies later partitions from their beginning."
    ),
)
@click.option(
    "--follow-deletes",
    is_flag=True,
    help="Also delete the records that the cluster deletes. By default, mirror keeps them.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Skip batches that are damaged in the cluster, and name the gaps.",
)
@click.option(
    "--rack",
    metavar="ID",
    default="",
    show_default=False,
    help=(
        "The rack of this machine. mirror then reads from a replica in this rack, if the brokers "
        "allow it (replica.selector.class)."
    ),
)
@click.option(
    "--mount",
    metavar="MOUNT",
    type=DIRECTORY,
    help="Mount DATA read-only at MOUNT, and unmount it at the end.",
)
@click.option(
    "--metrics",
    metavar="FILE",
    type=FILE,
    help="Write metrics to FILE every 10 seconds, for a textfile collector of Prometheus.",
)
@cluster_options
def command(
    brokers: Sequence[HostPort],
    data: str,
    topics: tuple[str, ...],
    once: bool,
    start: int,
    follow_deletes: bool,
    accept_loss: bool,
    rack: str,
    mount: str | None,
    metrics: str | None,
    client: Client,
) -> None:
    """Copy topics of a cluster into the data directory DATA, and copy new records as they arrive.

    TOPIC is a name or a pattern: 'orders-*'. Without TOPIC, mirror copies all topics except Kafka's
    own. The copies have the same bytes as the batches in the cluster, and the same offsets and
    topic ids. DATA must be a mirror of the same cluster, or empty. If DATA is missing, mirror
    creates it.

    While DATA is a mirror, no other command changes its records. To end the mirror: kafkafs detach
    DATA. mirror needs no permission to write in the cluster, and joins no consumer group.

    mirror also copies the committed offsets of consumer groups. For this, it copies the topic
    __consumer_offsets, and compacts this copy. If it may not read this topic, it asks for the
    offsets of all groups every 30 s.

    mirror continues after an outage of the cluster, and a later run continues where the last one
    ended. If records are missing, because the cluster deleted them before mirror could copy them,
    mirror prints the gap, and stores it in DATA.

    Each minute, and at the end with --once, mirror writes a restore point, which `kafkafs points`
    lists. It keeps all points of a day, one an hour for 30 days, and later one a day.

    SIGINT, SIGTERM or SIGHUP end mirror in order. With --once, exit status 1 means that this run
    has found a gap, and 3 that a topic or partition could not be copied, or that the restore point
    is not valid.
    """
    from kafkafs.mirror.mirror import Mirror, Options

    source = f"kafka://{','.join(map(str, brokers))}"
    options = Options(source, topics, start, follow_deletes, accept_loss, {"rack_id": rack})
    path = _data_dir(data, create=mount is not None)
    stage = _Stage()
    with ExitStack() as stack:
        stack.enter_context(_signals(stage))
        if mount is not None:
            stack.enter_context(_mounted(path, mount, stage))
        cluster = stack.enter_context(client.connected(brokers))
        mirror = Mirror(cluster, path, options, warn)
        facts = mirror.facts
        shown = stack.enter_context(closing(_Shown(facts, metrics, stage, is_endless=not once)))
        opening = stack.enter_context(opening_shown()) or opening_told()
        mirror.run(once, shown.stop, opening)
    copied = counted(facts.copied_offsets, "record")
    say(f"copied {copied}, {human_size(facts.copied_bytes)}")
    if once:
        if stage.signals:
            cancelled(stage.signals[0])
        if facts.point is not None:
            name, point = facts.point
            say(f"restore point {name}: {point.state_text}")
        end(found=facts.gaps > 0, failed=bool(facts.waiting or facts.faults))


def _data_dir(text: str, *, create: bool) -> str:
    """Return the path of DATA. `create`: create a missing directory; else the engine does.

    Errors: ClickException, OSError.
    """
    from kafkafs.data_directory import find_mistake

    mistake = find_mistake(text)
    if text and mistake is not None and mistake.is_missing:
        if not create:
            return os.path.realpath(text)
        os.mkdir(text)
    return checked_directory(text, needs="nothing")


@dataclass
class _Stage:
    """How far a run is. `is_open`: whether the directory is open. `signals`: the signals that have
    come to end the run.
    """

    is_open: bool = False
    signals: list[int] = field(default_factory=list)


@contextmanager
def _signals(stage: _Stage) -> Iterator[None]:
    """Collect the signals that end the command. A signal that the caller ignores stays ignored.

    The first signal raises KeyboardInterrupt until the directory is open: nothing asks for the
    signals yet, and a connection or a recovery may take long.
    """

    def hear(number: int, frame: object) -> None:
        stage.signals.append(number)
        if len(stage.signals) == 1 and not stage.is_open:
            raise KeyboardInterrupt

    heard = [each for each in _ENDS if signal.getsignal(each) != signal.SIG_IGN]
    with handling(heard, hear):
        try:
            yield
        except KeyboardInterrupt:
            cancelled(stage.signals[0])


@contextmanager
def _mounted(data_dir: str, mount_point: str, stage: _Stage) -> Iterator[None]:
    """Mount before the logs are open, since the daemon closes the files that this process has open.

    A mount that a killed run has left is used. It is unmounted only if the directory could be
    opened: until then it may be the mount of a run that has not ended.
    """
    from kafkafs import mount_table
    from kafkafs.cli.common.serving import why_silent
    from kafkafs.cli.mounting.mount import mount, parsed_options
    from kafkafs.fuse.mount_point import MountError, unmount_and_wait

    def found() -> Mounted | None:
        mounted = mount_table.find(mount_table.resolve(mount_point))
        return mounted if mounted is not None and mounted.source == data_dir else None

    before = found()
    is_used = before is not None and why_silent(before) is None
    if not is_used:
        mount(data_dir, mount_point, parsed_options(("ro",)), foreground=False)
    try:
        yield
    finally:
        if found() is not None and (stage.is_open or not is_used):
            try:
                unmount_and_wait(mount_point, warn)
            except MountError as error:
                warn(error)


class _Shown:
    """Shows how far a mirror is: to people, to the service manager and in the file of metrics."""

    def __init__(
        self, facts: Facts, metrics: str | None, stage: _Stage, *, is_endless: bool
    ) -> None:
        self._facts = facts
        self._metrics = metrics
        self._stage = stage
        self._is_endless = is_endless
        self._progress = on_stderr()
        self._is_up_to_date = False
        self._show_at = self._write_at = 0.0

    def stop(self) -> bool:
        """Show the present state. Return whether a signal has come: the `stop` of `Mirror.run`."""
        now = time.monotonic()
        if self._metrics is not None and now >= self._write_at:
            self._write_at = now + _METRICS_S
            self._write(self._metrics)
        if not self._stage.is_open:
            self._stage.is_open = True
            tell("READY=1")
        if now >= self._show_at:
            self._show_at = now + PROGRESS_S
            self._show()
        if self._stage.signals:
            tell("STOPPING=1", "STATUS=flushing")
        return bool(self._stage.signals)

    def close(self) -> None:
        self._progress.close()
        if self._metrics is not None and self._stage.is_open:
            self._write(self._metrics)

    def _show(self) -> None:
        tell("WATCHDOG=1", f"STATUS={self._state()}")
        if self._is_up_to_date:
            return
        done = self._facts.copied_offsets
        self._progress.show("copying", done, done + self._facts.left, "records")
        if self._is_endless and self._facts.is_complete:
            self._is_up_to_date = True
            self._progress.close()
            is_all = not (self._facts.waiting or self._facts.faults)
            warn(f"{'up to date' if is_all else 'no more can be copied now'}: {self._state()}")

    def _write(self, path: str) -> None:
        """Write the metrics. Errors: OSError at first. Later, the mirror works without the file."""
        try:
            _write_metrics(path, self._facts)
        except OSError as error:
            if not self._stage.is_open:
                raise
            warn(f"{path}: {error.strerror}")

    def _state(self) -> str:
        topics = [topic for topic, _ in self._facts.status.partitions]
        partitions = counted(len(topics) - topics.count(CONSUMER_OFFSETS), "partition")
        behind = f"{counted(self._facts.left, 'record')} behind"
        waiting = len(self._facts.waiting)
        state = f"{partitions}, {behind}" + (f", {waiting} waiting" if waiting else "")
        return "; ".join([state, *list(self._facts.faults.values())[:1]])


def _write_metrics(path: str, facts: Facts) -> None:
    """Replace the file of metrics. Errors: OSError."""
    from kafkafs.tree.directories.metrics_text import exposition, of_mirror

    text = exposition(
        [
            *of_mirror(facts.status),
            ("mirror_copied_records", facts.copied_offsets),
            ("mirror_copied_bytes", facts.copied_bytes),
            ("mirror_found_gaps", facts.gaps),
        ]
    )
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
