"""`kafkafs config DATA_DIR [TOPIC]`: shows a topic's settings, and changes them without a mount."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click

from kafkafs.cli import fail


@click.command("config")
@click.argument("data_dir", metavar="DATA_DIR")
@click.argument("topic", metavar="[TOPIC", required=False)
@click.argument("changes", metavar="[NAME=VALUE|NAME=]...]", nargs=-1)
def command(data_dir: str, topic: str | None, changes: Sequence[str]) -> None:
    """Show the settings of TOPIC, or change them: NAME=VALUE sets, NAME= goes back to the default.

    Shown are NAME=VALUE for what is set on the topic, then # NAME=VALUE (where it comes from) for
    all else that is in force. Without TOPIC: what the data directory's kafkafs.properties says,
    and the defaults. Changes are judged as Kafka does, all together: all are made or none.

    DATA_DIR may be mounted where settings are only shown; write to TOPIC/.config to change them
    there.
    """
    from kafkafs.tree.topic_config import config_text, defaults_text
    from storage.errors import StorageError
    from storage.files import Files
    from storage.manager import LogManager, check_topic
    from storage.settings import Settings

    path = os.path.realpath(data_dir)
    values = dict(_parsed(change) for change in changes)
    try:
        if topic is not None and values:
            with LogManager.settings_of(path, topic) as settings:
                settings.change_topic(topic, values)
            return
        files = Files()
        if topic is not None:
            check_topic(files, path, topic)
        else:
            files.scan(path)
        settings = Settings.load(files, path)
    except (OSError, StorageError) as error:
        raise fail(str(error)) from None
    text = defaults_text(settings) if topic is None else config_text(settings, topic)
    click.echo(text, nl=False)


def _parsed(change: str) -> tuple[str, str | None]:
    """(name, value or None for the default); click's BadParameter."""
    name, equals, value = (part.strip() for part in change.partition("="))
    if not equals or not name:
        raise click.BadParameter(f"{change!r} is not NAME=VALUE")
    return name, value or None
