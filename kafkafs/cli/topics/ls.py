"""`kafkafs ls`: lists topics, with their sizes, retention and faults."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from kafkafs.cli import examples
from kafkafs.cli.common.addresses import Address, check_address, logs_argument, mount_to_read
from kafkafs.cli.common.ending import one_line_errors
from kafkafs.cli.common.output import Output, objects, output_options
from kafkafs.cli.common.progress import opening_shown
from kafkafs.cli.common.serving import check_served
from kafkafs.quantities import Size, TimeMs, Value
from storage.paths import INTERNAL_TOPICS

_COLUMNS = ("topic", "partitions", "records", "size", "last_append", "cleanup_policy", "retention")
_RATES = ("records_per_s", "bytes_per_s")
_RATE_S = 1.0
_NOT_SET = "-1"
# Of a line of a deleted topic, which names the command for the file it stands in.
_TO_UNDELETE = re.compile(r"(?<=: )undelete (\S+) (\S+)$")
_SETTING = re.compile(r"(?:# )?([a-z.]+)=(\S*)")

_Config = Callable[[str], str]
"""The text of a topic's `.config`."""


@click.command(
    "ls",
    epilog=examples(
        "kafkafs ls data",
        "kafkafs ls mnt --rates",
        "kafkafs ls mnt/orders --json",
    ),
)
@logs_argument(needs="files", partitions=False)
@click.option(
    "--internal", is_flag=True, help="List Kafka's own topics too, such as __consumer_offsets."
)
@click.option(
    "--rates",
    is_flag=True,
    help="For a mount: print the records and bytes appended per second. Measures for one second.",
)
@output_options(
    "topics, with retention_ms and retention_bytes (-1: no limit, null: not known), and notes",
    times=True,
    sizes=True,
)
def command(logs: Address, internal: bool, rates: bool, out: Output) -> None:
    """List topics: partitions, records, size, time of the last append, cleanup policy, retention.

    The directory may be in use. Records are counted by their offsets. Retention is all, 7d, 10.0GiB
    or 7d+10.0GiB.

    Lines that begin with # follow. They name partitions that cannot be opened, lost records, and
    deleted topics that can be undeleted, with their ids. They also name topics that keep everything
    because their settings are not known.
    """
    mount = logs.mount
    if rates and mount is None:
        raise click.UsageError(
            "--rates requires a mount: nothing is appended while DATA is not mounted"
        )
    with one_line_errors():
        check_address(logs)
        if rates and mount is not None:
            check_served(mount)
        else:
            mount = mount_to_read(logs, os.path.join(".kafkafs", "topics"))
        with _looked_at(logs.data_dir, mount) as (text, config_of):
            before = _parsed(text()) if rates else None
            if before is not None:
                time.sleep(_RATE_S)
            now = _parsed(text())
            hidden = frozenset() if internal or logs.places else INTERNAL_TOPICS
            columns, rows = _table(logs, now, before, config_of, hidden, out)
            found = objects(columns, rows) if out.as_json else []
            for each in found:
                each |= _limit_numbers(config_of, str(each["topic"]))
    where = shlex.quote(logs.mount or logs.data_dir)
    notes = [
        _TO_UNDELETE.sub(lambda found: f"kafkafs undelete {where} {found[1]} --id {found[2]}", note)
        for note in now.notes
    ]
    if out.as_json:
        out.json({"topics": found, "notes": notes})
        return
    out.table(columns, rows)
    for note in notes:
        out.say(f"# {note}")


class _Listing:
    """What `.kafkafs/topics` says: facts by topic and name, notes, and when it was read."""

    def __init__(self, facts: Mapping[str, Mapping[str, str]], notes: Sequence[str]) -> None:
        self.facts = facts
        self.notes = notes
        self.read_s = time.monotonic()


def _parsed(text: str) -> _Listing:
    header, *lines = text.splitlines()
    names = header.split()
    facts: dict[str, Mapping[str, str]] = {}
    notes = []
    for line in lines:
        if line.startswith("# "):
            notes.append(line.removeprefix("# "))
        else:
            found = dict(zip(names, line.split(), strict=True))
            facts[found["topic"]] = found
    return _Listing(facts, notes)


