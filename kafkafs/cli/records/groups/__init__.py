"""`kafkafs groups`: consumer groups and their committed offsets."""

from __future__ import annotations

import click

from kafkafs.cli import LazyGroup, Section, examples

_COMMANDS = {
    "ls": "List groups with their lag, or the committed offsets of some groups.",
    "reset": "Set the committed offsets of a group.",
}


@click.group(
    "groups",
    cls=LazyGroup,
    sections=[Section("Commands", __name__, _COMMANDS)],
    default="ls",
    context_settings={"ignore_unknown_options": True},
    epilog=examples("kafkafs groups data", "kafkafs groups mnt billing"),
)
def command() -> None:
    """List consumer groups, and set their committed offsets. `kafkafs groups DATA` is short for
    `kafkafs groups ls DATA`.
    """
