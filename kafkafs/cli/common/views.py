"""Views: the option `--view`, and views in paths of a mount."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from click.core import ParameterSource

from kafkafs.cli.common.mounts import mount_around

VIEWS = ("values", "kv", "jsonl", "batches")


#: The option `--view`; the parameter is `view`.
view_option = click.option(
    "--view",
    type=click.Choice(VIEWS),
    default=VIEWS[0],
    help=(
        "Format of the records. values: only their values. kv, jsonl, batches: as in the "
        "directories .kv, .jsonl and .batches of a mount."
    ),
)


def taken_from_paths(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the words without views in their paths, and the view.

    MOUNT/TOPIC/.VIEW/PARTITION becomes MOUNT/TOPIC/PARTITION. `.append` and `.VIEW/append` become
    the topic. The view is that of the paths, else that of `--view`.

    Errors: UsageError.
    """
    plain: list[str] = []
    found: dict[str, None] = {}
    around, first = mount_around(words[0])
    # If the first word is a directory or a mount, the other words name topics.
    are_paths = around is not None and first != around.path
    for word in words:
        mounted, path = mount_around(word) if are_paths else (None, word)
        names = [] if mounted is None else os.path.relpath(path, mounted.path).split(os.sep)
        view = names[1].removeprefix(".") if len(names) > 1 and names[1][:1] == "." else ""
        if mounted is None or view not in (*VIEWS, "append"):
            plain.append(word)
            continue
        is_append = view == "append" or names[2:] == ["append"]
        plain.append(os.path.join(mounted.path, names[0], *([] if is_append else names[2:])))
        found[VIEWS[0] if view == "append" else view] = None
    context = click.get_current_context()
    option: str = context.params["view"]
    if context.get_parameter_source("view") is not ParameterSource.DEFAULT:
        found[option] = None
    if len(found) > 1:
        raise click.UsageError(f"{' and '.join(found)} are different views; give only one")
    return plain, next(iter(found), option)


def path_in_topic(view: str, name: str) -> tuple[str, ...]:
    """Return the path of a view's file in its topic."""
    return (name,) if view == "values" else (f".{view}", name)
