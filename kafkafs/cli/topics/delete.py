"""`kafkafs delete`: deletes topics, which can be undeleted for a while."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import (
    Address,
    check_address,
    logs_argument,
    mount_to_change,
    settings_at,
    tiered_topics,
)
from kafkafs.cli.common.changes import opened_to_change
from kafkafs.cli.common.ending import fail
from kafkafs.cli.common.output import Output, output_options
from kafkafs.cli.common.refusals import Request
from kafkafs.quantities import TimeMs, Value
from storage.plural import counted
from storage.units import duration_in_words

if TYPE_CHECKING:
    from storage.settings.settings import Settings


@click.command(
    "delete",
    epilog=examples(
        "kafkafs delete --dry-run data orders",
        "kafkafs delete data orders",
        "kafkafs delete mnt/orders mnt/users",
    ),
)
@logs_argument("DATA|MOUNT TOPIC...", partitions=False)
@click.option(
    "--dry-run",
    is_flag=True,
    help=(
        "Only print what would be deleted, and for how long undelete could restore it. The "
        "directory may be in use."
    ),
)
@output_options(
    "`dry_run` and `topics`. undelete_until is null if a topic cannot be restored, and with "
    "--dry-run",
    times=True,
)
def command(logs: Address, dry_run: bool, out: Output) -> None:
    """Delete topics with all their records. For a while, `kafkafs undelete` can restore them.

    The files of a deleted topic stay for the time in its setting file.delete.delay.ms, one minute
    by default. The command prints the time until which the files stay. Then the daemon removes
    them. Without a daemon, the next mount, create, delete, undelete or append in the directory
    removes them. With the setting delete.topic.enable=false, the command fails.

    If DATA is mounted, the daemon deletes the topics. The command fails while a process other than
    the mount's daemon writes DATA.
    """
    if not logs.places:
        raise click.UsageError("give topics: DATA TOPIC ..., or MOUNT/TOPIC ...")
    topics = list(dict.fromkeys(topic for topic, _ in logs.places))
    partitions = check_address(logs)
    if dry_run:
        _say_what_would_go(logs, topics, partitions, out)
        return
    deleted: list[dict[str, Value]] = []
    out.json({"dry_run": False, "topics": deleted})

    def tell(topic: str, now_ms: int, delay_ms: int) -> None:
        until = TimeMs(now_ms + delay_ms) if delay_ms else None
        deleted.append({"topic": topic, "undelete_ms": delay_ms, "undelete_until": until})
        if until is None:
            out.say(f"deleted {topic}; it cannot be restored")
        else:
            out.say(
                f"deleted {topic}. To restore it until {out.text(until)}: kafkafs undelete "
                f"{shlex.quote(logs.mount or logs.data_dir)} {topic}"
            )

    mount = mount_to_change(logs)
    if mount is None:
        with opened_to_change(logs.data_dir) as manager:
            _check_enabled(manager.settings, logs)
            for topic in topics:
                tell(topic, manager.clock_ms(), manager.delete_topic(topic))
    else:
        _have_deleted(mount, logs, topics, partitions, tell)


def _say_what_would_go(
    logs: Address, topics: Sequence[str], partitions: Mapping[str, Sequence[int]], out: Output
) -> None:
    settings = settings_at(logs.data_dir)
    _check_enabled(settings, logs)
    tiered = tiered_topics(logs)
    found: list[dict[str, Value]] = []
    for topic in topics:
        tiered.check_may_write(topic)
        count, delay_ms = len(partitions[topic]), _delay_ms(settings, logs, topic, partitions)
        found.append({"topic": topic, "undelete_ms": delay_ms, "undelete_until": None})
        after = "it could not be restored"
        if delay_ms:
            after = f"undelete could restore it for {duration_in_words(delay_ms)}"
        out.say(f"would delete {topic}, {counted(count, 'partition')}; {after}")
    out.json({"dry_run": True, "topics": found})


def _delay_ms(
    settings: Settings, logs: Address, topic: str, partitions: Mapping[str, Sequence[int]]
) -> int:
    """Return for how long a topic could be restored after its deletion; 0: not at all."""
    from storage.directory.deletion import can_be_undeleted
    from storage.files import Files

    if not can_be_undeleted(Files(), logs.data_dir, topic, partitions[topic]):
        return 0
    return settings.log_config(topic).file_delete_delay_ms


def _check_enabled(settings: Settings, logs: Address) -> None:
    if not settings.broker.delete_topic_enable:
        raise fail(f"{logs.data_dir}: deleting topics is disabled (delete.topic.enable is false)")


def _have_deleted(
    mount: str,
    logs: Address,
    topics: Sequence[str],
    partitions: Mapping[str, Sequence[int]],
    tell: Callable[[str, int, int], None],
) -> None:
    settings = settings_at(logs.data_dir)
    for topic in topics:
        delay_ms = _delay_ms(settings, logs, topic, partitions)
        path = os.path.join(mount, topic)
        with Request(mount, topic).failing_as(path):
            os.rmdir(path)
        tell(topic, time.time_ns() // 1_000_000, delay_ms)
