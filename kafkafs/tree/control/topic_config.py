"""`.config`: a topic's settings as text, and lines that change them.

`name=value` lines for what is set on the topic, then `# name=value (where it comes from)` for the
rest. Of lines that are written, `name=value` sets, `name=` goes back to the default, and blank
ones and those that begin with `#` are ignored, so that one topic's file can be appended to
another's. The lines of one write are judged together, and take effect together. A duration may be
written as `7d`, `12h`, `30m`, `5s`, a size as `10GiB`, `512MiB`, `64KiB`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafkafs.tree.control.commands import TopicCommands
from kafkafs.tree.control.retention import totals
from kafkafs.tree.files.control_file import CommandEffects
from storage.directory.retain import kept_starts, plan_retention
from storage.errors import InvalidConfig
from storage.manager import LogManager
from storage.plural import counted
from storage.settings.settings import Settings, parse_written


def config_text(settings: Settings, topic: str) -> str:
    """The text of a topic's `.config`."""
    return _text(settings.overrides(topic), settings.explain(topic))


def defaults_text(settings: Settings) -> str:
    """The same text for the daemon's settings and the topics' defaults."""
    return _text(settings.given, settings.explain_defaults())


def _text(given: Mapping[str, str], in_force: Iterable[tuple[str, str, str]]) -> str:
    lines = [f"{name}={value}\n" for name, value in given.items()]
    lines += [
        f"# {name}={value} ({source})\n" for name, value, source in in_force if name not in given
    ]
    return "".join(lines)


class ConfigCommands(TopicCommands):
    """The lines of an open file."""

    structural = True

    def carry_out(self, lines: Sequence[str]) -> CommandEffects:
        self.check()
        said = apply_config(self.mount.manager, self.topic.name, lines)
        if said is not None:
            self.mount.events.of_request(f"{self.topic.name}: {said}")
        return CommandEffects()


def apply_config(manager: LogManager, topic: str, lines: Iterable[str]) -> str | None:
    """Carry out all of the lines or, where one is wrong, none. InvalidConfig names the line.

    Returns a line for the event log where retention deletes more than it would have before.
    """
    changes: dict[str, str | None] = {}
    for number, line in enumerate(lines, start=1):
        name, equals, value = (part.strip() for part in line.partition("="))
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            if not equals or not name:
                raise InvalidConfig(f"{line.strip()!r} is not name=value")
            parse_written(name, value or None)
        except InvalidConfig as error:
            raise InvalidConfig(f"line {number}: {error}") from None
        changes[name] = value or None
    if not changes:
        return None
    doomed_before, _, _ = _doomed(manager, topic)
    manager.change_topic_settings(topic, changes)
    segments, size, offsets = _doomed(manager, topic)
    if segments <= doomed_before:
        return None
    given = ", ".join(f"{name}={value or ''}" for name, value in changes.items())
    return (
        f"{given}: the next retention run will delete {counted(segments, 'segment')} "
        f"({size} bytes, {counted(offsets, 'record')})"
    )


def _doomed(manager: LogManager, topic: str) -> tuple[int, int, int]:
    """How many segments, bytes and offsets retention would delete now."""
    now_ms, kept = manager.clock_ms(), kept_starts(manager)
    logs = manager.topic(topic).partitions.values()
    return totals([plan_retention(log, now_ms, kept) for log in logs])