@contextmanager
def _looked_at(data_dir: str, mount: str | None) -> Iterator[tuple[Callable[[], str], _Config]]:
    """What makes the text of `.kafkafs/topics`, and of a topic's `.config`."""
    if mount is not None:

        def read(*names: str) -> str:
            path = os.path.join(mount, *names)
            with open(path, encoding="utf-8", errors="surrogateescape") as file:
                return file.read()

        yield lambda: read(".kafkafs", "topics"), lambda topic: read(topic, ".config")
        return
    from kafkafs.tree.control.topic_config import config_text
    from kafkafs.tree.directories.about import topics_text
    from storage.directory.manager import LogManager

    with (
        opening_shown() as progress,
        LogManager.open(data_dir, read_only=True, keeps_faulty=True, progress=progress) as manager,
    ):
        yield lambda: topics_text(manager), lambda topic: config_text(manager.settings, topic)


def _table(
    logs: Address,
    now: _Listing,
    before: _Listing | None,
    config_of: _Config,
    hidden: Collection[str],
    out: Output,
) -> tuple[Sequence[str], list[list[Value]]]:
    rows: list[list[Value]] = []
    for topic, facts in now.facts.items():
        if topic in hidden or (logs.places and (topic, None) not in logs.places):
            continue
        last = int(facts["last_append"])
        row: list[Value] = [topic, int(facts["partitions"]), int(facts["offsets"])]
        row += [Size(int(facts["bytes"])), TimeMs(last) if last >= 0 else None]
        row += [facts["cleanup.policy"], _retention(config_of, topic, out)]
        if before is not None:
            row += _rates(now, before, topic)
        rows.append(row)
    return (*_COLUMNS, *(() if before is None else _RATES)), rows


def _rates(now: _Listing, before: _Listing, topic: str) -> list[Value]:
    """Records and bytes that were appended a second; None where more was deleted meanwhile."""
    known = before.facts.get(topic)
    if known is None:
        return [None, None]
    elapsed_s = now.read_s - before.read_s
    grown = [int(now.facts[topic][name]) - int(known[name]) for name in ("offsets", "bytes")]
    return [None if each < 0 else round(each / elapsed_s) for each in grown]


def _retention(config_of: _Config, topic: str, out: Output) -> str | None:
    """What retention keeps: a time, a size, both or all; None where that cannot be read."""
    settings = _limits(config_of, topic)
    if settings is None:
        return None
    kept = []
    if settings["retention.ms"] != _NOT_SET:
        kept.append(_duration(settings["retention.ms"]))
    if settings["retention.bytes"] != _NOT_SET:
        size = settings["retention.bytes"]
        kept.append(out.text(Size(size)) if size.isdecimal() else size)
    return "+".join(dict.fromkeys(kept)) or "all"


def _limits(config_of: _Config, topic: str) -> dict[str, str] | None:
    """retention.ms and retention.bytes as they are written; None where they cannot be read."""
    try:
        text = config_of(topic)
    except OSError:
        return None
    matches = filter(None, map(_SETTING.match, text.splitlines()))
    found: dict[str, str] = {match[1]: match[2] for match in matches}
    return {name: found.get(name, _NOT_SET) for name in ("retention.ms", "retention.bytes")}


def _limit_numbers(config_of: _Config, topic: str) -> dict[str, int | None]:
    """For programs: -1 is no limit, None is not known."""
    limits = _limits(config_of, topic) or {}
    numbers = {}
    for name in ("retention.ms", "retention.bytes"):
        text = limits.get(name, "")
        is_number = text == _NOT_SET or text.isdecimal()
        numbers[name.replace(".", "_")] = int(text) if is_number else None
    return numbers


def _duration(text: str) -> str:
    """A duration as settings may be written: 7d, 12h, or with the unit ms."""
    if not text.isdecimal():
        return text
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if int(text) and int(text) % unit_ms == 0:
            return f"{int(text) // unit_ms}{unit}"
    return f"{text}ms"
